"""The cuda backend against its Protocol, with kernels written by hand."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from sparserl.backends import open_backend
from sparserl.backends.backend import Buffer, Job, Part, TimingPlan
from sparserl.backends.cuda import CudaBackend
from sparserl.backends.cuda_executable import CudaExecutable
from sparserl.errors import BackendError
from sparserl.records import MODES, Launch, Order, Param

pytestmark = pytest.mark.gpu

PARAMS = (
    Param("rows", "int"),
    Param("row_start", "const int*"),
    Param("cols", "const int*"),
    Param("vals", "const float*"),
    Param("x", "const float*"),
    Param("y", "float*"),
)
PRODUCT = """
extern "C" __global__ void spmv(int rows, const int* row_start, const int* cols, const float* vals,
                                const float* x, float* y)
{
    %(trigger)s
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    %(wait)s
    if (row >= rows) return;
    float sum = 0;
    for (int j = row_start[row]; j < row_start[row + 1]; ++j) sum += vals[j] * x[cols[j]];
    y[row] = sum;
}
"""
TRIGGER = 'asm volatile("griddepcontrol.launch_dependents;" ::: "memory");'
WAIT = 'asm volatile("griddepcontrol.wait;" ::: "memory");'
PLAIN = PRODUCT % {"trigger": "", "wait": ""}
WAITING = PRODUCT % {"trigger": TRIGGER, "wait": WAIT}
STREAMING = PLAIN.replace("vals[j] * x[cols[j]]", "__ldcs(vals + j) * x[__ldcs(cols + j)]")
CARELESS = PRODUCT % {"trigger": TRIGGER, "wait": ""}


@pytest.fixture(scope="module", params=[False, True], ids=["waiting", "solo"])
def backend(request: pytest.FixtureRequest) -> Iterator[CudaBackend]:
    opened = CudaBackend(solo=True) if request.param else open_backend("cuda")
    assert isinstance(opened, CudaBackend)
    yield opened
    opened.close()


def matrix_of(rows: int, columns: int, per_row: int = 5, seed: int = 0) -> scipy.sparse.csr_array:
    """`per_row` entries a row whose magnitudes add up to 1, so that long chains stay in range."""
    rng = np.random.default_rng(seed)
    cols = np.sort(rng.integers(0, columns, (rows, per_row)), axis=1).astype(np.int32)
    data = (rng.choice([-1.0, 1.0], (rows, per_row)) / per_row).astype(np.float32)
    start = np.arange(rows + 1, dtype=np.int32) * per_row
    return scipy.sparse.csr_array((data.ravel(), cols.ravel(), start), shape=(rows, columns))


def upload(backend: CudaBackend, array: np.ndarray) -> Buffer:
    buffer = backend.alloc(array.nbytes)
    backend.write(buffer, array)
    return buffer


def prepare(backend: CudaBackend, a: scipy.sparse.csr_array, source: str = PLAIN, pdl: bool = False) -> CudaExecutable:
    rows = a.shape[0]
    launches = (Launch("spmv", -(-rows // 128), 128, 0, pdl),)
    job = Job(source, ("spmv",), PARAMS, {"rows": rows}, launches, {})
    arrays = {"row_start": a.indptr, "cols": a.indices, "vals": a.data}
    return backend.prepare(
        backend.compile(source, job.kernels), job, {name: upload(backend, array) for name, array in arrays.items()}
    )


def simple(
    backend: CudaBackend, body: str, launch: Launch, workspaces: dict[str, tuple[int, str]] | None = None
) -> CudaExecutable:
    """A kernel k(x, y, workspaces…) over ints."""
    spaces = workspaces or {}
    params = (Param("x", "const int*"), Param("y", "int*"), *(Param(name, "int*") for name in spaces))
    takes = ", ".join(f"{p.ctype} {p.name}" for p in params)
    source = f'extern "C" __global__ void k({takes})\n{{ {body} }}\n'
    job = Job(source, ("k",), params, {}, (launch,), spaces)
    return backend.prepare(backend.compile(source, job.kernels), job, {})


def vectors(backend: CudaBackend, a: scipy.sparse.csr_array, seed: int = 1) -> tuple[np.ndarray, Buffer, Buffer]:
    x = np.random.default_rng(seed).standard_normal(a.shape[1]).astype(np.float32)
    y = backend.alloc(4 * a.shape[0])
    backend.fill(y, 0xFF)
    return x, upload(backend, x), y


def error_of(backend: CudaBackend, y: Buffer, expected: np.ndarray) -> float:
    return float(np.max(np.abs(backend.read(y, np.dtype(np.float32), len(expected)) - expected)))


# ---- the machine and its memory


def test_the_device_says_what_it_is(backend: CudaBackend) -> None:
    device = backend.device()
    assert device.backend == "cuda" and device.arch.startswith("sm_") and device.sms > 0
    assert device.name.isprintable() and device.name == device.name.strip()
    assert 0.5 < device.l2_tb_s < 50
    assert 0.1 < device.memory_tb_s < 20
    assert {"driver", "nvrtc", "torch"} <= set(device.versions)
    copy_tb_s = backend.bench.copy_tb_s(1 << 28)
    print(f"\n{device}\ncopy {copy_tb_s:.2f} TB/s, SM clock {backend.clock_mhz()} MHz")
    assert 0.2 * device.memory_tb_s < copy_tb_s <= 1.05 * device.memory_tb_s
    assert device.l2_tb_s > copy_tb_s / 2


def test_alone_in_its_process_it_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "import numpy as np\n"
        "from sparserl.backends.cuda import CudaBackend, identity\n"
        "backend = CudaBackend(solo=True)\n"
        "device = backend.device()\n"
        "assert identity() == ('cuda', device.name, device.arch) and device.versions['cusparse'][0].isdigit()\n"
        "for size in (1000, 10, 100_000):\n"
        "    buffer = backend.alloc(4 * size)\n"
        "    backend.write(buffer, np.arange(size, dtype=np.int32))\n"
        "    assert (backend.read(buffer, np.dtype(np.int32), size) == np.arange(size)).all()\n"
        "    assert backend.guards_intact(buffer)\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("size", [0, 1, 255, 256, 1000, 1 << 20])
def test_a_buffer_is_aligned_guarded_and_gives_back_what_was_written(backend: CudaBackend, size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size).astype(np.uint8)
    data.flags.writeable = False
    buffer = upload(backend, data)
    assert buffer.pointer % 256 == 0 and buffer.size_bytes == size
    assert np.array_equal(backend.read(buffer, np.dtype(np.uint8), size), data)
    assert backend.guards_intact(buffer)
    backend.fill(buffer, 0x3C)
    assert (backend.read(buffer, np.dtype(np.uint8), size) == 0x3C).all()
    assert backend.guards_intact(buffer)


@pytest.mark.parametrize("dtype", [np.uint16, np.float32, np.float64])
@pytest.mark.parametrize("order", ["row", "col"])
def test_some_columns_of_a_dense_matrix_come_back_as_the_host_would_cut_them(
    backend: CudaBackend, order: Order, dtype: type
) -> None:
    whole = np.random.default_rng(0).integers(1, 60_000, 301 * 12).astype(dtype)
    buffer = backend.alloc(whole.nbytes)
    backend.write(buffer, whole)
    for columns in ([3, 11, 0], [5], []):
        part = Part(np.array(columns, dtype=np.int64), 12, order)
        assert np.array_equal(backend.read(buffer, whole.dtype, whole.size, part), part.of(whole))
    assert backend.read(buffer, whole.dtype, 0, Part(np.array([3]), 12, order)).size == 0


def test_a_copy_on_the_device_is_the_same_and_must_fit(backend: CudaBackend) -> None:
    source, target, short = backend.alloc(1001), backend.alloc(1200), backend.alloc(1000)
    data = np.random.default_rng(0).integers(0, 256, 1001, dtype=np.uint8)
    backend.write(source, data)
    backend.copy(target, source)
    assert np.array_equal(backend.read(target, np.dtype(np.uint8), 1001), data)
    with pytest.raises(ValueError, match="1001"):
        backend.copy(short, source)


def test_writing_past_a_buffer_is_refused(backend: CudaBackend) -> None:
    buffer = backend.alloc(4)
    with pytest.raises(ValueError, match="8 bytes: the buffer has 4"):
        backend.write(buffer, np.zeros(8, dtype=np.uint8))
    with pytest.raises(ValueError, match="the buffer has 4"):
        backend.read(buffer, np.dtype(np.float32), 2)


@pytest.mark.parametrize("place", ["y[3]", "y[-1]", "y[100]", "((char*)y)[12]"])
def test_a_write_outside_a_buffer_is_seen_in_its_guard_zone(backend: CudaBackend, place: str) -> None:
    executable = simple(backend, f"{place} = 1;", Launch("k", 1, 1))
    x, y = backend.alloc(12), backend.alloc(12)
    assert backend.run(executable, x, y).ok
    assert not backend.guards_intact(y)
    assert backend.guards_intact(x)


def test_a_digest_depends_on_every_byte_and_on_the_order(backend: CudaBackend) -> None:
    data = np.random.default_rng(3).integers(0, 256, 100_003).astype(np.uint8)
    buffer = upload(backend, data)
    first = backend.digest(buffer)
    assert backend.digest(upload(backend, data)) == first
    for place in (0, 50_000, 100_002):
        other = data.copy()
        other[place] ^= 1
        backend.write(buffer, other)
        assert backend.digest(buffer) != first
    swapped = data.copy()
    swapped[:8], swapped[8:16] = data[8:16], data[:8]
    backend.write(buffer, swapped)
    assert backend.digest(buffer) != first
    assert backend.digest(backend.alloc(0)) == backend.digest(backend.alloc(0))


def test_arrays_that_go_up_together_are_there_and_guarded(backend: CudaBackend) -> None:
    rng = np.random.default_rng(5)
    arrays = {str(size): rng.integers(0, 256, size, dtype=np.uint8) for size in (0, 1, 300, 70_000)}
    arrays["rows"] = rng.standard_normal((40, 50))[::2]  # not contiguous
    buffers = backend.upload(arrays)
    assert all(backend.inspect([*buffers.values()], [])[0])
    for name, array in arrays.items():
        assert np.array_equal(backend.read(buffers[name], array.dtype, array.size), array.ravel())


def test_many_buffers_are_looked_over_at_once_as_they_are_one_by_one(backend: CudaBackend) -> None:
    sizes = [0, 1, 7, 8, 255, 4096, 1_000_003, *range(100, 180)]
    buffers = [upload(backend, np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)) for size in sizes]
    one_by_one = [backend.digest(buffer) for buffer in buffers]
    assert len(set(one_by_one)) == len(sizes)
    assert backend.inspect(buffers, buffers) == ([True] * len(sizes), one_by_one)
    executable = simple(backend, "((char*)y)[257] = 1; ((char*)y)[-2] = 1;", Launch("k", 1, 1))
    spoiled = upload(backend, np.zeros(200, np.uint8))
    assert backend.run(executable, backend.alloc(12), spoiled).ok
    intact, _ = backend.inspect([*buffers, spoiled, backend.alloc(3)], [])
    assert intact == [*[True] * len(sizes), False, True]
    assert backend.inspect([], []) == ([], [])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.uint16])
def test_scatter_puts_values_in_their_slots_and_padding_everywhere_else(backend: CudaBackend, dtype: type) -> None:
    rng = np.random.default_rng(4)
    count, slots = 5000, 9000
    values = rng.integers(1, 1000, count).astype(dtype)
    padding = np.array(0x8000, np.uint16) if dtype is np.uint16 else np.array(-0.0, dtype)
    slot_of = rng.permutation(slots)[:count].astype(np.int32)
    buffer = backend.alloc(slots * values.itemsize)
    backend.fill(buffer, 0x11)
    backend.scatter(buffer, values, upload(backend, slot_of), padding)
    expected = np.full(slots, padding)
    expected[slot_of] = values
    assert backend.read(buffer, values.dtype, slots).tobytes() == expected.tobytes()
    assert backend.guards_intact(buffer)
    same = backend.alloc(values.nbytes)
    backend.scatter(same, values, None, padding)
    assert np.array_equal(backend.read(same, values.dtype, count), values)
    staged = upload(backend, values)  # the same from the device, one number changed there
    backend.write(staged, values[:1] + values.dtype.type(1), 9 * values.itemsize)
    values[9] = values[0] + values.dtype.type(1)
    expected[slot_of] = values
    backend.scatter(buffer, np.empty_like(values), upload(backend, slot_of), padding, staged)
    assert backend.read(buffer, values.dtype, slots).tobytes() == expected.tobytes()
    backend.scatter(same, np.empty_like(values), None, padding, staged)
    assert np.array_equal(backend.read(same, values.dtype, count), values)


def test_a_float_padding_means_bfloat16_where_values_are_bits(backend: CudaBackend) -> None:
    buffer = backend.alloc(6)
    slot_of = upload(backend, np.array([1], np.int32))
    backend.scatter(buffer, np.array([0x3F80], np.uint16), slot_of, np.array(-0.0))
    assert backend.read(buffer, np.dtype(np.uint16), 3).tolist() == [0x8000, 0x3F80, 0x8000]


# ---- products


@pytest.mark.parametrize("shape", [(1, 1), (127, 300), (20_000, 20_000), (3, 5000)])
@pytest.mark.parametrize("plain", [True, False])
def test_a_product_is_right_and_leaves_its_inputs_alone(
    backend: CudaBackend, shape: tuple[int, int], plain: bool
) -> None:
    a = matrix_of(*shape)
    executable = prepare(backend, a, WAITING, pdl=True)
    x, x_buffer, y_buffer = vectors(backend, a)
    before = [backend.digest(buffer) for buffer in (x_buffer, *executable.arrays.values())]
    assert backend.run(executable, x_buffer, y_buffer, plain=plain).ok
    assert error_of(backend, y_buffer, a @ x) < 1e-5
    assert [backend.digest(buffer) for buffer in (x_buffer, *executable.arrays.values())] == before
    assert backend.guards_intact(y_buffer)


def test_a_launch_of_no_blocks_is_skipped(backend: CudaBackend) -> None:
    executable = simple(backend, "y[0] = 1;", Launch("k", 0, 32))
    y = backend.alloc(4)
    backend.fill(y, 0)
    assert backend.run(executable, y, y).ok
    assert backend.read(y, np.dtype(np.int32), 1)[0] == 0


def test_a_kernel_may_have_more_than_48_kilobytes_of_shared_memory(backend: CudaBackend) -> None:
    body = """extern __shared__ int s[];
    s[threadIdx.x * 100] = threadIdx.x;
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x * 100];"""
    executable = simple(backend, body, Launch("k", 1, 256, 120 * 1024))
    y = backend.alloc(1024)
    assert backend.run(executable, y, y).ok
    assert backend.read(y, np.dtype(np.int32), 256).tolist() == list(range(256))


@pytest.mark.parametrize("size", [1024, 40_000, 100_000])
def test_shared_memory_that_was_never_set_holds_no_number(backend: CudaBackend, size: int) -> None:
    body = """extern __shared__ float s[];
    float worst = 0.0f;
    for (int i = threadIdx.x; i < size / 4; i += 256) worst = max(worst, s[i] == s[i] ? 1.0f : 0.0f);
    y[blockIdx.x * 256 + threadIdx.x] = (int)worst;"""
    executable = simple(backend, body.replace("size", str(size)), Launch("k", 64, 256, size))
    y = backend.alloc(4 * 64 * 256)
    assert backend.run(executable, y, y).ok
    assert backend.read(y, np.dtype(np.int32), 64 * 256).mean() < 0.01


def test_a_launch_that_the_driver_refuses_is_reported_and_nothing_is_lost(backend: CudaBackend) -> None:
    y = backend.alloc(4)
    report = backend.run(simple(backend, "y[0] = 1;", Launch("k", 1, 2048)), y, y)
    assert not report.ok and "CUDA_ERROR" in report.reason
    chain = backend.run_chain(simple(backend, "y[0] = 1;", Launch("k", 1, 2048)), [y, backend.alloc(4), y], 3)
    assert not chain.ok
    assert backend.run(simple(backend, "y[0] = 7;", Launch("k", 1, 1)), y, y).ok
    assert backend.read(y, np.dtype(np.int32), 1)[0] == 7
    with pytest.raises(BackendError, match="cuFuncSetAttribute"):
        simple(backend, "extern __shared__ int s[]; y[0] = s[0];", Launch("k", 1, 1, 1 << 20))


def test_a_missing_array_is_named(backend: CudaBackend) -> None:
    executable = prepare(backend, matrix_of(4, 4))
    arrays = {name: buffer for name, buffer in executable.arrays.items() if name != "cols"}
    with pytest.raises(BackendError, match="parameter 'cols' has no array"):
        backend.prepare(executable.binary, executable.job, arrays)


def test_the_first_launch_after_new_values_is_a_plain_one(backend: CudaBackend) -> None:
    a = matrix_of(100, 100)
    executable = prepare(backend, a, WAITING, pdl=True)
    x, x_buffer, y_buffer = vectors(backend, a)
    assert executable.plain_next
    executable.launch(x_buffer.pointer, y_buffer.pointer, backend.stream)
    assert not executable.plain_next
    backend.scatter(executable.arrays["vals"], 2 * a.data, None, np.array(-0.0, np.float32))
    assert executable.plain_next
    executable.launch(x_buffer.pointer, y_buffer.pointer, backend.stream)
    assert error_of(backend, y_buffer, 2 * (a @ x)) < 1e-5


COUNTING = """
__shared__ bool last;
if (threadIdx.x == 0) { __threadfence(); last = atomicAdd(counter, 1) == gridDim.x - 1; }
__syncthreads();
if (last && threadIdx.x == 0) { y[0] = *counter; *counter = 0; }
"""


def test_workspaces_belong_to_a_stream_and_zeroed_ones_start_at_zero(backend: CudaBackend) -> None:
    import torch

    spaces = {"counter": (4, "zeroed"), "scratch": (1024, "scratch")}
    executable = simple(backend, COUNTING, Launch("k", 40, 64), spaces)
    y = backend.alloc(4)
    for _ in range(3):
        assert backend.run(executable, y, y).ok
        assert backend.read(y, np.dtype(np.int32), 1)[0] == 40
    ours = backend.workspaces(executable)
    assert set(ours) == set(spaces) and ours["scratch"].size_bytes == 1024
    assert backend.read(ours["counter"], np.dtype(np.int32), 1)[0] == 0
    backend.fill(ours["counter"], 1)  # ruin ours; another stream must not notice
    stream = torch.cuda.Stream()
    backend.settle()
    executable.launch(y.pointer, y.pointer, stream.cuda_stream)
    backend.settle()  # one that is solo knows its own stream alone
    assert backend.read(y, np.dtype(np.int32), 1)[0] == 40
    assert executable.ready(stream.cuda_stream).workspaces["counter"].pointer != ours["counter"].pointer


def test_an_executable_can_be_captured_on_a_stream_it_has_not_seen(backend: CudaBackend) -> None:
    import torch

    executable = simple(backend, COUNTING, Launch("k", 40, 64), {"counter": (4, "zeroed")})
    y = backend.alloc(4)
    backend.fill(y, 0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        executable.launch(y.pointer, y.pointer, torch.cuda.current_stream().cuda_stream)
    assert backend.read(y, np.dtype(np.int32), 1)[0] == 0
    graph.replay()
    backend.settle()
    assert backend.read(y, np.dtype(np.int32), 1)[0] == 40


def test_a_thread_that_never_used_cuda_can_launch(backend: CudaBackend) -> None:
    a = matrix_of(500, 500)
    executable = prepare(backend, a)
    x, x_buffer, y_buffer = vectors(backend, a)
    backend.settle()
    thread = threading.Thread(target=executable.launch, args=(x_buffer.pointer, y_buffer.pointer))
    thread.start()
    thread.join()
    backend.settle()
    assert error_of(backend, y_buffer, a @ x) < 1e-5


def test_a_fault_is_reported_as_sticky() -> None:
    code = """
