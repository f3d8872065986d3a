// What a CUDA translation unit finds when the host compiler reads it: qualifiers, indices, barriers, shuffles, votes,
// atomics, fences and cached loads. Everything that stops a thread is a call into runtime.cpp, where a CUDA thread is a
// fiber. `extern __shared__` is rewritten by toolchain.py, since C++ has no array that lies somewhere else.
// Not covered: clusters, cooperative groups, tensor cores, asynchronous copies, printf, dynamic parallelism.
#pragma once
#include "cuda_ops.h"
#include "cuda_types.h"

#define __global__
#define __device__
#define __host__
#define __constant__ static
// Static shared memory is what lies in the kernel's .bss (edge.cpp): the runtime poisons and watches it. `used` also
// stops the compiler from thinking that only this function can change it.
#define __shared__ static __attribute__((used))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __noinline__ __attribute__((noinline))
#define __forceinline__ inline __attribute__((always_inline))
#define warpSize 32
#define SIM_INLINE static inline __attribute__((always_inline))
// The simulator's own memory traffic is not the kernel's: these are not reported to the watch.
#define SIM_QUIET __attribute__((noinline, no_sanitize("thread")))

extern "C" {
extern unsigned char sim_dynamic_shared[];
unsigned long long sim_warp_op(int op, unsigned int mask, unsigned long long value, int source);
int sim_barrier(int predicate, int* all, int* count);
void sim_fence();
void sim_pdl_trigger();
void sim_pdl_wait();
unsigned int sim_lane() __attribute__((const));
uint3 sim_thread_idx() __attribute__((const));
uint3 sim_block_idx() __attribute__((const));
uint3 sim_block_dim() __attribute__((const));
uint3 sim_grid_dim() __attribute__((const));
void* sim_memcpy(void* to, const void* from, size_t size);
void* sim_memset(void* to, int byte, size_t size);
void sim_note(const void* address, size_t size, int access, const void* place);
}

#ifdef SIM_CHECKED
#define SIM_NOTE(address, size, access) sim_note((const void*)(address), size, access, __builtin_return_address(0))
#define memcpy sim_memcpy
#define memset sim_memset
#define threadIdx sim_thread_idx()
#define blockIdx sim_block_idx()
#define blockDim sim_block_dim()
#define gridDim sim_grid_dim()
#else
#define SIM_NOTE(address, size, access) ((void)0)
#define memcpy __builtin_memcpy
#define memset __builtin_memset
extern "C" uint3 sim_thread, sim_block, sim_block_size, sim_grid_size;
#define threadIdx sim_thread
#define blockIdx sim_block
#define blockDim sim_block_size
#define gridDim sim_grid_size
#endif

// ---- barriers and fences
SIM_INLINE void __syncthreads() { sim_barrier(0, nullptr, nullptr); }
static inline SIM_QUIET int __syncthreads_or(int predicate) { return sim_barrier(predicate, nullptr, nullptr); }
static inline SIM_QUIET int __syncthreads_and(int predicate) { int all; sim_barrier(predicate, &all, nullptr); return all; }
static inline SIM_QUIET int __syncthreads_count(int predicate) { int count; sim_barrier(predicate, nullptr, &count); return count; }
SIM_INLINE void __syncwarp(unsigned int mask = 0xffffffffu) { sim_warp_op(SIM_SYNCWARP, mask, 0, 0); }
SIM_INLINE void __threadfence() { sim_fence(); }
SIM_INLINE void __threadfence_block() { asm volatile("" ::: "memory"); }
SIM_INLINE void __threadfence_system() { sim_fence(); }
SIM_INLINE void __nanosleep(unsigned int) {}

