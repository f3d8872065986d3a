// expect sim: FAILED
// expect cuda: WRONG|FAILED
// tries: adds up what other warps put into shared memory without waiting for them
// layout: rows index=int32
// launch: spmv<<<rows, 256>>>
extern "C" __global__ void spmv(int rows, int columns, int nonzeros, int padded, const int* row_start,
                                const index_t* cols, const value_t* vals, const value_t* x, value_t* y)
{
    __shared__ acc_t parts[256];
    const int row = blockIdx.x;
    if (threadIdx.x >= 32) {
        acc_t sum = 0;
        for (int j = row_start[row] + threadIdx.x - 32; j < row_start[row + 1]; j += 224) sum += vals[j] * x[cols[j]];
        parts[threadIdx.x] = sum;
    }
    if (threadIdx.x == 0) {
        acc_t total = 0;
        for (int i = 32; i < 256; ++i) total += parts[i];
        y[row] = total;
    }
}
