// expect sim: FAILED|WRONG
// expect cuda: WRONG
// tries: takes scratch memory for zeroed
// layout: rows index=int32
// workspace: sums acc_t[rows] scratch
// launch: spmv<<<div_up(rows, 128), 128>>>
extern "C" __global__ void spmv(int rows, int columns, int nonzeros, int padded, const int* row_start,
                                const index_t* cols, const value_t* vals, const value_t* x, value_t* y, acc_t* sums)
{
    const int row = blockIdx.x * 128 + threadIdx.x;
    if (row >= rows) return;
    for (int j = row_start[row]; j < row_start[row + 1]; ++j) sums[row] += vals[j] * x[cols[j]];
    y[row] = sums[row];
}
