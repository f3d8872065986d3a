// expect: FAILED
// tries: waits at a barrier for threads that wait for it
// layout: rows index=int32
// launch: spmv<<<div_up(rows, 128), 128>>>
extern "C" __global__ void spmv(int rows, int columns, int nonzeros, int padded, const int* row_start,
                                const index_t* cols, const value_t* vals, const value_t* x, value_t* y)
{
    __shared__ acc_t parts[128];
    __shared__ int ready;
    const int row = blockIdx.x * 128 + threadIdx.x;
    if (threadIdx.x == 0) ready = 0;
    __syncthreads();
    acc_t sum = 0;
    if (row < rows)
        for (int j = row_start[row]; j < row_start[row + 1]; ++j) sum += vals[j] * x[cols[j]];
    parts[threadIdx.x] = sum;
    if (threadIdx.x < 64) {
        __syncthreads();
        if (threadIdx.x == 0) atomicExch(&ready, 1);
    } else {
        while (atomicAdd(&ready, 0) == 0) {}
    }
    if (row < rows) y[row] = parts[threadIdx.x];
}
