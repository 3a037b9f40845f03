"""PTX's floating-point arithmetic, rounded as the ISA says.

Values are NumPy scalars or arrays. Packed pairs are integers, the first number in the lower half:
``f32x2`` of 64 bits, ``f16x2`` and ``bf16x2`` of 32. Source: PTX ISA, "Floating-Point
Instructions", "Half Precision Floating-Point Instructions" and "Mixed Precision".
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from mlsys_gpu.sim.machine import numerics
from mlsys_gpu.sim.machine.core import op

_TINY = np.float32(1.1754944e-38)  # the smallest normal float32
#: The NaN that float32 instructions give, whatever NaN they take (PTX ISA, "Floating Point").
_NAN = np.uint32(0x7FFFFFFF).view(np.float32)


def _canonical(r):
    """float32 results with every NaN as the one that the instructions give."""
    nan = r != r
    return np.where(nan, _NAN, r) if np.any(nan) else r


def _flush(x):
    """Subnormals to zeros of the same sign (``.ftz``)."""
    x = np.asarray(x, dtype=np.float32)
    sizes = np.abs(x)
    if sizes.size and np.minimum.reduce(sizes, axis=None) >= _TINY:  # as most often
        return x
    return x * (sizes >= _TINY)


def _odd(s, error):
    """A float64 sum rounded to odd: where it is inexact, its last bit says so for the next step."""
    if error is None:
        return s
    bits = s.view(np.int64)
    even = (error != 0) & ((bits & 1) == 0) & np.isfinite(s)
    towards = np.where(error > 0, np.inf, -np.inf)
    return np.where(even, np.nextafter(s, towards), s)


def _sum(a, b):
    """``a + b`` of float64 values, rounded to odd."""
    s = a + b
    return _odd(s, _lost(a, b, s))


def _lost(a, b, s):
    """What the float64 sum ``s`` of ``a`` and ``b`` lacks of the exact one."""
    t = s - a
    return (a - (s - t)) + (b - t)


def _to_f32(s, mode: str):
    """A float64 to float32 in a rounding mode."""
    r = s.astype(np.float32)
    if mode in ("rn", ""):
        return r
    wide = r.astype(np.float64)
    if mode == "rz":
        return np.where(np.abs(wide) > np.abs(s), np.nextafter(r, np.float32(0)), r)
    if mode == "rm":
        return np.where(wide > s, np.nextafter(r, np.float32(-np.inf)), r)
    return np.where(wide < s, np.nextafter(r, np.float32(np.inf)), r)


#: Bits of a float64's significand that float32 has no room for, and what they are half-way.
_BELOW, _HALF_WAY = (1 << 29) - 1, 1 << 28


def _zero_down(s, a, b):
    """A float64 sum of ``a`` and ``b`` where rounding is towards minus infinity: there a zero is
    negative, unless both are +0."""
    zero = s == 0
    if not np.any(zero):
        return s
    return np.where(zero & (np.signbit(a) | np.signbit(b)), -0.0, s)


def _rounded(s, error, mode: str, ftz: bool):
    """``s + error`` as float32: a float64 sum and what it lacks of the exact one (None: nothing).

    Below float32's normal range (but for ``ftz``, which makes zeros of that), and half-way between
    two values, by way of a sum rounded to odd.
    """
    bits = s.view(np.int64)
    if not ftz:
        small = np.abs(s) < _TINY
        if small.any() and (small & (s != 0)).any():
            return _to_f32(_odd(s, error), mode)
    if mode in ("rn", ""):
        if error is not None and (bits & _BELOW == _HALF_WAY).any():
            s = _odd(s, error)
        r = s.astype(np.float32)
        return _flush(r) if ftz else r
    # towards zero: the significand cut off, after a step back where the sum went past the exact one
    cut = (bits if error is None else bits - (error * s < 0)) & ~_BELOW
    if mode != "rz":
        away = s < 0 if mode == "rm" else s > 0
        inexact = bits & _BELOW != 0
        if error is not None:
            inexact |= error != 0
        cut = cut + (away & inexact) * (_BELOW + 1)
    r = cut.view(np.float64)
    if ftz:
        sizes = np.abs(r)
        if not (sizes.size and np.minimum.reduce(sizes, axis=None) >= _TINY):
            r = r * (sizes >= _TINY)
    r = r.astype(np.float32)
    if not np.isfinite(r).all():  # overflow: the largest number, or infinity away from zero
        r = _to_f32(np.where(np.isfinite(s), _odd(s, error), s), mode)
        return _flush(r) if ftz else r
    return r


def _binary32(kind: str, mode: str, ftz: bool, sat: bool, args):
    args = [_flush(x) if ftz else np.asarray(x, dtype=np.float32) for x in args]
    if mode in ("rn", "") and kind != "fma":
        a, b = args
        r = a + b if kind == "add" else a - b if kind == "sub" else a * b
        if ftz:
            r = _flush(r)
    else:
        wide = [x.astype(np.float64) for x in args]
        if kind == "mul":
            s, error = wide[0] * wide[1], None
        else:
            a = wide[0] * wide[1] if kind == "fma" else wide[0]
            b = wide[2] if kind == "fma" else wide[1] if kind == "add" else -wide[1]
            s = a + b
            error = _lost(a, b, s)
            if mode == "rm":
                s = _zero_down(s, a, b)
        r = _rounded(np.asarray(s), error, mode, ftz)
    if sat:
        return np.asarray(_saturated(r), dtype=np.float32)
    return np.asarray(_canonical(r), dtype=np.float32)


def _saturated(r):
    """``.sat``: between 0 and 1; NaN and -0 become +0."""
    return np.clip(np.where(np.isnan(r), 0, r), 0, 1) + r.dtype.type(0)


def _scalar(r):
    return r[()] if getattr(r, "ndim", 1) == 0 else r


@op
def f32(kind: str, mode: str, ftz: bool, sat: bool, *args):
    """``add``, ``sub``, ``mul`` or ``fma`` of float32."""
    return _scalar(_binary32(kind, mode, ftz, sat, args))


def _halves(x):
    if isinstance(x, int):
        return _halves_of(x)
    if isinstance(x, np.ndarray) and x.ndim and x.dtype == np.uint64 and x.flags.c_contiguous:
        return x.view(np.float32).reshape(*x.shape, 2)
    return _parts(np.asarray(x, dtype=np.uint64), np.float32)


@lru_cache(maxsize=1024)
def _halves_of(x: int) -> np.ndarray:
    return np.array([x], dtype=np.uint64).view(np.float32)


def _parts(words: np.ndarray, dtype: Any) -> np.ndarray:
    """Words as narrower numbers, on a last axis, the lowest first."""
    flat = np.ascontiguousarray(words).reshape(-1, 1).view(dtype)
    return flat.reshape(*words.shape, flat.shape[1])


@op
def f32x2(kind: str, mode: str, ftz: bool, *args):
    """``add``, ``sub``, ``mul`` or ``fma`` of packed pairs of float32."""
    r = _binary32(kind, mode, ftz, False, [_halves(x) for x in args])
    packed = np.ascontiguousarray(r).view(np.uint64)[..., 0]
    return int(packed) if packed.ndim == 0 else packed


@op
def pack64(low, high):
    """Two 32-bit values as one 64-bit, the first in the lower half."""
    if not isinstance(low, np.ndarray) and not isinstance(high, np.ndarray):
        return int(low) | int(high) << 32
    shape = np.shape(low) or np.shape(high)
    if np.ndim(high) and np.shape(high) != shape:
        shape = np.broadcast_shapes(shape, np.shape(high))
    words = np.empty((*shape, 2), dtype=np.uint32)
    words[..., 0], words[..., 1] = low, high
    return words.view(np.uint64)[..., 0]


@op
def pairs64(words):
    """Neighbouring 32-bit values along the last axis as 64-bit ones."""
    return np.ascontiguousarray(words).view(np.uint64)


@op
def unpack64(value, which: int):
    """The lower (0) or upper (1) half of a 64-bit value, as uint32."""
    if not isinstance(value, np.ndarray):
        return np.uint32(int(value) >> 32 * which & 0xFFFFFFFF)
    if value.dtype == np.uint64 and value.flags.c_contiguous:
        return value.view(np.uint32)[..., which::2]
    shifted = value.astype(np.uint64) >> np.uint64(32 * which)
    return (shifted & np.uint64(0xFFFFFFFF)).astype(np.uint32)


@op
def joined(size: int, *parts):
    """Integers of ``size`` bits as one, the first lowest; 128 bits are Python integers."""
    whole = size * len(parts)
    if not any(isinstance(p, np.ndarray) for p in parts):
        return sum((int(p) & ((1 << size) - 1)) << i * size for i, p in enumerate(parts))
    total: Any = np.uint64(0) if whole == 64 else 0
    for i, number in enumerate(parts):
        word = np.asarray(number).astype(np.uint64) & np.uint64((1 << size) - 1)
        if whole == 64:
            total = total | word << np.uint64(i * size)
        else:
            total = total | word.astype(object) << i * size
    return total


@op
def part(value, size: int, which: int):
    """An integer of ``size`` bits out of a wider one, the lowest being 0."""
    mask = (1 << size) - 1
    if not isinstance(value, np.ndarray):
        return int(value) >> which * size & mask
    if value.dtype == object:
        return (value >> which * size & mask).astype(np.uint64 if size == 64 else np.int64)
    shifted = value.astype(np.uint64) >> np.uint64(which * size)
    return (shifted & np.uint64(mask)).astype(np.uint64 if size == 64 else np.int64)


@op
def flushed(x, of: str = ""):
    """``.ftz``: subnormal numbers as zeros of the same sign; ``of``: their format, where it is not
    that of the values."""
    a = np.asarray(x)
    smallest = {2: 2.0**-14, 4: 2.0**-126, 8: 2.0**-1022}[a.dtype.itemsize]
    if of.startswith("f16"):
        smallest = 2.0**-14
    return _scalar(np.where(np.abs(a) < smallest, np.copysign(a.dtype.type(0), a), a))


@op
def ones_where(test, of: str, pairs: bool = False):
    """``set``: all ones (of an integer type) or 1.0 where a comparison is true, else 0.

    ``pairs``: of packed pairs, whose parts are on a last axis.
    """
    test = np.asarray(test)
    if of in ("f32", "f16"):
        return _scalar(np.where(test, 1, 0).astype(np.float32 if of == "f32" else np.float16))
    if of == "bf16":
        return _scalar(np.where(test, 0x3F80, 0).astype(np.uint16))
    if test.shape and test.shape[-1] == 2 and pairs and of[0] in "us":
        halves = np.where(test, 0xFFFF, 0) << np.array([0, 16])  # ones in each half
        words = halves[..., 0] | halves[..., 1]
        words = (words ^ (1 << 31)) - (1 << 31) if of[0] == "s" else words
    elif of.endswith("x2"):
        one = 0x3F80 if of.startswith("bf16") else 0x3C00
        words = np.where(test, one, 0) << np.array([0, 16])
        words = words[..., 0] | words[..., 1]
    else:
        words = np.where(test, -1 if of[0] == "s" else (1 << int(of[1:])) - 1, 0)
    return int(words) if words.ndim == 0 else words


#: 1 / (2 pi) as float32.
_TURN = float(np.float32(1 / (2 * math.pi)))


@op
def approximate(kind: str, ftz: bool, x):
    """``ex2``, ``lg2``, ``rcp``, ``sqrt``, ``rsqrt``, ``sin``, ``cos`` and ``tanh`` in ``.approx``:
    the float64 result rounded to float32; the hardware is within the ISA's error of it."""
    a = (_flush(x) if ftz else np.asarray(x, dtype=np.float32)).astype(np.float64)
    if kind in ("sin", "cos"):  # in turns, cut to float32, as the hardware reduces its operand
        turns = _rounded(np.asarray(a * _TURN), None, "rz", True)
        a = turns.astype(np.float64) % 1.0 * (2 * math.pi)
        if kind == "sin":
            a = np.where(turns == 0, turns, a)
    r = _canonical(_FUNCTIONS[kind](a).astype(np.float32))
    return _scalar(_flush(r) if ftz else r)


