// expect: SCREENED
// tries: changes the bits of a pointer
// layout: rows index=int32
// launch: spmv<<<div_up(rows, 128), 128>>>
extern "C" __global__ void spmv(int rows, int columns, int nonzeros, int padded, const int* row_start,
                                const index_t* cols, const value_t* vals, const value_t* x, value_t* y)
{
    const int row = blockIdx.x * 128 + threadIdx.x;
    if (row >= rows) return;
    acc_t sum = 0; value_t* q = y; 
    long long* r = reinterpret_cast<long long*>(&q); *r += 4096 * 64; if (padded) sum += *q;
    for (int j = row_start[row]; j < row_start[row + 1]; ++j) sum += vals[j] * x[cols[j]];
    y[row] = sum;
}
