// expect: WRONG
// tries: multiplies padding by x[0]
// layout: slices c=8 sigma=1 group=1 index=int32
// launch: spmv<<<div_up(rows, 128), 128>>>
extern "C" __global__ void spmv(int rows, int columns, int nonzeros, int padded, int slices, const int* slice_start,
                                const index_t* cols, const value_t* vals, const value_t* x, value_t* y)
{
    const int row = blockIdx.x * 128 + threadIdx.x;
    if (row >= rows) return;
    const int slice = row / 8;
    acc_t sum = 0;
    for (int j = slice_start[slice] + row % 8; j < slice_start[slice + 1]; j += 8) {
        const int c = cols[j];
        sum += vals[j] * x[c < 0 ? 0 : c];
    }
    y[row] = sum;
}