_FUNCTIONS = {
    "ex2": np.exp2,
    "lg2": np.log2,
    "rcp": lambda v: 1.0 / v,
    "sqrt": np.sqrt,
    "rsqrt": lambda v: 1.0 / np.sqrt(v),
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}


@op
def divide(mode: str, ftz: bool, a, b):
    """``div`` of float32; ``approx`` and ``full`` are rounded to nearest."""
    if mode == "approx":
        a, b = (_flush(x) if ftz else np.asarray(x, dtype=np.float32) for x in (a, b))
        r = _canonical(np.asarray(fast_divide(a, b)))
        return _scalar(_flush(r) if ftz else r)
    a, b = (_flush(x) if ftz else np.asarray(x, dtype=np.float32) for x in (a, b))
    r = (a.astype(np.float64) / b).astype(np.float32)
    r = _canonical(_directed(mode, r, _side_of_quotient(r, a, b)))
    return _scalar(_flush(r) if ftz else r)


@op
def square_root(mode: str, ftz: bool, x):
    """``sqrt`` of float32 in a rounding mode."""
    a = _flush(x) if ftz else np.asarray(x, dtype=np.float32)
    r = np.sqrt(a)
    wide = r.astype(np.float64)
    r = _canonical(_directed(mode, r, np.sign(wide * wide - a)))
    return _scalar(_flush(r) if ftz else r)


