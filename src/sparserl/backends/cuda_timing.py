"""Timing on the GPU: CUDA graphs of products, side by side, and the figures of the machine that stand under every time.

chain   products back to back; with `feed_back` each reads what the last one wrote. Values may then grow to Inf or NaN
        over thousands of products: arithmetic on a GPU takes as long for those as for any other number.
solver  an ordinary kernel rewrites x before every product; its time, measured alone in an equal graph, is taken off.
cold    a buffer of twice the L2's size is written before every product; its time is taken off in the same way.

All sides have the same number of products a graph, but for those that are far behind: a side eight times as slow as the
fastest gets an eighth of them, so that a race isn't spent on those who can't win it. No graph is shorter than asked,
but in a brief timing, where others on the GPU may have made a product look slower when their number was found.
Every round times each side once, in an order that rotates; a brief timing has one round for those that are behind.
Each time is that of the second of two replays in a row, after the L2 was emptied. What other sides leave there, dirty
lines most of all, stays for hundreds of products where a side streams: on an H200 a time was up to 60 %
longer, by another side's doing. While the first replay fills the L2 again, the host hands over the second, so that no
launch is part of a time; a long graph needs neither and is replayed once, but in brief timings.
Not covered: the host's time for a launch.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from typing import Any

import numpy as np

from sparserl.backends.backend import Buffer, TimingPlan
from sparserl.backends.driver import Call, Graph, Stopwatch, call
from sparserl.backends.instruments import LINE, Instruments
from sparserl.values import TIMED_PERIOD, timed_numbers

Launch = Callable[[int, int, int], None]
"""(x, y, stream)"""
Held = Callable[[], AbstractContextManager[None]]

FEWEST, MOST, MOST_COLD = 4, 4000, 64
"""products in one graph, but of a side that is far behind: one may be enough"""
WARM_UPS = 1
LONG_MS = 8.0
"""a graph from which on filling the L2 is about two thousandths: the slower sides of a race, which take most of it"""
BRIEF_ROUNDS = 3
"""a timing of no more rounds has no warm-up but the replay before each that counts, and the time of what stands between
products is the median over all such timings of the same plan"""
ENOUGH = 5
"""readings of what stands between products before one is believed: it is taken off all sides, and one of 285 collected
matrices had programs that took no time at all"""
ESTIMATE, LARGE_BYTES = 8, 1 << 27
"""products from which their number in a graph is found; where x and y are so large, one: it may take a second"""
LOOKS_AMONG = 3
"""times that these products are timed where others work on the GPU meanwhile: the least counts"""
FAR_BEHIND = 8
"""times slower than the fastest: so many times fewer products a graph"""
BEHIND = 1.5
"""times slower than the fastest: one round of a brief timing is enough, for it is not among those that win"""


class Bench:
    """Times launches on one stream. It allocates only when a call begins."""

    def __init__(self, stream: int, instruments: Instruments, alloc: Callable[[int], Buffer], l2_bytes: int) -> None:
        self._stream, self._instruments, self._alloc, self._l2_bytes = stream, instruments, alloc, l2_bytes
        self._floors: dict[TimingPlan, float] = {}
        self._between_us: dict[TimingPlan, list[float]] = {}
        self._l2_tb_s = 0.0
        self.repetitions: tuple[int, ...] = ()
        """products in the graphs of the last timing, by side"""
        self.alone: Held = nullcontext
        """held while graphs are timed, where other processes use the GPU too; nobody else may be at work then"""
        self.among: Held = nullcontext
        """held while they are made ready"""
        self.keeps_vectors = False
        """x and y of one timing serve the next of the same sizes: for programs that are trusted"""
        self._kept: tuple[tuple[int, int, int], tuple[Buffer, Buffer]] | None = None

    def time(self, launches: Sequence[Launch], plan: TimingPlan) -> list[list[float]]:
        """Microseconds a product, by side and round."""
        if plan.feed_back and plan.x_elements != plan.y_elements:
            raise ValueError(
                f"A TimingPlan with 'feed_back' needs x and y of one size. Got {plan.x_elements} and {plan.y_elements}."
            )
        with self.among():
            between, bodies = self._ready(launches, plan)
        if plan.rounds <= BRIEF_ROUNDS:
            return self._timed(between, bodies, plan, self.among, self.alone)
        with self.alone():  # one turn for both: to wait for a second one takes longer
            return self._timed(between, bodies, plan, nullcontext, nullcontext)

    def _timed(
        self, between: Call | None, bodies: list[Callable[[int], None]], plan: TimingPlan, among: Held, alone: Held
    ) -> list[list[float]]:
        """What is ready: about how long each takes is found out `among` others, how long `alone`."""
        counts, rounds_each = (plan.repetitions,) * len(bodies), [plan.rounds] * len(bodies)
        if not plan.repetitions:
            about_us = self._estimates(bodies, plan, among)
            counts = repetitions(about_us, plan.graph_ms, MOST_COLD if plan.mode == "cold" else MOST)
            rounds_each = rounds_of(about_us, plan.rounds)
        self.repetitions = counts
        if between is None:
            return self._rounds(bodies, counts, rounds_each, alone)
        seen = self._between_us.setdefault(plan, []) if plan.rounds <= BRIEF_ROUNDS else []
        copies = max(1, -(-(ENOUGH - len(seen)) // plan.rounds))
        bodies += [functools.partial(_repeat, between)] * copies
        counts += (max(counts),) * copies
        rounds = self._rounds(bodies, counts, rounds_each + [plan.rounds] * copies, alone)
        for _ in range(copies):
            seen += rounds.pop()
        between_us = median(seen)
        return [[max(0.0, time_us - between_us) for time_us in side] for side in rounds]

    def _ready(self, launches: Sequence[Launch], plan: TimingPlan) -> tuple[Call | None, list[Callable[[int], None]]]:
        """What stands between products, and for each side what launches so many of them."""
        x, y = self._vectors(plan)
        flushed = self._alloc(2 * self._l2_bytes) if plan.mode == "cold" else None
        between = self._between(plan, x, flushed)
        bodies: list[Callable[[int], None]] = []
        for launch in launches:
            bodies.append(functools.partial(self._products, launch, between, plan, (x, y)))
            bodies[-1](1)  # outside a capture: binds workspaces, and the plain launch that comes first is over
        call("cuStreamSynchronize", self._stream)
        return between, bodies

    def _vectors(self, plan: TimingPlan) -> tuple[Buffer, Buffer]:
        sizes = (plan.x_elements, plan.y_elements, plan.value_bytes)
        if self._kept is not None and self._kept[0] == sizes:
            return self._kept[1]
        drawn = min(max(plan.x_elements, plan.y_elements), TIMED_PERIOD)
        numbers = timed_numbers(np.random.default_rng(), drawn, plan.value_bytes)
        made = self._filled(numbers, plan.x_elements), self._filled(numbers, plan.y_elements)
        self._kept = (sizes, made) if self.keeps_vectors else None
        return made

    def floor_us(self, plan: TimingPlan) -> float:
        """The empty kernel in the plan's mode: the quicker of an ordinary launch and one that overlaps."""
        if plan not in self._floors:
            empties = [self._instruments.empty(self._stream, dependent) for dependent in (False, True)]
            times = self.time([functools.partial(_alone, empty) for empty in empties], plan)
            self._floors[plan] = min(median(side) for side in times)
        return self._floors[plan]

    def l2_tb_s(self) -> float:
        """What the L2 delivers to all multiprocessors together: the best over a few sizes that fit."""
        if not self._l2_tb_s:
            passes, sink = 100, self._alloc(256)
            for part in (8, 4, 3):
                size_bytes = self._l2_bytes // part // 4096 * 4096
                data = self._alloc(size_bytes)
                reading = self._instruments.read_repeatedly(
                    data.pointer, size_bytes, passes, sink.pointer, self._stream
                )
                self._l2_tb_s = max(self._l2_tb_s, passes * size_bytes / self._best_ms(reading) / 1e9)
        return self._l2_tb_s

    def copy_tb_s(self, size_bytes: int = 1 << 29) -> float:
        """Bytes read and written by a plain copy far larger than the L2."""
        source, target = self._alloc(size_bytes), self._alloc(size_bytes)
        copying = self._instruments.copy(target.pointer, source.pointer, size_bytes, self._stream)
        return 2 * size_bytes / self._best_ms(copying) / 1e9

    def _best_ms(self, work: Call) -> float:
        watch = Stopwatch()
        times = []
        self.empty_l2()
        for _ in range(WARM_UPS + 5):
            with watch.around(self._stream):
                work.launch()
            times.append(watch.elapsed_ms)
        watch.close()
        return min(times[WARM_UPS:])

    def _filled(self, numbers: np.ndarray[Any, np.dtype[Any]], elements: int) -> Buffer:
        """The numbers over and over. They come from no known seed: who knows them knows that it is timed."""
        first = numbers[:elements]
        size_bytes = elements * numbers.itemsize
        buffer = self._alloc(max(size_bytes, 1))
        if first.nbytes:
            call("cuMemcpyHtoDAsync", buffer.pointer, first.ctypes.data, first.nbytes, self._stream)
        filled = first.nbytes
        while 0 < filled < size_bytes:
            more = min(filled, size_bytes - filled)
            call("cuMemcpyDtoDAsync", buffer.pointer + filled, buffer.pointer, more, self._stream)
            filled += more
        return buffer

    def _between(self, plan: TimingPlan, x: Buffer, flushed: Buffer | None) -> Call | None:
        if flushed is not None:
            return self._instruments.flush(flushed.pointer, flushed.size_bytes, self._stream)
        if plan.mode == "solver":
            return self._instruments.touch(x.pointer, plan.x_elements * plan.value_bytes, self._stream)
        return None

    def _products(
        self, launch: Launch, between: Call | None, plan: TimingPlan, vectors: tuple[Buffer, Buffer], count: int
    ) -> None:
        x, y = vectors[0].pointer, vectors[1].pointer
        swap = plan.feed_back and plan.mode == "chain"
        for _ in range(count):
            if between is not None:
                between.launch()
            launch(x, y, self._stream)
            if swap:
                x, y = y, x

    def _estimates(self, bodies: Sequence[Callable[[int], None]], plan: TimingPlan, held: Held) -> list[float]:
        """About how long a product of each side takes, what stands between included.

        For a brief timing among others, the least of a few looks: a turn alone costs everybody more than it is worth.
        """
        large = (plan.x_elements + plan.y_elements) * plan.value_bytes >= LARGE_BYTES
        brief = plan.rounds <= BRIEF_ROUNDS
        counts, looks = (1 if large else ESTIMATE,) * len(bodies), [LOOKS_AMONG if brief else 2] * len(bodies)
        found = self._rounds(bodies, counts, looks, held)
        return [max(0.2, min(times)) for times in found]

    @functools.cached_property
    def _emptying(self) -> tuple[Buffer, Call, Call]:
        held = self._alloc(2 * self._l2_bytes // LINE * LINE)
        about = held.pointer, held.size_bytes, self._stream
        return held, self._instruments.flush(*about), self._instruments.discard(*about)

    def empty_l2(self) -> None:
        """Fill the L2 with lines of a buffer of its own, then throw those away. On the stream; nothing waits.

        Lines that are filled and stay would be worse than what was there: before Ampere, nothing is done.
        """
        if not self._instruments.can_discard:
            return
        _, fill, discard = self._emptying
        fill.launch()
        discard.launch()

    def _rounds(
        self, bodies: Sequence[Callable[[int], None]], counts: Sequence[int], rounds: Sequence[int], held: Held
    ) -> list[list[float]]:
        """Each body captured so many times over, for its own number of rounds; microseconds a repetition, by body."""
        times: list[list[float]] = [[] for _ in bodies]
        graphs: list[Graph] = []
        watch = Stopwatch()
        try:
            for body, count in zip(bodies, counts, strict=True):  # nothing runs on the GPU yet
                graphs.append(Graph(self._stream, functools.partial(body, count)))
            with held():
                most = max(rounds, default=0)
                long = [most > BRIEF_ROUNDS and self._replayed_ms(graph, watch) >= LONG_MS for graph in graphs]
                for number in range(most):
                    for turn in range(len(graphs)):
                        side = (turn + number) % len(graphs)
                        if number >= rounds[side]:
                            continue
                        self.empty_l2()
                        if not long[side]:
                            graphs[side].launch(self._stream)
                        times[side].append(self._replayed_ms(graphs[side], watch) * 1000 / counts[side])
        finally:
            for graph in graphs:
                graph.close()
            watch.close()
        return times

    def _replayed_ms(self, graph: Graph, watch: Stopwatch) -> float:
        with watch.around(self._stream):
            graph.launch(self._stream)
        return watch.elapsed_ms


def repetitions(estimates_us: Sequence[float], graph_ms: float, most: int) -> tuple[int, ...]:
    """Products in the graph of each side, from about how long one takes."""
    fastest_us = min(estimates_us, default=1.0)
    count = max(FEWEST, min(math.ceil(1000 * graph_ms / fastest_us), most))
    behind = (int(math.log(each_us / fastest_us, FAR_BEHIND) + 1e-9) for each_us in estimates_us)
    return tuple(-(-count // FAR_BEHIND**steps) for steps in behind)


def rounds_of(estimates_us: Sequence[float], rounds: int) -> list[int]:
    """Of each side, from about how long a product takes: all of them, or of a brief timing one for who is behind."""
    most_us = BEHIND * min(estimates_us, default=1.0)
    return [1 if rounds <= BRIEF_ROUNDS and each_us > most_us else rounds for each_us in estimates_us]


def _alone(work: Call, x: int, y: int, stream: int) -> None:
    work.launch()


def _repeat(work: Call, count: int) -> None:
    for _ in range(count):
        work.launch()


@functools.cache
def _nvml() -> Any:
    """NVML, started; None where there is none."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return library if library.nvmlInit_v2() == 0 else None


def clock_mhz(bus_id: str) -> int:
    """The SM clock of the device on this PCI bus, now; 0 where NVML can't tell."""
    library, handle, clock = _nvml(), ctypes.c_void_p(), ctypes.c_uint()
    if library is None or library.nvmlDeviceGetHandleByPciBusId_v2(bus_id.encode(), ctypes.byref(handle)):
        return 0
    streaming = 1  # NVML_CLOCK_SM
    return clock.value if library.nvmlDeviceGetClockInfo(handle, streaming, ctypes.byref(clock)) == 0 else 0
