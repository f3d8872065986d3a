"""The modelled time beside the measured one: figures from the stored sample, and the model as a function of counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from layout_shapes import SHAPES
from sparserl import recipes
from sparserl.backends.sim import SimBackend
from sparserl.backends.sim.model import LaunchCounts, ModelConstants, floor_us, modelled_us
from sparserl.backends.sim.native import COUNTERS
from sparserl.bench import agreement, calibration, pairs
from sparserl.bench.__main__ import app
from sparserl.errors import StoreError
from sparserl.evaluation import evaluation_list
from sparserl.records import MODES, Problem
from sparserl.store import read_json

STORED = Path(__file__).parent.parent / "results" / "agreement"
FAMILIES = ("row_lanes", "tile", "row_bins", "coo_chunks")


@pytest.fixture(scope="module")
def sample() -> agreement.Sample:
    return agreement.load(STORED)


@pytest.fixture(scope="module")
def found(sample: agreement.Sample) -> dict:
    return agreement.figures(sample)


def counts(grid: int = 100, pdl: bool = False, **each: int) -> LaunchCounts:
    """A launch whose blocks all did the same."""
    block = np.array([each.get(name, 0) for name in COUNTERS], dtype=np.uint32)
    return LaunchCounts.of(np.tile(block, (grid, 1)), 128, 8, 1_000_000, pdl)


def record(recipe: recipes.Recipe, matrix: str) -> dict:
    """As a measurement writes it; the times are made up."""
    about = {"recipe": recipe.name, "family": recipe.family, "layout": str(recipe.layout), "pdl": recipe.pdl}
    return {"matrix": matrix, **about, "chain": 1.0, "solver": 2.0}


def test_the_stored_sample_is_as_large_as_it_must_be(found):
    assert found["pairs"] >= 3000 and found["matrices"] >= 60
    assert found["fewest_programs_a_matrix"] >= 30 and found["fewest_layouts_a_matrix"] >= 3


def test_the_stored_figures_are_those_of_the_model_as_it_is(found):
    assert read_json(STORED / "figures.json") == found


@pytest.mark.parametrize("mode", agreement.MODES)
def test_on_matrices_it_was_not_fitted_on_the_model_ranks_programs_well(found, mode):
    assert found[mode]["held_out"]["rank_correlation"] >= 0.7
    assert found[mode]["all"]["rank_correlation"] >= 0.7


def test_the_command_prints_the_figures():
    done = CliRunner().invoke(app, ["agreement", str(STORED)])
    assert done.exit_code == 0, done.output
    assert done.output.strip() == agreement.text(read_json(STORED / "figures.json"))


def test_the_fitted_and_the_held_out_half_share_no_matrix(sample):
    fitted, held_out = agreement.halves(sample.matrices())
    assert not set(fitted) & set(held_out) and sorted(fitted + held_out) == sample.matrices()


def test_rank_correlation_is_1_0_or_minus_1_where_it_must_be():
    times = np.array([1.0, 2.0, 3.0, 4.0])
    assert agreement.rank_correlation(times, times**2) == 1
    assert agreement.rank_correlation(times, -times) == -1
    assert agreement.rank_correlation(times, np.ones(4)) == 0


def test_programs_within_a_tenth_of_each_other_are_not_counted():
    assert agreement.rank_correlation(np.array([1.0, 1.05, 2.0]), np.array([2.0, 1.0, 3.0])) == 1
    assert np.isnan(agreement.rank_correlation(np.array([1.0, 1.05]), np.array([2.0, 1.0])))


def test_a_calibration_finds_the_constants_that_made_the_times(sample):
    begin = ModelConstants()
    truth = replace(begin, launch_us=1.5 * begin.launch_us, loop_us=0.7 * begin.loop_us)
    made = replace(sample, measured_us={mode: sample.modelled_us(mode, truth) for mode in agreement.MODES})
    fitted = calibration.calibrate(made, begin)
    assert fitted.launch_us == pytest.approx(truth.launch_us, rel=0.05)
    assert fitted.loop_us == pytest.approx(truth.loop_us, rel=0.1)


def test_a_draw_is_the_same_for_the_same_seed_and_takes_every_family():
    case = evaluation_list()[0]
    records = [record(recipe, case.name) for recipe in recipes.space(Problem())]
    first, again, other = (pairs.draw(records, [case], seed)[case.name] for seed in (0, 0, 1))
    assert first == again != other
    assert len({r["recipe"] for r in first}) == len(first) == 54
    assert len({r["family"] for r in first}) >= 14


def test_simulated_pairs_are_the_same_on_every_run_and_keep_what_the_model_needs():
    pattern = SHAPES["power law"]()
    one_each = {r.family: record(r, "m") for r in recipes.candidates(pattern, Problem()) if r.family in FAMILIES}
    runs = [list(pairs.simulate(pattern, list(one_each.values()), SimBackend(nvrtc=False))) for _ in range(2)]
    assert runs[0] == runs[1] and len(runs[0]) == len(FAMILIES)
    made = agreement.sample(runs[0])
    for at, row in enumerate(runs[0]):
        launches = [agreement.unpack(each) for each in row["launches"]]
        for mode in agreement.MODES:
            alone = modelled_us(launches, mode, ModelConstants())
            assert made.modelled_us(mode, ModelConstants())[at] == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_no_modelled_time_lies_below_the_floor(mode):
    constants = ModelConstants()
    for launch in (counts(1, pdl=True), counts(1), counts(100, pdl=True, trips=3, instructions=50)):
        assert modelled_us([launch], mode, constants) >= floor_us(mode, constants)


@pytest.mark.parametrize("name", ["trips", "loops", "rounds", "barriers", "serial_shared", "instructions", "l2_read"])
def test_more_work_never_takes_less_time(name):
    base = {"trips": 2, "instructions": 10}
    little, much = counts(**(base | {name: 20})), counts(**(base | {name: 2000}))
    assert modelled_us([much], "solver", ModelConstants()) > modelled_us([little], "solver", ModelConstants())


def test_a_dependent_launch_is_cheapest_behind_its_own_product():
    launch, plain, c = counts(pdl=True, trips=2), counts(trips=2), ModelConstants()
    chain, solver = modelled_us([launch], "chain", c), modelled_us([launch], "solver", c)
    assert chain < solver < modelled_us([plain], "solver", c) < modelled_us([plain, plain], "solver", c)


def test_the_simulated_device_is_no_slower_than_the_model():
    """Else the judge would call modelled times implausible."""
    device, constants = SimBackend(nvrtc=False).device(), ModelConstants()
    assert device.l2_tb_s * 1e6 >= constants.l2_bytes_us and device.memory_tb_s * 1e6 >= constants.memory_bytes_us


def test_counts_of_another_version_are_refused_with_the_way_out(sample):
    stored = agreement.pack(counts())
    with pytest.raises(StoreError, match="bench pairs"):
        agreement.unpack(stored | {"totals": stored["totals"][:-1]})


def test_a_folder_without_a_sample_is_refused_with_the_way_out(tmp_path):
    with pytest.raises(StoreError, match=r"pairs\.jsonl\.zst"):
        agreement.load(tmp_path)
