"""The worker's commands, on the simulator and in this process: sets that are used again, parts of a result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from sparserl import layouts, program, recipes
from sparserl.assemble import assemble
from sparserl.backends.backend import Part
from sparserl.backends.sim import SimBackend
from sparserl.errors import BackendError, NoRoomError
from sparserl.families import make
from sparserl.judge import plain, stock, worker
from sparserl.judge.handed import Asked, Check, Near, Which
from sparserl.judge.holdings import hashes_of
from sparserl.records import Order, Packed, Problem

PATTERN = make("stencil2d", 0, nx=12, ny=10, points=5)


class Watched(SimBackend):
    """Counts what comes from the host."""

    uploads = scattered = 0

    def write(self, buffer, array, first_byte=0):  # type: ignore[no-untyped-def]
        self.uploads += 1
        super().write(buffer, array, first_byte)

    def scatter(self, buffer, values, slot_of, padding, staged=None):  # type: ignore[no-untyped-def]
        self.scattered += staged is None
        super().scatter(buffer, values, slot_of, padding, staged)


@pytest.fixture(scope="module")
def backend() -> Iterator[Watched]:
    backend = Watched(nvrtc=False)
    yield backend
    backend.close()


def machine_of(backend: Watched, problem: Problem) -> worker.Machine:
    """A worker that holds the plain program."""
    machine = worker.Machine(backend)
    machine.open("float32")
    hold(machine, backend, "plain", plain.plain(problem), problem)
    return machine


def hold(machine: worker.Machine, backend: Watched, name: str, text: str, problem: Problem) -> Packed:
    """Load a program, and the matrix as its layout packs it."""
    parsed = program.parse(text)
    packed, key = layouts.pack(PATTERN, parsed.layout), parsed.layout.name
    machine.put_structure(key, packed.arrays, packed.slot_of, packed.slots)
    job = assemble(parsed, packed, problem, 132)
    machine.load(name, backend.compile(job.source, job.kernels), job, key)
    return packed


def check(machine: worker.Machine, given: Check, y_count: int = PATTERN.rows, part: Part | None = None) -> worker.Ran:
    (ran,) = machine.checks("plain", [Asked(given, part=part)], y_count)
    return ran


def drawn(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.random(PATTERN.nonzeros, dtype=np.float32), rng.random(PATTERN.columns, dtype=np.float32)


def with_a_set(backend: Watched) -> tuple[worker.Machine, np.ndarray, np.ndarray]:
    """The same worker with a set named 'named', and the set."""
    machine, (values, x) = machine_of(backend, Problem()), drawn(0)
    machine.put_set("named", values, x)
    return machine, values, x


def test_products_asked_for_together_are_those_asked_for_one_by_one(backend: Watched) -> None:
    machine = machine_of(backend, Problem())
    sets = [drawn(seed) for seed in range(3)]
    for key, each in zip("abc", sets, strict=True):
        machine.put_set(key, *each)
    asked = [Asked("a"), Asked("b", behind_writer=True), Asked(sets[2], poison=False, clear=False), Asked("a")]
    alone = [machine.checks("plain", [each], PATTERN.rows)[0] for each in asked]
    together = machine.checks("plain", asked, PATTERN.rows)
    assert len(together) == 4 and not any(ran.failed or ran.dirty for ran in together)
    for one, other in zip(alone, together, strict=True):
        assert np.array_equal(one.y, other.y)
    assert not np.array_equal(together[0].y, together[1].y) and np.array_equal(together[0].y, together[3].y)


def test_products_asked_for_together_end_at_the_first_that_breaks_something(
    backend: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run writes to the matrix: the first is right, the second failed, and no third comes back."""
    machine = machine_of(backend, Problem())
    runs, run = [0], backend.run

    def spoiling(*arguments, **how):  # type: ignore[no-untyped-def]
        report = run(*arguments, **how)
        runs[0] += 1
        if runs[0] == 2:
            cols = machine.structures["rows"].arrays["cols"]
            backend.write(cols, np.zeros(cols.size_bytes // 4, dtype=np.int32))
        return report

    monkeypatch.setattr(backend, "run", spoiling)
    found = machine.checks("plain", [Asked(drawn(seed)) for seed in range(3)], PATTERN.rows)
    assert [ran.failed for ran in found] == ["", "changed its input 'cols'"]
    assert found[0].y.size == PATTERN.rows and found[1].y.size == 0
    assert not machine.programs and not machine.structures, "nothing that it could reach is used again"


def keeps(monkeypatch: pytest.MonkeyPatch, x: int = 1 << 30, values: int = 1 << 30) -> None:
    """What stays on the device, from so many bytes on."""
    monkeypatch.setattr(stock, "KEPT_FROM", {"x": x, "values": values})


def test_x_of_a_large_set_that_is_used_again_is_sent_once(backend: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    keeps(monkeypatch, x=480)
    machine, values, x = with_a_set(backend)
    first = check(machine, "named")
    before = backend.uploads
    again = [check(machine, "named").y for _ in range(3)]
    assert backend.uploads == before
    assert first.y.any() and all(np.array_equal(first.y, y) for y in again)
    machine.put_set("named", values, -x)
    assert np.array_equal(check(machine, "named").y, -first.y)


def test_x_of_a_small_set_is_sent_each_time(backend: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    keeps(monkeypatch, x=481)
    machine, _, _ = with_a_set(backend)
    first = check(machine, "named")
    before = backend.uploads
    assert np.array_equal(check(machine, "named").y, first.y)
    assert backend.uploads > before and not machine.stock.kept


def test_values_that_are_used_again_are_sent_once_and_put_into_every_layout(
    backend: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the layout has slots of its own (`slices`) or keeps the order of the matrix (`rows`)."""
    numbers = {key: drawn(seed) for seed, key in enumerate("ab")}
    slices = next(recipe.text for recipe in recipes.space(Problem()) if recipe.layout.name == "slices")
    near = Near("a", "values", 7, np.float32(3))
    asked: list[Check] = ["a", "b", near, "a", Near("b", "x", 5, np.float32(-2)), near]
    found = {}
    for from_bytes in (0, 1 << 30):
        keeps(monkeypatch, values=from_bytes)
        machine = machine_of(backend, Problem())
        assert hold(machine, backend, "slices", slices, Problem()).slot_of is not None
        for key, each in numbers.items():
            machine.put_set(key, *each)
        before = backend.scattered
        found[from_bytes] = [
            machine.checks(name, [Asked(each)], PATTERN.rows)[0].y.tobytes()
            for each in asked
            for name in ("plain", "slices")
        ]
        assert {key for key, _ in machine.stock.kept} == (set("ab") if not from_bytes else set())
        assert (backend.scattered == before) is not bool(from_bytes)
    assert found[0] == found[1 << 30] and len(set(found[0])) >= 4


@pytest.mark.parametrize("of", ["x", "values"])
def test_who_writes_to_kept_numbers_has_failed_at_once(
    backend: Watched, monkeypatch: pytest.MonkeyPatch, of: Which
) -> None:
    """On a machine where a program can reach them; no other program is shown what it left behind."""
    keeps(monkeypatch, x=0, values=0)
    machine, _, _ = with_a_set(backend)
    right = check(machine, "named").y
    monkeypatch.setattr(backend, "bounded", False)
    assert np.array_equal(check(machine, "named").y, right)
    run = backend.run

    def spoiling(*arguments, **how):  # type: ignore[no-untyped-def]
        report = run(*arguments, **how)
        backend.write(machine.stock.kept["named", of][0], np.ones(3, dtype=np.float32))
        return report

    monkeypatch.setattr(backend, "run", spoiling)
    assert check(machine, "named").failed == f"changed its input '{of}' of the numbers 'named'"
    monkeypatch.setattr(backend, "run", run)
    machine.renew()  # the judge asks for it
    assert not machine.stock.kept and "named" in machine.stock.sets


def test_sets_beyond_the_room_are_sent_each_time(backend: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    keeps(monkeypatch, x=0)
    machine = machine_of(backend, Problem())
    values = np.ones(PATTERN.nonzeros, dtype=np.float32)
    for name, room in (("first", 32 * 480), ("second", 32 * 480 - 1)):
        monkeypatch.setattr(backend, "room_bytes", lambda room=room: room)
        machine.put_set(name, values, np.ones(120, dtype=np.float32))
        check(machine, name)
    assert list(machine.stock.kept) == [("first", "x")]
    machine.close_case()
    assert not machine.stock.kept and not machine.stock.sets


@pytest.mark.parametrize("order", ["row", "col"])
def test_a_part_of_a_result_is_what_its_columns_are(backend: Watched, order: Order) -> None:
    problem = Problem("spmm", columns=6, b_order=order, c_order=order)
    machine = machine_of(backend, problem)
    values, b = (
        np.random.default_rng(i).random(n, dtype=np.float32) for i, n in enumerate((PATTERN.nonzeros, 120 * 6))
    )
    whole = check(machine, (values, b), PATTERN.rows * 6).y
    part = Part(np.array([4, 1]), 6, order)
    some = check(machine, (values, b), PATTERN.rows * 6, part=part).y
    table = whole.reshape(-1, 6) if order == "row" else whole.reshape(6, -1).T
    seen = some.reshape(-1, 2) if order == "row" else some.reshape(2, -1).T
    assert np.array_equal(seen, table[:, [4, 1]]) and table.any()


def test_a_baseline_multiplies_a_set_by_its_name(backend: Watched) -> None:
    machine, values, x = with_a_set(backend)
    right = check(machine, "named").y
    machine.baselines["library"] = machine.programs["plain"].executable
    assert np.array_equal(machine.run_baseline("library", "named", PATTERN.rows), right)
    assert np.array_equal(machine.run_baseline("library", (values, -x), PATTERN.rows), -right)


class Unbounded(Watched):
    """One that stops no program that reaches for what it was not given."""

    bounded = False
    stray = None
    """what a run writes to beside its own"""

    def run(self, executable, x, y, **how):  # type: ignore[no-untyped-def]
        report = super().run(executable, x, y, **how)
        if self.stray is not None:
            self.stray()
        return report


def test_what_a_program_does_to_the_data_of_another_is_its_own_fault() -> None:
    backend = Unbounded(nvrtc=False)
    machine = machine_of(backend, Problem())
    packed = layouts.pack(PATTERN, program.parse(plain.plain(Problem())).layout)
    machine.put_structure("other", packed.arrays, packed.slot_of, packed.slots)
    given = tuple(np.ones(n, dtype=np.float32) for n in (PATTERN.nonzeros, 120))
    assert not check(machine, given).failed and not machine.damage()
    other = machine.structures["other"].arrays["cols"]
    backend.stray = lambda: backend.fill(other, 7)  # type: ignore[assignment]
    assert check(machine, given).failed == "changed its input 'cols' of 'other'"
    assert machine.damage() == "changed its input 'cols' of 'other'", "and so it would be found after a timing"
    backend.bounded = True
    machine = machine_of(backend, Problem())
    machine.put_structure("other", packed.arrays, packed.slot_of, packed.slots)
    assert not check(machine, given).failed, "where that can't be, nobody looks"
    backend.close()


def test_the_guards_of_other_data_are_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Unbounded(nvrtc=False)
    machine = machine_of(backend, Problem())
    packed = layouts.pack(PATTERN, program.parse(plain.plain(Problem())).layout)
    machine.put_structure("other", packed.arrays, packed.slot_of, packed.slots)
    vals = machine.structures["other"].vals
    whole = backend.guards_intact
    monkeypatch.setattr(backend, "guards_intact", lambda buffer: buffer is not vals and whole(buffer))
    given = tuple(np.ones(n, dtype=np.float32) for n in (PATTERN.nonzeros, 120))
    assert check(machine, given).failed == "wrote outside the bounds of 'vals' of 'other'"
    backend.close()


def test_where_values_go_and_zeroed_workspaces_are_looked_at_too() -> None:
    backend = Unbounded(nvrtc=False)
    machine = machine_of(backend, Problem())
    sliced = layouts.pack(PATTERN, layouts.parse_line("slices c=32 sigma=64 group=1 index=int32"))
    assert sliced.slot_of is not None
    machine.put_structure("other", sliced.arrays, sliced.slot_of, sliced.slots)
    where = machine.structures["other"].slot_of
    backend.stray = lambda: backend.fill(where, 3)  # type: ignore[assignment]
    given = tuple(np.ones(n, dtype=np.float32) for n in (PATTERN.nonzeros, 120))
    assert check(machine, given).failed == "changed its input 'slot_of' of 'other'"
    machine = machine_of(backend, Problem())
    counter = backend.alloc(64)
    backend.fill(counter, 0)
    (clean,) = hashes_of(backend, [counter])
    beside = replace(machine.programs["plain"], zeroed={"arrived": (counter, clean)})
    machine.programs["beside"] = beside
    backend.stray = lambda: backend.fill(counter, 1)  # type: ignore[assignment]
    assert check(machine, given).failed == "changed its input 'arrived' of 'beside'"
    backend.close()


def test_a_chain_that_fails_when_done_plainly_goes_no_further() -> None:
    backend = Unbounded(nvrtc=False)
    machine = machine_of(backend, Problem())
    given = tuple(np.ones(n, dtype=np.float32) for n in (PATTERN.nonzeros, 120))
    cols = machine.structures["rows"].arrays["cols"]
    backend.stray = lambda: backend.fill(cols, 0)  # type: ignore[assignment]
    found = machine.chain("plain", given, PATTERN.rows, 4, feed_back=True)
    assert [each.failed for each in found] == ["changed its input 'cols'"]
    backend.close()


@pytest.mark.parametrize(
    ("error", "said"), [(NoRoomError("no room for 3 GB"), "broken"), (BackendError("no such kernel"), "refused")]
)
def test_a_worker_without_room_for_a_program_is_replaced_before_it_is_blamed(error: Exception, said: str) -> None:
    def load() -> None:
        raise error

    machine, turn = SimpleNamespace(load=load, turns={}), SimpleNamespace(shared=nullcontext)
    assert worker._answer(machine, turn, "load", {})[0] == said  # type: ignore[arg-type]


def test_a_case_that_is_done_with_gives_its_memory_back(backend: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = machine_of(backend, Problem())
    held: list[int] = []
    monkeypatch.setattr(backend, "give_back", lambda: held.append(len(machine.structures) + len(machine.programs)))
    machine.close_case()
    assert held == [0], "nothing is held any more when it is asked for"
