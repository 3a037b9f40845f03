"""How the simulator's outputs differ from those of the GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from . import Kept, all_cases, digest, kept, sampled, source_hash
from .case import Case
from .units import Rule, rule_of

#: Exponent and mantissa bits.
FORMATS = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "tf32": (8, 23), "f64": (11, 52)}


@dataclass
class Difference:
    """Elements compared, those whose bits differ, and among these NaN of other bits; the largest
    distance of the others in units in the last place (-1: a NaN on one side alone, zeros of two
    signs, other integers); and how many the form's rule, or its absence, does not allow."""

    elements: int
    differ: int
    nan: int
    units: int
    beyond: int

    @property
    def within(self) -> bool:
        return not self.beyond


def parts(values: np.ndarray, form: str) -> tuple[np.ndarray, str]:
    """Elements as unsigned integers, packed ones taken apart, and their format."""
    flat = np.ascontiguousarray(values).reshape(-1)
    bits = flat.view(f"u{flat.itemsize}")
    if form == "f64":
        return bits.view(np.uint64), form
    if form.endswith("x2") and form[:-2] in FORMATS:
        return bits.view(np.uint32 if form == "f32x2" else np.uint16), form[:-2]
    return bits, form


def _place(bits: np.ndarray, form: str) -> np.ndarray:
    """Numbers of a format in their order: neighbours are 1 apart, the two zeros equal."""
    exponent, mantissa = FORMATS[form]
    sign = 1 << (exponent + mantissa)
    size = (bits & bits.dtype.type(sign - 1)).astype(object if form == "f64" else np.int64)
    return np.where(bits & bits.dtype.type(sign), -size, size)


def is_nan(bits: np.ndarray, form: str) -> np.ndarray:
    exponent, mantissa = FORMATS[form]
    largest = ((1 << exponent) - 1) << mantissa
    return (bits & bits.dtype.type((1 << (exponent + mantissa)) - 1)) > largest


def difference(
    ours: np.ndarray, theirs: np.ndarray, form: str, rule: Rule | None = None
) -> Difference:
    """Outputs of one form, ``form`` being the format of their elements."""
    a, kind = parts(ours, form)
    b, _ = parts(theirs, form)
    unequal = a != b
    count = int(unequal.sum())
    if kind not in FORMATS:
        return Difference(a.size, count, 0, -1 if count else 0, count)
    both = is_nan(a, kind) & is_nan(b, kind)
    one = is_nan(a, kind) ^ is_nan(b, kind)
    other = unequal & ~both
    nan, units, beyond = int((unequal & both).sum()), 0, 0
    if other.any():
        units = int(np.abs(_place(a[other], kind) - _place(b[other], kind)).max())
        if one.any() or not units:  # a number and no number, or zeros of two signs
            units = -1
    if rule is None:
        beyond = count
    elif count:
        beyond = 0 if rule.nan else nan
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.abs(_number(a, kind) - _number(b, kind))
        distance = np.abs(_place(a, kind) - _place(b, kind))
        near = ((distance <= rule.units) & (distance > 0)) | (apart <= rule.absolute)
        beyond += int((other & (one | ~near)).sum())
    return Difference(a.size, count, nan, units, beyond)


def _number(bits: np.ndarray, form: str) -> np.ndarray:
    if form == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    kind = {"f16": np.float16, "f64": np.float64}.get(form, np.float32)
    return bits.view(kind).astype(np.float64)


#: The reading under which products are compared bit for bit.
READINGS = {"accumulation": "aligned"}


def case_differences(case: Case, held: Kept) -> Iterator[tuple[str, Difference, bool]]:
    """For each form of a case how the simulator differs from what is kept, and whether all of it
    agrees where a sample is kept.

    Raises AssertionError where the simulator reports a finding.
    """
    report, results = case.simulate(readings=READINGS)
    assert not report.findings, report
    for form, theirs, whole in held.forms(case, results):
        ours = results[form]
        mine = sampled(case.family, form, ours)
        found = difference(mine, theirs, case.formats.get(form, ""), rule_of(form))
        yield form, found, int(digest(ours)) == whole


def _allowed(rules: set[Rule]) -> str:
    """What the rules of a family's forms allow, in words."""
    said = []
    units = sorted({rule.units for rule in rules if rule.units and rule.units < 1 << 32})
    if units:
        said.append(f"{', '.join(map(str, units))} ulp")
    if any(rule.units == 1 << 32 for rule in rules):
        said.append("1 ulp of the upper word")
    for absolute in sorted({rule.absolute for rule in rules if rule.absolute}):
        said.append(f"2**{np.log2(absolute):g}")
    if any(rule.nan for rule in rules):
        said.append("a NaN's payload")
    return "; ".join(said)


def summary(families: Sequence[str] = (), details: bool = False) -> str:
    """A table: families with their kernels, forms and cases (elements), how many forms agree bit
    for bit, how many within their units (and which), and how many do not."""
    rows: dict[str, list[int]] = {}
    rules: dict[str, set[Rule]] = {}
    lines = []
    for case in all_cases(families):
        held = kept(case.family)
        if held is None or held.sources.get(case.name) != source_hash(case):
            lines.append(f"{case.name}: no outputs of this kernel are kept")
            continue
        row = rows.setdefault(case.family, [0, 0, 0, 0, 0, 0])
        row[0] += 1
        for form, found, all_agree in case_differences(case, held):
            rule = rule_of(form)
            same = not found.differ and (rule is not None or all_agree)
            row[1] += 1
            row[2] += found.elements
            row[3] += same
            row[4] += not same and found.within and rule is not None
            row[5] += not same and (not found.within or rule is None)
            if found.differ and rule is not None:
                rules.setdefault(case.family, set()).add(rule)
            if details and not same:
                lines.append(f"{form}: {found}{'' if found.within else '  NOT WITHIN'}")
    head = f"{'family':36} {'kernels':>7} {'forms':>6} {'cases':>8} {'bit for bit':>11}"
    lines += ["", f"{head} {'within':>6} {'not':>4}  unit"]
    total = [sum(r[i] for r in rows.values()) for i in range(6)]
    for family, r in [*rows.items(), ("all", total)]:
        unit = _allowed(rules.get(family, set()))
        line = f"{family:36} {r[0]:7} {r[1]:6} {r[2]:8} {r[3]:11} {r[4]:6} {r[5]:4}  {unit}"
        lines.append(line.rstrip())
    return "\n".join(lines)
