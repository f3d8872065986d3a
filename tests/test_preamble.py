"""The preamble compiles with NVRTC for every type, its loads become the instructions they promise, its sums are right.

NVRTC needs no GPU; what the primitives compute is tested on the simulator, under its watch for races and stray reads.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from cuda.bindings import nvrtc

from sparserl.assemble import preamble, types
from sparserl.backends.backend import Job
from sparserl.backends.sim.backend import SimBackend
from sparserl.records import Launch, Param, Problem
from sparserl.values import STORAGE, store, widen

EVERY_PRIMITIVE = """
__device__ constexpr int OFFSETS[5] = {-100, -1, 0, 1, 100};
extern "C" __global__ void every(int rows, const index_t* cols, const value_t* vals, const value_t* x, value_t* y,
                                 const int4* work, int* counter, acc_t* partial)
{
    extern __shared__ value_t staged[];
    pdl_trigger();
    int i = blockIdx.x * 128 + threadIdx.x;
    pack<value_t, 4> four = load<4>(vals + 4 * i);
    pack<value_t, 8> eight = stream_load<8>(vals + 8 * i);
    pack<index_t, 2> two = stream_load<2>(cols + 2 * i);
    int4 item = stream(work + i);
    pdl_wait();
    shared_copy(staged, x, 128);
    __syncthreads();
    acc_t sum = 0;
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (!is_padding(four[k])) sum += to_acc(four[k]) * to_acc(staged[k]);
#pragma unroll
    for (int k = 0; k < 2; k++)
        if (!is_padding(two[k])) sum += to_acc(eight[k]) * to_acc(read_only(x + two[k]));
#pragma unroll
    for (int k = 0; k < 5; k++) sum += to_acc(x[i + OFFSETS[k]]);
    pack<value_t, 2> fixed = read_only<2>(x + 2 * i);
    sum += to_acc(fixed[1]) + to_acc(stream(vals + i)) + item.w;
    sum = warp_sum<8>(warp_sum<1>(sum));
    sum = warp_segmented_sum(sum, item.x);
    sum = block_sum<128>(block_sum<96>(sum));
    partial[blockIdx.x] = sum;
    if (last_block_done(counter, div_up(rows, 128))) {
        fixed[0] = fixed[1] = to_value(fresh(partial + threadIdx.x));
        store(y + 2 * i, fixed);
    }
    if (threadIdx.x == 0 && last_arrival(counter + 1, gridDim.x)) y[0] = to_value(sum);
}
"""
DTYPES = ("float32", "float64", "float16", "bfloat16")


def compile_ptx(body: str, dtype: str, index: str = "int32") -> str:
    """NVRTC straight from its bindings: cuda.core asks for the driver before it hands out PTX."""
    source = types(Problem(dtype=dtype), index) + preamble() + body  # type: ignore[arg-type]
    program = checked(nvrtc.nvrtcCreateProgram(source.encode(), b"program.cu", 0, [], []))
    (status,) = nvrtc.nvrtcCompileProgram(program, 2, [b"-arch=sm_90", b"-std=c++17"])
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = b" " * checked(nvrtc.nvrtcGetProgramLogSize(program))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(log.decode())
    ptx = b" " * checked(nvrtc.nvrtcGetPTXSize(program))
    nvrtc.nvrtcGetPTX(program, ptx)
    nvrtc.nvrtcDestroyProgram(program)
    return ptx.decode()


def checked(answer: tuple[Any, ...]) -> Any:
    status, value = answer
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS
    return value


def kernel(parameters: str, body: str) -> str:
    return f'extern "C" __global__ void k({parameters}) {{ {body} }}'


@pytest.mark.parametrize("index", ["int32", "int16"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_primitive_compiles_for_every_type(dtype: str, index: str) -> None:
    ptx = compile_ptx(EVERY_PRIMITIVE, dtype, index)
    for instruction in ("griddepcontrol.wait", "griddepcontrol.launch_dependents", "ld.global.cs", "ld.global.nc"):
        assert instruction in ptx


def test_the_preamble_alone_costs_little_compile_time() -> None:
    body = kernel("value_t* y", "y[threadIdx.x] = to_value(1);")
    compile_ptx(body, "float32")
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        compile_ptx(body, "float32")
        times.append(time.perf_counter() - begin)
    assert min(times) < 1.0  # tens of milliseconds on a free core


@pytest.mark.parametrize(("dtype", "count", "instruction", "accesses"), [
    ("float32", 4, "ld.global.v4.u32", 1),
    ("float32", 2, "ld.global.v2.u32", 1),
    ("float16", 8, "ld.global.v4.u32", 1),
    ("float64", 8, "ld.global.v4.u32", 4),
])
def test_a_vector_load_is_one_access_of_up_to_sixteen_bytes(
    dtype: str, count: int, instruction: str, accesses: int
) -> None:
    ptx = compile_ptx(
        kernel("const value_t* x, pack<value_t, COUNT>* y", "y[threadIdx.x] = load<COUNT>(x + COUNT * threadIdx.x);")
        .replace("COUNT", str(count)),
        dtype,
    )
    assert ptx.count(instruction) == accesses
    assert ptx.count("ld.global") == accesses


def test_a_baked_table_folds_where_the_loop_is_unrolled() -> None:
    table = "__device__ constexpr int OFFSETS[3] = {-1234, 0, 5678};\n"
    loop = "#pragma unroll\nfor (int d = 0; d < 3; d++) s += x[(int)threadIdx.x + OFFSETS[d]];"
    body = f"acc_t s = 0;\n{loop} y[threadIdx.x] = s;"
    ptx = compile_ptx(table + kernel("const value_t* x, value_t* y", body), "float32")
    assert "-4936" in ptx and "22712" in ptx
    assert ptx.count("ld.") - ptx.count("ld.param") == 3


def test_a_block_sum_goes_through_shared_memory_by_its_own_instructions() -> None:
    ptx = compile_ptx(kernel("acc_t* y", "y[0] = block_sum<128>(y[threadIdx.x]);"), "float32")
    assert "st.shared" in ptx and "ld.shared" in ptx
    assert ".local" not in ptx


def test_a_group_sum_of_one_lane_has_no_shuffle() -> None:
    ptx = compile_ptx(kernel("acc_t* y", "y[threadIdx.x] = warp_sum<1>(y[threadIdx.x]);"), "float32")
    assert "shfl" not in ptx


def test_a_group_that_is_no_power_of_two_is_refused_by_name() -> None:
    with pytest.raises(Exception, match="warp_sum<L>: L must be"):
        compile_ptx(kernel("acc_t* y", "y[0] = warp_sum<3>(y[0]);"), "float32")


def simulate(
    body: str, x: np.ndarray, outputs: int, dtype: str = "float32", *, grid: int = 1, block: int = 128
) -> np.ndarray:
    """Run a body over (x, y, counters, partial) under the simulator's watch."""
    source = types(Problem(dtype=dtype), "int32") + preamble()  # type: ignore[arg-type]
    source += kernel("const value_t* x, value_t* y, int* counters, acc_t* partial", body)
    vectors = (Param("x", "const value_t*"), Param("y", "value_t*"))
    params = (*vectors, Param("counters", "int*"), Param("partial", "acc_t*"))
    spaces = {"counters": (64, "zeroed"), "partial": (8192, "scratch")}
    job = Job(source, ("k",), params, {}, (Launch("k", grid, block),), spaces)
    backend = SimBackend(nvrtc=False, watch="always")
    stored = store(x, dtype)  # type: ignore[arg-type]
    source_buffer, target = backend.alloc(stored.nbytes), backend.alloc(outputs * stored.itemsize)
    backend.write(source_buffer, stored)
    executable = backend.prepare(backend.compile(source, ("k",)), job, {})
    for _ in range(2):  # the second run sees what the first left in the counters
        report = backend.run(executable, source_buffer, target)
        assert report.ok, report.reason
    assert not backend.read(backend.workspaces(executable)["counters"], np.dtype(np.int32), 16).any()
    return widen(backend.read(target, STORAGE[dtype], outputs), dtype)  # type: ignore[arg-type]


