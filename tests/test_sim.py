"""The simulator, feature by feature and violation by violation, on small kernels written here."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest

from sparserl.backends.backend import Job, RunReport, TimingPlan
from sparserl.backends.sim import SimBackend, native
from sparserl.backends.sim.executable import SimExecutable
from sparserl.errors import BackendError, CompileError
from sparserl.records import Launch, Param

HEAD = 'extern "C" __global__ void k(int n, const int* cols, const float* vals, const float* x, float* y'


@dataclass
class Bench:
    """A kernel `k(int n, const int* cols, const float* vals, const float* x, float* y, workspaces…)` and its arrays."""

    body: str
    n: int = 64
    block: int = 64
    grid: int = 1
    shared_bytes: int = 0
    pdl: bool = False
    workspaces: Mapping[str, tuple[str, int, str]] = field(default_factory=dict)
    before: str = ""
    launches: tuple[Launch, ...] = ()
    kernels: tuple[str, ...] = ("k",)
    backend: SimBackend = field(default_factory=lambda: SimBackend(nvrtc=False, limit_s=2.0))

    def __post_init__(self) -> None:
        extra = "".join(f", {ctype}* {name}" for name, (ctype, _, _) in self.workspaces.items())
        source = f"{self.before}\n{HEAD}{extra}) {{\n{self.body}\n}}\n".replace(
            "SIGNATURE", f"{HEAD[HEAD.index('(') :]}{extra})"
        )
        params = [Param("n", "int"), Param("cols", "const int*"), Param("vals", "const float*")]
        params += [Param("x", "const float*"), Param("y", "float*")]
        params += [Param(name, f"{ctype}*") for name, (ctype, _, _) in self.workspaces.items()]
        launches = self.launches or (Launch("k", self.grid, self.block, self.shared_bytes, self.pdl),)
        sizes = {name: (size, kind) for name, (_, size, kind) in self.workspaces.items()}
        self.job = Job(source, self.kernels, tuple(params), {"n": self.n}, launches, sizes)
        rng = np.random.default_rng(7)
        self.cols = rng.integers(0, self.n, self.n).astype(np.int32)
        self.vals = rng.standard_normal(self.n).astype(np.float32)
        self.x = rng.standard_normal(self.n).astype(np.float32)
        self.memory = {name: self.backend.alloc(4 * self.n) for name in ("cols", "vals", "x", "y", "z")}
        for name in ("cols", "vals", "x"):
            self.backend.write(self.memory[name], getattr(self, name))
        self.backend.fill(self.memory["y"], 0xFF)
        self.executable: SimExecutable | None = None

    def prepare(self) -> SimExecutable:
        if self.executable is None:
            binary = self.backend.compile(self.job.source, self.job.kernels)
            arrays = {name: self.memory[name] for name in ("cols", "vals")}
            self.executable = self.backend.prepare(binary, self.job, arrays)
        return self.executable

    def run(self, *, plain: bool = True) -> RunReport:
        return self.backend.run(self.prepare(), self.memory["x"], self.memory["y"], plain=plain)

    @property
    def y(self) -> np.ndarray:
        return self.backend.read(self.memory["y"], np.dtype(np.float32), self.n)


def both_builds(bench: Bench) -> list[np.ndarray]:
    """y from the watched first run and from the plain second one."""
    out = []
    for _ in range(2):
        bench.backend.fill(bench.memory["y"], 0xFF)
        report = bench.run()
        assert report.ok, report.reason
        out.append(bench.y)
    return out


def failure(bench: Bench, *, plain: bool = True) -> str:
    report = bench.run(plain=plain)
    assert not report.ok
    return report.reason


# ---- what kernels may use


def test_a_gather_gives_the_same_in_both_builds() -> None:
    bench = Bench(
        "int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = vals[i] * __ldg(x + cols[i]);",
        n=1000,
        grid=16,
    )
    for y in both_builds(bench):
        np.testing.assert_array_equal(y, bench.vals * bench.x[bench.cols])


def test_barriers_order_shared_memory() -> None:
    body = "int i = threadIdx.x; __shared__ float s[64]; s[i] = x[i]; __syncthreads(); y[i] = s[63 - i];"
    bench = Bench(body)
    for y in both_builds(bench):
        np.testing.assert_array_equal(y, bench.x[::-1])


def test_dynamic_shared_memory_is_a_pointer_of_its_type() -> None:
    body = "int i = threadIdx.x; extern __shared__ float s[]; s[i] = x[i]; __syncthreads(); y[i] = s[63 - i];"
    bench = Bench(body, shared_bytes=256)
    for y in both_builds(bench):
        np.testing.assert_array_equal(y, bench.x[::-1])


def test_shared_memory_inside_templates_is_one_a_specialisation() -> None:
    before = """template <int N> __device__ float turn(int i, float a) {
      __shared__ float s[N]; s[i] = a; __syncthreads(); return s[N - 1 - i]; }"""
    bench = Bench(
        "int i = threadIdx.x; __shared__ float t[64]; t[i] = turn<64>(i, x[i]); __syncthreads(); y[i] = t[i];",
        before=before,
    )
    for y in both_builds(bench):
        np.testing.assert_array_equal(y, bench.x[::-1])


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("__shfl_xor_sync(~0u, v, 5)", lambda v, i: v[i ^ 5]),
        ("__shfl_up_sync(~0u, v, 3)", lambda v, i: v[np.where(i % 32 >= 3, i - 3, i)]),
        ("__shfl_down_sync(~0u, v, 3, 8)", lambda v, i: v[np.where(i % 8 < 5, i + 3, i)]),
        ("__shfl_sync(~0u, v, 9)", lambda v, i: v[i // 32 * 32 + 9]),
        ("__shfl_sync(~0u, v, 3, 8)", lambda v, i: v[i // 8 * 8 + 3]),
        ("(float)__shfl_xor_sync(~0u, (double)v, 1)", lambda v, i: v[i ^ 1]),
        ("(float)__shfl_xor_sync(~0u, (long long)i, 1)", lambda v, i: i ^ 1),
        ("(float)__shfl_xor_sync(~0u, (unsigned)i, 1)", lambda v, i: i ^ 1),
    ],
)
def test_shuffles_read_the_lane_they_name(call: str, expected) -> None:  # type: ignore[no-untyped-def]
    bench = Bench(f"int i = threadIdx.x; float v = x[i]; y[i] = {call};")
    for y in both_builds(bench):
        np.testing.assert_array_equal(y, expected(bench.x, np.arange(64)).astype(np.float32))


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("__popc(__ballot_sync(~0u, i % 3 == 0))", lambda i: np.where(i < 32, 11, 11)),
        ("__any_sync(~0u, i == 40)", lambda i: i >= 32),
        ("__all_sync(~0u, i < 32)", lambda i: i < 32),
        ("__reduce_add_sync(~0u, i)", lambda i: np.where(i < 32, 496, 1520)),
        ("__reduce_max_sync(~0u, i)", lambda i: np.where(i < 32, 31, 63)),
        ("__syncthreads_or(i == 5)", lambda i: i >= 0),
        ("__syncthreads_and(i != 5)", lambda i: i < 0),
        ("__syncthreads_count(i < 7)", lambda i: np.full(64, 7)),
        ("__popc(__match_any_sync(~0u, i / 4))", lambda i: np.full(64, 4)),
    ],
)
def test_votes_and_reductions_see_every_lane(call: str, expected) -> None:  # type: ignore[no-untyped-def]
    for y in both_builds(Bench(f"int i = threadIdx.x; y[i] = (float){call};")):
        np.testing.assert_array_equal(y, expected(np.arange(64)).astype(np.float32))


def test_the_active_mask_of_a_branch_names_those_inside_it() -> None:
    body = """int i = threadIdx.x; y[i] = 0;
    if (i % 2) { unsigned m = __activemask(); y[i] = (float)__popc(m) + __shfl_sync(m, (float)i, 1); }"""
    for y in both_builds(Bench(body, block=32, n=32)):
        np.testing.assert_array_equal(y, np.where(np.arange(32) % 2, 17, 0).astype(np.float32))


def test_lanes_that_have_ended_do_not_hold_up_barriers_and_shuffles() -> None:
    body = (
        "int i = threadIdx.x; y[i] = 0; if (i >= 40) return; __syncthreads(); y[i] = __shfl_xor_sync(~0u, (float)i, 1);"
    )
    for y in both_builds(Bench(body)):
        np.testing.assert_array_equal(y, np.where(np.arange(64) < 40, np.arange(64) ^ 1, 0).astype(np.float32))


def test_atomics_of_every_type_add_up() -> None:
    body = """__shared__ unsigned long long big; __shared__ unsigned u; __shared__ int i; __shared__ float f;
    __shared__ double d; if (threadIdx.x == 0) { big = 0; u = 0; i = 100; f = 0; d = 0; } __syncthreads();
    atomicAdd(&big, 1ull); atomicMax(&u, threadIdx.x); atomicMin(&i, (int)threadIdx.x);
    atomicAdd(&f, 1.0f); atomicAdd(&d, 2.0);
    __syncthreads(); y[threadIdx.x] = (float)big + u + i + f + (float)d; __syncthreads(); atomicCAS(&u, 63u, 5u);"""
    for y in both_builds(Bench(body)):
        np.testing.assert_array_equal(y, np.full(64, 64 + 63 + 0 + 64 + 128, dtype=np.float32))


def test_vector_loads_are_one_access() -> None:
    body = "float4 a = ((const float4*)x)[threadIdx.x]; ((float4*)y)[threadIdx.x] = make_float4(a.w, a.z, a.y, a.x);"
    bench = Bench(body, n=128, block=32)
    report = bench.run()
    assert report.ok, report.reason
    np.testing.assert_array_equal(bench.y, bench.x.reshape(-1, 4)[:, ::-1].reshape(-1))
    assert report.sectors == 16 + 16


def test_half_and_bfloat_conversions_agree_with_numpy() -> None:
    body = """int i = threadIdx.x; y[i] = sim_half_to_float(sim_float_to_half(x[i]));
    y[i + 64] = sim_bf16_to_float(sim_float_to_bf16(x[i]));"""
    bench = Bench(body, n=128, block=64)
    special = [0, -0.0, 1e-8, 6e-8, 3e-5, 6.1e-5, 65504, 65519, 65520, 1e6, np.inf, -np.inf, 1 + 2**-11, 1 + 3 * 2**-11]
    x = np.concatenate([special, np.random.default_rng(1).standard_normal(128 - len(special)) * 1e-4]).astype(
        np.float32
    )
    bench.backend.write(bench.memory["x"], x)
    with np.errstate(over="ignore"):
        half = x[:64].astype(np.float16).astype(np.float32)
    bits = x[:64].view(np.uint32).astype(np.uint64)
    bf16 = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)
    for y in both_builds(bench):
        np.testing.assert_array_equal(y[:64], half)
        np.testing.assert_array_equal(y[64:], bf16)


def test_baked_tables_may_be_read() -> None:
    bench = Bench(
        "y[threadIdx.x] = x[(threadIdx.x + OFFSETS[threadIdx.x % 3]) % 64];",
        before="constexpr int OFFSETS[] = {1, 2, 5};",
    )
    i = np.arange(64)
    for y in both_builds(bench):
        np.testing.assert_array_equal(y, bench.x[(i + np.array([1, 2, 5])[i % 3]) % 64])


def test_several_launches_run_in_order() -> None:
    before = 'extern "C" __global__ void first SIGNATURE { part[threadIdx.x] = x[threadIdx.x]; }'
    launches = (Launch("first", 1, 64), Launch("k", 1, 64))
    bench = Bench(
        "y[threadIdx.x] = part[63 - threadIdx.x];",
        before=before,
        launches=launches,
        kernels=("first", "k"),
        workspaces={"part": ("float", 256, "scratch")},
    )
    for y in both_builds(bench):
        np.testing.assert_array_equal(y, bench.x[::-1])


LAST_BLOCK = """
    __shared__ int last; const int i = blockIdx.x * 32 + threadIdx.x;
    part[i] = x[i]; {fence_before} __syncthreads();
    if (threadIdx.x == 0) {{ last = atomicAdd(count, 1) == 1; if (last) {{ atomicExch(count, 0); {fence_after} }} }}
    __syncthreads();
    if (last) for (int j = threadIdx.x; j < 64; j += 32) y[j] = __ldcg(part + 63 - j);
