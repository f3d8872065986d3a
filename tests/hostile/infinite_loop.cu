// expect: FAILED
// tries: never ends
// layout: rows index=int32
// workspace: turns int[rows] scratch
// launch: spmv<<<div_up(rows, 128), 128>>>
extern "C" __global__ void spmv(int rows, int columns, int nonzeros, int padded, const int* row_start,
                                const index_t* cols, const value_t* vals, const value_t* x, value_t* y, int* turns)
{
    const int row = blockIdx.x * 128 + threadIdx.x;
    if (row >= rows) return;
    // a loop without effects would be optimised away: this one counts, and waits for what never comes
    turns[row] = 0;
    while (atomicAdd(turns + row, 2) != 1) {}
    acc_t sum = 0;
    for (int j = row_start[row]; j < row_start[row + 1]; ++j) sum += vals[j] * x[cols[j]];
    y[row] = sum;
}