def _side_of_quotient(r, a, b):
    """1 where ``r`` is above ``a / b``, -1 where it is below, 0 where it is just that.

    The product of two float32 numbers is exact in float64, but for what is smaller than float64's
    smallest: scaling by powers of two keeps it away from there.
    """
    scale = np.float64(2.0**300)
    over = np.sign(r * scale * b - a * scale)
    return np.where(np.signbit(b), -over, over)


def _directed(mode: str, r, side):
    """A float32 rounded to nearest, moved to where a directed mode rounds; ``side`` as above."""
    down, up = np.nextafter(r, np.float32(-np.inf)), np.nextafter(r, np.float32(np.inf))
    if mode == "rz":
        mode_down, mode_up = (side > 0) & (r > 0), (side < 0) & (r < 0)
    else:
        mode_down, mode_up = (side > 0) & (mode == "rm"), (side < 0) & (mode == "rp")
    return np.where(mode_down, down, np.where(mode_up, up, r))


@op
def f64(kind: str, *args):
    """``add``, ``sub``, ``mul``, ``div`` or ``fma`` of float64, rounded to nearest."""
    a, b, *rest = (np.asarray(x, dtype=np.float64) for x in args)
    if kind != "fma":
        functions = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
        return _scalar(functions[kind](a, b))
    c = rest[0]
    high, low = _product(a, b)
    upper, lower = _two_sum(c, low)
    top, bottom = _two_sum(high, upper)
    error = _two_sum(bottom, lower)
    r = top + _odd(*error)
    return _scalar(np.where(np.isfinite(r), r, a * b + c))


