"""Synthetic records of a benchmark, seeded, for the tests of the report: invented matrices with plausible numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sparserl.bench.archive import sha

CLASSES = ("small", "regular", "block", "random", "skewed", "extreme")
PROBLEMS = ("spmv float32", "spmv float64", "spmm float32 32 row row")
PEERS = {"cusparse:csr1": 1.7, "cusparse:csr2": 1.5, "cusparse:coo1": 1.08, "torch:csr": 1.9, "cupy:csr": 2.6,
         "scipy:csr": 40.0, "ginkgo": 1.35, "acme-spmv": 1.2}  # fmt: skip
"""times over the best of cuSPARSE"""
FORMATS = {"spmv": {"cusparse:coo2": 1.1, "cusparse:sell": 1.0},
           "spmm": {f"cusparse:{name}{order}": slow * wide for order, wide in (("", 1.0), ("@col", 1.2))
                    for name, slow in (("csr3", 1.25), ("coo4", 1.0))}}  # fmt: skip
HOW = {"torch:csr": "in CUDA graphs", "cupy:csr": "on a stream, back to back",
       "scipy:csr": "on the CPU, by the host's clock", "ginkgo": "its own clock",
       "acme-spmv": "its own clock"}  # fmt: skip
UNCHECKED = "acme-spmv"
"""a command without {y}"""
LAYOUTS = ("slices c=32 sigma=1024 group=1 index=int16", "tiles steps=6 threads=256 order=step index=int32",
           "rows index=int32", "bins per=4 long=512 segment=1024 threads=128 index=int32",
           "split c=32 sigma=256 group=1 long=512 segment=256 index=int32")  # fmt: skip
TEXT = """\
// layout: {layout}
// bake: PADDED
// launch: spmv<<<div_up(slices, 4), 128>>> pdl
extern "C" __global__ void __launch_bounds__(128) spmv(
    int rows, int columns, int nonzeros, int padded, int slices, const int* __restrict__ slice_start,
    const int* __restrict__ row_of, const index_t* __restrict__ cols, const value_t* __restrict__ vals,
    const value_t* x, value_t* y)
{{
    pdl_trigger();
    const int slice = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (slice >= slices) return;  // {name}
    const int first = slice_start[slice] + lane, end = slice_start[slice + 1];
    index_t c[{depth}];
    value_t v[{depth}];
    #pragma unroll
    for (int k = 0; k < {depth}; ++k) {{
        const int j = first + k * 32;
        if (j < end) {{ c[k] = stream(cols + j); v[k] = stream(vals + j); }}
    }}
    const int row = row_of[slice * 32 + lane];
    pdl_wait();
    acc_t sum = 0;
    #pragma unroll
    for (int k = 0; k < {depth}; ++k) {{
        if (first + k * 32 >= end) break;
        if (!PADDED || !is_padding(c[k])) sum += v[k] * x[c[k]];
    }}
    for (int j = first + {depth} * 32; j < end; j += 32) sum += vals[j] * x[cols[j]];
    if (row >= 0) y[row] = sum;
}}
"""
FAILURES = (("wrong", "row 812 is off by 3.1e-2 (allowed 4.8e-6) <b>"), ("uncompilable", 'unknown name "slise"'),
            ("inadmissible", "every slice must span < 65535 columns"), ("failed", "read past the end of 'cols'"),
            ("screened", "x is read before pdl_wait (screen rule 'early-x')"))  # fmt: skip


def records(count: int = 20, problems: tuple[str, ...] = PROBLEMS, seed: int = 0, **about: Any) -> list[dict[str, Any]]:
    """All records of a benchmark of `count` matrices in each problem."""
    return list(_records(count, problems, seed, about))


def _records(count: int, problems: tuple[str, ...], seed: int, about: dict[str, Any]) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    yield {"kind": "about", "device": "Example GPU", "driver": "580.1",
           "versions": {"torch": "2.11", "cusparse": "12.6"},
           "policy": "nano", "candidates": 16, "date": "2026-01-02", "memory_tb_s": 4.8, "copy_tb_s": 4.3,
           "l2_bytes": 60_000_000, "peers_missing": {"petsc": "there is no program 'petsc_bench'"},
           "source": "modelled" if about.get("device") == "sim" else "gpu",
           "command": "sparserl bench --matrices DIR --op spmv --out results/example", **about}  # fmt: skip
    source = "modelled" if about.get("device") == "sim" else "gpu"
    for at in range(count):
        matrix = _matrix(at, rng)
        for problem in problems:
            yield from _problem({**matrix, "problem": problem}, rng, source)


def _matrix(at: int, rng: np.random.Generator) -> dict[str, Any]:
    structure = CLASSES[at % len(CLASSES)]
    real = at % 2 == (at // 6) % 2
    nonzeros = int(10 ** (rng.uniform(3.6, 5) if structure == "small" else rng.uniform(5.1, 7.8)))
    mean = float(rng.uniform(4, 60))
    rows = max(64, int(nonzeros / mean))
    skew = {"skewed": rng.uniform(22, 400), "extreme": rng.uniform(300, 8000)}.get(structure, rng.uniform(1.0, 4.0))
    split = ("train" if at % 5 == 4 else "real") if real else ("train" if at % 7 == 6 else ("seen", "unseen")[at % 2])
    name = f"{'mesh' if real else 'gen'}_{structure}_{at}" if at != 1 else "<script>alert('1')</script>"
    edges = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
    counts = [int(rows * np.exp(-((np.log2(e + 1) - np.log2(mean)) ** 2) / 2) / 2.5) for e in edges[:-1]]
    return {
        "kind": "matrix", "matrix": name, "origin": "real" if real else "generated", "split": split,
        "headline": split not in ("train", "seen"), "modes": ["solver", "chain"], "structure": structure,
        "rows": rows, "columns": rows, "nonzeros": nonzeros,
        "features": {"row_mean": mean, "row_max": mean * skew, "row_deviation": mean * skew / 9, "row_gini": 0.3,
                     "empty_rows": 0.02, "symmetric": 1.0, "diagonals_90": 27.0, "bandwidth_mean": rows / 40},
        "row_histogram": {"edges": edges, "counts": counts}, "spy": {"size": 64, "counts": _spy(structure, rng)},
    }  # fmt: skip


def _spy(structure: str, rng: np.random.Generator) -> list[list[int]]:
    y, x = np.mgrid[0:64, 0:64]
    if structure in ("small", "regular", "block"):
        near = np.abs(x - y) <= {"small": 3, "regular": 1, "block": 2}[structure]
        far = (np.abs(np.abs(x - y) - 21) < 1) if structure != "block" else (x // 8 == y // 8)
        return (near * rng.integers(200, 400, x.shape) + far * rng.integers(20, 90, x.shape)).tolist()
    if structure == "random":
        return rng.poisson(40, x.shape).tolist()
    hub = 900 / (1 + np.minimum(x, y)) ** 1.3
    return rng.poisson(hub + (300 * (x < 1) if structure == "extreme" else 0)).tolist()


def _problem(matrix: dict[str, Any], rng: np.random.Generator, source: str) -> Iterator[dict[str, Any]]:
    wide = 9.0 if "spmm" in matrix["problem"] else 1.0
    value = 8 if "float64" in matrix["problem"] else 4
    csr = matrix["nonzeros"] * (value + 4) + matrix["rows"] * (4 + 2 * value * (32 if wide > 1 else 1))
    floor = csr / 4.3e6
    ours = max(1.25, floor * rng.uniform(0.9, 1.4)) * wide**0.5
    gain = float(np.exp(rng.normal(0.45, 0.28)))
    layout = LAYOUTS[int(rng.integers(len(LAYOUTS)))]
    text = TEXT.format(layout=layout, name=f"{matrix['problem']} {rng.integers(1e6)}", depth=int(rng.integers(2, 12)))
    broken = matrix["matrix"].endswith("_11")
    modes = ("solver",) if wide > 1 else ("solver", "chain")
    other = text.replace("{ c[k]", "{  c[k]") if matrix["nonzeros"] % 3 == 1 else text  # another program in the chain
    winners = {mode: {"name": "written 3", "layout": layout, "text": text if mode == "solver" else other, "pdl": True}
               for mode in modes}  # fmt: skip
    candidates = [] if broken else _candidates(layout, (text, other), ours, 0.8 * csr, rng)
    yield {
        **matrix, "modes": list(modes),
        "tuning_s": float(rng.uniform(0.6, 3.5)), "phases_s": {"sample": 0.4, "judge": 0.9},
        "peak_memory_bytes": 4 * csr, "packed_bytes": int(0.8 * csr),
        "candidates": candidates,
        "winner": None if broken else winners["solver"], "winners": {} if broken else winners,
        **({"fault": "out of memory while packing </table>"} if broken else {}),
    }  # fmt: skip
    if broken:
        return
    named = {**PEERS, **FORMATS[matrix["problem"].split()[0]]}
    named |= {"cusparse:bsr3": 0.97} if matrix["structure"] == "block" else {}
    named |= {"ginkgo": 0.4} if matrix["structure"] == "regular" else {}
    for mode in modes:
        base = ours * (1.0 if mode == "solver" else 0.9)
        sides = {"operator": base, "operator without pdl": base * float(rng.uniform(1.0, 1.25))}
        sides |= {peer: base * gain * slow * float(rng.uniform(0.97, 1.2)) for peer, slow in named.items()}
        if source == "modelled":
            sides = {"operator": base, "plain:csr": base * gain}
        for side, us in sides.items():
            yield _time(matrix, mode, side, us, rng) | {"source": source, "floor_us": floor} | _beside(side, base)


def _time(matrix: dict[str, Any], mode: str, side: str, us: float, rng: np.random.Generator) -> dict[str, Any]:
    fault = {"fault": "row 3 is wrong"} if side == "torch:csr" and rng.random() < 0.1 else {}
    return {
        "kind": "time", "matrix": matrix["matrix"], "problem": matrix["problem"], "side": side, "mode": mode,
        "median_us": us, "quantiles_us": [us * 0.98, us * 0.99, us * 1.01, us * 1.03], "rounds": 9,
        "repetitions": 50, "clock_mhz": 1980, "verified": side != UNCHECKED and not fault, **fault,
    }  # fmt: skip


def _beside(side: str, operator_us: float) -> dict[str, Any]:
    """torch saw an operator that was a tenth slower than in the race."""
    how = {"how": HOW[side]} if side in HOW else {}
    return how | ({"beside_us": 1.1 * operator_us} if side == "torch:csr" else {})


def _candidates(
    layout: str, texts: tuple[str, str], ours: float, packed: float, rng: np.random.Generator
) -> list[dict[str, Any]]:
    def one(layout: str, us: float | None, name: str, **more: Any) -> dict[str, Any]:
        launch = "spmv<<<div_up(slices, 4), 128>>> pdl" if rng.random() < 0.7 else "a<<<1, 32>>> b<<<1, 32>>>"
        times = {"solver": us, "chain": 0.9 * us} if us else {}
        return {"layout": layout, "verdict": "correct", "reason": "", "times_us": times, "origin": "policy",
                "sha": name, "floor_us": 0.6 * ours, "registers": int(rng.integers(16, 64)), "stage": "judged",
                "packed_bytes": int(packed * rng.uniform(0.9, 1.4)), "params": {"launch": launch}, **more}  # fmt: skip

    found = [one(layout, ours * (1 + 0.001 * at), sha(text), stage="final", packed_bytes=int(packed),
                 params={"launch": "spmv<<<div_up(slices, 4), 128>>> pdl"})
             for at, text in enumerate(dict.fromkeys(texts))]  # fmt: skip
    for at in range(15):
        us = ours * float(rng.uniform(1.02, 2.4))
        verdict, reason = ("correct", "") if at < 10 else FAILURES[at - 10]
        failed = {} if at < 10 else {"verdict": verdict, "reason": reason, "registers": 0, "packed_bytes": 0}
        found.append(one(LAYOUTS[at % len(LAYOUTS)], us if at < 10 else None, f"{at:016x}", **failed))
    return found
