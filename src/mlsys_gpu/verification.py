"""Right or wrong: independent references, a bound for every element, poisoned outputs.

A kernel's output ``D = A @ B.T`` is compared with a product computed in float64 by NumPy, which
shares nothing with the kernel. An element passes when it lies within

    |D - ref|  <=  u * |ref|  +  2**-23 * sqrt(K) * sum_k |a_k| * |b_k|

where ``u`` is the unit roundoff of the output's dtype (the last rounding, relative to the
reference, and half the smallest subnormal at least) and the second term covers the K additions in
float32: each rounds by at most 2**-24 of the sum it reaches, tensor cores truncate instead, which
doubles that, and errors of independent sign grow like the square root of their number.
(Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd ed., sections 2.8 and 3.1.)

The largest ratio of error to bound is ``max_error``: 1 is the limit. Similarity scores over a
whole matrix hide hundreds of wrong elements; this does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

DTYPES: tuple[str, ...] = ("float16", "bfloat16")
"""Dtypes of the kernels' inputs and outputs, as JSON spells them."""

_SIGNIFICAND_BITS = {"float16": 11, "bfloat16": 8, "float32": 24}
_SMALLEST_SUBNORMAL = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149}
# from here on, rounding to nearest gives infinity: the largest number and half of its last place
_OVERFLOW = {
    "float16": 65504.0 + 16.0,
    "bfloat16": (2.0 - 2.0**-8) * 2.0**127,
    "float32": (2.0 - 2.0**-24) * 2.0**127,
}


