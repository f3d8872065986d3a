"""Every rule of the screen refuses what it is for and lets its honest neighbour pass."""

from __future__ import annotations

import pickle
from itertools import pairwise

import pytest

from sparserl import screen as screen_module
from sparserl.assemble import preamble
from sparserl.errors import ProgramError, ScreenError
from sparserl.lexer import tokens
from sparserl.outline import outline
from sparserl.program import check_signature, parse
from sparserl.records import Problem
from sparserl.screen import BYTES_LIMIT, LINES_LIMIT, NESTING_LIMIT, RULES, TEXT_RULES, screen
from sparserl.vocabulary import FORBIDDEN, PREAMBLE_INTERNALS, PRIMITIVES, RESERVED, TYPES

PARAMS = (
    "int rows, int columns, int nonzeros, int padded, const int* row_start, const index_t* cols, const value_t* vals, "
    "const value_t* x, value_t* y"
)


def text(body: str = "", before: str = "", header: str = "// launch: spmv<<<rows, 128>>>", params: str = PARAMS) -> str:
    return (
        f'// layout: rows index=int32\n{header}\n{before}\nextern "C" __global__ void spmv({params})\n{{\n{body}\n}}\n'
    )


HELPER = "__device__ int twice(int a) { return 2 * a; }"
PDL = "// launch: spmv<<<rows, 128>>> pdl"
WAITING = "template <int L>\n__device__ void part({x} x, value_t* y) {{ {body} }}\n"
TEMPLATE = WAITING.format(x="const value_t*", body="pdl_wait(); y[0] = x[L];")