// ---- votes
SIM_INLINE unsigned int __activemask() { return (unsigned)sim_warp_op(SIM_ACTIVE, 0, 0, 0); }
SIM_INLINE unsigned int __ballot_sync(unsigned int mask, int predicate) {
    return (unsigned)sim_warp_op(SIM_BALLOT, mask, predicate != 0, 0);
}
SIM_INLINE int __any_sync(unsigned int mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
SIM_INLINE int __all_sync(unsigned int mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }
template <class T> SIM_INLINE unsigned int __match_any_sync(unsigned int mask, T value) {
    unsigned long long bits = 0;
    __builtin_memcpy(&bits, &value, sizeof value);
    return (unsigned)sim_warp_op(SIM_MATCH, mask, bits, 0);
}
SIM_INLINE unsigned int __reduce_add_sync(unsigned int mask, unsigned int value) { return (unsigned)sim_warp_op(SIM_ADD, mask, value, 0); }
SIM_INLINE int __reduce_add_sync(unsigned int mask, int value) { return (int)sim_warp_op(SIM_ADD, mask, (unsigned)value, 0); }
SIM_INLINE unsigned int __reduce_min_sync(unsigned int mask, unsigned int value) { return (unsigned)sim_warp_op(SIM_UMIN, mask, value, 0); }
SIM_INLINE int __reduce_min_sync(unsigned int mask, int value) { return (int)sim_warp_op(SIM_MIN, mask, (unsigned)value, 0); }
SIM_INLINE unsigned int __reduce_max_sync(unsigned int mask, unsigned int value) { return (unsigned)sim_warp_op(SIM_UMAX, mask, value, 0); }
SIM_INLINE int __reduce_max_sync(unsigned int mask, int value) { return (int)sim_warp_op(SIM_MAX, mask, (unsigned)value, 0); }
SIM_INLINE unsigned int __reduce_and_sync(unsigned int mask, unsigned int value) { return (unsigned)sim_warp_op(SIM_AND, mask, value, 0); }
SIM_INLINE unsigned int __reduce_or_sync(unsigned int mask, unsigned int value) { return (unsigned)sim_warp_op(SIM_OR, mask, value, 0); }
SIM_INLINE unsigned int __reduce_xor_sync(unsigned int mask, unsigned int value) { return (unsigned)sim_warp_op(SIM_XOR, mask, value, 0); }

// ---- shuffles: a lane gives a value and names the lane it reads; past the edge of its segment it reads itself
template <class T> SIM_INLINE T sim_shuffle(unsigned int mask, T value, int source) {
    static_assert(sizeof(T) <= 8, "a shuffle carries at most 8 bytes");
    unsigned long long bits = 0;
    __builtin_memcpy(&bits, &value, sizeof value);
    bits = sim_warp_op(SIM_SHUFFLE, mask, bits, source);
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}
template <class T> SIM_INLINE T __shfl_sync(unsigned int mask, T value, int source, int width = 32) {
    const int lane = (int)sim_lane();
    return sim_shuffle(mask, value, (lane & ~(width - 1)) | (source & (width - 1)));
}
template <class T> SIM_INLINE T __shfl_up_sync(unsigned int mask, T value, unsigned int delta, int width = 32) {
    const int lane = (int)sim_lane(), source = lane - (int)delta;
    return sim_shuffle(mask, value, source < (lane & ~(width - 1)) ? lane : source);
}
template <class T> SIM_INLINE T __shfl_down_sync(unsigned int mask, T value, unsigned int delta, int width = 32) {
    const int lane = (int)sim_lane(), source = lane + (int)delta;
    return sim_shuffle(mask, value, source > (lane | (width - 1)) ? lane : source);
}
template <class T> SIM_INLINE T __shfl_xor_sync(unsigned int mask, T value, int flip, int width = 32) {
    const int lane = (int)sim_lane(), source = lane ^ flip;
    return sim_shuffle(mask, value, source > (lane | (width - 1)) ? lane : source);
}

// ---- atomics: fibers never interrupt each other, so a plain read-modify-write is one
#define SIM_ATOMIC_OP(NAME, EXPRESSION)                                                                               \
    template <class T> struct sim_same_##NAME { typedef T type; };                                                    \
    template <class T> SIM_QUIET T NAME(T* address, typename sim_same_##NAME<T>::type value) {                        \
        SIM_NOTE(address, sizeof(T), SIM_ATOMIC);                                                                     \
        volatile T* at = address;                                                                                     \
        const T old = *at;                                                                                            \
        *at = (T)(EXPRESSION);                                                                                        \
        return old;                                                                                                   \
    }
SIM_ATOMIC_OP(atomicAdd, old + value)
SIM_ATOMIC_OP(atomicSub, old - value)
SIM_ATOMIC_OP(atomicExch, value)
SIM_ATOMIC_OP(atomicMin, old < value ? old : value)
SIM_ATOMIC_OP(atomicMax, old > value ? old : value)
SIM_ATOMIC_OP(atomicAnd, old & value)
SIM_ATOMIC_OP(atomicOr, old | value)
SIM_ATOMIC_OP(atomicXor, old ^ value)
SIM_ATOMIC_OP(atomicInc, old >= value ? 0 : old + 1)
SIM_ATOMIC_OP(atomicDec, old == 0 || old > value ? value : old - 1)
#undef SIM_ATOMIC_OP
template <class T> struct sim_same { typedef T type; };
template <class T>
SIM_QUIET T atomicCAS(T* address, typename sim_same<T>::type expected, typename sim_same<T>::type value) {
    SIM_NOTE(address, sizeof(T), SIM_ATOMIC);
    volatile T* at = address;
    const T old = *at;
    if (old == expected) *at = value;
    return old;
}

// ---- cached loads and stores. The watch is told which path; the access itself is reported like any other.
template <class T> SIM_QUIET void sim_path_read_only(const T* p) { SIM_NOTE(p, sizeof(T), SIM_READ_ONLY); }
template <class T> SIM_INLINE T __ldg(const T* p) {
#ifdef SIM_CHECKED
    sim_path_read_only(p);
#endif
    return *p;
}
template <class T> SIM_INLINE T __ldca(const T* p) { return *p; }
template <class T> SIM_INLINE T __ldcg(const T* p) { return *(const T*)p; }
template <class T> SIM_INLINE T __ldcs(const T* p) { return *p; }
template <class T> SIM_INLINE T __ldlu(const T* p) { return *p; }
template <class T> SIM_INLINE T __ldcv(const T* p) { return *p; }
template <class T> SIM_INLINE void __stwb(T* p, T value) { *p = value; }
template <class T> SIM_INLINE void __stcg(T* p, T value) { *p = value; }
template <class T> SIM_INLINE void __stcs(T* p, T value) { *p = value; }
template <class T> SIM_INLINE void __stwt(T* p, T value) { *p = value; }

// ---- how the runtime calls a kernel: its parameters are deduced, so the host only needs their order
template <int... I> struct sim_list {};
template <int N, int... I> struct sim_upto : sim_upto<N - 1, N - 1, I...> {};
template <int... I> struct sim_upto<0, I...> { typedef sim_list<I...> type; };
template <class... A, int... I>
static inline __attribute__((always_inline)) void sim_apply(void (*kernel)(A...), void** arguments, sim_list<I...>) {
    kernel(*(A*)arguments[I]...);
}
template <class... A> static constexpr int sim_arity(void (*)(A...)) { return (int)sizeof...(A); }
#define SIM_ENTRY(KERNEL)                                                                                             \
    extern "C" __attribute__((visibility("default"), no_sanitize("thread"))) void sim_entry_##KERNEL(void** a) {      \
        sim_invoke(KERNEL, a);                                                                                        \
    }                                                                                                                 \
    extern "C" __attribute__((visibility("default"))) int sim_arity_##KERNEL() { return sim_arity(KERNEL); }
template <class... A>
__attribute__((always_inline, no_sanitize("thread"))) static inline void sim_invoke(void (*kernel)(A...), void** a) {
    sim_apply(kernel, a, typename sim_upto<sizeof...(A)>::type());
}
