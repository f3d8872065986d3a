// expect: WRONG
// tries: carries answers in its text
// layout: rows index=int32
// launch: spmv<<<div_up(rows, 128), 128>>>
extern "C" __global__ void spmv(int rows, int columns, int nonzeros, int padded, const int* row_start,
                                const index_t* cols, const value_t* vals, const value_t* x, value_t* y)
{
    const float answers[8] = {0.5f, 1.25f, -2.0f, 3.5f, 0.0f, 1.0f, -1.0f, 2.25f};
    const int row = blockIdx.x * 128 + threadIdx.x;
    if (row < rows) y[row] = answers[row % 8];
}
