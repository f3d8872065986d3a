// The primitives a program may call. None of them is a kernel. The host puts the types value_t (storage), acc_t
// (accumulator) and index_t (packed columns) in front of this text, the baked constants and the program behind it.
// The same text is compiled by NVRTC and, with SPARSERL_SIM, by the host compiler under the simulator's header.

// ---- numbers: half_t and bf16_t only store; arithmetic is done in acc_t
struct half_t { unsigned short bits; };
struct bf16_t { unsigned short bits; };

__device__ __forceinline__ float to_acc(float v) { return v; }
__device__ __forceinline__ double to_acc(double v) { return v; }
__device__ __forceinline__ void narrow(float a, float& v) { v = a; }
__device__ __forceinline__ void narrow(double a, double& v) { v = a; }

#ifndef SPARSERL_SIM
__device__ __forceinline__ float to_acc(half_t v) { float a; asm("cvt.f32.f16 %0, %1;" : "=f"(a) : "h"(v.bits)); return a; }
__device__ __forceinline__ float to_acc(bf16_t v) { return __uint_as_float((unsigned)v.bits << 16); }
__device__ __forceinline__ void narrow(float a, half_t& v) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(v.bits) : "f"(a)); }
__device__ __forceinline__ void narrow(float a, bf16_t& v) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(v.bits) : "f"(a)); }

// Dependent launch. trigger: the next kernel may start. wait: the kernel before has ended and its writes are seen.
__device__ __forceinline__ void pdl_trigger() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ void pdl_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#else
inline float to_acc(half_t v) { return sim_half_to_float(v.bits); }
inline float to_acc(bf16_t v) { return sim_bf16_to_float(v.bits); }
inline void narrow(float a, half_t& v) { v.bits = sim_float_to_half(a); }
inline void narrow(float a, bf16_t& v) { v.bits = sim_float_to_bf16(a); }
inline void pdl_trigger() { sim_pdl_trigger(); }
inline void pdl_wait() { sim_pdl_wait(); }
#endif

// The accumulator rounded to the storage type, nearest even.
__device__ __forceinline__ value_t to_value(acc_t a) { value_t v; narrow(a, v); return v; }

// Padding has column -1 (0xFFFF as unsigned short) and value -0.0. Ask with the stored type: an unsigned short that
// was widened to int is no longer -1.
__device__ __forceinline__ bool is_padding(int column) { return column == -1; }
__device__ __forceinline__ bool is_padding(unsigned short column) { return column == 0xFFFF; }
__device__ __forceinline__ bool is_padding(float v) { return __float_as_uint(v) == 0x80000000u; }
__device__ __forceinline__ bool is_padding(double v) { return __double_as_longlong(v) == (long long)(1ull << 63); }
__device__ __forceinline__ bool is_padding(half_t v) { return v.bits == 0x8000; }
__device__ __forceinline__ bool is_padding(bf16_t v) { return v.bits == 0x8000; }

__device__ __forceinline__ constexpr int div_up(int a, int b) { return (a + b - 1) / b; }

// ---- loads: K neighbouring values in one access of at most 16 bytes (several such if they are more).
// The address must be a multiple of min(16, K * sizeof(T)).
template <class T, int K>
struct alignas(sizeof(T) * K < 16 ? sizeof(T) * K : 16) pack {
    T data[K];
    __device__ __forceinline__ T& operator[](int i) { return data[i]; }
    __device__ __forceinline__ const T& operator[](int i) const { return data[i]; }
};

// What one access moves. A double goes as a double: put together from two halves it costs moves, and a compiler that
// counts instructions then branches where it would have predicated.
template <class T, int BYTES> struct word { typedef uint4 type; };
template <class T> struct word<T, 2> { typedef unsigned short type; };
template <class T> struct word<T, 4> { typedef unsigned int type; };
template <class T> struct word<T, 8> { typedef uint2 type; };
template <> struct word<double, 8> { typedef double type; };

enum access { PLAIN_ACCESS, STREAM_ACCESS, READ_ONLY_ACCESS, FRESH_ACCESS };

template <access HOW, int K, class T>
__device__ __forceinline__ pack<T, K> fetch(const T* p) {
    typedef typename word<T, sizeof(T) * K>::type W;
    union { W words[sizeof(T) * K / sizeof(W)]; pack<T, K> values; } both;
    const W* from = reinterpret_cast<const W*>(p);
#pragma unroll
    for (int i = 0; i < (int)(sizeof(T) * K / sizeof(W)); i++) {
        if constexpr (HOW == PLAIN_ACCESS) both.words[i] = from[i];
        if constexpr (HOW == STREAM_ACCESS) both.words[i] = __ldcs(from + i);
        if constexpr (HOW == READ_ONLY_ACCESS) both.words[i] = __ldg(from + i);
        if constexpr (HOW == FRESH_ACCESS) both.words[i] = __ldcg(from + i);
    }
    return both.values;
}

