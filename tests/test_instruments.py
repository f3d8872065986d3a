"""The host's own kernels, where they can be tried without a GPU: on the simulator, against the same worked out here."""

from __future__ import annotations

import numpy as np

from sparserl.backends import instruments
from sparserl.backends.backend import Job
from sparserl.backends.sim import SimBackend
from sparserl.records import Launch, Param

GUARD = 0xA5
WORD = (1 << 64) - 1
SETUP = """
extern "C" __global__ void fill(const unsigned char* data, const float* x, unsigned long long* y)
{
    const u64 zones[4][3] = {{(u64)data, 4000, 0}, {(u64)(data + 4096), 1021, 0},
                             {(u64)(data + 8000), 500, 1}, {(u64)(data + 8501), 33, 1}};
    for (int zone = 0; zone < 4; ++zone) {
        y[zone] = 0;
        for (int part = 0; part < 3; ++part) y[4 + 3 * zone + part] = zones[zone][part];
    }
}
extern "C" __global__ void look(const unsigned char* data, const float* x, unsigned long long* y)
{
    inspect(y, 4, 0xA5);
}
"""


def mixed(number: int) -> int:
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & WORD
    return number ^ (number >> 31)


def hashed(data: bytes) -> int:
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]
    return sum(mixed(word ^ mixed((at + 0x9E3779B97F4A7C15) & WORD)) for at, word in enumerate(words)) & WORD


def test_zones_are_hashed_and_strange_bytes_counted_in_one_launch() -> None:
    source = instruments.SOURCE
    kernel = source[source.index("__device__ u64 mix") : source.index("template <class T> __device__ void scatter")]
    kernel = kernel.replace('extern "C" __global__ void inspect(', "__device__ void inspect(")
    backend = SimBackend(nvrtc=False)
    data = np.random.default_rng(1).integers(0, 256, 9000, dtype=np.uint8)
    data[8000:8500] = GUARD
    data[[8123, 8499]] = 7
    names = ("const unsigned char*", "data"), ("const float*", "x"), ("unsigned long long*", "y")
    params = tuple(Param(name, ctype) for ctype, name in names)
    launches = (Launch("fill", 1, 1), Launch("look", 4 * 3, 256))
    job = Job("typedef unsigned long long u64;\n" + kernel + SETUP, ("fill", "look"), params, {}, launches, {})
    held, x, y = backend.upload({"data": data})["data"], backend.alloc(8), backend.alloc(16 * 8)
    executable = backend.prepare(backend.compile(job.source, job.kernels), job, {"data": held})
    report = backend.run(executable, x, y)
    assert report.ok, report.reason
    strange = sum(byte != GUARD for byte in data[8501:8534])
    expected = [hashed(data[:4000].tobytes()), hashed(data[4096:5117].tobytes()), 2, strange]
    assert backend.read(y, np.dtype(np.uint64), 4).tolist() == expected


PICKING = """
extern "C" __global__ void pick_some(const unsigned* data, const int* columns, const float* x, unsigned* y)
{
    const Shape by_row = {6, 8, 3, 1}, by_column = {6, 8, 3, 0};
    pick(y, data, columns, by_row);
    pick(y + 18, data, columns, by_column);
}
"""


def test_columns_are_picked_from_matrices_of_either_order() -> None:
    source = instruments.SOURCE
    kernel = source[source.index("struct Shape") : source.index("typedef unsigned short u16;")]
    places = source[source.index("__device__ u64 place()") : source.index("__device__ void start_dependents")]
    backend = SimBackend(nvrtc=False)
    data, columns = np.arange(48, dtype=np.uint32), np.array([1, 4, 7], dtype=np.int32)
    names = ("const unsigned*", "data"), ("const int*", "columns"), ("const float*", "x"), ("unsigned*", "y")
    params = tuple(Param(name, ctype) for ctype, name in names)
    text = "typedef unsigned long long u64;\n" + places + kernel + PICKING
    job = Job(text, ("pick_some",), params, {}, (Launch("pick_some", 2, 32),), {})
    held, x, y = backend.upload({"data": data, "columns": columns}), backend.alloc(8), backend.alloc(36 * 4)
    report = backend.run(backend.prepare(backend.compile(job.source, job.kernels), job, held), x, y)
    assert report.ok, report.reason
    found = backend.read(y, np.dtype(np.uint32), 36)
    np.testing.assert_array_equal(found[:18].reshape(6, 3), data.reshape(6, 8)[:, columns])
    np.testing.assert_array_equal(found[18:].reshape(3, 6), data.reshape(8, 6)[columns])
