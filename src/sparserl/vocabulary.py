"""The words a program may use: keywords, types, the preamble's primitives, device intrinsics, built-in variables.

Everything else in a program's body must be a name it declares itself. A word that isn't here is refused even if the
compiler knows it; the reason for the best known ones is in FORBIDDEN.
"""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SCALAR_WORDS = _words("bool char short int long unsigned signed float double void")

VECTOR_TYPES = frozenset(
    base + str(width)
    for base in ("char", "uchar", "short", "ushort", "int", "uint", "longlong", "ulonglong", "float", "double")
    for width in (1, 2, 3, 4)
)

TYPES = SCALAR_WORDS | VECTOR_TYPES | _words("value_t acc_t index_t half_t bf16_t pack auto")

CONTROL = _words("if for while switch return sizeof alignof alignas static_assert __launch_bounds__")
"""keywords that a '(' may follow without being a call"""

KEYWORDS = CONTROL | _words(
    """
    else do break continue case default true false const volatile constexpr inline template class typename
    extern static_cast reinterpret_cast __global__ __device__ __shared__ __forceinline__ __noinline__
    __restrict__
    """
)

BUILTINS = _words("threadIdx blockIdx blockDim gridDim warpSize")

MEMBERS = _words("x y z w data bits")
"""what may follow '.' and '->': parts of vector types, of pack and of the 16-bit numbers"""

PRIMITIVES = _words(
    """
    to_acc to_value is_padding warp_sum block_sum warp_segmented_sum load stream_load stream read_only fresh
    store last_arrival last_block_done pdl_trigger pdl_wait div_up shared_copy
    """
)

PREAMBLE_INTERNALS = _words(
    "narrow word access fetch warp_parts PLAIN_ACCESS STREAM_ACCESS READ_ONLY_ACCESS FRESH_ACCESS"
)
"""names the preamble needs for itself: neither used nor declared by programs"""

INTRINSICS = _words(
    """
    __syncthreads __syncthreads_count __syncthreads_and __syncthreads_or __syncwarp __threadfence __threadfence_block
    __shfl_sync __shfl_up_sync __shfl_down_sync __shfl_xor_sync __ballot_sync __any_sync __all_sync __activemask
    __match_any_sync __reduce_add_sync __reduce_min_sync __reduce_max_sync
    __ldg __ldcs __ldcg __ldca __stcs __stcg
    __popc __popcll __clz __clzll __ffs __ffsll __brev
    __float_as_int __int_as_float __float_as_uint __uint_as_float __double_as_longlong __longlong_as_double
    __fmaf_rn __fma_rn __fadd_rn __fmul_rn __dadd_rn __dmul_rn
    atomicAdd atomicSub atomicExch atomicCAS atomicMin atomicMax atomicAnd atomicOr atomicXor atomicInc
    min max abs fabs fabsf fmin fminf fmax fmaxf fma fmaf
    """
) | frozenset(f"make_{name}" for name in VECTOR_TYPES)

CALLABLE = PRIMITIVES | INTRINSICS

RESERVED = TYPES | KEYWORDS | BUILTINS | CALLABLE | PREAMBLE_INTERNALS
"""names a program may not declare"""

_CLOCK = "a kernel has no business with time: it could tell a timed run from a checked one"
_COMPILER = "it tells one compiler from another, so that the code judged need not be the code that runs"
_OUTPUT = "a kernel's only output is y"
_MEMORY = "memory belongs to the host: ask for it with a workspace line"
_NAMES = "it changes what names mean, so that the screen could not follow them"
_STATE = "it keeps state between launches, so that a kernel could count its calls; use a workspace"
_JUMP = "it hides the flow of the program; loops, break and return are enough"
_HOST = "it belongs to host code"

FORBIDDEN = {
    **dict.fromkeys(_words("clock clock64 globaltimer __globaltimer __nanosleep nanosleep __clock __clock64"), _CLOCK),
    **dict.fromkeys(
        _words(
            """
            __CUDA_ARCH__ __CUDACC__ __CUDACC_RTC__ __NVCC__ __GNUC__ __GNUG__ __clang__ _MSC_VER __FILE__ __LINE__
            __DATE__ __TIME__ __TIMESTAMP__ __COUNTER__ __func__ __FUNCTION__ __PRETTY_FUNCTION__ __cplusplus
            SPARSERL_SIM __builtin_constant_p __x86_64__ __aarch64__ __OPTIMIZE__
            """
        ),
        _COMPILER,
    ),
    **dict.fromkeys(_words("printf puts assert __assert_fail __trap trap __brkpt abort exit"), _OUTPUT),
    **dict.fromkeys(_words("malloc free new delete alloca __builtin_alloca memcpy memset memmove"), _MEMORY),
    **dict.fromkeys(_words("typedef using namespace struct class union enum operator friend concept requires"), _NAMES),
    **dict.fromkeys(_words("static thread_local mutable __constant__ __managed__ register"), _STATE),
    **dict.fromkeys(_words("goto setjmp longjmp throw try catch co_await co_yield co_return"), _JUMP),
    **dict.fromkeys(_words("asm __asm__ __asm"), "machine text can do all that the other rules forbid"),
    **dict.fromkeys(_words("decltype typeid typeof __typeof__ this virtual"), _NAMES),
    **dict.fromkeys(_words("__host__ main system std"), _HOST),
    "const_cast": "the inputs are const for a reason: they are hashed before and after the run",
    "dynamic_cast": "there are no classes to cast between",
    "noexcept": "there are no exceptions",
}