def _two_sum(a, b):
    """A rounded sum and what it leaves out (Knuth)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _product(a, b):
    """A rounded product and what it leaves out (Dekker)."""

    def split(x):
        c = x * 134217729.0  # 2**27 + 1
        high = c - (c - x)
        return high, x - high

    p = a * b
    (ah, al), (bh, bl) = split(a), split(b)
    return p, al * bl - (((p - ah * bh) - al * bh) - ah * bl)


@op
def approximate_f64(kind: str, x):
    """``rcp.approx.ftz.f64`` and ``rsqrt.approx.ftz.f64``: from upper half to upper half."""
    upper = np.uint64(0xFFFFFFFF00000000)
    bits = np.asarray(x, dtype=np.float64).view(np.uint64) & upper
    r = np.asarray(flushed(_FUNCTIONS[kind](np.asarray(flushed(bits.view(np.float64))))))
    return _scalar((r.view(np.uint64) & upper).view(np.float64))


# ------------------------------------------------------------------------------ 16-bit numbers


@op
def numbers16(x, of: str):
    """16-bit numbers as float32; a packed pair has them on a last axis, the lower first."""
    dtype = "bfloat16" if of.startswith("bf16") else "float16"
    if not of.endswith("x2"):
        return numerics.to_f32(x, dtype)
    pair = _parts(np.asarray(x).astype(np.uint32), np.uint16)
    return numerics.to_f32(pair if dtype == "bfloat16" else pair.view(np.float16), dtype)


_NAN16 = np.uint16(0x7FFF).view(np.float16)


def _closed(r, of: str):
    """float32 (or float64) numbers rounded to 16 bits, as :func:`numbers16` took them."""
    if of.startswith("bf16"):
        r = numerics.f32_to_bf16(_odd32(r))
    else:
        nan = r != r
        with np.errstate(over="ignore"):
            r = np.asarray(r).astype(np.float16)
        if np.any(nan):
            r = np.where(nan, _NAN16, r)
    if not of.endswith("x2"):
        return _scalar(r)
    words = np.ascontiguousarray(r).view(np.uint32)[..., 0]
    return int(words) if words.ndim == 0 else words.astype(np.int64)


def _odd32(r):
    """float64 to float32, rounded to odd: a last rounding to fewer bits is then right."""
    if r.dtype == np.float32:
        return r
    near = r.astype(np.float32)
    wide = near.astype(np.float64)
    cut = np.where(np.abs(wide) > np.abs(r), np.nextafter(near, np.float32(0)), near)
    inexact = (wide != r) & np.isfinite(r)
    bits = np.asarray(cut).view(np.uint32) | inexact.astype(np.uint32)
    return np.asarray(bits).view(np.float32)


@op
def half(kind: str, of: str, ftz: bool, sat: bool, relu: bool, *args):
    """Arithmetic of ``f16``, ``bf16`` and packed pairs of them: ``add``, ``sub``, ``mul``, ``fma``,
    ``neg``, ``abs``, and ``tanh`` and ``ex2`` in ``.approx``.

    Sums and products of 16-bit numbers are rounded once: float32 has more than twice their digits.
    """
    smallest = np.float32(2.0**-126 if of.startswith("bf16") else 2.0**-14)

    def flushed(x):
        return np.where(np.abs(x) < smallest, np.copysign(np.float32(0), x), x) if ftz else x

    x = [flushed(numbers16(a, of)) for a in args]
    if kind == "fma":
        wide = [a.astype(np.float64) for a in x]
        r = _sum(wide[0] * wide[1], wide[2])
    elif kind in ("tanh", "ex2"):
        r = _FUNCTIONS[kind](x[0].astype(np.float64))
    else:
        r = {
            "add": np.add,
            "sub": np.subtract,
            "mul": np.multiply,
            "neg": lambda a: -a,
            "abs": np.abs,
        }[kind](*x)
    if sat:
        r = _saturated(np.asarray(r))
    if relu:
        r = np.where(r < 0, 0, r) + r.dtype.type(0)  # -0 too becomes +0
    closed = _closed(np.asarray(r), of)
    return _closed(flushed(numbers16(closed, of)), of) if ftz else closed


# ------------------------------------------------------------------------------- comparisons


@op
def extreme(kind: str, nan: bool, *args):
    """``min`` or ``max`` of floats: a NaN loses, or wins with ``.NaN``; -0 is less than +0."""
    combine = {
        ("min", False): np.fmin,
        ("max", False): np.fmax,
        ("min", True): np.minimum,
        ("max", True): np.maximum,
    }[kind, nan]
    r = args[0]
    for other in args[1:]:
        r = combine(r, other)
    if not np.asarray(r).all():  # once more: which of two zeros
        r = args[0]
        for other in args[1:]:
            before, r = r, combine(r, other)
            both = (before == 0) & (other == 0)
            zero = before + other if kind == "max" else -((-before) + (-other))
            r = np.where(both, zero, r)
    r = np.asarray(r)
    return _scalar(_canonical(r) if r.dtype == np.float32 else r)


@op
def extreme_of(kind: str, of: str, ftz: bool, nan: bool, how: str, *args):
    """``min`` or ``max`` of any float type; ``how``: ``xorsign.abs`` (the sign of the product),
    ``abs`` (of magnitudes), ``relu`` (not below 0), or nothing."""
    narrow = of in ("f16", "bf16", "f16x2", "bf16x2")
    x = [numbers16(a, of) if narrow else np.asarray(a) for a in args]
    if ftz:
        smallest = x[0].dtype.type(2.0**-14 if of.startswith("f16") else 2.0**-126)
        x = [np.where(np.abs(a) < smallest, np.copysign(a.dtype.type(0), a), a) for a in x]
    sizes = [np.abs(a) for a in x] if "abs" in how else x
    r = np.asarray(extreme(kind, nan, *sizes))
    if "xorsign" in how:
        negative = np.signbit(x[0]) ^ np.signbit(x[1])
        r = np.where(negative, -np.abs(r), np.abs(r))
    if how == "relu":
        r = np.where(r < 0, r.dtype.type(0), r)
    return _closed(r, of) if narrow else _scalar(_canonical(r) if of == "f32" else r)


@op
def sign_changed(kind: str, x):
    """``neg`` and ``abs``: of a NaN, float32 gives the one that its instructions give, float64 a
    quiet one of the same sign."""
    a = np.asarray(x)
    r = -a if kind == "neg" else np.abs(a)
    if a.dtype == np.float32:
        return _scalar(_canonical(r))
    return _scalar(np.where(a != a, a + 0, r))


@op
def truth(cmp: str, a, b):
    """A comparison of floats; the ordered ones are false for NaN, the unordered ones true."""
    a, b = np.asarray(a), np.asarray(b)
    nan = np.isnan(a) | np.isnan(b)
    if cmp in ("num", "nan"):
        r = nan if cmp == "nan" else ~nan
    else:
        compare = {
            "eq": np.equal,
            "ne": np.not_equal,
            "lt": np.less,
            "le": np.less_equal,
            "gt": np.greater,
            "ge": np.greater_equal,
        }[cmp[:2]]
        r = compare(a, b)
        r = r | nan if cmp.endswith("u") else r & ~nan
    return _scalar(r)


@op
def kind_of_number(what: str, x):
    """``testp``: ``finite``, ``infinite``, ``number``, ``notanumber``, ``normal`` or
    ``subnormal``."""
    a = np.asarray(x)
    small = np.abs(a) < np.finfo(a.dtype).tiny
    return _scalar(
        {
            "finite": np.isfinite(a),
            "infinite": np.isinf(a),
            "number": ~np.isnan(a),
            "notanumber": np.isnan(a),
            "normal": np.isfinite(a) & ~(small & (a != 0)),  # zero counts as normal
            "subnormal": small & (a != 0),
        }[what]
    )


@op
def fast_divide(a, b):
    """``__fdividef``: a quotient of float32 numbers, 0 for divisors beyond 2**126."""
    a, b = np.asarray(a, dtype=np.float32), np.asarray(b, dtype=np.float32)
    large = (np.abs(b) > np.float32(2.0**126)) & np.isfinite(b)
    r = (a.astype(np.float64) / b).astype(np.float32)
    return _scalar(np.where(large, np.where(np.isinf(a), np.float32(np.nan), a * 0), r))


_error_function = np.vectorize(math.erf, otypes=[np.float64])

_MATHEMATICS = {
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "atan2": np.arctan2,
    "pow": np.power,
    "fmod": np.fmod,
    "hypot": np.hypot,
    "copysign": np.copysign,
    "trunc": np.trunc,
    "nearbyint": np.rint,
    "round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
    "erf": _error_function,
    "log1p": np.log1p,
    "log10": np.log10,
    "exp10": lambda x: np.power(10.0, x),
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "tanh": np.tanh,
}


@op
def mathematics(name: str, *args):
    """CUDA's mathematical functions: computed in float64 and rounded once."""
    first = np.asarray(args[0])
    if name == "nextafter":
        return _scalar(np.nextafter(first, np.asarray(args[1], dtype=first.dtype)))
    if name == "ldexp":
        return _scalar(np.ldexp(first, np.asarray(args[1]).astype(np.int32)))
    wide = [np.asarray(a).astype(np.float64) for a in args]
    return _scalar(np.asarray(_MATHEMATICS[name](*wide)).astype(first.dtype))