import sys
sys.path.insert(0, sys.argv[1])
from test_cuda_backend import open_backend, simple, Launch
backend = open_backend("cuda")
bad = simple(backend, "*(volatile int*)16 = 1;", Launch("k", 1, 1))
buffer = backend.alloc(4)
try:
    backend.run(bad, buffer, buffer)
except Exception as error:
    print(type(error).__name__, error)
"""
    command = [sys.executable, "-c", code, str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "StickyError" in done.stdout and "sticky" in done.stdout, done.stdout + done.stderr


# ---- chains


def chain(backend: CudaBackend, a: scipy.sparse.csr_array, source: str, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """(what came out, what should have)"""
    executable = prepare(backend, a, source, pdl=True)
    rows, columns = a.shape
    x = np.random.default_rng(5).standard_normal(columns).astype(np.float32)
    buffers = [backend.alloc(4 * columns), backend.alloc(4 * rows), upload(backend, x)]
    for buffer in buffers[:2]:
        backend.fill(buffer, 0)
    assert backend.run_chain(executable, buffers, steps).ok
    assert all(backend.guards_intact(buffer) for buffer in buffers)
    expected = x.astype(np.float64)
    if rows != columns:
        return backend.read(buffers[1], np.dtype(np.float32), rows), a @ expected
    for _ in range(steps):
        expected = a @ expected
    return backend.read(buffers[steps % 2], np.dtype(np.float32), rows), expected


@pytest.mark.parametrize("shape", [(3000, 3000), (100_000, 100_000), (3000, 2000), (50, 40_000)])
def test_a_program_that_waits_comes_through_a_chain(backend: CudaBackend, shape: tuple[int, int]) -> None:
    found, expected = chain(backend, matrix_of(*shape), WAITING, 21)
    assert np.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("shape", [(3000, 3000), (100_000, 100_000), (3000, 2000), (50, 40_000)])
def test_a_program_that_does_not_wait_is_caught_by_a_chain(backend: CudaBackend, shape: tuple[int, int]) -> None:
    found, expected = chain(backend, matrix_of(*shape), CARELESS, 21)
    assert not np.allclose(found, expected, atol=1e-5)


# ---- clocks


def plan_of(a: scipy.sparse.csr_array, **changes: object) -> TimingPlan:
    plan = TimingPlan(rounds=5, x_elements=a.shape[1], y_elements=a.shape[0], feed_back=a.shape[0] == a.shape[1])
    return replace(plan, **changes)  # type: ignore[arg-type]


def test_vectors_serve_the_next_timing_only_where_asked(backend: CudaBackend) -> None:
    plan, bench = TimingPlan(x_elements=1000, y_elements=500), backend.bench
    assert bench._vectors(plan)[0] is not bench._vectors(plan)[0]
    bench.keeps_vectors = True
    try:
        kept = bench._vectors(plan)
        assert bench._vectors(plan) is kept
        assert bench._vectors(TimingPlan(x_elements=1000, y_elements=501)) is not kept
    finally:
        bench.keeps_vectors, bench._kept = False, None


def test_every_mode_gives_plausible_times(backend: CudaBackend) -> None:
    a = matrix_of(300_000, 300_000, per_row=12)  # 30 MB: within the L2, so that cold differs
    sides = [prepare(backend, a, WAITING, pdl=True), prepare(backend, a), prepare(backend, a)]
    medians = {}
    for mode in MODES:
        plan = plan_of(a, mode=mode)
        times = backend.time(sides, plan)
        assert [len(side) for side in times] == [5, 5, 5]
        medians[mode] = [float(np.median(side)) for side in times]
        floor = backend.floor_us(plan)
        print(f"\n{mode}: floor {floor:.2f} us, waiting/plain/plain {np.round(medians[mode], 2)} us")
        assert 0 <= floor < 10
        assert all(floor < time_us < 1000 for time_us in medians[mode])
        assert backend.floor_us(plan) == floor
    assert abs(medians["chain"][1] / medians["chain"][2] - 1) < 0.1
    assert medians["cold"][1] > medians["chain"][1]


def test_a_time_does_not_depend_on_what_another_side_leaves_in_the_l2(backend: CudaBackend) -> None:
    line = scipy.sparse.diags_array([1.0, 1.0, 1.0], offsets=[-1, 0, 1], shape=(360, 360))
    grid = scipy.sparse.csr_array(scipy.sparse.kron(line, line))
    a = scipy.sparse.csr_array((grid.data.astype(np.float32), grid.indices, grid.indptr), shape=grid.shape)
    product = prepare(backend, a, STREAMING).launch
    held = backend.alloc(4 * backend.device().l2_bytes)
    dirt = backend.instruments.flush(held.pointer, held.size_bytes, backend.stream)
    plan = plan_of(a, graph_ms=0.2)
    alone, beside = (
        float(np.median(backend.bench.time(sides, plan)[0]))
        for sides in ([product], [product, lambda x, y, stream: dirt.launch()])
    )
    print(f"\nalone {alone:.2f} us, beside one that writes four times the L2 {beside:.2f} us")
    assert beside == pytest.approx(alone, rel=0.05)


def test_small_products_take_little_more_than_the_empty_kernel(backend: CudaBackend) -> None:
    a = matrix_of(1000, 1000)
    plan = plan_of(a)
    plain, waiting = (
        float(np.median(side))
        for side in backend.time([prepare(backend, a), prepare(backend, a, WAITING, pdl=True)], plan)
    )
    print(f"\nempty {backend.floor_us(plan):.2f} us, plain {plain:.2f} us, overlapping {waiting:.2f} us")
    assert backend.floor_us(plan) <= min(plain, waiting) < 10


def test_feed_back_needs_a_square_matrix(backend: CudaBackend) -> None:
    a = matrix_of(10, 20)
    with pytest.raises(ValueError, match="needs x and y of one size"):
        backend.time([prepare(backend, a)], plan_of(a, feed_back=True))


def test_a_launch_costs_the_host_a_few_microseconds(backend: CudaBackend) -> None:
    import torch

    a = matrix_of(1000, 1000)
    executable = prepare(backend, a)
    _, x_buffer, y_buffer = vectors(backend, a)
    parts = (torch.tensor(array, device="cuda") for array in (a.indptr, a.indices, a.data))
    sparse = torch.sparse_csr_tensor(*parts, size=a.shape)
    dense = torch.zeros(1000, device="cuda")

    def host_us(product: object, count: int = 500) -> float:
        assert callable(product)
        best = 1e9
        for _ in range(5):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(count):
                product()
            best = min(best, (time.perf_counter() - begin) / count * 1e6)
        return best

    ours = host_us(lambda: executable.launch(x_buffer.pointer, y_buffer.pointer, 0))
    theirs = host_us(lambda: sparse @ dense)
    print(f"\nhost time of a launch: {ours:.2f} us; torch's sparse product: {theirs:.2f} us")
    assert ours < theirs and ours < 15
