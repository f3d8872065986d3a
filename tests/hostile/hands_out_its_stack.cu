// expect: SCREENED
// tries: lets another thread write its local variable
// layout: rows index=int32
// launch: spmv<<<div_up(rows, 128), 128>>>
extern "C" __global__ void spmv(int rows, int columns, int nonzeros, int padded, const int* row_start,
                                const index_t* cols, const value_t* vals, const value_t* x, value_t* y)
{
    __shared__ float* where[1];
    float mine = 0;
    if (threadIdx.x == 0) where[0] = &mine;
    __syncthreads();
    if (threadIdx.x == 1) *where[0] = 1.0f;
    __syncthreads();
    const int row = blockIdx.x * 128 + threadIdx.x;
    if (row >= rows) return;
    acc_t sum = 0;
    if (threadIdx.x == 0) sum = mine - 1.0f;
    for (int j = row_start[row]; j < row_start[row + 1]; ++j) sum += vals[j] * x[cols[j]];
    y[row] = sum;
}