"""
COUNTED = {"part": ("float", 256, "scratch"), "count": ("int", 4, "zeroed")}


def test_the_last_block_may_read_what_others_fenced() -> None:
    body = LAST_BLOCK.format(fence_before="__threadfence();", fence_after="__threadfence();")
    bench = Bench(body, grid=2, block=32, workspaces=COUNTED)
    for y in both_builds(bench):
        np.testing.assert_array_equal(y, bench.x[::-1])


# ---- what they may not do


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("y[threadIdx.x] = x[threadIdx.x + 4];", ["thread 60: reads 4 bytes 4 bytes past the end of x"]),
        ("y[threadIdx.x] = vals[(int)threadIdx.x - 1];", ["thread 0: reads 4 bytes 4 bytes before the start of vals"]),
        ("y[threadIdx.x + 1] = 0;", ["thread 63: writes 4 bytes", "past the end of y"]),
        ("y[threadIdx.x] = 0; ((float*)vals)[threadIdx.x] = 0;", ["writes vals, which is an input"]),
        ("y[threadIdx.x] = *(const float*)((const char*)x + 2 * threadIdx.x);", ["byte 2 of x", "not a multiple of 4"]),
        ("float2 a = *(const float2*)(x + 1); y[threadIdx.x] = a.x;", ["reads 8 bytes at byte 4 of x"]),
        ("y[threadIdx.x] += x[threadIdx.x];", ["of y, which nobody has written"]),
        ("__shared__ float s[64]; y[threadIdx.x] = s[threadIdx.x];", ["of shared memory, which nobody has written"]),
        (
            "extern __shared__ float s[]; s[threadIdx.x] = 0; y[threadIdx.x] = 0;",
            ["dynamic shared memory, which has 0"],
        ),
        ("y[threadIdx.x] = *(volatile float*)8;", ["null pointer"]),
        (
            "int i = threadIdx.x; if (i < 32) __syncthreads(); else __syncwarp(1u << i % 32 | 2u << i % 31); y[i] = 0;",
            ["waits for ever"],
        ),
        (
            "int i = threadIdx.x; if (i % 2) y[i] = __shfl_sync(0xaaaaaaaau, (float)i, 0); else y[i] = 0;",
            ["reads lane 0, which is not in its mask"],
        ),
        (
            "int i = threadIdx.x; y[i] = 0; if (i % 32 > 3) return; y[i] = __shfl_sync(~0u, (float)i, 9);",
            ["reads lane 9, which has ended"],
        ),
        ("y[threadIdx.x] = __shfl_sync(1u, 1.0f, 0);", ["does not name its own lane"]),
        ("if (threadIdx.x % 2) __syncwarp(); else __ballot_sync(~0u, 1); y[threadIdx.x] = 0;", ["with the same mask"]),
        (
            "int i = threadIdx.x; if (i < 3) __syncthreads(); __shfl_sync(~0u, i, 0); y[i] = 0;",
            ["waits for ever"],
        ),
        ("y[0] = (float)threadIdx.x;", ["races on byte 0 of y: it writes what thread 0 wrote of the same block"]),
        ("__shared__ float s[64]; s[threadIdx.x] = 1; y[threadIdx.x] = s[63 - threadIdx.x];", ["shared memory"]),
        ("__shared__ float s; s = 1; __syncthreads(); y[threadIdx.x] = s;", ["races on byte", "shared memory"]),
        ("volatile const float* p = x; float a = 0; while (*p == p[0]) a += 1; y[threadIdx.x] = a;", ["hangs"]),
        ("volatile int i = 0; while (i == 0) {} y[threadIdx.x] = 0;", ["hangs: no end after 2 s"]),
        ("y[threadIdx.x] = __ldg(y + threadIdx.x);", ["reads y through the read-only path"]),
    ],
)
def test_a_violation_is_named_with_its_place(body: str, words: list[str]) -> None:
    reason = failure(Bench(body))
    assert reason.startswith("kernel k, block 0, thread ")
    for word in words:
        assert word in reason


@pytest.mark.parametrize(("before", "after"), [("", "__threadfence();"), ("__threadfence();", ""), ("", "")])
def test_a_missing_fence_between_blocks_is_a_race(before: str, after: str) -> None:
    body = LAST_BLOCK.format(fence_before=before, fence_after=after)
    reason = failure(Bench(body, grid=2, block=32, workspaces=COUNTED))
    assert "races on" in reason and "of part" in reason and "of another block" in reason


def test_two_blocks_that_write_one_word_race() -> None:
    assert "of another block" in failure(Bench("if (threadIdx.x == 0) y[0] = 1;", grid=2))


def test_atomics_from_many_blocks_do_not_race_but_a_plain_write_beside_them_does() -> None:
    honest = Bench(
        "atomicAdd(sum, 1.0f); y[blockIdx.x * 32 + threadIdx.x] = 0;",
        grid=2,
        block=32,
        workspaces={"sum": ("float", 4, "zeroed")},
    )
    assert honest.run().ok
    assert "races" in failure(
        Bench(
            "atomicAdd(sum, 1.0f); if (threadIdx.x == 3) sum[0] = 0; y[blockIdx.x * 32 + threadIdx.x] = 0;",
            grid=2,
            block=32,
            workspaces={"sum": ("float", 4, "zeroed")},
        )
    )


@pytest.mark.parametrize("operation", ["__ballot_sync(~0u, 1)", "__shfl_xor_sync(~0u, i, 1)"])
def test_shuffles_and_votes_order_no_shared_memory(operation: str) -> None:
    body = f"__shared__ float s[64]; int i = threadIdx.x; s[i] = x[i]; if ({operation} >= 0u) y[i] = s[i ^ 1];"
    assert "races" in failure(Bench(body))


def test_a_small_product_is_watched_every_time_and_modelled_by_the_first() -> None:
    bench = Bench("int i = threadIdx.x; y[i] = x[0] > 2.0f ? cols[n + i] : x[i];")
    bench.backend.write(bench.memory["x"], np.zeros(64, dtype=np.float32))
    first = bench.run()
    assert first.ok and bench.run() == first
    bench.backend.write(bench.memory["x"], np.full(64, 3, dtype=np.float32))
    assert "past the end of cols" in failure(bench)


def test_a_variable_that_nobody_set_is_not_zero() -> None:
    bench = Bench("int i = threadIdx.x; float sum; for (int j = 0; j < n; ++j) sum += x[j]; y[i] = sum;")
    assert bench.run().ok
    assert (np.abs(bench.backend.read(bench.memory["y"], np.dtype(np.float32), 64)) > 1e30).all()


def test_syncwarp_orders_shared_memory_within_a_warp_only() -> None:
    body = "__shared__ float s[64]; int i = threadIdx.x; s[i] = x[i]; __syncwarp(); y[i] = s[{other}];"
    assert Bench(body.format(other="i ^ 1")).run().ok
    assert "races" in failure(Bench(body.format(other="i & 31")))


def test_scratch_is_garbage_at_every_product() -> None:
    bench = Bench("y[threadIdx.x] = part[threadIdx.x];", workspaces={"part": ("float", 256, "scratch")})
    assert "of part, which nobody has written" in failure(bench)


def test_zeroed_workspaces_begin_at_zero() -> None:
    for y in both_builds(Bench("y[threadIdx.x] = part[threadIdx.x];", workspaces={"part": ("float", 256, "zeroed")})):
        np.testing.assert_array_equal(y, 0)


def test_a_fault_in_the_plain_build_is_a_report_and_the_process_goes_on() -> None:
    bench = Bench("y[threadIdx.x] = *(volatile float*)(8 + (size_t)n);", backend=SimBackend(nvrtc=False, watch="never"))
    assert "not mapped" in failure(bench)
    with pytest.raises(BackendError, match="not mapped"):
        bench.prepare().launch(bench.memory["x"].pointer, bench.memory["y"].pointer)
    assert Bench("y[threadIdx.x] = 1;").run().ok


def test_a_kernel_that_never_ends_is_stopped_in_the_plain_build_too() -> None:
    bench = Bench(
        "volatile int i = 0; while (i == 0) {} y[0] = 0;", backend=SimBackend(nvrtc=False, watch="never", limit_s=0.3)
    )
    assert "hangs" in failure(bench)


def test_a_thread_that_spins_lets_the_one_it_waits_for_run() -> None:
    body = """__shared__ volatile int flag; int i = threadIdx.x; if (i == 0) flag = 0; __syncthreads();
    if (i == 0) { while (atomicAdd((int*)&flag, 0) == 0) {} } if (i == 63) atomicExch((int*)&flag, 1); y[i] = i;"""
    report = Bench(body).run()
    assert report.ok, report.reason


def test_a_stack_overflow_is_a_report() -> None:
    body = "volatile float big[40000]; for (int i = 0; i < 40000; i += 100) big[i] = i; y[threadIdx.x] = big[39900];"
    assert "not mapped" in failure(Bench(body))


def test_a_frame_larger_than_a_guard_page_does_not_step_over_it() -> None:
    """80 KB on a stack of 64: below it, past the guard page, lies the stack of a thread that waits."""
    deep = "__device__ __attribute__((noinline)) float deep(int n)\n{ volatile float big[20000]; return big[n] = n; }"
    body = "int i = threadIdx.x; float sum = 0; if (i == 40) sum = deep(n); __syncthreads(); y[i] = sum;"
    assert "thread 40: touches memory that is not mapped" in failure(Bench(body, before=deep))
    assert native._stacks.value
    below = ctypes.string_at(native._stacks.value + 39 * 65536 + 4096, 65536 - 4096)
    assert b"\xfe" * 1024 not in below  # what the compiler fills variables with that nobody has set


def test_a_block_too_large_is_refused() -> None:
    assert "1..1024" in failure(Bench("y[0] = 0;", block=2048))
    assert "dynamic shared memory" in failure(Bench("y[0] = 0;", shared_bytes=1 << 20))


# ---- dependent launch

PRODUCT = "int i = threadIdx.x; {early} sim_pdl_trigger(); {wait} y[i] = vals[i] * x[i];"


def test_a_product_that_waits_may_run_with_the_pdl_attribute() -> None:
    bench = Bench(PRODUCT.format(early="float a = vals[i];", wait="sim_pdl_wait();"), pdl=True)
    assert bench.run(plain=False).ok


@pytest.mark.parametrize(
    ("early", "wait", "words"),
    [
        ("float a = x[i]; y[i] = a;", "sim_pdl_wait();", "touches x before the dependency wait"),
        ("", "", "touches x before the dependency wait"),
        ("y[i] = 0;", "sim_pdl_wait();", "touches y before the dependency wait"),
        ("", "if (i != 5) sim_pdl_wait();", "thread 5: touches x before"),
    ],
)
def test_touching_x_before_the_wait_fails_only_with_the_attribute(early: str, wait: str, words: str) -> None:
    bench = Bench(PRODUCT.format(early=early, wait=wait), pdl=True)
    assert bench.run(plain=True).ok
    assert words in failure(bench, plain=False)


def test_a_pdl_launch_in_which_nobody_waits_fails() -> None:
    bench = Bench("if (vals[0] == 12345.0f) y[0] = 0;", pdl=True)
    assert "no thread calls pdl_wait()" in failure(bench, plain=False)


def test_a_chain_feeds_products_into_each_other_behind_the_writer() -> None:
    bench = Bench(PRODUCT.format(early="", wait="sim_pdl_wait();"), pdl=True)
    a, b, source = bench.memory["x"], bench.memory["y"], bench.memory["z"]
    start = np.linspace(-1, 1, 64).astype(np.float32)
    bench.backend.write(source, start)
    assert bench.backend.run_chain(bench.prepare(), [a, b, source], 3).ok
    expected = start
    for _ in range(3):
        expected = bench.vals * expected
    np.testing.assert_array_equal(bench.y, expected)


# ---- memory, times, compiler


def test_guards_digest_scatter_and_fill() -> None:
    backend = SimBackend(nvrtc=False)
    buffer, slots = backend.alloc(32), backend.alloc(12)
    assert buffer.pointer % 256 == 0 and backend.guards_intact(buffer)
    backend.write(slots, np.array([6, 0, 3], dtype=np.int32))
    backend.scatter(buffer, np.array([1, 2, 3], dtype=np.float32), slots, np.array(-0.0, dtype=np.float32))
    values = backend.read(buffer, np.dtype(np.float32), 8)
    np.testing.assert_array_equal(values, [2, 0, 0, 3, 0, 0, 1, 0])
    assert np.signbit(values[[1, 2, 4, 5, 7]]).all()
    before = backend.digest(buffer)
    backend.fill(buffer, 0)
    assert backend.digest(buffer) != before
    buffer._whole[0] = 1
    assert not backend.guards_intact(buffer)
    assert backend.inspect([slots, buffer], [buffer]) == ([True, False], [backend.digest(buffer)])


def test_counts_and_modelled_times_are_the_same_on_every_run() -> None:
    body = "int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = vals[i] * x[cols[i]];"
    reports, times = [], []
    for seed in (1, 2):
        bench = Bench(body, n=5000, grid=79, backend=SimBackend(nvrtc=False, seed=seed))
        reports.append(bench.run())
        plans = [TimingPlan(mode, rounds=3, x_elements=5000, y_elements=5000) for mode in ("chain", "solver", "cold")]
        times.append([bench.backend.time([bench.prepare()], plan) for plan in plans])
        assert all(bench.backend.floor_us(plan) < row[0][0] for plan, row in zip(plans, times[-1], strict=True))
    assert reports[0] == reports[1] and reports[0].modelled_us > 0
    assert times[0] == times[1]


def test_coalesced_loads_touch_fewer_sectors_than_strided_ones() -> None:
    near = Bench("int i = threadIdx.x; y[i] = x[i];", n=1024, block=1024).run()
    far = Bench("int i = threadIdx.x; y[i] = x[(i * 33) % 1024];", n=1024, block=1024).run()
    assert near.sectors == 256
    assert far.sectors > 1000


def test_a_source_that_does_not_compile_says_where() -> None:
    with pytest.raises(CompileError, match="nonsense"):
        Bench("nonsense();").prepare()


def test_the_compile_verdict_is_the_device_compilers() -> None:
    host_only = Bench("y[threadIdx.x] = __builtin_popcountll(n);", backend=SimBackend())
    with pytest.raises(CompileError):
        host_only.prepare()
    honest = Bench("y[threadIdx.x] = x[threadIdx.x];", backend=SimBackend())
    assert honest.run().ok
    assert honest.backend.compile(honest.job.source, honest.job.kernels).registers > 0


def test_the_ucontext_fallback_runs_the_same_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSERL_SIM_FIBERS", "ucontext")
    body = """int i = threadIdx.x; __shared__ float s[64]; s[i] = __shfl_xor_sync(~0u, x[i], 1);
    __syncthreads(); y[i] = s[63 - i];"""
    bench = Bench(body)
    for y in both_builds(bench):
        np.testing.assert_array_equal(y, bench.x[(63 - np.arange(64)) ^ 1])
    assert "past the end of x" in failure(Bench("__syncthreads(); y[threadIdx.x] = x[threadIdx.x + 4];"))


def test_a_million_nonzeros_with_eight_lanes_a_row_are_checked_within_three_seconds() -> None:
    rows, each = 62_500, 16
    before = """extern "C" __global__ void k8(int rows, const int* cols, const float* vals, const float* x, float* y) {
      int row = (blockIdx.x * blockDim.x + threadIdx.x) / 8, lane = threadIdx.x % 8; float sum = 0;
      if (row < rows) for (int j = row * 16 + lane; j < row * 16 + 16; j += 8) sum += vals[j] * x[cols[j]];
      for (int d = 4; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
      if (row < rows && lane == 0) y[row] = sum; }"""
    backend = SimBackend(nvrtc=False)
    params = tuple(
        Param(*p)
        for p in (
            ("rows", "int"),
            ("cols", "const int*"),
            ("vals", "const float*"),
            ("x", "const float*"),
            ("y", "float*"),
        )
    )
    job = Job(before, ("k8",), params, {"rows": rows}, (Launch("k8", (rows * 8 + 255) // 256, 256),), {})
    rng = np.random.default_rng(3)
    arrays = {
        "cols": rng.integers(0, rows, rows * each).astype(np.int32),
        "vals": rng.standard_normal(rows * each).astype(np.float32),
    }
    memory = {name: backend.alloc(a.nbytes) for name, a in arrays.items()}
    for name, a in arrays.items():
        backend.write(memory[name], a)
    x, y = backend.alloc(4 * rows), backend.alloc(4 * rows)
    backend.write(x, rng.standard_normal(rows).astype(np.float32))
    executable = backend.prepare(backend.compile(before, ("k8",)), job, memory)
    start = time.process_time()
    report = backend.run(executable, x, y)
    took_s = time.process_time() - start
    assert report.ok, report.reason
    start = time.process_time()
    assert backend.run(executable, x, y).ok
    plain_s = time.process_time() - start
    assert took_s < 3.0 and plain_s < took_s, (took_s, plain_s)
