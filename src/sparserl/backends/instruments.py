"""The host's own kernels on the cuda backend: what it verifies and measures with. No candidate ever sees them.

`slow_copy` first ruins its target with NaN, then lets dependents start, waits, and only then writes: a product that
reads x before its dependency wait reads NaN, not an old x that happens to be right. `ruin_shared` leaves NaN in the
shared memory of every multiprocessor: what another process leaves there may be zeros, and a product that never set its
sums would be right by luck.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from sparserl.backends import nvrtc
from sparserl.backends.driver import Arguments, Call, Module, pointer

SLOW_CYCLES = 40_000
"""about 20 microseconds on an H200"""

SOURCE = r"""
typedef unsigned long long u64;

__device__ u64 place() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ u64 stride() { return (u64)gridDim.x * blockDim.x; }

__device__ void start_dependents()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ void wait_for_primary()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

extern "C" __global__ void empty() {}

extern "C" __global__ void empty_dependent()
{
    start_dependents();
    wait_for_primary();
}

extern "C" __global__ void ruin_shared(unsigned bytes)
{
    extern __shared__ volatile unsigned left[];
    for (unsigned i = threadIdx.x; i < bytes / 4; i += blockDim.x) left[i] = 0xFFFFFFFFu;
}

extern "C" __global__ void slow_copy(unsigned char* target, const unsigned char* source, u64 bytes, long long cycles)
{
    unsigned* to = (unsigned*)target;
    const unsigned* from = (const unsigned*)source;
    const u64 words = bytes / 4;
    for (u64 i = place(); i < words; i += stride()) to[i] = 0xFFFFFFFFu;
    if (place() == 0) for (u64 b = words * 4; b < bytes; ++b) target[b] = 0xFF;
    __threadfence();
    __syncthreads();
    start_dependents();
    const long long begin = clock64();
    while (clock64() - begin < cycles) {}
    for (u64 i = place(); i < words; i += stride()) to[i] = from[i];
    if (place() == 0) for (u64 b = words * 4; b < bytes; ++b) target[b] = source[b];
}

// Every word is read and written; the mask is 0, but the compiler does not know.
extern "C" __global__ void touch(unsigned* x, u64 words, unsigned mask)
{
    const u64 i = place();
    if (i < words) x[i] = x[i] ^ mask;
}

extern "C" __global__ void flush(uint4* data, u64 count, unsigned value)
{
    for (u64 i = place(); i < count; i += stride()) data[i] = make_uint4(value, value, value, value);
}

// The lines leave the L2 without being written back; what they held is gone.
extern "C" __global__ void discard(unsigned char* data, u64 bytes)
{
#if __CUDA_ARCH__ >= 800
    for (u64 i = place() * 128; i < bytes; i += stride() * 128)
        asm volatile("discard.global.L2 [%0], 128;" ::"l"(data + i) : "memory");
#endif
}

extern "C" __global__ void copy(uint4* target, const uint4* source, u64 count)
{
    for (u64 i = place(); i < count; i += stride()) target[i] = source[i];
}

// __ldcg goes past L1, so that every pass is served by the L2.
extern "C" __global__ void read_repeatedly(const uint4* data, int count, int passes, unsigned* sink)
{
    unsigned sum = 0;
    const int step = (int)stride();
    for (int pass = 0; pass < passes; ++pass) {
        int i = (int)place();
        for (; i + 3 * step < count; i += 4 * step) {
            const uint4 a = __ldcg(data + i), b = __ldcg(data + i + step);
            const uint4 c = __ldcg(data + i + 2 * step), d = __ldcg(data + i + 3 * step);
            sum += a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
        }
        for (; i < count; i += step) {
            const uint4 a = __ldcg(data + i);
            sum += a.x ^ a.y ^ a.z ^ a.w;
        }
        sum = sum * 31u + pass;
    }
    if (sum == 0x12345678u) *sink = sum;
}

__device__ u64 mix(u64 h)
{
    h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9ull;
    h = (h ^ (h >> 27)) * 0x94D049BB133111EBull;
    return h ^ (h >> 31);
}

// The place of a word goes into its hash, so that the sum depends on the order although addition does not.
__device__ u64 hashed(const unsigned char* data, u64 bytes, u64 first, u64 step)
{
    u64 sum = 0;
    const u64 words = (bytes + 7) / 8;
    for (u64 i = first; i < words; i += step) {
        u64 word = 0;
        if (8 * i + 8 <= bytes) word = ((const u64*)data)[i];
        else for (u64 b = 8 * i; b < bytes; ++b) word |= (u64)data[b] << (8 * (b % 8));
        sum += mix(word ^ mix(i + 0x9E3779B97F4A7C15ull));
    }
    return sum;
}

