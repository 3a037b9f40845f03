"""Narrow floating-point formats: rounding, encoding and decoding, to the bit.

A format is sign, exponent and mantissa bits with a bias. Source: PTX ISA, "Alternate Floating-Point
Data Formats" and "Data Movement and Conversion Instructions: cvt"; OCP 8-bit Floating Point
Specification and OCP Microscaling Formats, revision 1.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np


@dataclass(frozen=True)
class Format:
    """``nan``: the bits that stand for NaN in a result, or None; ``infinities``: whether an
    exponent of ones stands for infinity; ``largest``: the largest finite number."""

    name: str
    exponent: int
    mantissa: int
    bias: int
    largest: float
    nan: int | None
    infinities: bool = False
    signed: bool = True

    @property
    def bits(self) -> int:
        return self.signed + self.exponent + self.mantissa

    @property
    def smallest_exponent(self) -> int:
        """Exponent of the smallest normal number."""
        return 1 - self.bias


FORMATS = {
    f.name: f
    for f in (
        Format("f16", 5, 10, 15, 65504.0, 0x7FFF, infinities=True),
        Format("bf16", 8, 7, 127, (2 - 2.0**-7) * 2.0**127, 0x7FFF, infinities=True),
        Format("tf32", 8, 10, 127, (2 - 2.0**-10) * 2.0**127, 0x3FFFF, infinities=True),
        Format("e4m3", 4, 3, 7, 448.0, 0x7F),
        Format("e5m2", 5, 2, 15, 57344.0, 0x7F, infinities=True),
        Format("e2m1", 2, 1, 1, 6.0, None),
        Format("e2m3", 2, 3, 1, 7.5, None),
        Format("e3m2", 3, 2, 3, 28.0, None),
    )
}

#: TVM's names of the 8-bit formats.
STORED = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}


def rounded(values: np.ndarray, f: Format, mode: str) -> np.ndarray:
    """float64 values rounded to a format's grid, as if it had no largest exponent.

    ``mode``: ``rn`` (ties to even), ``rna`` (ties away from zero), ``rz``, ``rm`` (down), ``rp``
    (up). Exact: scaling by a power of two is, and so is rounding to an integer.
    """
    _, exponent = np.frexp(values)
    scale = np.maximum(exponent - 1, f.smallest_exponent) - f.mantissa
    grid = np.ldexp(values, -scale)
    if mode == "rn":
        whole = np.rint(grid)
    elif mode == "rna":
        whole = np.copysign(np.floor(np.abs(grid) + 0.5), grid)
    else:
        whole = {"rz": np.trunc, "rm": np.floor, "rp": np.ceil}[mode](grid)
    whole = np.where(np.isfinite(values), np.copysign(whole, values), values)
    return np.ldexp(whole, scale)


def encode(
    values,
    name: str,
    mode: str = "rn",
    *,
    satfinite: bool = False,
    relu: bool = False,
    random: tuple[np.ndarray, int] | None = None,
) -> np.ndarray:
    """float64 values as the bits of a format (uint32).

    ``satfinite``: what is out of range becomes the largest number, and so does NaN where the format
    has none; without it, what rounds past the largest number becomes infinity (``rz``: stays the
    largest). ``relu``: negative numbers become 0. ``random``: in mode ``rs``, random integers and
    how many bits they have: they are added below the last place, and the rest is cut off.
    """
    f = FORMATS[name]
    values = np.asarray(values, dtype=np.float64)
    nan = np.isnan(values)
    if relu:
        values = np.where(values < 0, 0.0, values) + 0.0  # -0 too becomes +0
    if mode == "rs" and random is not None:
        number, count = random
        _, exponent = np.frexp(values)
        place = np.maximum(exponent - 1, f.smallest_exponent) - f.mantissa - count
        values = values + np.copysign(np.ldexp(number.astype(np.float64), place), values)
    r = rounded(values, f, "rz" if mode == "rs" else mode)
    if satfinite or not (f.infinities or f.nan is not None):
        r = np.clip(r, -f.largest, f.largest)
    elif mode in ("rz", "rm", "rp"):  # directed rounding stops at the largest number
        down = np.isfinite(values) & (r > f.largest) & (mode in ("rz", "rm"))
        up = np.isfinite(values) & (r < -f.largest) & (mode in ("rz", "rp"))
        r = np.where(down, f.largest, np.where(up, -f.largest, r))
    bits = _pattern(np.where(nan, 0.0, r), f)
    whole = f.nan if f.nan is not None else int(_pattern(np.asarray(f.largest), f))
    return np.where(nan, np.uint32(whole), bits)


def _pattern(r: np.ndarray, f: Format) -> np.ndarray:
    """The bits of numbers on a format's grid; past the largest number, infinity."""
    size = np.abs(r)
    infinite = size > f.largest
    size = np.where(infinite, 0.0, size)
    _, exponent = np.frexp(size)
    exponent = np.maximum(exponent - 1, f.smallest_exponent)
    whole = np.ldexp(size, f.mantissa - exponent).astype(np.int64)  # with the leading one
    normal = whole >= 1 << f.mantissa
    bits = np.where(normal, ((exponent + f.bias) << f.mantissa) + whole - (1 << f.mantissa), whole)
    top = ((1 << f.exponent) - 1) << f.mantissa if f.infinities else f.nan or 0
    bits = np.where(infinite, top, bits)
    sign = np.signbit(r).astype(np.int64) << (f.exponent + f.mantissa)
    return (bits | sign).astype(np.uint32)


