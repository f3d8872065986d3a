// expect sim: FAILED
// expect cuda: WRONG|FAILED
// tries: lets the last block add up partial sums that nothing made visible
// layout: rows index=int32
// workspace: partial acc_t[64 * rows] scratch
// workspace: arrived int[1] zeroed
// launch: spmv<<<64, 32>>>
extern "C" __global__ void spmv(int rows, int columns, int nonzeros, int padded, const int* row_start,
                                const index_t* cols, const value_t* vals, const value_t* x, value_t* y, acc_t* partial, int* arrived)
{
    __shared__ int last;
    acc_t old = 0;
    for (int i = threadIdx.x; i < int(gridDim.x) * rows; i += 32) old += partial[i];
    for (int row = 0; row < rows; ++row) {
        acc_t sum = 0;
        for (int j = row_start[row] + blockIdx.x * 32 + threadIdx.x; j < row_start[row + 1]; j += 32 * gridDim.x)
            sum += vals[j] * x[cols[j]];
        sum = warp_sum<32>(sum);
        if (threadIdx.x == 0) partial[blockIdx.x * rows + row] = sum;
    }
    if (threadIdx.x == 0) {
        last = atomicAdd(arrived, 1) == int(gridDim.x) - 1;
        if (last) atomicExch(arrived, 0);
    }
    __syncthreads();
    if (!last) return;
    for (int row = threadIdx.x; row < rows; row += 32) {
        acc_t total = old == 12345.0f ? 1.0f : 0.0f;
        for (int b = 0; b < int(gridDim.x); ++b) total += partial[b * rows + row];
        y[row] = total;
    }
}
