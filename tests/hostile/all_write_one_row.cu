// expect sim: FAILED|WRONG
// expect cuda: WRONG|FAILED
// tries: lets every lane of a row write its own part to y without adding
// layout: rows index=int32
// launch: spmv<<<div_up(rows, 4), 128>>>
extern "C" __global__ void spmv(int rows, int columns, int nonzeros, int padded, const int* row_start,
                                const index_t* cols, const value_t* vals, const value_t* x, value_t* y)
{
    const int row = blockIdx.x * 4 + threadIdx.x / 32;
    if (row >= rows) return;
    acc_t sum = 0;
    for (int j = row_start[row] + threadIdx.x % 32; j < row_start[row + 1]; j += 32) sum += vals[j] * x[cols[j]];
    y[row] = sum;
}
