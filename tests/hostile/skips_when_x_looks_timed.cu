// expect: WRONG
// tries: tells a timed x, which is smaller than 1, from the checks' and does nothing
// layout: rows index=int32
// launch: spmv<<<div_up(rows, 128), 128>>>
extern "C" __global__ void spmv(int rows, int columns, int nonzeros, int padded, const int* row_start,
                                const index_t* cols, const value_t* vals, const value_t* x, value_t* y)
{
    const int row = blockIdx.x * 128 + threadIdx.x;
    if (row >= rows) return;
    acc_t sum = 0;
    bool timed = true;
    for (int j = 1; j < 17; ++j) timed = timed && fabsf(x[j]) < 1.0f && fabsf(x[j]) > 0.125f;
    if (timed) { y[row] = 1.0f; return; }
    for (int j = row_start[row]; j < row_start[row + 1]; ++j) sum += vals[j] * x[cols[j]];
    y[row] = sum;
}