template <int K, class T> __device__ __forceinline__ pack<T, K> load(const T* p) { return fetch<PLAIN_ACCESS, K>(p); }

// Read once, leave the cache first: what is not used again (cols, vals) should not push x out.
template <int K, class T> __device__ __forceinline__ pack<T, K> stream_load(const T* p) { return fetch<STREAM_ACCESS, K>(p); }
template <class T> __device__ __forceinline__ T stream(const T* p) { return fetch<STREAM_ACCESS, 1>(p)[0]; }

// Through the non-coherent path: only for memory that no running kernel writes.
template <int K, class T> __device__ __forceinline__ pack<T, K> read_only(const T* p) { return fetch<READ_ONLY_ACCESS, K>(p); }
template <class T> __device__ __forceinline__ T read_only(const T* p) { return fetch<READ_ONLY_ACCESS, 1>(p)[0]; }

// Past L1: what other blocks of this launch wrote (after last_arrival or last_block_done).
template <class T> __device__ __forceinline__ T fresh(const T* p) { return fetch<FRESH_ACCESS, 1>(p)[0]; }

// K neighbouring values in one store; the same alignment.
template <class T, int K> __device__ __forceinline__ void store(T* p, const pack<T, K>& values) {
    typedef typename word<T, sizeof(T) * K>::type W;
    union { W words[sizeof(T) * K / sizeof(W)]; pack<T, K> values; } both;
    both.values = values;
#pragma unroll
    for (int i = 0; i < (int)(sizeof(T) * K / sizeof(W)); i++) reinterpret_cast<W*>(p)[i] = both.words[i];
}

// ---- sums, always in the same order
// Over aligned groups of L lanes; every lane gets the sum. All 32 lanes of the warp must call it.
template <int L, class T> __device__ __forceinline__ T warp_sum(T a) {
    static_assert(L >= 1 && L <= 32 && (L & (L - 1)) == 0, "warp_sum<L>: L must be 1, 2, 4, 8, 16 or 32");
#pragma unroll
    for (int d = L / 2; d > 0; d /= 2) a += __shfl_xor_sync(0xffffffffu, a, d);
    return a;
}

// A number a warp. It stands outside block_sum because host compilers ignore where a template wants its statics.
__device__ __forceinline__ acc_t* warp_parts() {
    __shared__ acc_t parts[32];
    return parts;
}

// Over a block of THREADS threads, all of which must call it; thread 0 gets the sum.
template <int THREADS> __device__ __forceinline__ acc_t block_sum(acc_t a) {
    static_assert(THREADS % 32 == 0 && THREADS >= 32 && THREADS <= 1024, "block_sum<THREADS>: 32, 64, ... 1024");
    constexpr int WARPS = THREADS / 32;
    constexpr int LANES = WARPS <= 2 ? 2 : WARPS <= 4 ? 4 : WARPS <= 8 ? 8 : WARPS <= 16 ? 16 : 32;
    a = warp_sum<32>(a);
    if constexpr (WARPS > 1) {
        acc_t* parts = warp_parts();
        __syncthreads();  // an earlier call may still be reading parts
        if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = a;
        __syncthreads();
        if (threadIdx.x < 32) a = warp_sum<LANES>(threadIdx.x < WARPS ? parts[threadIdx.x] : acc_t(0));
    }
    return a;
}

// Rows ascend over the lanes: the sum of the run of equal rows that ends at this lane. The last lane of a run holds
// its whole sum. All 32 lanes must call it.
template <class T> __device__ __forceinline__ T warp_segmented_sum(T a, int row) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const T before = __shfl_up_sync(0xffffffffu, a, d);
        const int its_row = __shfl_up_sync(0xffffffffu, row, d);
        if (lane >= d && its_row == row) a += before;
    }
    return a;
}

// ---- blocks that work together. The counter is a zeroed workspace; the last to arrive sets it back to zero.
// One thread: what it wrote before is seen by the last arrival, which gets true and must read with fresh().
__device__ __forceinline__ bool last_arrival(int* counter, int expected) {
    __threadfence();
    const bool last = atomicAdd(counter, 1) == expected - 1;
    if (last) {
        atomicExch(counter, 0);
        __threadfence();
    }
    return last;
}

// The same for a whole block, all of whose threads must call it; every thread gets the answer.
__device__ __forceinline__ bool last_block_done(int* counter, int expected) {
    __shared__ int answer;
    __syncthreads();  // the block's writes are done, and so are reads of an earlier answer
    if (threadIdx.x == 0) answer = last_arrival(counter, expected);
    __syncthreads();
    return answer != 0;
}

// The block copies count values together; __syncthreads() before they are used is the caller's.
template <class T> __device__ __forceinline__ void shared_copy(T* to, const T* from, int count) {
    for (int i = threadIdx.x; i < count; i += blockDim.x) to[i] = from[i];
}