// The table: a sum for each zone, then where it lies, its bytes, and whether they are to be hashed (0) or all the same.
extern "C" __global__ void inspect(u64* table, unsigned zones, unsigned expected)
{
    const unsigned zone = blockIdx.x % zones;
    const u64* about = table + zones + 3 * zone;
    const unsigned char* data = (const unsigned char*)about[0];
    const u64 bytes = about[1], step = (u64)(gridDim.x / zones) * blockDim.x;
    u64 sum = 0;
    u64 i = (u64)(blockIdx.x / zones) * blockDim.x + threadIdx.x;
    if (about[2] == 0) sum = hashed(data, bytes, i, step);
    else for (; i < bytes; i += step) sum += data[i] != expected;
    for (int offset = 16; offset; offset >>= 1) sum += __shfl_down_sync(0xFFFFFFFFu, sum, offset);
    if (threadIdx.x % 32 == 0 && sum) atomicAdd(table + zone, sum);
}

template <class T> __device__ void scatter(T* target, const T* values, const int* slot_of, int count)
{
    for (u64 k = place(); k < count; k += stride()) target[slot_of[k]] = values[k];
}
template <class T> __device__ void pad(T* target, T value, u64 count)
{
    for (u64 k = place(); k < count; k += stride()) target[k] = value;
}
struct Shape { u64 rows, wide; int kept, by_row; };
// Some columns of a matrix of rows x wide items, in the order that they are stored in.
template <class T> __device__ void pick(T* target, const T* from, const int* columns, Shape s)
{
    for (u64 i = place(); i < s.rows * s.kept; i += stride())
        target[i] = s.by_row ? from[i / s.kept * s.wide + columns[i % s.kept]]
                             : from[columns[i / s.rows] * s.rows + i % s.rows];
}
typedef unsigned short u16;
typedef unsigned int u32;
extern "C" __global__ void scatter2(u16* t, const u16* v, const int* s, int n) { scatter(t, v, s, n); }
extern "C" __global__ void scatter4(u32* t, const u32* v, const int* s, int n) { scatter(t, v, s, n); }
extern "C" __global__ void scatter8(u64* t, const u64* v, const int* s, int n) { scatter(t, v, s, n); }
extern "C" __global__ void pick2(u16* t, const u16* f, const int* c, Shape s) { pick(t, f, c, s); }
extern "C" __global__ void pick4(u32* t, const u32* f, const int* c, Shape s) { pick(t, f, c, s); }
extern "C" __global__ void pick8(u64* t, const u64* f, const int* c, Shape s) { pick(t, f, c, s); }
extern "C" __global__ void pad2(u16* t, u64 value, u64 n) { pad(t, (u16)value, n); }
extern "C" __global__ void pad4(u32* t, u64 value, u64 n) { pad(t, (u32)value, n); }
extern "C" __global__ void pad8(u64* t, u64 value, u64 n) { pad(t, value, n); }
"""

KERNELS = (
    "empty", "empty_dependent", "ruin_shared", "slow_copy", "touch", "flush", "discard", "copy", "read_repeatedly",
    "inspect", "scatter2", "scatter4", "scatter8", "pick2", "pick4", "pick8", "pad2", "pad4", "pad8",
)  # fmt: skip
THREADS = 256
LINE = 128
"""bytes of a line of the L2"""


class Picked(ctypes.Structure):
    """A matrix of rows x wide items, how many of its columns are kept, and whether it is stored by rows."""

    _fields_ = (("rows", ctypes.c_uint64), ("wide", ctypes.c_uint64), ("kept", ctypes.c_int), ("by_row", ctypes.c_int))


class Instruments:
    """The loaded kernels; every method gives a packed launch, to be launched once or many times."""

    def __init__(self, arch: str, sms: int, shared_bytes: int) -> None:
        """`shared_bytes`: the most that a block may have."""
        self._module = Module(nvrtc.compile(SOURCE, KERNELS, arch).code)
        self._sms, self._shared_bytes = sms, shared_bytes
        self._module.allow_shared("ruin_shared", shared_bytes)
        self.can_discard = int("".join(filter(str.isdigit, arch)) or 0) >= 80
        """whether the machine can drop lines of its L2 unwritten"""

    def _call(self, name: str, grid: int, slots: list[Any], stream: int) -> Call:
        return Call(name, self._module.function(name), (max(1, grid), THREADS, 0), Arguments(slots), stream)

    def _wide(self, items: int) -> int:
        """Blocks for a grid-stride loop: no more than fill the machine a few times."""
        return min(-(-items // THREADS), 8 * self._sms)

    def empty(self, stream: int, dependent: bool = False) -> Call:
        name = "empty_dependent" if dependent else "empty"
        return Call(name, self._module.function(name), (1, 32, 0), Arguments([]), stream, pdl=dependent)

    def ruin_shared(self, stream: int) -> Call:
        """A block fills a multiprocessor's shared memory, so each has one; two rounds, in case one has none."""
        shape = (2 * self._sms, 1024, self._shared_bytes)
        arguments = Arguments([ctypes.c_uint(self._shared_bytes)])
        return Call("ruin_shared", self._module.function("ruin_shared"), shape, arguments, stream)

    def slow_copy(self, target: int, source: int, size_bytes: int, stream: int) -> Call:
        """A quarter of the multiprocessors at most: the rest stay free for a product that does not wait."""
        grid = min(-(-size_bytes // (4 * THREADS)), max(1, self._sms // 4))
        slots = [pointer(target), pointer(source), ctypes.c_uint64(size_bytes), ctypes.c_longlong(SLOW_CYCLES)]
        return self._call("slow_copy", grid, slots, stream)

    def touch(self, x: int, size_bytes: int, stream: int) -> Call:
        words = size_bytes // 4
        return self._call("touch", -(-words // THREADS), [pointer(x), ctypes.c_uint64(words), ctypes.c_uint(0)], stream)

    def flush(self, data: int, size_bytes: int, stream: int) -> Call:
        count = size_bytes // 16
        return self._call("flush", self._wide(count), [pointer(data), ctypes.c_uint64(count), ctypes.c_uint(7)], stream)

    def discard(self, data: int, size_bytes: int, stream: int) -> Call:
        """Whole lines, of which what they hold may get lost."""
        slots = [pointer(data), ctypes.c_uint64(size_bytes)]
        return self._call("discard", self._wide(size_bytes // LINE), slots, stream)

    def copy(self, target: int, source: int, size_bytes: int, stream: int) -> Call:
        count = size_bytes // 16
        slots = [pointer(target), pointer(source), ctypes.c_uint64(count)]
        return self._call("copy", self._wide(count), slots, stream)

    def read_repeatedly(self, data: int, size_bytes: int, passes: int, sink: int, stream: int) -> Call:
        slots = [pointer(data), ctypes.c_int(size_bytes // 16), ctypes.c_int(passes), pointer(sink)]
        return self._call("read_repeatedly", 8 * self._sms, slots, stream)

    def inspect(self, table: int, sizes: Sequence[int], expected: int, stream: int) -> Call:
        """A table of zones of so many bytes is looked over; each has as many blocks, fewer where zones are many."""
        most = min(4 * self._sms, max(8, 32 * self._sms // len(sizes)))
        wide = max(1, min(-(-max(sizes) // (8 * THREADS)), most))
        slots = [pointer(table), ctypes.c_uint(len(sizes)), ctypes.c_uint(expected)]
        return self._call("inspect", wide * len(sizes), slots, stream)

    def scatter(self, width: int, target: int, values: int, slot_of: int, count: int, *, stream: int) -> Call:
        """target[slot_of[k]] = values[k], items of `width` bytes."""
        slots = [pointer(target), pointer(values), pointer(slot_of), ctypes.c_int(count)]
        return self._call(f"scatter{width}", self._wide(count), slots, stream)

    def pick(self, width: int, target: int, source: int, columns: int, shape: Picked, *, stream: int) -> Call:
        """Of a matrix of items of `width` bytes, some columns alone."""
        slots = [pointer(target), pointer(source), pointer(columns), shape]
        return self._call(f"pick{width}", self._wide(shape.rows * shape.kept), slots, stream)

    def pad(self, width: int, target: int, bits: int, count: int, stream: int) -> Call:
        slots = [pointer(target), ctypes.c_uint64(bits), ctypes.c_uint64(count)]
        return self._call(f"pad{width}", self._wide(count), slots, stream)
