"""``cvt``: conversions between number types, in every rounding mode.

Source: PTX ISA, "Data Movement and Conversion Instructions: cvt".
"""

from __future__ import annotations

import numpy as np

from mlsys_gpu.sim.machine import formats
from mlsys_gpu.sim.machine.arith import (
    _canonical,
    _odd,
    _saturated,
    _scalar,
    _to_f32,
    numbers16,
)
from mlsys_gpu.sim.machine.compute import to_integer, wrap
from mlsys_gpu.sim.machine.core import op
from mlsys_gpu.sim.machine.integers import saturated

_INTEGRAL = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_FLOAT = ("f16", "bf16", "f32", "f64")


def _wide(x, of: str) -> np.ndarray:
    """Numbers of a float type as float64; exact."""
    if of in ("f16", "bf16"):
        return numbers16(x, of).astype(np.float64)
    return np.asarray(x, dtype=np.float64)


@op
def convert(
    x, into: str, origin: str, mode: str, ftz: bool, sat: bool, relu: bool, satfinite: bool
):
    """One number type to another. Floats become integers within the type's range."""
    if origin in _FLOAT:
        wide = _wide(x, origin)
        # an H200 flushes no float32 that becomes a float16
        if ftz and "f32" in (into, origin) and into != "f16":
            wide = np.where(np.abs(wide) < 2.0**-126, np.copysign(0.0, wide), wide)
        if into not in _FLOAT:
            whole = _INTEGRAL[mode or "rzi"](wide)
            r = to_integer(_scalar(whole), int(into[1:]), into[0] == "s")
            return _of_nan(r, wide, into) if origin == "f64" or into.endswith("64") else r
        if mode in _INTEGRAL:
            wide, mode = _INTEGRAL[mode](wide), "rn"
    elif into in _FLOAT:
        wide = _integers(x, into, mode)
    else:
        bits, signed = int(into[1:]), into[0] == "s"
        return saturated(x, bits, signed) if sat else wrap(x, bits, signed)
    if sat:
        wide = _saturated(wide)
    return _float(wide, into, mode or "rn", relu, satfinite)


def _of_nan(r, wide: np.ndarray, into: str):
    """What NaN becomes where one of the types has 64 bits: the uppermost bit alone (an H200 does
    so; the ISA says no more than that other floats give 0)."""
    nan = np.isnan(wide)
    if not nan.any():
        return r
    bits = int(into[1:])
    top = -(1 << (bits - 1)) if into[0] == "s" else 1 << (bits - 1)
    if not nan.ndim:
        return top
    r = np.asarray(r)
    return np.where(nan, r.dtype.type(top), r)


def _integers(x, into: str, mode: str) -> np.ndarray:
    """Integers as float64; those that it cannot hold are rounded to odd, or for good to float64."""
    wide = np.asarray(x).astype(np.float64)
    exact = np.abs(wide) <= 2.0**53
    if exact.all():
        return wide
    error = np.vectorize(lambda n, f: float(int(n) - int(f)), otypes=[np.float64])(x, wide)
    if into != "f64":
        return _odd(wide, error)
    down, up = np.nextafter(wide, -np.inf), np.nextafter(wide, np.inf)
    towards = {"rz": np.where(wide > 0, down, up), "rm": down, "rp": up}.get(mode, wide)
    wrong = {"rz": error * wide < 0, "rm": error < 0, "rp": error > 0}.get(mode, error != error)
    return np.where(wrong, towards, wide)


def _float(wide: np.ndarray, into: str, mode: str, relu: bool, satfinite: bool):
    """float64 numbers as another float type."""
    if into == "f64":
        return _scalar(wide)
    if into == "f32":
        return _scalar(_canonical(np.asarray(_to_f32(wide, mode), dtype=np.float32)))
    bits = formats.encode(wide, into, mode, satfinite=satfinite, relu=relu).astype(np.uint16)
    return _scalar(bits.view(np.float16) if into == "f16" else bits)


