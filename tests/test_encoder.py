"""The matrix encoder and its pretraining: shapes, controls, what it may and may not see, resuming, probes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sparserl import splits
from sparserl.errors import SparseRLError, StoreError
from sparserl.families import make
from sparserl.families.building import generator
from sparserl.matrix import Pattern
from sparserl.policy.checkpoint import load_policy, save_policy
from sparserl.policy.encoder import EXPLICIT, OVERALL, EncoderInput, EncoderSize, FromSample, MatrixEncoder, collate
from sparserl.policy.indices import SinusoidalIndices
from sparserl.policy.model import make_policy
from sparserl.policy.sample import FEATURE_NAMES, FIELDS, PARTS, SINGLES, Sample, sample_pattern
from sparserl.records import Problem, Verdict
from sparserl.train.cases import TrainingCase
from sparserl.train.collected import CollectedCase, Collection, Measurement
from sparserl.train.commands_encode import probe as probe_command
from sparserl.train.encode import (
    EncodeConfig,
    feature_targets,
    load_encoder,
    probe_encoder,
    probe_policy,
    save_encoder,
    train_encoder,
)
from sparserl.train.encode_data import (
    TWISTS,
    Draws,
    ShardPlan,
    _repeated,
    _spiked,
    build_examples,
    draw_pattern,
    draw_spec,
    withheld_in,
)
from sparserl.train.encode_times import best_times, read_problem, timed_of
from sparserl.train.probes import TARGETS, probe
from sparserl.train.samples import samples_of

SMALL = EncoderSize(inner=32, queries=4, heads=2)
OVERALL_TOO = replace(SMALL, overall=True)
CONTROLS = {
    "sinusoidal": SMALL,
    "learnt": replace(SMALL, embedding="learnt"),
    "blind": replace(SMALL, source="blind"),
    "features": replace(SMALL, source="features"),
}


def patterns() -> list[Pattern]:
    nothing = Pattern(3, 3, np.zeros(4, dtype=np.int32), np.zeros(0, dtype=np.int32))
    return [make("stencil2d", 0, nx=20, ny=20), make("uniform", 1, rows=400, columns=400, per_row=4.6), nothing]


def batch(problem: Problem | None = None) -> EncoderInput:
    samples = [sample_pattern(each, with_features=True) for each in patterns()]
    return collate(samples, [problem or Problem()] * len(samples))


def encoder(size: EncoderSize = SMALL, width: int = 48) -> MatrixEncoder:
    torch.manual_seed(0)
    return MatrixEncoder(width, size).eval()


@pytest.mark.parametrize("size", CONTROLS.values(), ids=CONTROLS)
def test_every_control_has_the_same_finite_output_shape_even_for_an_empty_matrix(size: EncoderSize) -> None:
    made = encoder(size)
    out = made(batch())
    assert out.shape == (3, made.prefix_length, 48) == (3, EXPLICIT + 4, 48)
    assert out.isfinite().all()


def test_nano_sized_encoders_have_between_1_and_2_and_a_half_million_parameters() -> None:
    for size in (EncoderSize(), EncoderSize(embedding="learnt"), EncoderSize(source="features")):
        assert 1.5e6 <= sum(p.numel() for p in MatrixEncoder(384, size).parameters()) <= 2.5e6


def test_a_blind_encoder_tells_only_sizes_apart_and_a_seeing_one_tells_structure() -> None:
    given = batch()
    same_sizes = given._replace(sizes=given.sizes[:1].expand(3, -1))
    blind, seeing = encoder(CONTROLS["blind"])(same_sizes), encoder()(same_sizes)
    assert torch.allclose(blind[0], blind[1], atol=1e-6)
    assert (seeing[0] - seeing[1]).abs().max() > 1e-3


def test_unused_places_of_a_sample_change_nothing() -> None:
    given = batch()
    entries = given.entries.clone()
    unused = entries[..., 4] < 0
    assert unused.any()
    entries[..., 0][unused] = 77
    entries[..., 5][unused] = 5
    made = encoder()
    assert torch.allclose(made(given), made(given._replace(entries=entries)), atol=1e-6)


def test_the_problem_and_the_device_are_seen() -> None:
    made, sample = encoder(), sample_pattern(patterns()[0])
    problems = [
        Problem(),
        Problem(dtype="float64"),
        Problem("spmm", columns=64),
        Problem("spmm", columns=32),
        Problem("spmm", columns=64, b_order="col"),
    ]
    given = [collate([sample], [each]) for each in problems] + [collate([sample], [Problem()], "sim")]
    out = torch.cat([made(each) for each in given])
    for i in range(len(out)):
        for j in range(i):
            assert (out[i] - out[j]).abs().max() > 1e-3, (i, j)


def test_what_is_timed_is_told_and_weights_from_before_say_nothing_of_it() -> None:
    made, sample = encoder(), sample_pattern(patterns()[0])
    solver, chain, cold = (collate([sample], [Problem()], modes=[mode]) for mode in ("solver", "chain", "cold"))
    assert torch.equal(solver.problem, cold.problem) and not torch.equal(solver.problem, chain.problem)
    assert (made(solver) - made(chain)).abs().max() > 0.1, "as plain as any other part of the problem"
    older = {name: tensor for name, tensor in made.state_dict().items() if name != "explicit.mode"}
    made.load_state_dict(older)
    assert torch.equal(made(solver), made(chain))
    with pytest.raises(ValueError, match="as many modes"):
        collate([sample], [Problem()], modes=["solver", "chain"])


def test_means_and_the_largest_are_told_beside_what_attention_finds() -> None:
    made, given = encoder(OVERALL_TOO), batch()
    out = made(given)
    assert out.shape == (3, made.prefix_length, 48) == (3, EXPLICIT + 4 + OVERALL, 48) and out.isfinite().all()
    assert encoder(replace(OVERALL_TOO, source="blind")).prefix_length == EXPLICIT + 4, "there is nothing to tell"
    told: dict[str, torch.Tensor] = {}

    def kept(name: str) -> Any:
        return lambda _, inputs, output: told.update({name: inputs[0]})

    assert isinstance(made.reader, FromSample) and made.reader.overall is not None
    made.reader.overall.register_forward_hook(kept("vectors"))
    made.reader.overall.network.register_forward_hook(kept("overall"))
    made(given)
    places = given.entries[0, :, FIELDS.index("part")]
    longest = told["vectors"][0, :SINGLES][places[:SINGLES] == PARTS.index("longest")]
    assert torch.allclose(told["overall"][0, PARTS.index("longest")], longest.mean(0), atol=1e-6)
    assert torch.allclose(told["overall"][0, len(PARTS)], told["vectors"][0, :SINGLES][places[:SINGLES] >= 0].amax(0))
    assert torch.equal(told["overall"][2, -1], torch.zeros(32)), "no squares, no largest"


def test_twists_give_matrices_that_families_do_not() -> None:
    pattern = make("mesh", 3, nx=40, ny=40, diagonals=0.5, window=1)
    assert {twist.__name__ for twist in TWISTS} >= {"_repeated", "_spiked"}
    for seed in range(12):
        again, spiked = (twist(pattern, generator(seed, 5), seed) for twist in (_repeated, _spiked))
        side = next(d for d in range(1, again.rows) if again.rows % d == 0 and _periodic(again, d))
        assert again.rows == again.columns and side <= 512 and 0 < again.nonzeros <= 3 * pattern.nonzeros
        assert spiked.shape == pattern.shape and spiked.nonzeros <= 2 * pattern.nonzeros
        ends = [np.bincount(spiked.cols, minlength=spiked.columns).max(), spiked.row_lengths.max()]
        assert max(ends) > pattern.row_lengths.max(), "a row or a column is longer than any was"
    tiny = Pattern.from_coordinates(1, 3, np.array([0], dtype=np.int32), np.array([2], dtype=np.int32))
    for twist in TWISTS:
        assert twist(tiny, generator(1, 5), 1).nonzeros >= 1 or twist.__name__ in ("_thinned", "_cropped")


def test_a_twist_that_leaves_nothing_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = patterns()[2]
    twists = [lambda pattern, rng, seed: nothing, _repeated]
    monkeypatch.setattr("sparserl.train.encode_data.TWISTS", twists)
    found = [draw_pattern(number, Draws(most=2e3)).nonzeros for number in range(60)]
    assert 0 in found and max(found) > 0


def _periodic(pattern: Pattern, side: int) -> bool:
    """Whether it is one square of this side, again and again."""
    row, col = pattern.row_index().astype(int), pattern.cols.astype(int)
    if not (row // side == col // side).all():
        return False
    places = np.unique(np.stack([row // side, row % side * side + col % side], axis=1), axis=0)
    counts = np.bincount(places[:, 0])
    return bool((counts == counts[0]).all() and len(np.unique(places[:, 1])) == counts[0])


def test_neighbours_are_told_apart_in_a_matrix_of_a_billion_columns() -> None:
    entries = torch.zeros((1, 2, 6), dtype=torch.int32)
    entries[0, :, 1] = torch.tensor([2**30, 2**30 + 1])
    told = SinusoidalIndices()(entries, torch.tensor([[2**30, 2**31 - 2, 10]]))
    assert (told[0, 0] - told[0, 1]).abs().max() > 1.0


def test_a_features_encoder_says_what_it_needs() -> None:
    sample = sample_pattern(patterns()[0])
    with pytest.raises(ValueError, match="with_features=True"):
        encoder(CONTROLS["features"])(collate([sample], [Problem()]))


@pytest.mark.parametrize("field", ["embedding", "source"])
def test_a_wrong_choice_is_refused_by_name(field: str) -> None:
    with pytest.raises(ValueError, match="'other'"):
        EncoderSize(**{field: "other"})  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_bfloat16_autocast_gives_nearly_the_same() -> None:
    made, given = encoder(), batch()
    with torch.autocast("cpu", torch.bfloat16):
        low = made(given)
    assert (low.float() - made(given)).abs().max() < 0.05


def test_the_encoder_compiles_into_one_graph() -> None:
    made, given = encoder(), batch()
    whole = torch.compile(made, backend="eager", fullgraph=True)
    assert torch.allclose(whole(given), made(given), atol=1e-6)


def test_the_encoder_is_saved_and_loaded_whole(tmp_path: Path) -> None:
    made, given = encoder(), batch()
    save_encoder(made, tmp_path / "encoder")
    assert torch.equal(load_encoder(tmp_path / "encoder").eval()(given), made(given))


# ── Pretraining ───────────────────────────────────────────────────────────────


def test_withheld_families_are_never_drawn_for_training_and_alone_for_probes() -> None:
    more = splits.withheld_families() | {"fem"}
    for seed in range(300):
        kept = draw_spec(3_600_000 + seed, Draws("train", more))
        other = draw_spec(8_060_000 + seed, Draws("unseen", more))
        assert splits.base_family(kept.family, kept.params) not in more
        assert splits.base_family(other.family, other.params) in more
    with pytest.raises(ValueError, match="withheld from all training"):
        Draws("train", frozenset())
    assert withheld_in("dev") | withheld_in("unseen") == splits.withheld_families()


def test_a_number_always_draws_the_same_matrix() -> None:
    draws = Draws(most=2e3)
    for number in range(5):
        assert draw_pattern(number, draws) == draw_pattern(number, draws)


def tiny(**changes: object) -> EncodeConfig:
    base = EncodeConfig(
        matrices=32, withheld_matrices=10, probe_matrices=32, largest=2e3, width=16, size=SMALL, epochs=3.0, batch=16,
        workers=1, save_every=3,
    )  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]


def test_pretraining_stopped_half_way_ends_where_an_unbroken_run_ends(tmp_path: Path) -> None:
    whole, first = train_encoder(tiny(), tmp_path / "whole")

    class StoppedError(Exception):
        pass

    def stop(stage: str, done: int, total: int) -> None:
        if stage == "steps" and done == 4:
            raise StoppedError

    with pytest.raises(StoppedError):
        train_encoder(tiny(), tmp_path / "broken", told=stop)
    resumed, _ = train_encoder(tiny(), tmp_path / "broken")
    for name, value in whole.state_dict().items():
        assert torch.allclose(resumed.state_dict()[name], value, atol=1e-5), name
    assert set(json.loads((tmp_path / "broken" / "probes.json").read_text())["scores"]) == set(TARGETS)
    assert list((tmp_path / "broken" / "tensorboard").iterdir())
    assert probe_policy(whole, tiny(), tmp_path / "whole") == first, "an encoder of before is probed as at its end"
    with pytest.raises(StoreError, match="rate"):
        train_encoder(tiny(rate=0.1), tmp_path / "broken")


def test_the_command_probes_the_encoder_of_a_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_policy(make_policy("tiny"), tmp_path / "policy")
    probe_command(out=tmp_path / "o", policy=tmp_path / "policy", matrices=40, withheld=10, largest=2e3, workers=1)
    said = capsys.readouterr().out
    stored = json.loads((tmp_path / "o" / "probes.json").read_text())
    assert stored["split"] == "dev" and (stored["fitted"], stored["tested"]) == (40, 10)
    assert all(f"{name:24s} {score:6.3f}" in said for name, score in stored["barred"].items())
    save_encoder(load_policy(tmp_path / "policy").encoder, tmp_path / "encoder")
    probe_command(out=tmp_path / "o", policy=tmp_path / "encoder", matrices=40, withheld=10, largest=2e3, workers=1)
    assert json.loads((tmp_path / "o" / "probes.json").read_text()) == stored
    alone, part = (load_encoder(tmp_path / name).state_dict() for name in ("encoder", "policy"))
    assert all(torch.equal(value, part[name]) for name, value in alone.items())
    with pytest.raises(SparseRLError, match="'dev' or 'unseen'"):
        probe_command(out=tmp_path / "o", split="real")


def test_probes_find_what_is_linear_in_the_output_and_not_what_is_absent(tmp_path: Path) -> None:
    kept = build_examples(tmp_path, ShardPlan(120, 60, 1, Draws(most=2e3)))
    other = build_examples(tmp_path, ShardPlan(60, 60, 1, Draws("dev", withheld_in("unseen"), most=2e3)))
    mixed = np.random.default_rng(0).normal(size=(len(FEATURE_NAMES) + len(TARGETS), 200))
    told = probe(feature_targets(kept.named) @ mixed, kept.named, feature_targets(other.named) @ mixed, other.named)
    assert told.passed and min(told.barred.values()) > 0.95
    noise = np.random.default_rng(1).normal(size=(180, 200))
    assert max(probe(noise[:120], kept.named, noise[120:], other.named).barred.values()) < 0.3
    blind = probe_encoder(encoder(CONTROLS["blind"]), kept, other)
    assert not blind.passed


def measured(family: str, us: float, verdict: Verdict = Verdict.CORRECT, origin: str = "recipe") -> Measurement:
    return Measurement("p", origin, family, family, verdict, "", {"solver": us}, False, {}, {})


def collected_case(problem: str, source: Mapping[str, Any], *programs: Measurement) -> CollectedCase:
    return CollectedCase("a", problem, "train", source, 1, 1, 1, (), {}, {}, programs)


def test_measured_times_become_targets_of_the_best_correct_recipe_of_a_family(tmp_path: Path) -> None:
    source = TrainingCase("a", draw_spec(3_600_000, Draws(most=2e3))).source
    programs = (
        measured("rows", 8.0), measured("rows", 4.0), measured("slices", 2.0),
        measured("slices", 1.0, Verdict.WRONG), measured("rows", 1.0, origin="variant"),
    )  # fmt: skip
    cases = (
        collected_case("spmv float32", source, *programs),
        collected_case("spmm float64 64 row col", source, measured("rows", 16.0)),
        collected_case("spmv float64", source, measured("rows", 1.0, Verdict.WRONG)),
    )
    assert best_times(cases[0]) == {"rows": 4.0, "slices": 2.0} and best_times(cases[2]) == {}
    timed = timed_of(Collection(cases, {}, {}), samples_of(cases, tmp_path / "samples.npz"))
    assert timed.families == ("rows", "slices") and timed.known.tolist() == [[1.0, 0.0], [1.0, 1.0]]
    assert timed.times[1, 0] > timed.times[1, 1] and timed.times[0, 0] > timed.times[1, 0]
    assert read_problem("spmm float64 64 row col") == Problem("spmm", "float64", 64, "row", "col")
    train_encoder(tiny(epochs=1.0), tmp_path / "run", timed)


def test_a_collection_without_correct_times_is_refused() -> None:
    with pytest.raises(StoreError, match="train collect"):
        timed_of(Collection((), {}, {}), {})


def test_samples_without_features_give_an_input_without_them() -> None:
    sample: Sample = sample_pattern(patterns()[0])
    assert collate([sample], [Problem()]).named.shape == (1, 0)
    with pytest.raises(ValueError, match="as many problems"):
        collate([sample], [])
