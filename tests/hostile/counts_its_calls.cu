// expect sim: WRONG|FAILED
// expect cuda: WRONG
// tries: is right four times, then writes zeros
// layout: rows index=int32
// workspace: seen int[1] zeroed
// launch: spmv<<<div_up(rows, 128), 128>>>
extern "C" __global__ void spmv(int rows, int columns, int nonzeros, int padded, const int* row_start,
                                const index_t* cols, const value_t* vals, const value_t* x, value_t* y, int* seen)
{
    const int row = blockIdx.x * 128 + threadIdx.x;
    if (row >= rows) return;
    acc_t sum = 0;
    for (int j = row_start[row]; j < row_start[row + 1]; ++j) sum += vals[j] * x[cols[j]];
    y[row] = seen[0] < 4 ? sum : 0.0f;
    if (row == 0) atomicAdd(seen, 1);
}
