// expect sim: FAILED|WRONG
// expect cuda: WRONG
// tries: adds to shared memory that it never set
// layout: rows index=int32
// launch: spmv<<<div_up(rows, 128), 128>>>
extern "C" __global__ void spmv(int rows, int columns, int nonzeros, int padded, const int* row_start,
                                const index_t* cols, const value_t* vals, const value_t* x, value_t* y)
{
    __shared__ acc_t parts[128];
    const int row = blockIdx.x * 128 + threadIdx.x;
    if (row >= rows) return;
    for (int j = row_start[row]; j < row_start[row + 1]; ++j) parts[threadIdx.x] += vals[j] * x[cols[j]];
    y[row] = parts[threadIdx.x];
}