@lru_cache(maxsize=16)
def table(name: str) -> np.ndarray:
    """The float32 value of every pattern of a format."""
    f = FORMATS[name]
    bits = np.arange(1 << f.bits)
    sign = bits >> (f.bits - 1) & 1
    exponent = bits >> f.mantissa & ((1 << f.exponent) - 1)
    mantissa = bits & ((1 << f.mantissa) - 1)
    size = np.where(
        exponent == 0,
        np.ldexp(mantissa.astype(np.float64), f.smallest_exponent - f.mantissa),
        np.ldexp((mantissa + (1 << f.mantissa)).astype(np.float64), exponent - f.bias - f.mantissa),
    )
    if f.infinities:
        size = np.where(exponent == (1 << f.exponent) - 1, np.where(mantissa, np.nan, np.inf), size)
    elif f.nan is not None:
        size = np.where(bits & ~(1 << (f.bits - 1)) == f.nan, np.nan, size)
    return np.where(sign, -size, size).astype(np.float32)


def decode(bits, name: str) -> np.ndarray:
    """The bits of a format as float32; exact."""
    f = FORMATS[name]
    return table(name)[np.asarray(bits).astype(np.int64) & ((1 << f.bits) - 1)]


def encode_ue8m0(values, mode: str, *, satfinite: bool = False) -> np.ndarray:
    """float64 values as powers of two, 8-bit exponents biased by 127 (``ue8m0``); NaN is 0xFF.

    ``mode``: ``rz`` or ``rp``; signs are left out. Below the smallest, 2**-127, it is 0 or 1.
    """
    values = np.abs(np.asarray(values, dtype=np.float64))
    mantissa, exponent = np.frexp(values)  # value = mantissa * 2**exponent, mantissa in [0.5, 1)
    power = exponent - 1
    if mode == "rp":
        power = np.where(mantissa > 0.5, exponent, power)
    power = np.where(values == 0, -127, power)
    code = np.maximum(power + 127, 0)
    code = np.where(np.isinf(values), 255, code)
    code = np.minimum(code, 254) if satfinite else np.minimum(code, 255)
    return np.where(np.isnan(values), 255, code).astype(np.uint32)


def decode_ue8m0(bits) -> np.ndarray:
    """``ue8m0`` as float64."""
    bits = np.asarray(bits).astype(np.int64) & 0xFF
    return np.where(bits == 255, np.nan, np.ldexp(1.0, (bits - 127).astype(np.int32)))
