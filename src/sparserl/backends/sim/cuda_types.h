// CUDA's vector types, scalar intrinsics and arithmetic for host code. Included by cuda_sim.h; no system headers, so a
// kernel compiles in a fraction of a second. Not covered: textures, surfaces, tensor cores, double-word arithmetic.
#pragma once

typedef __SIZE_TYPE__ size_t;

#define SIM_VECTORS(T, N, A2, A4)                                                                                     \
    struct N##1 { T x; };                                                                                             \
    struct alignas(A2) N##2 { T x, y; };                                                                              \
    struct N##3 { T x, y, z; };                                                                                       \
    struct alignas(A4) N##4 { T x, y, z, w; };                                                                        \
    static inline constexpr N##1 make_##N##1(T x) { return {x}; }                                                     \
    static inline constexpr N##2 make_##N##2(T x, T y) { return {x, y}; }                                             \
    static inline constexpr N##3 make_##N##3(T x, T y, T z) { return {x, y, z}; }                                     \
    static inline constexpr N##4 make_##N##4(T x, T y, T z, T w) { return {x, y, z, w}; }
SIM_VECTORS(signed char, char, 2, 4)
SIM_VECTORS(unsigned char, uchar, 2, 4)
SIM_VECTORS(short, short, 4, 8)
SIM_VECTORS(unsigned short, ushort, 4, 8)
SIM_VECTORS(int, int, 8, 16)
SIM_VECTORS(unsigned int, uint, 8, 16)
SIM_VECTORS(float, float, 8, 16)
SIM_VECTORS(double, double, 16, 16)
SIM_VECTORS(long long, longlong, 16, 16)
SIM_VECTORS(unsigned long long, ulonglong, 16, 16)
#undef SIM_VECTORS

struct dim3 {
    unsigned int x, y, z;
    constexpr dim3(unsigned int a = 1, unsigned int b = 1, unsigned int c = 1) : x(a), y(b), z(c) {}
};

// ---- bits
template <class To, class From> static inline To sim_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "a cast of bits keeps the size");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}
static inline int __float_as_int(float a) { return sim_bits<int>(a); }
static inline unsigned int __float_as_uint(float a) { return sim_bits<unsigned int>(a); }
static inline float __int_as_float(int a) { return sim_bits<float>(a); }
static inline float __uint_as_float(unsigned int a) { return sim_bits<float>(a); }
static inline long long __double_as_longlong(double a) { return sim_bits<long long>(a); }
static inline double __longlong_as_double(long long a) { return sim_bits<double>(a); }
static inline int __double2loint(double a) { return (int)sim_bits<unsigned long long>(a); }
static inline int __double2hiint(double a) { return (int)(sim_bits<unsigned long long>(a) >> 32); }
static inline double __hiloint2double(int high, int low) {
    return sim_bits<double>(((unsigned long long)(unsigned)high << 32) | (unsigned)low);
}
static inline int __popc(unsigned int a) { return __builtin_popcount(a); }
static inline int __popcll(unsigned long long a) { return __builtin_popcountll(a); }
static inline int __clz(int a) { return a ? __builtin_clz((unsigned)a) : 32; }
static inline int __clzll(long long a) { return a ? __builtin_clzll((unsigned long long)a) : 64; }
static inline int __ffs(int a) { return __builtin_ffs(a); }
static inline int __ffsll(long long a) { return __builtin_ffsll(a); }
static inline unsigned int __brev(unsigned int a) {
    unsigned int out = 0;
    for (int i = 0; i < 32; i++) out |= ((a >> i) & 1u) << (31 - i);
    return out;
}
static inline unsigned int __byte_perm(unsigned int a, unsigned int b, unsigned int selector) {
    const unsigned long long both = ((unsigned long long)b << 32) | a;
    unsigned int out = 0;
    for (int i = 0; i < 4; i++) out |= (unsigned)((both >> (8 * ((selector >> (4 * i)) & 7))) & 0xff) << (8 * i);
    return out;
}
static inline unsigned int __funnelshift_l(unsigned int low, unsigned int high, unsigned int shift) {
    return (unsigned)(((((unsigned long long)high << 32) | low) << (shift & 31)) >> 32);
}
static inline unsigned int __funnelshift_r(unsigned int low, unsigned int high, unsigned int shift) {
    return (unsigned)((((unsigned long long)high << 32) | low) >> (shift & 31));
}

// ---- integer arithmetic
static inline int __mul24(int a, int b) { return a * b; }
static inline unsigned int __umul24(unsigned int a, unsigned int b) { return a * b; }
static inline int __mulhi(int a, int b) { return (int)(((long long)a * b) >> 32); }
static inline unsigned int __umulhi(unsigned int a, unsigned int b) { return (unsigned)(((unsigned long long)a * b) >> 32); }
static inline unsigned int __usad(unsigned int a, unsigned int b, unsigned int c) { return (a > b ? a - b : b - a) + c; }

#define SIM_MIN_MAX(A, B, R)                                                                                          \
    static inline constexpr R min(A a, B b) { return (R)a < (R)b ? (R)a : (R)b; }                                     \
    static inline constexpr R max(A a, B b) { return (R)a > (R)b ? (R)a : (R)b; }
