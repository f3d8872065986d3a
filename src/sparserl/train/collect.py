"""Collection: programs of many kinds measured on many training matrices, as records that the stages learn from.

    sparserl train collect --out DIR --problem 'spmv f32' --cases 800 [--matrices DIR] [--device cuda|sim] …

On each matrix the chosen recipes are timed briefly, the fastest again and longer, beside the best baseline. Variants of
the fastest and of some others are verified by the judge, in a worker of its own that may hang or crash; those that are
right are then timed like the recipes, in the same process by the same plan, so that all times of a case compare. What
has the machine code and the header of a program that was already measured is left out.

Records go to `measured.jsonl`, `programs.jsonl` and, last, `cases.jsonl` (`collected` reads them): a case without its
line there was not finished and is done again. Several processes may write to one folder (`share`). A case that raises
has the reason in its line; the next call tries it once more, unless it took the machine along.

Not covered: proof that a recipe is right on this matrix (a look at its result stands in for it; the judge sees variants
alone), and what is never drawn: withheld combinations, families and matrices.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from sparserl.bench.archive import sha
from sparserl.bench.explore import Effort, Explorer, Measured
from sparserl.bench.machine import Machine
from sparserl.bench.packing import PackPool
from sparserl.bench.reference import best_by_mode, problem_name
from sparserl.errors import BackendError, SparseRLError
from sparserl.judge import timing
from sparserl.judge.evaluate import Judge
from sparserl.phases import add, phase, rounded
from sparserl.program import parse
from sparserl.recipes import Recipe
from sparserl.records import Problem, Verdict
from sparserl.shares import TIME_IS_UP
from sparserl.train.baseline import baseline_us
from sparserl.train.cases import TrainingCase
from sparserl.train.entries import Entry, Written, headline
from sparserl.train.shortlist import Ahead, Numbers, Ready, Task
from sparserl.train.withheld import withheld_text

log = logging.getLogger(__name__)


class Variant(Protocol):
    """A changed program; its `parents` are the texts it was made from."""

    @property
    def text(self) -> str: ...
    @property
    def parents(self) -> Sequence[str]: ...
    @property
    def mutations(self) -> Sequence[str]: ...


VariantMaker = Callable[[str, Problem, random.Random, int], Sequence[Variant]]
NUMBERS = Numbers()
FAULTS_IN_A_ROW = 5
"""cases that fail one after the other before the run gives up: the fault is hardly theirs"""
BRIEF, LONGER = Effort(rounds=2), Effort(rounds=3, graph_ms=0.3, far_behind=1e9)
"""for all, and for those that the policy will learn from most"""


@dataclass(frozen=True)
class Plan:
    """How deep a matrix is looked into."""

    numbers: Numbers = NUMBERS
    brief: Effort = BRIEF
    longer: Effort = LONGER
    retimed: int = 8
    """recipes that are timed again, longer: the fastest of either mode"""
    parents: int = 4
    """of the fastest recipes, of which variants are made"""
    random_parents: int = 2
    """and of others, so that variants of slow programs are known too"""
    variants: int = 12
    """programs a matrix that go to the judge; 0 for none"""
    near: float = 1.25
    """a variant within this of the fastest recipe is timed longer"""
    seed: int = 0


@dataclass
class Setup:
    """What a collection works with."""

    machine: Machine
    open_pool: Callable[[], PackPool]
    problem: Problem
    out: Path
    judge: Judge | None = None
    """None: no variants"""
    make_variants: VariantMaker | None = None
    """None: `train.variants`"""
    folder: Path | None = None
    """of the real matrices"""
    ahead: int = 0
    """processes that make matrices and rank recipes"""
    plan: Plan = field(default_factory=Plan)


def collect(cases: Sequence[TrainingCase], setup: Setup, budget_s: float = 1e9) -> Iterator[str]:
    """Case after case; yields a line to show for each. Cases that `out` has are passed over."""
    began = time.monotonic()
    device = setup.machine.inner.device()
    written = Written(setup.out, setup.problem, device.name)
    plan = setup.plan
    tasks = [
        Task(case, setup.problem, device.sms, setup.folder, plan.numbers)
        for case in cases
        if case.name not in written.done
    ]
    ahead, collector, faults = Ahead(setup.ahead), _Collector(setup), 0
    try:
        for task, ready in ahead.each(tasks):
            if time.monotonic() - began > budget_s:
                yield TIME_IS_UP
                return
            start = time.monotonic()
            line, entries, baseline = collector.done(task.case, ready)
            line["phases_s"], line["parts_s"] = rounded(collector.phases_s, 3), rounded(collector.parts_s, 3)
            line["seconds"] = round(time.monotonic() - start, 2)
            sick = "fault" in line and not setup.machine.well()
            written.add({**line, "fatal": True} if sick else line, entries, baseline)
            yield headline(line, entries, baseline)
            faults = faults + 1 if "fault" in line else 0
            if sick or faults == FAULTS_IN_A_ROW:
                what = "The machine stopped working" if sick else f"{faults} cases in a row could not be measured, last"
                raise BackendError(f"{what} at {task.case.name!r}: {line['fault']}. Call again, in a fresh process.")
    finally:
        ahead.close()
        collector.close()


class _Collector:
    """Measures case after case."""

    def __init__(self, setup: Setup) -> None:
        self._setup, self._pool = setup, setup.open_pool()
        self.phases_s: dict[str, float] = {}
        """where the time of the last case went"""
        self.parts_s: dict[str, float] = {}
        """and within: this process alone on the GPU or waiting for it, the judge packing, compiling, verifying"""

    def close(self) -> None:
        self._pool.__exit__(None, None, None)

    def done(
        self, case: TrainingCase, ready: Ready | Exception
    ) -> tuple[dict[str, Any], list[Entry], dict[str, float]]:
        """The case's line, its programs and its baseline; of a case that raises, the reason alone."""
        line: dict[str, Any] = {"case": case.name, "problem": problem_name(self._setup.problem), "split": case.split}
        line["source"] = case.source
        self.phases_s, self.parts_s = {}, {}
        self._setup.machine.turn.phases_s = self.parts_s  # what turns take is added to the same account
        try:
            if isinstance(ready, Exception):
                raise ready
            entries, baseline = self._measured_twice(ready)
        except Exception as error:  # one matrix must not cost the others; the reason is written down
            log.warning("The case %s is left out: %s", case.name, error, exc_info=not isinstance(error, SparseRLError))
            return {**line, "fault": f"{type(error).__name__}: {error}"[:500]}, [], {}
        pattern = ready.pattern
        line |= {"rows": pattern.rows, "columns": pattern.columns, "nonzeros": pattern.nonzeros}
        line |= {"fingerprint": pattern.fingerprint()[:16], "admitted": list(ready.admitted), "recipes": ready.recipes}
        return line, entries, baseline

    def _measured_twice(self, ready: Ready) -> tuple[list[Entry], dict[str, float]]:
        try:
            return self._measured(ready)
        except BrokenProcessPool:  # one of the packing processes was killed: with new ones, once more
            self.close()
            self._pool = self._setup.open_pool()
            return self._measured(ready)

    def _measured(self, ready: Ready) -> tuple[list[Entry], dict[str, float]]:
        setup, plan, phases_s = self._setup, self._setup.plan, self.phases_s
        with phase(phases_s, "recipes"):
            explorer = Explorer(setup.machine.as_backend, self._pool, ready.pattern, setup.problem)
            entries = self._timed(explorer, [Entry(recipe) for recipe in ready.chosen], plan.brief)
        with phase(phases_s, "recipes again"):
            best = {recipe.text for recipe in fastest(entries, plan.retimed)}
            self._timed(explorer, [e for e in entries if e.recipe.text in best], plan.longer)
        with phase(phases_s, "baseline"):
            baseline = baseline_us(setup.machine, explorer, ready.pattern, setup.problem, (plan.brief, plan.longer))
        if setup.judge is not None and plan.variants:
            try:
                entries += self._variants(explorer, ready, entries)
            except BackendError as error:  # the judge's machine: the recipes are measured all the same
                log.warning("The case %s has no variants: %s", ready.case.name, error)
        return entries, baseline

    def _timed(self, explorer: Explorer, entries: list[Entry], effort: Effort) -> list[Entry]:
        """The same entries with their times; `retimed` where they had some."""
        by_text = {entry.recipe.text: entry for entry in entries}
        for measured in explorer.measure([entry.recipe for entry in entries], effort):
            entry = by_text[measured.recipe.text]
            entry.code = measured.code or entry.code
            if measured.fault:
                entry.verdict, entry.reason = _verdict(measured), measured.fault[:200]
            entry.retimed = bool(entry.times_us)
            entry.times_us, entry.registers = dict(measured.times_us), measured.registers
            modes = [mode for mode in effort.modes if mode in measured.times_us]
            entry.floor_us = {mode: explorer.floor_us(mode, measured.least_bytes) for mode in modes}
            for mode, floor_us in entry.floor_us.items():
                if reason := timing.implausible_us(entry.times_us[mode], floor_us, mode):
                    raise SparseRLError(
                        f"{entry.recipe.name} {reason}. That is less than its floor: the times of this matrix can't be "
                        "trusted"
                    )
        return entries

    def _variants(self, explorer: Explorer, ready: Ready, entries: list[Entry]) -> list[Entry]:
        """Drawn, told apart by machine code, judged; the right ones timed."""
        plan = self._setup.plan
        with phase(self.phases_s, "variants"):
            known = {(_header(e.recipe.text), e.code) for e in entries if e.code}
            drawn = self._new_code(ready, self._drawn(ready, entries), known)
        with phase(self.phases_s, "judge"):
            self._judged(ready, drawn)
        right = [entry for entry in drawn if entry.verdict is Verdict.CORRECT]
        with phase(self.phases_s, "variants timed"):
            self._timed(explorer, right, plan.brief)
            limit_us = {mode: plan.near * us for mode, us in explorer.best_us.items()}
            near = [e for e in right if any(us <= limit_us[mode] for mode, us in e.times_us.items())]
            self._timed(explorer, near, plan.longer)
        return drawn

    def _judged(self, ready: Ready, drawn: Sequence[Entry]) -> None:
        """Each with its verdict; the explorer times them, like the recipes."""
        setup = self._setup
        assert setup.judge is not None
        case = setup.judge.open(ready.pattern, setup.problem, seed=setup.plan.seed, pooled=True)
        try:
            outcomes = case.judge([e.recipe.text for e in drawn], modes=())
        finally:
            case.close()
        for entry, outcome in zip(drawn, outcomes, strict=True):
            entry.verdict, entry.reason = outcome.verdict, outcome.reason[:200]
            add(self.parts_s, outcome.phases_s)

    def _drawn(self, ready: Ready, entries: Sequence[Entry]) -> list[Entry]:
        """Variants of the fastest recipes and of some others; none of them withheld or written already."""
        setup, plan = self._setup, self._setup.plan
        rng = random.Random(f"{plan.seed} {ready.case.name} {problem_name(setup.problem)}")
        right = [e.recipe for e in entries if e.times_us and e.verdict is Verdict.CORRECT]
        best = fastest(entries, plan.parents)
        others = [recipe for recipe in right if recipe not in best]
        parents = best + rng.sample(others, min(plan.random_parents, len(others)))
        make = setup.make_variants or _default_maker()
        each = -(-plan.variants // max(1, len(parents)))
        texts = {recipe.text for recipe in ready.chosen}
        drawn: list[Entry] = []
        for parent in parents:
            for variant in make(parent.text, setup.problem, rng, each):
                if variant.text in texts or withheld_text(variant.text):
                    continue
                texts.add(variant.text)
                drawn.append(_entry(parent, variant))
        return drawn[: plan.variants]

    def _new_code(self, ready: Ready, drawn: Sequence[Entry], known: set[tuple[str, str]]) -> list[Entry]:
        """Those whose machine code and header no other program has; what can't be compiled is the judge's to say."""
        machine = self._setup.machine
        texts = [(entry.recipe.layout, entry.recipe.text) for entry in drawn]
        for group in self._pool.prepare(ready.pattern, self._setup.problem, texts):
            for at, job, made in group.programs:
                try:
                    binary = machine.compile(job.source, job.kernels) if made == "" else made
                except SparseRLError:
                    continue
                if not isinstance(binary, str):
                    drawn[at].code = binary.code_hash
        kept = []
        for entry in drawn:
            key = (_header(entry.recipe.text), entry.code or entry.recipe.text)
            if key not in known:
                known.add(key)
                kept.append(entry)
        return kept


def fastest(entries: Sequence[Entry], count: int) -> list[Recipe]:
    """About `count` recipes: the fastest of either mode."""
    timed = [Measured(e.recipe, e.times_us) for e in entries if e.verdict is Verdict.CORRECT]
    return [m.recipe for m in best_by_mode(timed, -(-count // 2))]


def _default_maker() -> VariantMaker:
    from sparserl.train import variants

    maker: VariantMaker = variants.variants
    return maker


def _entry(parent: Recipe, variant: Variant) -> Entry:
    try:
        layout = parse(variant.text).layout
    except SparseRLError:  # the judge will say so
        layout = parent.layout
    recipe = replace(parent, layout=layout, text=variant.text, settings=())
    parents = tuple(sha(text) for text in variant.parents) or (sha(parent.text),)
    return Entry(recipe, "variant", parents=parents, mutations=tuple(variant.mutations))


def _verdict(measured: Measured) -> Verdict:
    """What a recipe's fault amounts to."""
    if measured.fault.startswith("does not compile"):
        return Verdict.UNCOMPILABLE
    if not measured.code:
        return Verdict.INADMISSIBLE
    return Verdict.WRONG if measured.fault.startswith("off by") else Verdict.FAILED


def _header(text: str) -> str:
    """The lines that the host reads: with another layout or launch, the same code is another program."""
    return "\n".join(row for row in text.split("\n") if row.startswith("// "))


