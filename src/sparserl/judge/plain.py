"""The baseline where there is no library: a plain CSR kernel, a warp a row (SpMM: a thread an entry of C).

The simulator's speed-ups are over this program, judged like any other, in modelled time.
"""

from __future__ import annotations

from sparserl.records import Problem

NAME = "plain:csr"

_SPMV = """\
// layout: rows index=int32
// launch: spmv<<<div_up(rows, 4), 128>>>
extern "C" __global__ void spmv(int rows, int columns, int nonzeros, int padded, const int* row_start,
                                const index_t* cols, const value_t* vals, const value_t* x, value_t* y)
{
    const int row = blockIdx.x * 4 + threadIdx.x / 32;
    acc_t sum = 0;
    if (row < rows)
        for (int j = row_start[row] + threadIdx.x % 32; j < row_start[row + 1]; j += 32)
            sum += to_acc(vals[j]) * to_acc(x[cols[j]]);
    sum = warp_sum<32>(sum);
    if (row < rows && threadIdx.x % 32 == 0) y[row] = to_value(sum);
}
"""

_SPMM = """\
// layout: rows index=int32
// launch: spmm<<<div_up(rows * n, 128), 128>>>
extern "C" __global__ void spmm(int rows, int columns, int nonzeros, int padded, const int* row_start,
                                const index_t* cols, const value_t* vals, const value_t* b, value_t* c, int n)
{
    const int place = blockIdx.x * 128 + threadIdx.x;
    const int row = place / n, column = place % n;
    if (row >= rows) return;
    acc_t sum = 0;
    for (int j = row_start[row]; j < row_start[row + 1]; ++j)
        sum += to_acc(vals[j]) * to_acc(b[B_AT]);
    c[C_AT] = to_value(sum);
}
"""


def plain(problem: Problem) -> str:
    """The baseline's text for this problem."""
    if problem.op == "spmv":
        return _SPMV
    b_at = "cols[j] * n + column" if problem.b_order == "row" else "column * columns + cols[j]"
    c_at = "row * n + column" if problem.c_order == "row" else "column * rows + row"
    return _SPMM.replace("B_AT", b_at).replace("C_AT", c_at)