RANDOM = np.random.default_rng(7).integers(-50, 50, 512).astype(np.float64)


@pytest.mark.parametrize("lanes", [1, 2, 8, 32])
def test_every_lane_of_a_group_gets_the_sum_of_its_group(lanes: int) -> None:
    got = simulate(f"y[threadIdx.x] = warp_sum<{lanes}>(x[threadIdx.x]);", RANDOM, 128)
    assert (got == np.repeat(RANDOM[:128].reshape(-1, lanes).sum(1), lanes)).all()


@pytest.mark.parametrize("threads", [32, 64, 96, 256, 512])
def test_a_block_sum_can_be_taken_twice(threads: int) -> None:
    body = f"""
        acc_t a = block_sum<{threads}>(x[threadIdx.x]);
        acc_t b = block_sum<{threads}>(2 * x[threadIdx.x]);
        if (threadIdx.x == 0) {{ y[0] = a; y[1] = b; }}"""
    total = RANDOM[:threads].sum()
    assert simulate(body, RANDOM, 2, block=threads).tolist() == [total, 2 * total]


def test_the_last_lane_of_a_run_holds_the_sum_of_the_run() -> None:
    rows = np.sort(np.random.default_rng(8).integers(0, 9, 32))
    got = simulate("y[threadIdx.x] = warp_segmented_sum(x[threadIdx.x], (int)x[32 + threadIdx.x]);",
                   np.concatenate([RANDOM[:32], rows]), 32, block=32)  # fmt: skip
    for row in set(rows.tolist()):
        assert got[np.flatnonzero(rows == row)[-1]] == RANDOM[:32][rows == row].sum()