# rule → (programs it refuses, programs it lets pass)
CASES: dict[str, tuple[list[str], list[str]]] = {
    "size": (
        [text("// " + "a" * BYTES_LIMIT), text("\n" * (LINES_LIMIT + 1))],
        [text("// " + "a" * (BYTES_LIMIT // 2)), text("\n" * (LINES_LIMIT // 2))],
    ),
    "characters": (
        [
            text("// π"),
            text("int a = 1; \\\n"),
            text("int \\u0061 = 1;"),
            text("int a = 1;\f"),
            text("int a$b = 1;"),
            text("int a = 1;\r"),
            text("// comment \\\nint a;"),
            text("int a\0b;"),
        ],
        [text("int a = 1;\t// tabs are fine")],
    ),
    "alternative spellings": (
        [text("%:define A 1"), text("int a<:3:>;"), text("if (rows) <% %>"), text("int a = rows ??! 1;")],
        [text("int a = rows > 3 ? 1 : 2;  // 50%: half"), text("bool b = rows % 2 < 1;")],
    ),
    "brackets": (
        [text("if (rows {"), text("int a = (1;"), text("y[0 = 1;")],
        [text("if (rows) { y[0] = to_value((1)); }")],
    ),
    "counts": (
        [
            text("int a = " + "(" * NESTING_LIMIT + "1" + ")" * NESTING_LIMIT + ";"),
            text(
                header="\n".join(f"// workspace: w{i} int[1] zeroed" for i in range(9)) + "\n// launch: spmv<<<1, 32>>>"
            ),
            text(header="\n".join(["// launch: spmv<<<1, 32>>>"] * 9)),
            text(before="".join(f'extern "C" __global__ void k{i}({PARAMS}) {{}}\n' for i in range(4))),
        ],
        [text("int a = ((((1))));"), text(header="\n".join(["// launch: spmv<<<1, 32>>>"] * 8))],
    ),
    "preprocessor": (
        [
            text(f"{line}\n")
            for line in (
                "#include <stdio.h>",
                "#define x y",
                "#ifdef SPARSERL_SIM",
                "#if 1",
                "#endif",
                "#pragma once",
                "#pragma GCC optimize",
                "#pragma unroll 2 /* hidden",
                "#pragma unroll 100000",
                "# line 3",
                "#",
            )
        ],
        [
            text(f"{line}\nfor (int i = 0; i < 4; i++) y[i] = x[i];")
            for line in (
                "#pragma unroll",
                "    #pragma unroll 4",
                "#pragma unroll(8)",
                "# pragma unroll 2 // twice",
            )
        ],
    ),
    "literals": (
        [
            text('const auto a = "text";'),
            text("int a = 'a';"),
            text("int a = 1'000;"),
            text('auto a = R"(x)";'),
            text("int a = 1_km;"),
            text("auto a = 1.0L;"),
            text("auto a = 0x1p3;"),
        ],
        [text("unsigned a = 0xffffffffu; long long b = 12ull; float c = 1.5e-3f; double d = .5; int e = 07;")],
    ),
    "forbidden words": (
        [
            text(body)
            for body in (
                'asm("exit;");',
                "long long t = clock64();",
                "int a = __CUDA_ARCH__;",
                "int a = __LINE__;",
                'printf("%d", 1);',
                "static int calls = 0;",
                "goto end;",
                "value_t* p = const_cast<value_t*>(x);",
                "struct pair { int a; };",
                "typedef int number;",
                "using number = int;",
                "void* p = malloc(8);",
                "int* p = new int[3];",
                "__nanosleep(100);",
                "__trap();",
                "decltype(rows) a = 1;",
                "union both { int a; float b; };",
            )
        ]
        + [
            text(before="namespace mine { }"),
            text(before="__constant__ int table[4];"),
            text(before="class pair { };"),
        ],
        [
            text(before="template <class T> __device__ T same(T a) { return a; }"),
            text("// asm goto clock64 in a comment"),
        ],
    ),
    "extern": (
        [
            text(before="extern int secret;"),
            text(before='extern "C" int fork(int a);'),
            text(before='extern "C" { }'),
            text("extern __shared__ value_t staged[16];"),
            text("extern value_t staged[];"),
        ],
        [text("extern __shared__ value_t staged[];\nstaged[0] = x[0];"), text("extern __shared__ acc_t sums[];")],
    ),
    "launch": ([text("spmv<<<1, 32>>>(rows);"), text("int a = rows <<< 2;")], [text("int a = rows << 2 >> 1;")]),
    "scope": (
        [
            text("int a = ::max(1, 2);"),
            text("auto f = [](int a) { return a; };"),
            text("auto f = [&] { };"),
            text("[[likely]] y[0] = x[0];"),
            text("auto [a, b] = make_int2(1, 2);"),
        ],
        [text("int a[2] = {1, 2}; y[a[0]] = x[a[1]];"), text("int a = (row_start)[0];")],
    ),
    "globals": (
        [
            text(before=line)
            for line in (
                "__device__ int calls;",
                "__device__ int calls = 0;",
                "int calls = 0;",
                "__shared__ int common[32];",
                "const int* where;",
                "volatile int seen = 0;",
                "int twice(int a) { return 2 * a; }",
                "template <int K> constexpr int twice = 2 * K;",
                "__device__ twice(int a) { return a; }",
                "__device__ int hidden(int a);",
            )
        ],
        [
            text(before=line)
            for line in (
                "constexpr int STEPS = 4;",
                "__device__ constexpr int PRIMES[3] = {2, 3, 5};",
                HELPER,
                ";",
                "template <int K> __device__ __forceinline__ acc_t scaled(acc_t a) { return K * a; }",
                "__device__ pack<value_t, 4> four(const value_t* p) { return load<4>(p); }",
                "constexpr acc_t ZERO = 0;",
            )
        ],
    ),
    "shared in template": (
        [text(before="template <int K> __device__ int first() { __shared__ int a[K]; return a[0]; }")],
        [text("__shared__ int a[4];"), text(before="__device__ int* place() { __shared__ int a[4]; return a; }")],
    ),
    "declarations": (
        [
            text(body)
            for body in (
                "int min = 3;",
                "float value_t = 1;",
                "int threadIdx = 0;",
                "int warp_sum = 0;",
                "int _a = 1;",
                "int __x = 1;",
                "int a = 1, max = 2;",
                "int fetch = 1;",
                "int sim_thread = 0;",
                "int putchar(int);",
                "int a(5);",
            )
        ]
        + [
            text(before="__device__ int div_up(int a) { return a; }"),
            text(before="template <class fork> __device__ void a() { }"),
            text(before=HELPER + "\n" + HELPER),
        ],
        [text("int a = 1, b = max(a, 2), *c = row_start ? &a : &b; const auto d = load<2>(x);")],
    ),
    "names": (
        [
            text(body)
            for body in (
                "y[0] = sin_of(rows) + undeclared;",
                "unknown = 3;",
                "int a = errno;",
                "y[0] = blockDim.q;",
                "int a = not 1;",
                "y[0] = x[0] and 1;",
                "size_t a = 0;",
                "_Pragma(1)",
                "int a = nullptr;",
                "y[0] = WIDTH;",
                "double a = HUGE_VAL;",
            )
        ],
        [
            text("int4 a = make_int4(1, 2, 3, 4); y[a.x] = x[a.w];"),
            text("y[0] = x[PADDED];", header="// bake: PADDED\n// launch: spmv<<<1, 32>>>"),
            text("pack<value_t, 2> p; p[0] = x[0]; p.data[1] = x[1]; store(y, p);"),
        ],
    ),
    "calls": (
        [
            text(body, before)
            for body, before in (
                ("int fork = 0; fork(0);", ""),
                ("int a = twice(3);", "__device__ int twice(int a) { return twice(a - 1); }"),
                ("auto f = twice; f(1);", HELPER),
                ("(twice)(3);", HELPER),
                ("y[0] = (&twice)(1);", HELPER),
                ("auto f = warp_sum<8>;\nint a = f(3);", ""),
                ("int f = 0; y[0] = f(1);", ""),
                ("auto f = __syncthreads;", ""),
                ("int a[2]; a[0](1);", ""),
                ("spmv(rows);", ""),
                ("int x2 = 0; int b = x2.x(1);", ""),
                ("y[0] = x[0]; const (rows);", ""),
                ("", "__device__ int first(int a) { return second(a); } __device__ int second(int a) { return a; }"),
            )
        ],
        [
            text("y[0] = twice(3);", HELPER),
            text("y[0] = (acc_t)(rows) + acc_t(3) + float(rows);"),
            text("if (rows) (y[0] = x[0]);"),
            text("if constexpr (true) (y[0] = x[0]);"),
            text("while (rows > (3)) break;"),
            text("bool a = rows > (columns); acc_t s = warp_sum<8>(x[0]); s = fmaf(s, s, s); atomicAdd(y, s);"),
        ],
    ),
    "casts": (
        [
            text(body)
            for body in (
                "value_t* p = (value_t*)x;",
                "auto p = static_cast<value_t*>(y);",
                "auto p = reinterpret_cast<unsigned long long>(x);",
                "auto p = reinterpret_cast<void*>(y);",
                "auto p = reinterpret_cast<int**>(y);",
                "auto& a = reinterpret_cast<int&>(y[0]);",
                "auto p = (const int4 *) x;",
            )
        ],
        [
            text("const float4* p = reinterpret_cast<const float4*>(x); y[0] = p->x + static_cast<float>(3);"),
            text("y[0] = (float)rows + (unsigned)(columns);"),
            text("auto p = reinterpret_cast<const pack<value_t, 4>*>(x); y[0] = p[0][1] * (rows * columns);"),
        ],
    ),
    "addresses": (
        [
            text(body)
            for body in (
                "long long a = (long long)x;",
                "long long a = (unsigned long long)(x + 1);",
                "long long a = (long long)&x[1];",
                "long long a = long(x);",
                "auto q = x; long long a = (long long)q;",
                "const value_t* q = x; long long a = *reinterpret_cast<const long long*>(&q);",
                "const value_t* w[2] = {x, x};",
                "pack<const value_t*, 1> w;",
                "bool a = x - y == 4096;",
                "bool a = (x) - (y) == 4096;",
                "bool a = &x[0] - &y[0] == 4096;",
                "bool a = x < y;",
                "bool a = &x[0] < &y[0];",
            )
        ]
        + [text("", "template <class T> __device__ long f(T a) { return *reinterpret_cast<const long*>(&a); }")]
        + [text("", "template <class T> __device__ long long f(T a) { return (long long)a; }")],
        [
            text("auto p = reinterpret_cast<const float4*>(x + 4); y[0] = (int)x[1] - x[0] - (x[1] + p[0].x);"),
            text("float4 v = make_float4(0, 0, 0, 0); y[0] = reinterpret_cast<const value_t*>(&v)[1];"),
            text("int a = int(gridDim.x) - int(threadIdx.x) - 1; y[a] = (long)(blockIdx.x) - (threadIdx.y);"),
            text("int a = rows & columns; long long b = (long long)rows * columns; y[0] = a - (int)(b * x[a]);"),
        ],
    ),
    "tables": (
        [text("", "__device__ constexpr int T[] = {" + ", ".join("7" for _ in range(300)) + "};")],
        [text("", "__device__ constexpr int T[] = {" + ", ".join("7" for _ in range(200)) + "};")],
    ),
    "plain char": (
        [text("char a = 1;"), text("long double a = 1;"), text("double const long a = 1;")],
        [text("unsigned char a = 1; signed char b = 2; long c = 3; double d = 4;")],
    ),
    "pdl wait": (
        [
            text("y[0] = x[0];", header=PDL),
            text("part<3>(x, y);", TEMPLATE, PDL),
            text("acc_t a = x[0]; pdl_wait(); y[0] = a;", header=PDL),
            text("y[0] = 0; pdl_wait();", header=PDL),
            text(
                "if (rows) return part<3>(x, y); pdl_wait();",
                WAITING.format(x="const value_t*", body="y[0] = x[L];"),
                PDL,
            ),
            text(
                "counter[0] = 0; pdl_wait();",
                header="// workspace: counter int[1] zeroed\n" + PDL,
                params=PARAMS + ", int* counter",
            ),
            text("int a = max(x, y); pdl_wait();", header=PDL),
        ],
        [
            text("acc_t a = vals[0]; pdl_wait(); y[0] = a * x[0];", header=PDL),
            text("if (rows) return part<3>(x, y); pdl_wait(); y[0] = x[0];", TEMPLATE, PDL),
            text("y[0] = x[0];"),
            text("int4 a = make_int4(1, 2, 3, 4); int b = a.x + a.y; pdl_wait();", header=PDL),
        ],
    ),
    "pdl read-only": (
        [
            text(f"pdl_wait(); {body}", before, PDL)
            for body, before in (
                ("y[0] = read_only(x + 1);", ""),
                ("y[0] = __ldg(&x[1]);", ""),
                ("y[0] = read_only<2>(x)[0];", ""),
                ("const value_t* p = x; y[0] = read_only(p);", ""),
                ("const value_t* __restrict__ p = x; y[0] = p[0];", ""),
                ("y[0] = read_only(x + read_only(cols));", ""),
                ("", "__device__ acc_t one(const value_t* __restrict__ x) { return x[0]; }"),
            )
        ],
        [
            text("pdl_wait(); y[0] = read_only(vals + 1) * x[read_only(cols + 1)];", header=PDL),
            text("y[0] = read_only(x + 1);"),
            text(
                "pdl_wait();", "__device__ acc_t one(const value_t* __restrict__ vals) { return read_only(vals); }", PDL
            ),
        ],
    ),
}


def test_every_rule_has_its_reason_and_its_cases() -> None:
    rules = [rule.name for rule in (*TEXT_RULES, *RULES)]
    assert set(CASES) == {*rules, "brackets"}
    assert len(set(rules)) == len(rules)
    assert all(rule.why.endswith(".") for rule in (*TEXT_RULES, *RULES))


@pytest.mark.parametrize(("rule", "program"), [(rule, program) for rule, (bad, _) in CASES.items() for program in bad])
def test_a_rule_refuses_what_it_is_for(rule: str, program: str) -> None:
    with pytest.raises(ScreenError) as caught:
        screen(program)
    assert caught.value.rule == rule, str(caught.value)
    assert "ine " in caught.value.reason


@pytest.mark.parametrize("program", [program for _, good in CASES.values() for program in good])
def test_a_rule_lets_its_honest_neighbour_pass(program: str) -> None:
    screen(program)
    screen(parse(program))


def test_the_screen_says_line_rule_and_reason() -> None:
    with pytest.raises(
        ScreenError, match=r"^Line 6 of the program: 'goto' is refused.*\(screen rule 'forbidden words'\)$"
    ):
        screen(text("goto end;"))


def test_a_refusal_travels_between_processes() -> None:
    error = pickle.loads(pickle.dumps(ScreenError("names", "Line 3.")))
    assert (error.rule, error.reason, str(error)) == ("names", "Line 3.", "Line 3. (screen rule 'names')")


def test_unreadable_text_is_a_program_error_not_a_screen_error() -> None:
    with pytest.raises(ProgramError) as caught:
        screen("int main() {}")
    assert not isinstance(caught.value, ScreenError)


def test_every_forbidden_word_is_refused() -> None:
    for word in FORBIDDEN:
        with pytest.raises(ScreenError, match="forbidden words"):
            screen(text(f"int a = {word};"))


def test_the_vocabulary_knows_every_name_of_the_preamble() -> None:
    device = preamble().split("#else")[0] + preamble().split("#endif")[1]
    code = "\n".join(line for line in device.splitlines() if not line.startswith("#"))
    found = tokens(code)
    declared = {function.name for function in outline(found).functions if function.name != "]"}
    named = {b.text for a, b in pairwise(found) if a.text in ("struct", "enum", "alignas")} - {"("}
    assert {name for name in declared | named if name.isidentifier()} - {"operator"} <= RESERVED
    assert all(f"{name}(" in code for name in PRIMITIVES)
    assert all(name in code for name in PREAMBLE_INTERNALS | (TYPES & {"half_t", "bf16_t", "pack"}))


def test_a_program_that_passes_the_screen_still_needs_its_contract() -> None:
    program = parse(text("y[0] = x[0];", params="int rows"))
    with pytest.raises(ProgramError, match="parameter 2"):
        check_signature(program, Problem())


def test_limits_are_sane() -> None:
    assert screen_module.KERNELS_LIMIT == 4
    assert BYTES_LIMIT == 16384