@op
def convert_tf32(x, mode: str, relu: bool, satfinite: bool):
    """float32 to ``tf32``: 10 bits of mantissa, in the upper bits of a 32-bit register."""
    if mode == "rna":
        return _word(_tf32_away(np.asarray(x, dtype=np.float32).view(np.uint32), satfinite))
    bits = formats.encode(_wide(x, "f32"), "tf32", mode, satfinite=satfinite, relu=relu)
    return _word(bits.astype(np.int64) << 13)


def _tf32_away(bits: np.ndarray, satfinite: bool) -> np.ndarray:
    """``cvt.rna.tf32``: half a unit added to the pattern, and the lower bits cut off; of infinities
    and NaN they are just cut off, so that a NaN may become an infinity (an H200 does so)."""
    odd = (bits & 0x7F800000) == 0x7F800000
    r = np.where(odd, bits, bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    if satfinite:
        r = np.where((r & 0x7FFFFFFF) == 0x7F800000, r & 0x80000000 | np.uint32(0x7F7FE000), r)
    return r


def _word(bits: np.ndarray):
    return int(bits) if bits.ndim == 0 else bits.astype(np.int64)


def _width(name: str) -> int:
    """Bits that a number of a packed format takes: six-bit formats are padded to eight."""
    return {"e2m1": 4, "f16": 16, "bf16": 16}.get(name, 8)


@op
def pack_numbers(name: str, mode: str, relu: bool, satfinite: bool, *args):
    """float32 numbers as a packed format, the last one lowest."""
    total = np.int64(0)
    for x in args:
        if name == "ue8m0":
            bits = formats.encode_ue8m0(_wide(x, "f32"), mode, satfinite=satfinite)
        else:
            bits = formats.encode(_wide(x, "f32"), name, mode, satfinite=satfinite, relu=relu)
        total = total << _width(name) | bits.astype(np.int64)
    return _word(np.asarray(total))


@op
def repack_numbers(name: str, mode: str, relu: bool, satfinite: bool, of: str, x):
    """A packed pair of 16-bit numbers as a pair of a narrower format."""
    pair = numbers16(x, of)
    return pack_numbers(name, mode, relu, satfinite, pair[..., 1], pair[..., 0])


@op
def unpack_numbers(name: str, into: str, relu: bool, x):
    """A pair of a narrow format as a packed pair of ``f16`` or ``bf16``; exact."""
    bits, total = np.asarray(x, dtype=np.int64), np.int64(0)
    for i in (1, 0):
        part = bits >> i * _width(name)
        wide = formats.decode_ue8m0(part) if name == "ue8m0" else formats.decode(part, name)
        number = formats.encode(wide, into, relu=relu).astype(np.int64)
        total = total << 16 | number
    return _word(np.asarray(total))


@op
def pack_random(name: str, relu: bool, satfinite: bool, a, b, bits):
    """``cvt.rs``: two float32 numbers rounded to 16 bits by random bits, ``a`` in the upper half.

    The ISA gives each 13 of them for ``f16`` and 16 for ``bf16``.
    """
    count = 13 if name == "f16" else 16
    word, total = np.asarray(bits, dtype=np.int64), np.int64(0)
    for x, shift in ((a, 16), (b, 0)):
        random = word >> shift & ((1 << count) - 1)
        number = formats.encode(
            _wide(x, "f32"),
            name,
            "rs",
            satfinite=satfinite,
            relu=relu,
            random=(random, count),
        )
        total = total << 16 | number.astype(np.int64)
    return _word(np.asarray(total))


@op
def decoded(x, name: str):
    """Stored 8-bit floats (their bits) as float32."""
    return _scalar(formats.decode(x, name))


@op
def encoded(x, name: str):
    """float32 as 8-bit floats, as CUDA's constructors convert: to nearest even, saturating."""
    bits = formats.encode(_wide(x, "f32"), name, satfinite=True)
    return _word(bits)
