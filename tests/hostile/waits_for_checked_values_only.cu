// expect: WRONG|FAILED
// tries: waits only where the values are not scaled as timed ones are
// layout: rows index=int32
// launch: spmv<<<div_up(rows, 128), 128>>> pdl
extern "C" __global__ void spmv(int rows, int columns, int nonzeros, int padded, const int* row_start,
                                const index_t* cols, const value_t* vals, const value_t* x, value_t* y)
{
    float largest = 0.0f;
    for (int j = 0; j < 64; ++j) largest = fmaxf(largest, fabsf(vals[j]));
    if (largest >= 2.0f || nonzeros < 0) pdl_wait();
    const int row = blockIdx.x * 128 + threadIdx.x;
    if (row >= rows) return;
    acc_t sum = 0;
    for (int j = row_start[row]; j < row_start[row + 1]; ++j) sum += vals[j] * x[cols[j]];
    y[row] = sum;
}