def numpy_dtype(name: str) -> np.dtype:
    """NumPy's dtype for ``"float16"``, ``"bfloat16"`` (through ml_dtypes) or ``"float32"``."""
    import numpy as np

    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def gemm_inputs(
    M: int, N: int, K: int, dtype: str = "float16", seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Random inputs of a GEMM.

    Standard normal, so that A and B share no structure: a transposed, swapped or repeated tile
    changes the result. The same seed gives the same numbers on every machine.

    Returns:
        A of shape ``[M, K]`` and B of shape ``[N, K]``, row-major, of dtype ``dtype``.
    """
    import numpy as np

    of_a, of_b = (np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(2))
    target = numpy_dtype(dtype)
    A = of_a.standard_normal((M, K), dtype=np.float32).astype(target)
    B = of_b.standard_normal((N, K), dtype=np.float32).astype(target)
    return A, B


def poisoned(shape: tuple[int, ...], dtype: str = "float16") -> np.ndarray:
    """An output of NaN: whatever a kernel leaves unwritten stays wrong."""
    import numpy as np

    return np.full(shape, np.nan, dtype=numpy_dtype(dtype))


@dataclass(frozen=True)
class Comparison:
    """What comparing an output with its reference showed.

    Attributes:
        max_error: largest error over its bound; 1 is the limit, infinity where a number is missing.
        elements: how many elements were compared.
        wrong: how many of them lie beyond their bound.
        unwritten: how many of those are NaN where the reference is a number.
        first: coordinate of the first wrong element in row-major order, or None.
        got, expected: that element and its reference.
        box: first and last wrong coordinate along each dimension, both inclusive, or None.
    """

    max_error: float
    elements: int
    wrong: int
    unwritten: int
    first: tuple[int, ...] | None = None
    got: float | None = None
    expected: float | None = None
    box: tuple[tuple[int, int], ...] | None = None

    @property
    def ok(self) -> bool:
        """Whether every element lies within its bound."""
        return self.wrong == 0

    def to_dict(self) -> dict[str, Any]:
        """JSON's spelling: numbers that JSON has no word for (NaN, infinity) become null."""
        return {
            "ok": self.ok,
            "max_error": _finite(self.max_error),
            "elements": self.elements,
            "wrong": self.wrong,
            "unwritten": self.unwritten,
            "first": None if self.first is None else list(self.first),
            "got": _finite(self.got),
            "expected": _finite(self.expected),
            "box": None if self.box is None else [list(span) for span in self.box],
        }

    def __str__(self) -> str:
        if self.ok:
            return f"right: the largest error is {self.max_error:.2f} of its bound"
        where = ", ".join(str(i) for i in self.first or ())
        spans = self.box or ()
        area = " × ".join(f"[{low}…{high}]" for low, high in spans)
        text = (
            f"wrong: {self.wrong} of {self.elements} elements, all within {area}; "
            f"the first is D[{where}] = {self.got:.6g}, expected {self.expected:.6g}"
        )
        if self.unwritten:
            text += f"; {self.unwritten} are NaN: never written, or computed from what was not"
        return text


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _error_over_bound(xp: Any, out: Any, ref: Any, magnitude: Any, K: int, dtype: str) -> Any:
    """Error of each element over its bound; ``xp`` is numpy or torch, all arrays are float64."""
    unit = 2.0 ** -_SIGNIFICAND_BITS[dtype]
    rounding = xp.clip(abs(ref) * unit, _SMALLEST_SUBNORMAL[dtype] / 2, None)
    bound = rounding + 2.0**-23 * math.sqrt(K) * magnitude
    ratio = abs(out - ref) / bound
    # infinity is right where the reference, within its bound, rounds to it
    overflowed = xp.isinf(out) & (out * ref > 0) & (abs(ref) + bound >= _OVERFLOW[dtype])
    ratio = xp.where(overflowed, xp.zeros_like(ratio), ratio)
    # NaN compares with nothing: a missing number is infinitely wrong, unless NaN was expected
    missing = xp.where(xp.isnan(ref), xp.zeros_like(ratio), xp.full_like(ratio, math.inf))
    return xp.where(xp.isnan(out) | xp.isnan(ratio), missing, ratio)


def _summary(ratio: np.ndarray, out: Any, ref: Any) -> Comparison:
    """Sum up ``ratio``; ``out`` and ``ref`` are only looked at where something is wrong."""
    import numpy as np

    wrong = ratio > 1
    count = int(wrong.sum())
    largest = float(ratio.max())
    if not count:
        return Comparison(largest, ratio.size, 0, 0)
    coordinates = np.argwhere(wrong)
    first = tuple(int(i) for i in coordinates[0])
    low, high = coordinates.min(axis=0), coordinates.max(axis=0)
    return Comparison(
        max_error=largest,
        elements=ratio.size,
        wrong=count,
        unwritten=int((np.isnan(out) & wrong).sum()),
        first=first,
        got=float(out[first]),
        expected=float(ref[first]),
        box=tuple((int(a), int(b)) for a, b in zip(low, high, strict=True)),
    )


def compare_gemm(A: np.ndarray, B: np.ndarray, D: np.ndarray) -> Comparison:
    """Compare ``D`` with ``A @ B.T`` computed in float64 by NumPy.

    Args:
        A: ``[M, K]``, float16 or bfloat16.
        B: ``[N, K]``, of the same dtype.
        D: ``[M, N]``; its dtype sets the rounding term of the bound.

    Returns:
        The verdict, with the first wrong coordinate.
    """
    import numpy as np

    a, b, out = (x.astype(np.float64) for x in (A, B, D))
    if out.shape != (a.shape[0], b.shape[0]) or a.shape[1] != b.shape[1]:
        raise ValueError(f"A {A.shape}, B {B.shape} and D {D.shape} are no GEMM D = A @ B.T")
    ref = a @ b.T
    magnitude = np.abs(a) @ np.abs(b).T
    with np.errstate(invalid="ignore", over="ignore"):
        ratio = _error_over_bound(np, out, ref, magnitude, a.shape[1], D.dtype.name)
    return _summary(ratio, out, ref)


class GemmReference:
    """``A @ B.T`` of torch tensors in float64, to compare several outputs with.

    For benchmarks, whose outputs are too large to move: everything stays on the device that holds
    the tensors, and takes 16 bytes for each element of D. Leading dimensions are sets of inputs,
    compared at once.

    Args:
        A, B: torch tensors ``[..., M, K]`` and ``[..., N, K]``.
    """

    def __init__(self, A: Any, B: Any):
        import torch

        a, b = (x.to(torch.float64, copy=True) for x in (A, B))
        self._reference = a @ b.mT
        self._magnitude = a.abs_() @ b.abs_().mT
        self._K = A.shape[-1]

    def compare(self, D: Any) -> Comparison:
        """The verdict on D ``[..., M, N]``; its dtype sets the rounding term of the bound."""
        import torch

        out = D.to(torch.float64)
        dtype = str(D.dtype).removeprefix("torch.")
        ratio = _error_over_bound(torch, out, self._reference, self._magnitude, self._K, dtype)
        if bool((ratio <= 1).all()):
            return Comparison(float(ratio.max()), ratio.numel(), 0, 0)
        return _summary(*(x.cpu().numpy() for x in (ratio, out, self._reference)))


def compare_gemm_tensors(A: Any, B: Any, D: Any) -> Comparison:
    """The comparison of :func:`compare_gemm` for torch tensors, in float64 where they are.

    Args:
        A, B, D: torch tensors ``[..., M, K]``, ``[..., N, K]`` and ``[..., M, N]``.
    """
    return GemmReference(A, B).compare(D)


@dataclass(frozen=True)
class Difference:
    """How two outputs of one kernel on the same inputs differ.

    Attributes:
        elements: how many elements were compared.
        differing: how many of them differ at all.
        max_ulps: largest difference, in units in the last place of the output's dtype;
            infinity where only one of the two is NaN.
        max_over_partial_sum: largest difference over that element's largest partial sum.
        max_partial_sum_ulps: the same in units in the last place of the output's dtype, taken at
            the size of that partial sum; 1 is one rounding that went the other way.
    """

    elements: int
    differing: int
    max_ulps: float
    max_over_partial_sum: float
    max_partial_sum_ulps: float

    def to_dict(self) -> dict[str, Any]:
        """JSON's spelling: infinity becomes null."""
        return {
            "elements": self.elements,
            "differing": self.differing,
            "max_ulps": _finite(self.max_ulps),
            "max_over_partial_sum": _finite(self.max_over_partial_sum),
            "max_partial_sum_ulps": _finite(self.max_partial_sum_ulps),
        }

    def __str__(self) -> str:
        if not self.differing:
            return f"all {self.elements} elements are the same, bit for bit"
        return (
            f"{self.differing} of {self.elements} elements differ, by at most {self.max_ulps:g} "
            f"units in the last place of the output, {self.max_partial_sum_ulps:.2g} in the last "
            f"place of the element's largest partial sum ({self.max_over_partial_sum:.1e} of it)"
        )


def ulp_distance(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """How many representable numbers lie between elements of two 16-bit float arrays.

    Both zeros count as one number.

    Args:
        x, y: float16 or bfloat16, of the same dtype and shape; NaN has no distance, so mind them.

    Returns:
        int32 array of the same shape.
    """
    import numpy as np

    def ordered(v: np.ndarray) -> np.ndarray:
        bits = v.view(np.uint16).astype(np.int32)
        # sign and magnitude to an integer that grows with the number
        return np.where(bits & 0x8000, -(bits & 0x7FFF), bits)

    return np.abs(ordered(x) - ordered(y))


def largest_partial_sums(A: np.ndarray, B: np.ndarray, step: int = 16) -> np.ndarray:
    """Largest magnitude that each element of ``A @ B.T`` passes through, float64 ``[M, N]``.

    Sums are looked at every ``step`` products: 16 is the depth of one 16-bit MMA instruction.
    """
    import numpy as np

    a, b = A.astype(np.float64), B.astype(np.float64)
    total = np.zeros((a.shape[0], b.shape[0]))
    largest = np.zeros_like(total)
    for k in range(0, a.shape[1], step):
        total += a[:, k : k + step] @ b[:, k : k + step].T
        np.maximum(largest, np.abs(total), out=largest)
    return largest


def output_difference(A: np.ndarray, B: np.ndarray, D1: np.ndarray, D2: np.ndarray) -> Difference:
    """Compare two outputs of the same GEMM, such as the simulator's and a GPU's.

    float32 accumulation in another order rounds differently, in proportion to the sums passed
    through and not to the result, which may have cancelled; so differences are given relative to
    the largest partial sum of each element, too.

    Args:
        A: ``[M, K]`` and B: ``[N, K]``, the inputs of both.
        D1, D2: ``[M, N]``, float16 or bfloat16.
    """
    import numpy as np

    x, y = D1.astype(np.float64), D2.astype(np.float64)
    both_nan = np.isnan(x) & np.isnan(y)
    differing = (x != y) & ~both_nan
    count = int(differing.sum())
    if not count:
        return Difference(x.size, 0, 0.0, 0.0, 0.0)
    incomparable = np.isnan(x) ^ np.isnan(y)
    if incomparable.any():
        return Difference(x.size, count, math.inf, math.inf, math.inf)
    gap = np.abs(x - y)[differing]
    sums = largest_partial_sums(A, B)[differing]
    # below its smallest normal number a dtype's spacing stays what it is
    smallest = _SMALLEST_SUBNORMAL[D1.dtype.name]
    digits = _SIGNIFICAND_BITS[D1.dtype.name] - 1
    ulp = 2.0 ** (np.floor(np.log2(np.maximum(sums, smallest * 2.0**digits))) - digits)
    with np.errstate(divide="ignore"):
        relative = float((gap / sums).max())
    return Difference(
        elements=x.size,
        differing=count,
        max_ulps=float(ulp_distance(D1, D2)[differing].max()),
        max_over_partial_sum=relative,
        max_partial_sum_ulps=float((gap / ulp).max()),
    )
