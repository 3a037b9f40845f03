"""Sums of products as Hopper's tensor cores form them.

One step of ``mma.sync`` or ``wgmma`` adds up to 16 products and an accumulator in one go. What an
H200 does, in all outputs that have been compared (tests/sim/vectors): the addends are aligned to
the largest exponent among them, cut off 25 bits below it, and added exactly; the sum is cut to
float32 (past its largest number: infinity), or rounded to nearest even where accumulators are
fp16. A product's exponent is the sum of its factors' (of a subnormal factor the smallest), whether
or not their significands' product carries; an accumulator of zero has the smallest exponent of its
format, and a product of zero none. A sum of zero is +0.

NumPy's products of matrices add in another order and round each sum to nearest; they are about 60
times faster. The reading ``accumulation`` chooses.
"""

from __future__ import annotations

import numpy as np

#: Bits kept below the largest exponent.
_BITS = 25
_NAN = np.uint32(0x7FFFFFFF).view(np.float32)
_NAN16 = np.uint16(0x7FFF).view(np.float16)
_LEAST = {"float16": -14, "bfloat16": -126, "float32": -126}
_NONE = -10_000


def _exponents(x: np.ndarray, dtype: str) -> np.ndarray:
    """Exponents of finite numbers; of zero and subnormal ones the smallest of the format."""
    return np.where(x == 0, _LEAST[dtype], np.maximum(np.frexp(x)[1] - 1, _LEAST[dtype]))


def step(a: np.ndarray, b: np.ndarray, c: np.ndarray | None, dtype: str, half: bool) -> np.ndarray:
    """``a @ b + c`` for one step: ``a`` ``[M, k]`` and ``b`` ``[k, N]`` of ``dtype``, held as
    float32, ``c`` ``[M, N]`` float32 (``half``: numbers that fp16 holds; None: zero)."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    if c is None:
        c = np.zeros((a.shape[0], b.shape[1]))
    c = c.astype(np.float64)
    fa, fb, fc = np.isfinite(a), np.isfinite(b), np.isfinite(c)
    whole = np.asarray(fa.all(axis=1))[:, None] & fb.all(axis=0) & fc
    with np.errstate(invalid="ignore", over="ignore"):
        if whole.all():
            return _finite(a, b, c, dtype, half)
        x, y, z = (np.where(f, x, 0.0) for f, x in ((fa, a), (fb, b), (fc, c)))
        result = _finite(x, y, z, dtype, half)
        odd = np.asarray(a @ b + c).astype(result.dtype)
        odd[np.isnan(odd)] = _NAN16 if half else _NAN
        return np.where(whole, result, odd)


def _finite(a: np.ndarray, b: np.ndarray, c: np.ndarray, dtype: str, half: bool) -> np.ndarray:
    ea, eb = _exponents(a, dtype), _exponents(b, dtype)
    ea, eb = np.where(a == 0, _NONE, ea), np.where(b == 0, _NONE, eb)
    top = _exponents(c, "float16" if half else "float32")
    for k in range(a.shape[1]):
        np.maximum(top, ea[:, k, None] + eb[k], out=top)
    scale = np.ldexp(1.0, _BITS - top)
    total = np.trunc(c * scale)
    for k in range(a.shape[1]):
        total += np.trunc(a[:, k, None] * b[k] * scale)
    total = total / scale + 0.0
    if half:
        return total.astype(np.float16) + np.float16(0)
    near = total.astype(np.float32)
    cut = np.where(np.abs(near) > np.abs(total), np.nextafter(near, np.float32(0)), near)
    return np.where(np.abs(total) >= 2.0**128, near, cut)


def steps(a: np.ndarray, b: np.ndarray, c: np.ndarray | None, dtype: str, half: bool) -> np.ndarray:
    """Successive steps of 16 along k, float32 in the end."""
    for k in range(0, a.shape[1], 16):
        c = step(a[:, k : k + 16], b[k : k + 16], c, dtype, half).astype(np.float32)
    assert c is not None
    return c
