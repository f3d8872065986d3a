// expect: INADMISSIBLE
// tries: asks for a layout that refuses this matrix
// layout: ell c=32 group=1 index=int32
// launch: spmv<<<div_up(rows, 128), 128>>>
extern "C" __global__ void spmv(int rows, int columns, int nonzeros, int padded, int slices, int width,
                                const index_t* cols, const value_t* vals, const value_t* x, value_t* y)
{
    const int row = blockIdx.x * 128 + threadIdx.x;
    if (row >= rows) return;
    acc_t sum = 0;
    for (int k = 0; k < width; ++k) {
        const int j = row / 32 * 32 * width + k * 32 + row % 32;
        if (!is_padding(cols[j])) sum += vals[j] * x[cols[j]];
    }
    y[row] = sum;
}