SIM_MIN_MAX(int, int, int)
SIM_MIN_MAX(unsigned int, unsigned int, unsigned int)
SIM_MIN_MAX(int, unsigned int, unsigned int)
SIM_MIN_MAX(unsigned int, int, unsigned int)
SIM_MIN_MAX(long, long, long)
SIM_MIN_MAX(unsigned long, unsigned long, unsigned long)
SIM_MIN_MAX(long long, long long, long long)
SIM_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
SIM_MIN_MAX(long long, unsigned long long, unsigned long long)
SIM_MIN_MAX(unsigned long long, long long, unsigned long long)
#undef SIM_MIN_MAX

// ---- floating point: the C library's own names, and CUDA's overloads and rounding intrinsics
#define SIM_REAL(NAME, ARGS_F, ARGS_D, CALL)                                                                          \
    static inline float NAME##f ARGS_F { return __builtin_##NAME##f CALL; }                                           \
    static inline float NAME ARGS_F { return __builtin_##NAME##f CALL; }                                              \
    static inline double NAME ARGS_D { return __builtin_##NAME CALL; }
#define SIM_REAL_1(NAME) SIM_REAL(NAME, (float a), (double a), (a))
#define SIM_REAL_2(NAME) SIM_REAL(NAME, (float a, float b), (double a, double b), (a, b))
SIM_REAL_1(fabs)
SIM_REAL_1(sqrt)
SIM_REAL_1(floor)
SIM_REAL_1(ceil)
SIM_REAL_1(trunc)
SIM_REAL_1(rint)
SIM_REAL_1(round)
SIM_REAL_1(exp)
SIM_REAL_1(log)
SIM_REAL_2(fmin)
SIM_REAL_2(fmax)
SIM_REAL_2(copysign)
SIM_REAL_2(fmod)
SIM_REAL(fma, (float a, float b, float c), (double a, double b, double c), (a, b, c))
#undef SIM_REAL_2
#undef SIM_REAL_1
#undef SIM_REAL
static inline float min(float a, float b) { return __builtin_fminf(a, b); }
static inline float max(float a, float b) { return __builtin_fmaxf(a, b); }
static inline double min(double a, double b) { return __builtin_fmin(a, b); }
static inline double max(double a, double b) { return __builtin_fmax(a, b); }
static inline double min(float a, double b) { return __builtin_fmin(a, b); }
static inline double max(float a, double b) { return __builtin_fmax(a, b); }
static inline double min(double a, float b) { return __builtin_fmin(a, b); }
static inline double max(double a, float b) { return __builtin_fmax(a, b); }
static inline constexpr int abs(int a) { return a < 0 ? -a : a; }
static inline constexpr long long llabs(long long a) { return a < 0 ? -a : a; }
static inline constexpr long long abs(long long a) { return a < 0 ? -a : a; }
static inline float abs(float a) { return __builtin_fabsf(a); }
static inline double abs(double a) { return __builtin_fabs(a); }
static inline bool isnan(float a) { return a != a; }
static inline bool isnan(double a) { return a != a; }
static inline bool isinf(float a) { return __builtin_isinf(a); }
static inline bool isinf(double a) { return __builtin_isinf(a); }
static inline bool isfinite(float a) { return __builtin_isfinite(a); }
static inline bool isfinite(double a) { return __builtin_isfinite(a); }
static inline bool signbit(float a) { return __builtin_signbitf(a) != 0; }
static inline bool signbit(double a) { return __builtin_signbit(a) != 0; }
static inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __frcp_rn(float a) { return 1.0f / a; }
static inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
static inline float __saturatef(float a) { return a > 0.0f ? (a < 1.0f ? a : 1.0f) : 0.0f; }
static inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dsub_rn(double a, double b) { return a - b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline int __float2int_rn(float a) { return (int)__builtin_rintf(a); }
static inline int __float2int_rz(float a) { return (int)a; }
static inline unsigned int __float2uint_rz(float a) { return (unsigned int)a; }
static inline float __int2float_rn(int a) { return (float)a; }
static inline float __uint2float_rn(unsigned int a) { return (float)a; }
static inline float __double2float_rn(double a) { return (float)a; }

// ---- soft half and bfloat16, rounded to nearest even; the preamble's half_t and bf16_t stand on these
static inline float sim_half_to_float(unsigned short bits) {
    const unsigned int sign = (unsigned)(bits & 0x8000) << 16, exponent = (bits >> 10) & 31, fraction = bits & 0x3ff;
    if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | (fraction << 13));
    if (exponent) return __uint_as_float(sign | ((exponent + 112) << 23) | (fraction << 13));
    const float small = (float)fraction * 0x1p-24f;
    return sign ? -small : small;
}
static inline unsigned short sim_float_to_half(float value) {
    const unsigned int bits = __float_as_uint(value), sign = (bits >> 16) & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return (unsigned short)0x7fff;
    if (size >= 0x477ff000u) return (unsigned short)(sign | 0x7c00u);
    if (size < 0x38800000u) {  // subnormal: adding 0.5 lets the float unit round at the right place
        const float shifted = __uint_as_float(size) + 0.5f;
        return (unsigned short)(sign | (__float_as_uint(shifted) - 0x3f000000u));
    }
    return (unsigned short)(sign | ((size - 0x38000000u + 0xfffu + ((size >> 13) & 1u)) >> 13));
}
static inline float sim_bf16_to_float(unsigned short bits) { return __uint_as_float((unsigned)bits << 16); }
static inline unsigned short sim_float_to_bf16(float value) {
    const unsigned int bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (unsigned short)0x7fff;
    return (unsigned short)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
