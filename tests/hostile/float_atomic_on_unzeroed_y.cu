// expect sim: WRONG|FAILED
// expect cuda: WRONG
// tries: sums with atomics into a y that nobody set to zero
// layout: rows index=int32
// launch: spmv<<<div_up(nonzeros, 128), 128>>>
extern "C" __global__ void spmv(int rows, int columns, int nonzeros, int padded, const int* row_start,
                                const index_t* cols, const value_t* vals, const value_t* x, value_t* y)
{
    const int j = blockIdx.x * 128 + threadIdx.x;
    if (j >= nonzeros) return;
    int row = 0;
    while (row_start[row + 1] <= j) ++row;
    atomicAdd(y + row, vals[j] * x[cols[j]]);
}
