// expect: WRONG
// tries: leaves its counter where it was
// layout: rows index=int32
// workspace: next int[1] zeroed
// launch: spmv<<<div_up(rows, 128), 128>>>
extern "C" __global__ void spmv(int rows, int columns, int nonzeros, int padded, const int* row_start,
                                const index_t* cols, const value_t* vals, const value_t* x, value_t* y, int* next)
{
    __shared__ int mine;
    if (threadIdx.x == 0) mine = atomicAdd(next, 1);
    __syncthreads();
    const int row = mine * 128 + threadIdx.x;
    if (row >= rows) return;
    acc_t sum = 0;
    for (int j = row_start[row]; j < row_start[row + 1]; ++j) sum += vals[j] * x[cols[j]];
    y[row] = sum;
}
