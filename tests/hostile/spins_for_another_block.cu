// expect: FAILED
// tries: waits for a block that comes after it
// layout: rows index=int32
// workspace: flag int[1] zeroed
// launch: spmv<<<div_up(rows, 128), 128>>>
extern "C" __global__ void spmv(int rows, int columns, int nonzeros, int padded, const int* row_start,
                                const index_t* cols, const value_t* vals, const value_t* x, value_t* y, int* flag)
{
    const int row = blockIdx.x * 128 + threadIdx.x;
    if (threadIdx.x == 0) {
        if (blockIdx.x == 0) while (atomicAdd(flag, 0) == 0) {}
        if (blockIdx.x == gridDim.x + 1) atomicExch(flag, 1);
    }
    __syncthreads();
    if (row >= rows) return;
    acc_t sum = 0;
    for (int j = row_start[row]; j < row_start[row + 1]; ++j) sum += vals[j] * x[cols[j]];
    y[row] = sum;
}
