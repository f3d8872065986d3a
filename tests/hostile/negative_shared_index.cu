// expect sim: FAILED
// expect cuda: WRONG|FAILED
// tries: writes before the beginning of shared memory
// layout: rows index=int32
// launch: spmv<<<div_up(rows, 128), 128>>>
extern "C" __global__ void spmv(int rows, int columns, int nonzeros, int padded, const int* row_start,
                                const index_t* cols, const value_t* vals, const value_t* x, value_t* y)
{
    __shared__ value_t parts[128];
    const int row = blockIdx.x * 128 + threadIdx.x;
    acc_t sum = 0;
    if (row < rows)
        for (int j = row_start[row]; j < row_start[row + 1]; ++j) sum += vals[j] * x[cols[j]];
    parts[int(threadIdx.x) - 65536] = sum;
    __syncthreads();
    if (row < rows) y[row] = parts[int(threadIdx.x) - 65536];
}
