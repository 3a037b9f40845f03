"""Where the simulator is not held to a GPU bit for bit: by how much it may differ, and why.

What no rule names must agree in every bit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """``units``: distance in units in the last place; ``absolute``: or this distance; ``nan``: a
    NaN may have other bits."""

    forms: str
    why: str
    units: int = 0
    absolute: float = 0.0
    nan: bool = False


_TABLES = "the hardware interpolates in a table of its own; the simulator rounds the exact value"
_PAYLOAD = "a NaN's payload follows rules of its own for each unit; here it is NumPy's"

RULES = (
    Rule(r"^(rcp|sqrt|rsqrt)\.approx(\.ftz)?\.f32", _TABLES, units=1),
    Rule(r"^ex2\.approx(\.ftz)?\.f32", _TABLES, units=2),
    Rule(r"^lg2\.", _TABLES + "; near 1 the error is absolute (ISA: 2**-22)", 2, 2.0**-22),
    Rule(
        r"^(sin|cos)\.",
        _TABLES + ": the operand is reduced as there, the error is absolute (ISA: 2**-20.5)",
        2,
        2.0**-20.5,
    ),
    Rule(r"^tanh\.approx\.f32", _TABLES + " (ISA: 2**-11, relative; seen: 123 units)", units=128),
    Rule(r"^(ex2|tanh)\.approx.*f16", _TABLES, units=1),
    Rule(r"^div\.(approx|full)|fdividef$", _TABLES + " of reciprocals, and multiplies", units=2),
    Rule(
        r"^(rcp|rsqrt)\.approx\.ftz\.f64", _TABLES + "; of the upper word", units=1 << 32, nan=True
    ),
    Rule(r"^rsqrt\.approx\.f64", _TABLES, units=2, nan=True),
    Rule(r"\.f64$|f64 |^(add|sub|mul|fma|mad|min|max)\..*f64", _PAYLOAD, nan=True),
    Rule(r"^cvt\..*f64|^cvt\.(rn\.)?(f16|f32|f16x2)\.(f32|bf16|f16)$", _PAYLOAD, nan=True),
    Rule(r"^cvt\.rna\.satfinite\.tf32|\.half2float$", _PAYLOAD, nan=True),
)


def rule_of(form: str) -> Rule | None:
    """The rule for a form, None where all bits must agree."""
    return next((rule for rule in RULES if re.search(rule.forms, form)), None)
