"""The preamble compiles with NVRTC for every storage type, quickly, and its loads become the instructions they promise.

NVRTC needs no GPU. What the primitives compute is tested where kernels run (simulator and GPU).
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from cuda.bindings import nvrtc

from sparserl.assemble import preamble, types
from sparserl.records import Problem

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


def test_a_group_sum_of_one_lane_has_no_shuffle() -> None:
    ptx = compile_ptx(kernel("acc_t* y", "y[threadIdx.x] = warp_sum<1>(y[threadIdx.x]);"), "float32")
    assert "shfl" not in ptx


def test_a_group_that_is_no_power_of_two_is_refused_by_name() -> None:
    with pytest.raises(Exception, match="warp_sum<L>: L must be"):
        compile_ptx(kernel("acc_t* y", "y[0] = warp_sum<3>(y[0]);"), "float32")
