"""Numbers and names in the words of the page."""

from __future__ import annotations

import math

SHORT = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}
OPS = {"spmv": "SpMV", "spmm": "SpMM"}
THIN = "\u202f"
MODELLED = '<span class="modelled">modelled</span>'
"""beside every figure that no clock has measured"""


def problem_short(problem: str) -> str:
    """'SpMV f32', 'SpMM f32 × 64': for a tab."""
    op, *rest = problem.split()
    dtype = SHORT.get(rest[0], rest[0]) if rest else ""
    orders = " ".join(rest[2:]) if rest[2:] not in ([], ["row", "row"]) else ""
    wide = f"× {rest[1]} {orders}" if len(rest) > 1 else ""
    return " ".join(f"{OPS.get(op, op)} {dtype} {wide}".split())


def compact(value: float) -> str:
    """1500 → '1.5k', 2e7 → '20M', 0.25 → '0.25', 2e9 → '2G'."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 0.9995:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def integer(value: float) -> str:
    """Thousands apart by thin spaces."""
    return f"{value:,.0f}".replace(",", THIN)


def figure(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}×"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


def count(products: float | None) -> str:
    """'12k', or 'never' where the operator is no faster."""
    return "–" if products is None else "never" if math.isinf(products) else compact(products)


def products(number: float | None) -> str:
    """'12k products', or 'never'."""
    return count(number) + (" products" if number is not None and math.isfinite(number) else "")
