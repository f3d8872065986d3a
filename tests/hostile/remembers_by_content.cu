// expect sim: WRONG|FAILED
// expect cuda: WRONG
// tries: keeps y and a sample of the inputs in scratch, and copies y when the sample is the same
// layout: rows index=int32
// workspace: kept value_t[2 * rows] scratch
// launch: spmv<<<div_up(rows, 128), 128>>>
extern "C" __global__ void spmv(int rows, int columns, int nonzeros, int padded, const int* row_start,
                                const index_t* cols, const value_t* vals, const value_t* x, value_t* y, value_t* kept)
{
    const int row = blockIdx.x * 128 + threadIdx.x;
    if (row >= rows) return;
    const int first = row_start[row], end = row_start[row + 1];
    const value_t sample = first < end ? vals[first] * x[cols[first]] : 0.0f;
    if (kept[2 * row] == sample) {
        y[row] = kept[2 * row + 1];
        return;
    }
    acc_t sum = 0;
    for (int j = first; j < end; ++j) sum += vals[j] * x[cols[j]];
    y[row] = sum;
    kept[2 * row] = sample;
    kept[2 * row + 1] = sum;
}
