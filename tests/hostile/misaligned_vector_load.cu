// expect: FAILED
// tries: loads four values from an address that is no multiple of 16
// layout: rows index=int32
// launch: spmv<<<div_up(rows, 128), 128>>>
extern "C" __global__ void spmv(int rows, int columns, int nonzeros, int padded, const int* row_start,
                                const index_t* cols, const value_t* vals, const value_t* x, value_t* y)
{
    const int row = blockIdx.x * 128 + threadIdx.x;
    if (row >= rows) return;
    acc_t sum = 0;
    int j = row_start[row];
    for (; j + 4 <= row_start[row + 1]; j += 4) {
        const pack<value_t, 4> v = load<4>(vals + j);
        for (int k = 0; k < 4; ++k) sum += v[k] * x[cols[j + k]];
    }
    for (; j < row_start[row + 1]; ++j) sum += vals[j] * x[cols[j]];
    y[row] = sum;
}
