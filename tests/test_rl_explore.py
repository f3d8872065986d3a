"""Exploration and its control: openings, the archive, the curriculum, hill-climbing."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import replace
from math import exp, inf, log
from pathlib import Path

import pytest
import torch

from sparserl import families, splits
from sparserl.bench.reference import problem_name
from sparserl.errors import SparseRLError, StoreError
from sparserl.layouts import admits, parse_line
from sparserl.lifetime import helpers
from sparserl.policy.encoder import EncoderSize, collate
from sparserl.policy.language import Shape
from sparserl.policy.model import Policy, Size, make_policy
from sparserl.policy.sample import Sample, sample_pattern
from sparserl.policy.tokenizer import Tokenizer
from sparserl.program import parse
from sparserl.recipes import admissible, candidates, space, summarise
from sparserl.records import Problem, Verdict
from sparserl.train.cases import TrainingCase, from_source
from sparserl.train.controls import SMS
from sparserl.train.rl import explore
from sparserl.train.rl.climb import Climb, ClimbConfig, climb
from sparserl.train.rl.curriculum import PROBLEMS, Curriculum, CurriculumConfig, Results, Seen, every_prompt, kind_of
from sparserl.train.rl.explore import Elites, ExploreConfig, Explorer, line_kind, mapping_of, pair_of
from sparserl.train.rl.nouns import Judged, Prompt, Rollout, Turn
from sparserl.train.rl.referee import open_referee
from sparserl.train.withheld import withheld_text

TOKENIZER = Tokenizer.load()
SIZE = Size(Shape(64, 2, 4, 2, 128, TOKENIZER.size, 512), EncoderSize(inner=32, queries=4))
SPEC = families.Spec("stencil2d", 1_000_003, {"nx": 9, "ny": 8, "points": 5})
CASE = TrainingCase("small", SPEC)
PROMPT = Prompt(CASE.name, CASE.source, Problem(), "regular")
OTHER = replace(PROMPT, case="other")


def look(prompt: Prompt) -> Sample:
    return sample_pattern(CASE.load())


@pytest.fixture(scope="module")
def policy() -> Policy:
    """Fresh weights made larger: as drawn, all lines would be alike."""
    made = make_policy(SIZE, seed=1)
    with torch.no_grad():
        for parameter in made.language.parameters():
            if parameter.dim() == 2:
                parameter.mul_(4.0)
    return made


# ---- openings


ADMITTED = sorted({str(recipe.layout) for recipe in admissible(summarise(CASE.load(), Problem(), SMS))})


def explorer(policy: Policy, config: ExploreConfig | None = None) -> Explorer:
    return Explorer(policy, TOKENIZER, look, lambda prompt: ADMITTED, config or ExploreConfig())


def test_lines_are_ranked_by_their_probability_under_the_policy(policy: Policy) -> None:
    found = explorer(policy, ExploreConfig(batch=7)).ranked(PROMPT)
    lines = [line for line, _ in found]
    assert sorted(lines) == ADMITTED and len(lines) > 20
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
    batch = collate([look(PROMPT)], [Problem()])
    for line, score in (found[0], found[len(found) // 2], found[-1]):
        ids = [TOKENIZER.program, TOKENIZER.layout, *TOKENIZER.encode(line + "\n")]
        with torch.no_grad():
            logits = policy(torch.tensor([ids[:-1]]), batch)[0].log_softmax(-1)
        alone = float(logits.gather(1, torch.tensor(ids[1:])[:, None]).sum())
        assert score == pytest.approx(alone, abs=1e-3)


def test_openings_are_admitted_lines_from_the_top_as_a_program_would_begin(policy: Policy) -> None:
    config = ExploreConfig(top=4, kinds=0, temperature=1e6, even=0.0)
    asked = explorer(policy, config)
    top = {line for line, _ in asked.ranked(PROMPT)[:4]}
    (drawn,) = asked.openings([PROMPT], 8, seed=0)
    lines = [TOKENIZER.decode(ids[1:]).rstrip("\n") for ids in drawn]
    assert Counter(lines) == dict.fromkeys(top, 2)  # so hot that all are alike
    pattern = CASE.load()
    for line, ids in zip(lines, drawn, strict=True):
        assert admits(pattern, parse_line(line)) is None
        program = next(recipe.text for recipe in space(Problem()) if str(recipe.layout) == line)
        assert TOKENIZER.encode_program(program)[1 : 1 + len(ids)] == ids
    cold = explorer(policy, replace(config, temperature=1e-6)).openings([PROMPT], 8, seed=0)[0]
    assert len({tuple(ids) for ids in cold}) == 1
    even = explorer(policy, replace(config, temperature=1e-6, even=1.0)).openings([PROMPT], 8, seed=0)[0]
    assert len({tuple(ids) for ids in even}) == 4


def test_beside_the_most_probable_lines_every_other_kind_of_layout_has_its_own(policy: Policy) -> None:
    """A policy that is sure of one kind has nothing else on top, and would never hear that another is faster."""
    asked = explorer(policy, ExploreConfig(top=3, kinds=4, temperature=1e-6, even=1.0))
    ranked = asked.ranked(PROMPT)
    top = [line for line, _ in ranked[:3]]
    others: list[str] = []
    for line, _ in ranked[3:]:
        if line_kind(line) not in {line_kind(each) for each in [*top, *others]}:
            others.append(line)
    assert [line for line, _ in asked.shortlist(PROMPT)] == top + others[:4] and len(others) > 4
    (drawn,) = asked.openings([PROMPT], 14, seed=0)
    assert Counter(TOKENIZER.decode(ids[1:]).rstrip("\n") for ids in drawn) == dict.fromkeys(top + others[:4], 2)
    assert line_kind("blocks b=4 order=col index=int16") == "blocks b=4"
    assert line_kind("slices c=32 sigma=1 group=1 index=int32") == "slices"


def test_openings_depend_on_the_seed_and_the_prompt_alone(policy: Policy) -> None:
    asked = explorer(policy)
    one = asked.openings([PROMPT], 8, seed=0)
    assert one == asked.openings([OTHER, PROMPT], 8, seed=0)[1:]
    assert any(one != asked.openings([PROMPT], 8, seed=seed) for seed in (1, 2))


# ---- the archive


def right(time_us: float, retimed: bool = True) -> Judged:
    return Judged(Verdict.CORRECT, times_us={"solver": time_us}, baseline_us={"solver": 10.0}, retimed=retimed)


RECIPES = [recipe.text for recipe in space(Problem()) if not withheld_text(recipe.text)]


def test_mappings_tell_threads_a_row_the_block_and_dependent_launch_apart() -> None:
    rows = [recipe for recipe in space(Problem()) if recipe.family == "vector_rows" or recipe.layout.name == "rows"]
    found = {mapping_of(parse(recipe.text)) for recipe in rows}
    assert len(found) > 8
    assert {each.endswith(" pdl") for each in found} == {True, False}
    assert all("\n" not in each and len(each) < 80 for each in found)


def test_a_cell_keeps_the_best_program_and_refuses_what_is_not_verified() -> None:
    elites = Elites()
    text = RECIPES[0]
    assert not elites.offer(PROMPT, text, Judged(Verdict.WRONG), 0.0, 0)
    assert not elites.offer(PROMPT, text, right(5.0, retimed=False), 0.0, 0)
    assert not elites.offer(PROMPT, "no program", right(5.0), 0.0, 0)
    withheld = next(recipe.text for recipe in space(Problem()) if withheld_text(recipe.text))
    assert not elites.offer(PROMPT, withheld, right(5.0), 0.0, 0)
    assert elites.offer(PROMPT, text, right(5.0), 0.0, 0)
    assert not elites.offer(PROMPT, text, right(6.0), 0.0, 1)
    assert elites.offer(PROMPT, text, right(4.0), 0.0, 2)
    assert not elites.offer(OTHER, text, right(2.0), log(5.0), 3)  # fast, but the policy is there already
    assert elites.offer(OTHER, text, right(2.0), 0.0, 3)
    assert len(elites) == 1
    assert elites.offer(replace(OTHER, structure="skewed"), text, right(9.0), 0.0, 3)
    assert elites.offer(replace(OTHER, problem=Problem(dtype="float64")), text, right(9.0), 0.0, 3)
    assert len(elites) == 3


def test_of_every_matrix_the_fastest_is_kept_whatever_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explore, "MOST_DRAWS", 1000)
    elites = Elites()
    one, two = RECIPES[0], next(text for text in RECIPES if parse(text).layout.name != parse(RECIPES[0]).layout.name)
    assert elites.offer(PROMPT, one, right(5.0), 0.0, 0) and elites.offer(OTHER, one, right(2.0), 0.0, 0)
    assert len(elites) == 1 and elites.pairs[pair_of(PROMPT)].text == one  # a cell has one, each matrix has its own
    assert elites.offer(PROMPT, two, right(4.0), 0.1, 1) and elites.pairs[pair_of(PROMPT)].text == two
    assert not elites.offer(PROMPT, one, right(4.5), 0.1, 2) and elites.pairs[pair_of(PROMPT)].text == two
    elites.met(PROMPT, 0.7)
    assert elites.pairs[pair_of(PROMPT)].mean == 0.7 and elites.pairs[pair_of(OTHER)].mean == 0.0
    drawn = elites.draw(64, seed=0)
    assert drawn[::2] != drawn[1::2]  # cells and matrices in turn
    assert {(each.prompt.case, each.text) for each in drawn[1::2]} == {(PROMPT.case, two), (OTHER.case, one)}


def test_draws_follow_the_lead_over_the_policy_and_end_when_it_has_caught_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explore, "MOST_DRAWS", 1000)
    elites = Elites()
    far, near = replace(PROMPT, structure="far"), replace(OTHER, structure="near")
    elites.offer(far, RECIPES[0], right(10 / exp(0.9)), 0.45, 0)
    elites.offer(near, RECIPES[0], right(10 / exp(0.3)), 0.15, 0)
    drawn = Counter(elite.prompt.structure for elite in elites.draw(400, seed=0))
    assert drawn["far"] == pytest.approx(300, abs=2) and drawn["near"] == pytest.approx(100, abs=2)
    assert elites.draw(5, seed=1) == elites.draw(5, seed=1) and len(elites.draw(5, seed=1)) == 5
    elites.met(far, -9.0)  # counts as half
    drawn = Counter(elite.prompt.structure for elite in elites.draw(400, seed=0))
    assert drawn["far"] == pytest.approx(400 * 0.5 / 0.65, abs=2)
    elites.met(far, 1.0)
    assert {elite.prompt.structure for elite in elites.draw(50, seed=0)} == {"near"}
    elites.met(near, 0.4)
    assert elites.draw(50, seed=0) == []
    third = replace(far, case="third")
    assert not elites.offer(third, RECIPES[0], right(10 / exp(0.8)), 0.99, 0), "its cell keeps what lags less"
    elites.met(third, 0.7)  # so a matrix leads, and no cell does
    assert [elite.prompt.case for elite in elites.draw(50, seed=0)] == ["third"] * 25


def test_no_program_is_drawn_more_than_twice_from_kinds_and_twice_from_matrices() -> None:
    elites = Elites()
    for place in range(20):
        elites.offer(replace(PROMPT, case=f"case{place}", structure=f"kind{place}"), RECIPES[0], right(5.0), 0.0, 0)
    elites.met(replace(PROMPT, case="case3"), -9.0)
    drawn = Counter(elite.prompt.case for elite in elites.draw(512, seed=0))
    assert drawn == dict.fromkeys(drawn, 4) and len(drawn) == 20
    assert len(elites.draw(16, seed=0)) == 16


def test_an_archive_comes_back_from_its_file(tmp_path: Path) -> None:
    elites = Elites(("solver",))
    for place, text in enumerate(RECIPES[::400]):
        elites.offer(PROMPT, text, right(5.0 + place), 0.1, place)
    elites.save(tmp_path / "elites.json")
    again = Elites.load(tmp_path / "elites.json")
    assert again.cells == elites.cells and again.modes == elites.modes and len(again) > 3
    assert again.pairs == elites.pairs and again.pairs[pair_of(PROMPT)].text == RECIPES[0]
    (tmp_path / "other.json").write_text("[1]")
    with pytest.raises(StoreError, match=r"other\.json"):
        Elites.load(tmp_path / "other.json")


# ---- the curriculum


SMALL = CurriculumConfig(prompts=12, spmv_cases=10, spmm_cases=6)


def test_prompts_are_training_matrices_under_every_problem_that_is_tested() -> None:
    prompts = every_prompt(replace(SMALL, large=4, drawn=3, large_drawn=6, real=True, twisted=5, strewn=7))
    assert {prompt.problem for prompt in prompts} == set(PROBLEMS)
    assert {(p.op, p.dtype, p.columns) for p in PROBLEMS} == {
        ("spmv", "float32", 1), ("spmv", "float64", 1), ("spmm", "float32", 32), ("spmm", "float32", 64),
        ("spmm", "float32", 128),
    }  # fmt: skip
    held_out = {case.name for split in splits.SPLITS if split != "train" for case in splits.cases(split)}
    for prompt in prompts:
        case = from_source(prompt.case, prompt.source)
        assert case.split == "train" and prompt.case not in held_out
        assert case.spec is None or splits.may_train(case.spec)
    seeds = {p.source["seed"] for p in prompts if "seed" in p.source}
    assert sum(1_380_000 <= seed < 1_440_000 for seed in seeds) == 4
    kinds = Counter(
        f"{prompt.problem.op} {kind_of(prompt)}"
        for prompt in prompts
        if kind_of(prompt) in ("drawn", "large drawn", "twist", "strewn")
    )
    assert kinds == {
        "spmv drawn": 2 * 3, "spmm drawn": 3 * 2, "spmv twist": 2 * 5, "spmm twist": 3 * 3,
        "spmv strewn": 2 * 7, "spmm strewn": 3 * 4, "spmv large drawn": 2 * 6,
    }  # fmt: skip


def test_matrices_made_of_real_ones_need_the_real_ones() -> None:
    with pytest.raises(SparseRLError, match="made of real ones: name their folder"):
        replace(SMALL, twisted=1)
    with pytest.raises(SparseRLError, match="must not be negative"):
        replace(SMALL, drawn=-1)
    with pytest.raises(SparseRLError, match="must not be negative"):
        replace(SMALL, strewn=-1)


def test_prompts_know_the_classes_that_are_given() -> None:
    name = every_prompt(SMALL)[0].case
    known = every_prompt(SMALL, {name: "skewed"})
    assert {prompt.structure for prompt in known if prompt.case == name} == {"skewed"}
    assert {prompt.structure for prompt in known if prompt.case != name} == {""}


def test_other_splits_are_refused() -> None:
    prompt = Prompt("x", {"dev": "x"}, Problem())
    with pytest.raises(SparseRLError, match="training split"):
        Curriculum([prompt], SMALL)


def test_a_round_depends_on_seed_number_and_results_alone() -> None:
    curriculum = Curriculum(every_prompt(SMALL), SMALL)
    known = Results({pair_of(curriculum.prompts[0]): Seen(0.0, 1.0, 1)})
    assert curriculum.round(3, known) == Curriculum(every_prompt(SMALL), SMALL).round(3, known)
    assert curriculum.round(3, known) != curriculum.round(4, known)
    other = Curriculum(curriculum.prompts, replace(SMALL, seed=1))
    assert curriculum.round(3, known) != other.round(3, known)
    pairs = [pair_of(prompt) for prompt in curriculum.round(3, known)]
    assert len(pairs) == SMALL.prompts == len(set(pairs))


def test_of_all_pairs_a_count_is_drawn_by_the_seed_and_fewer_are_some_of_more() -> None:
    whole = every_prompt(SMALL)

    def kept(count: int, seed: int) -> set[tuple[str, str]]:
        return {pair_of(each) for each in Curriculum(whole, replace(SMALL, count=count, seed=seed)).prompts}

    assert len(kept(0, 0)) == len(kept(10**6, 0)) == len(whole)
    assert len(kept(4, 0)) == 4 and kept(4, 0) == kept(4, 0) != kept(4, 1) and kept(2, 0) < kept(4, 0)
    few = Curriculum(whole, replace(SMALL, count=3, prompts=3, even=1.0))
    assert all(len({pair_of(each) for each in few.round(number, Results())}) == 3 for number in range(4))
    with pytest.raises(SparseRLError, match="count -1"):
        replace(SMALL, count=-1)


def test_hard_matrices_come_more_often_and_none_is_starved() -> None:
    curriculum = Curriculum(every_prompt(SMALL), SMALL)
    pairs = [pair_of(prompt) for prompt in curriculum.prompts]
    hard = set(pairs[::5])
    known = Results({pair: Seen(0.0, 1.0 if pair in hard else 0.0, 1) for pair in pairs})
    lap = -(-len(pairs) // 3)  # three of the twelve are walked through
    drawn = Counter(pair_of(prompt) for number in range(4 * lap) for prompt in curriculum.round(number, known))
    assert min(drawn[pair] for pair in pairs) >= 4
    mean = {kind: sum(drawn[p] for p in pairs if (p in hard) == kind) / sum((p in hard) == kind for p in pairs)
            for kind in (True, False)}  # fmt: skip
    assert mean[True] > 3 * mean[False]


def test_a_kind_that_is_new_comes_often_until_it_is_learnt() -> None:
    config = replace(SMALL, prompts=20, spmv_cases=60, spmm_cases=30, strewn=20, even=0.05)
    curriculum = Curriculum(every_prompt(config), config)
    old = [prompt for prompt in curriculum.prompts if kind_of(prompt) != "strewn"]
    new = [prompt for prompt in curriculum.prompts if kind_of(prompt) == "strewn"]
    easy = {pair_of(prompt): Seen(0.95, 1.0, 1) for prompt in old}
    learnt = easy | {pair_of(prompt): Seen(0.95, 1.0, 1) for prompt in new[::10]}

    def share(known: dict[tuple[str, str], Seen]) -> float:
        drawn = [prompt for number in range(30) for prompt in curriculum.round(number, Results(known))]
        return sum(kind_of(prompt) == "strewn" for prompt in drawn) / len(drawn)

    fair = len(new) / len(curriculum.prompts)
    assert share(easy) > 2 * fair
    assert share(learnt) == pytest.approx(fair, abs=0.05), "a few of the kind speak for the others"


def test_every_problem_has_its_share_whatever_is_known() -> None:
    config = replace(SMALL, prompts=20, spmv_cases=60, spmm_cases=30, even=0.05)
    curriculum = Curriculum(every_prompt(config), config)
    easy = Results({pair_of(p): Seen(1.0, 1.0, 1) for p in curriculum.prompts if p.problem == PROBLEMS[0]})
    drawn = Counter(problem_name(p.problem) for number in range(60) for p in curriculum.round(number, easy))
    total = sum(drawn.values())
    for problem, share in zip(PROBLEMS, config.shares, strict=True):
        assert drawn[problem_name(problem)] / total == pytest.approx(share, abs=0.06)


def rollout(prompt: Prompt, *rewards: float) -> Rollout:
    turns = [Turn("", Judged(Verdict.WRONG), each, 1, 2) for each in rewards]
    return Rollout(prompt, 0, (3, 2), (0.0, -1.0), (False, True), turns)


def test_results_know_the_last_mean_and_the_best_ever() -> None:
    results = Results()
    results.known(pair_of(PROMPT), 0.8)
    assert results.seen[pair_of(PROMPT)].lag is None
    results.add([rollout(PROMPT, 0.1, 0.5), rollout(PROMPT, -0.1)])
    assert results.seen[pair_of(PROMPT)] == Seen(pytest.approx(0.2), 0.8, 1)  # type: ignore[arg-type]
    results.add([rollout(PROMPT, 1.0), rollout(PROMPT, 0.6)])
    assert results.seen[pair_of(PROMPT)] == Seen(pytest.approx(0.8), 1.0, 2)  # type: ignore[arg-type]
    assert results.seen[pair_of(PROMPT)].lag == pytest.approx(0.2)
    assert Results.from_record(results.to_record()) == results


# ---- the control


class Dice:
    """A referee whose brief times are luck: side by side every program is as fast as the first."""

    def __init__(self, honest: bool) -> None:
        self.honest, self.judged, self.retimes = honest, Counter[str](), 0

    def _time(self, text: str) -> float:
        return 5.0 + zlib.crc32(text.encode()) % 1000 / 100

    def judge(self, groups: Sequence[tuple[Prompt, Sequence[str]]]) -> Iterator[tuple[int, list[Judged]]]:
        for at, (prompt, texts) in enumerate(groups):
            self.judged.update(f"{prompt.case} {text}" for text in texts)
            broken = Judged(Verdict.WRONG, "row 1")
            yield at, [broken if zlib.crc32(t[::-1].encode()) % 4 == 0 else right(self._time(t)) for t in texts]

    def retime(self, prompt: Prompt, texts: Sequence[str], incumbent: str | None) -> dict[str, Judged]:
        self.retimes += 1
        every = [*texts, *([incumbent] if incumbent else [])]
        return {text: right(self._time(text) if self.honest else 8.0) for text in every}

    def close(self) -> None: ...


START = next(text for text in RECIPES if zlib.crc32(text[::-1].encode()) % 4)


def test_a_climb_spends_exactly_its_tries_and_judges_nothing_twice() -> None:
    for tries in (1, 2, 21):
        referee = Dice(honest=True)
        done = climb([(PROMPT, START), (OTHER, START)], referee, ClimbConfig(tries=tries, batch=8))
        assert [len(each.steps) for each in done] == [tries, tries]
        assert sum(referee.judged.values()) == 2 * tries == len(referee.judged)


def test_a_climb_never_gets_worse_and_ends_with_the_fastest_it_took() -> None:
    (done,) = climb([(PROMPT, START)], Dice(honest=True), ClimbConfig(tries=40))
    best = [step.best for step in done.steps]
    assert best == sorted(best) and best[-1] > best[0] > -inf
    taken = [step for step in done.steps if step.taken]
    assert taken[0].text == START and taken[-1].text == done.best and done.speed == best[-1] == taken[-1].speed
    assert all(step.parents and step.mutations for step in done.steps[1:])
    lines = list(done.records())
    assert [line["try"] for line in lines] == list(range(40))
    assert all((line["speedup"] is None) == (line["judged"]["verdict"] == "WRONG") for line in lines)


def test_luck_in_a_brief_time_takes_nothing() -> None:
    referee = Dice(honest=False)
    (done,) = climb([(PROMPT, START)], referee, ClimbConfig(tries=40))
    assert referee.retimes > 0 and done.best == START


def test_a_climb_is_a_function_of_the_seed() -> None:
    def texts(seed: int, *prompts: Prompt) -> list[str]:
        done = climb([(each, START) for each in prompts], Dice(honest=True), ClimbConfig(tries=12, seed=seed))
        return [step.text for step in done[-1].steps]

    assert texts(0, PROMPT) == texts(0, OTHER, PROMPT)
    assert texts(0, PROMPT) != texts(1, PROMPT)


def test_variants_made_in_other_processes_are_the_same() -> None:
    def texts(pool: Executor | None) -> list[list[str]]:
        done = climb([(PROMPT, START), (OTHER, START)], Dice(honest=True), ClimbConfig(tries=12, seed=3), pool=pool)
        return [[step.text for step in each.steps] for each in done]

    with helpers(1) as pool:
        assert texts(pool) == texts(None)


def test_a_climb_on_the_simulator_finds_right_programs_and_never_gets_worse() -> None:
    start = next(recipe.text for recipe in candidates(CASE.load(), Problem()) if not recipe.pdl)
    with closing(open_referee("sim")) as referee:
        (done,) = climb([(PROMPT, start)], referee, ClimbConfig(tries=8, batch=4))
    assert len(done.steps) == 8
    assert done.steps[0].judged.verdict is Verdict.CORRECT
    assert sum(step.speed > -inf for step in done.steps) >= 4
    best = [step.best for step in done.steps]
    assert best == sorted(best) and done.speed >= done.steps[0].speed
    assert isinstance(done, Climb)
