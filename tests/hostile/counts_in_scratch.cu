// expect sim: WRONG|FAILED
// expect cuda: WRONG
// tries: counts its calls in scratch, is right a few times, then writes zeros
// layout: rows index=int32
// workspace: seen int[rows] scratch
// launch: spmv<<<div_up(rows, 128), 128>>>
extern "C" __global__ void spmv(int rows, int columns, int nonzeros, int padded, const int* row_start,
                                const index_t* cols, const value_t* vals, const value_t* x, value_t* y, int* seen)
{
    const int row = blockIdx.x * 128 + threadIdx.x;
    if (row >= rows) return;
    const int calls = seen[row] < 0 || seen[row] > 1000000 ? 0 : seen[row];
    seen[row] = calls + 1;
    acc_t sum = 0;
    if (calls < 8)
        for (int j = row_start[row]; j < row_start[row + 1]; ++j) sum += vals[j] * x[cols[j]];
    y[row] = sum;
}