def test_the_last_block_sees_what_all_others_wrote() -> None:
    body = """
        acc_t sum = block_sum<32>(x[blockIdx.x * 32 + threadIdx.x]);
        if (threadIdx.x == 0) partial[blockIdx.x] = sum;
        if (last_block_done(counters, 16)) {
            acc_t all = warp_sum<16>(threadIdx.x < 16 ? fresh(partial + threadIdx.x) : acc_t(0));
            if (threadIdx.x == 0) y[0] = all;
        }"""
    assert simulate(body, RANDOM, 1, grid=16, block=32).tolist() == [RANDOM.sum()]


def test_the_last_thread_to_arrive_sees_what_the_others_wrote() -> None:
    body = """
        partial[blockIdx.x] = x[blockIdx.x];
        if (last_arrival(counters + blockIdx.x / 4, 4)) {
            acc_t sum = 0;
            for (int i = 0; i < 4; i++) sum += fresh(partial + blockIdx.x / 4 * 4 + i);
            y[blockIdx.x / 4] = sum;
        }"""
    got = simulate(body, RANDOM, 3, grid=12, block=1)
    assert got.tolist() == RANDOM[:12].reshape(3, 4).sum(1).tolist()


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_load_reads_what_is_there_and_every_type_survives_the_round_trip(dtype: str) -> None:
    body = """
        const int i = threadIdx.x;
        pack<value_t, 8> a = load<8>(x + 8 * i), b = stream_load<8>(x + 8 * i);
        pack<value_t, 8> sums;
        for (int k = 0; k < 8; k++) {
            acc_t same = to_acc(read_only(x + 8 * i + k)) - to_acc(stream(x + 8 * i + k));
            sums[k] = to_value(to_acc(a[k]) + to_acc(b[k]) + same);
        }
        pack<value_t, 2> edge = read_only<2>(x + 8 * i);
        sums[0] = to_value(2 * to_acc(edge[0]));
        store(y + 8 * i, sums);"""
    x = widen(store(np.random.default_rng(9).normal(size=128) * 1e-3, dtype), dtype)  # type: ignore[arg-type]
    assert (simulate(body, x, 128, dtype, block=16) == 2 * x).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_only_negative_zero_is_padding(dtype: str) -> None:
    x = np.array([0.0, -0.0, 1.0, -1.0])
    got = simulate("y[threadIdx.x] = to_value(is_padding(x[threadIdx.x]));", x, 4, dtype, block=4)
    assert got.tolist() == [0, 1, 0, 0]


def test_padding_columns_are_told_by_their_stored_type() -> None:
    body = """
        y[0] = is_padding(-1); y[1] = is_padding(0xFFFF); y[2] = is_padding((unsigned short)0xFFFF);
        y[3] = is_padding((unsigned short)7);"""
    assert simulate(body, RANDOM, 4, block=1).tolist() == [1, 0, 1, 0]


def test_a_block_copies_x_into_shared_memory_together() -> None:
    body = """
        __shared__ value_t staged[300];
        shared_copy(staged, x, 300);
        __syncthreads();
        for (int i = threadIdx.x; i < 300; i += 64) y[i] = staged[299 - i];"""
    assert (simulate(body, RANDOM, 300, block=64) == RANDOM[299::-1]).all()
