// expect sim: FAILED
// expect cuda: WRONG
// tries: is honest for x as in the checks and skips what it did before for any other
// layout: rows index=int32
// workspace: kept int[rows] scratch
// launch: spmv<<<div_up(rows, 128), 128>>>
extern "C" __global__ void spmv(int rows, int columns, int nonzeros, int padded, const int* row_start,
                                const index_t* cols, const value_t* vals, const value_t* x, value_t* y, int* kept)
{
    const int row = blockIdx.x * 128 + threadIdx.x;
    if (row >= rows) return;
    acc_t sum = 0;
    bool narrow_x = true;
    for (int j = 0; j < 4; ++j) if (fabsf(x[j]) < 1.0f || fabsf(x[j]) >= 2.0f) narrow_x = false;
    if (!narrow_x && kept[row] == 7) return;
    if (!narrow_x) kept[row] = 7;
    for (int j = row_start[row]; j < row_start[row + 1]; ++j) sum += vals[j] * x[cols[j]];
    y[row] = sum;
}
