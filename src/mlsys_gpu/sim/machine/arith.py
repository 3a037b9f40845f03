"""PTX arithmetic, rounded as the ISA says: float32 in every rounding mode, packed pairs, integers.

Values are NumPy scalars or arrays (or Python ints); packed ``f32x2`` values are ``uint64``, the
first float in the lower half. Source: PTX ISA, "Floating-Point Instructions" and the integer,
logic and shift sections.
"""

from __future__ import annotations

import numpy as np

from mlsys_gpu.sim.machine.core import op

_TINY = np.float32(1.1754944e-38)  # the smallest normal float32


def _flush(x):
    """Subnormals to zeros of the same sign (``.ftz``)."""
    x = np.asarray(x, dtype=np.float32)
    return np.where(np.abs(x) < _TINY, np.copysign(np.float32(0), x), x)


def _odd(s, error):
    """A float64 sum rounded to odd: where it is inexact, its last bit says so for the next step."""
    bits = s.view(np.int64)
    even = (error != 0) & ((bits & 1) == 0) & np.isfinite(s)
    towards = np.where(error > 0, np.inf, -np.inf)
    return np.where(even, np.nextafter(s, towards), s)


def _sum(a, b):
    """``a + b`` of float64 values, rounded to odd."""
    s = a + b
    t = s - a
    return _odd(s, (a - (s - t)) + (b - t))


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


def _binary32(kind: str, mode: str, ftz: bool, sat: bool, args):
    args = [_flush(x) if ftz else np.asarray(x, dtype=np.float32) for x in args]
    if mode in ("rn", "") and kind != "fma":
        a, b = args
        r = a + b if kind == "add" else a - b if kind == "sub" else a * b
    else:
        wide = [x.astype(np.float64) for x in args]
        if kind == "add":
            s = _sum(wide[0], wide[1])
        elif kind == "sub":
            s = _sum(wide[0], -wide[1])
        elif kind == "mul":
            s = wide[0] * wide[1]
        else:
            s = _sum(wide[0] * wide[1], wide[2])
        r = _to_f32(s, mode)
    if ftz:
        r = _flush(r)
    if sat:
        r = np.clip(np.where(np.isnan(r), np.float32(0), r), np.float32(0), np.float32(1))
    return np.asarray(r, dtype=np.float32)


def _scalar(r):
    return r[()] if getattr(r, "ndim", 1) == 0 else r


@op
def f32(kind: str, mode: str, ftz: bool, sat: bool, *args):
    """``add``, ``sub``, ``mul`` or ``fma`` of float32."""
    return _scalar(_binary32(kind, mode, ftz, sat, args))


def _halves(x):
    wide = np.asarray(x, dtype=np.uint64)
    return np.ascontiguousarray(wide)[..., None].view(np.float32)


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
    low, high = np.broadcast_arrays(low, high)
    return low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)


@op
def unpack64(value, which: int):
    """The lower (0) or upper (1) half of a 64-bit value, as uint32."""
    if not isinstance(value, np.ndarray):
        return np.uint32(int(value) >> 32 * which & 0xFFFFFFFF)
    shifted = value.astype(np.uint64) >> np.uint64(32 * which)
    return (shifted & np.uint64(0xFFFFFFFF)).astype(np.uint32)


@op
def approximate(kind: str, ftz: bool, x):
    """``ex2``, ``lg2``, ``rcp``, ``sqrt``, ``rsqrt``, ``tanh`` in ``.approx``: the float64 result
    rounded to float32, where the hardware is within the ISA's error of it."""
    a = (_flush(x) if ftz else np.asarray(x, dtype=np.float32)).astype(np.float64)
    r = {
        "ex2": np.exp2,
        "lg2": np.log2,
        "rcp": lambda v: 1.0 / v,
        "sqrt": np.sqrt,
        "rsqrt": lambda v: 1.0 / np.sqrt(v),
        "tanh": np.tanh,
    }[kind](a).astype(np.float32)
    return _scalar(_flush(r) if ftz else r)


@op
def extreme(kind: str, nan: bool, *args):
    """``min`` or ``max`` of floats: a NaN loses, or wins with ``.NaN``."""
    combine = {
        ("min", False): np.fmin,
        ("max", False): np.fmax,
        ("min", True): np.minimum,
        ("max", True): np.maximum,
    }[kind, nan]
    r = args[0]
    for other in args[1:]:
        r = combine(r, other)
    return r


def _word(x, bits: int):
    """An integer's low bits, unsigned: a Python int, or a uint64 array."""
    if isinstance(x, np.ndarray):
        return x.astype(np.uint64) & np.uint64((1 << bits) - 1)
    return int(x) & ((1 << bits) - 1)


def _plain(x, bits: int, signed: bool):
    """Bits as the emitted code holds integers: Python ints, int64 arrays, uint64 arrays."""
    if not isinstance(x, np.ndarray):
        x &= (1 << bits) - 1
        return x - (1 << bits) if signed and x >> (bits - 1) else x
    x = x & np.uint64((1 << bits) - 1)
    if bits == 64:
        return x.astype(np.int64) if signed else x
    x = x.astype(np.int64)
    return np.where(x >> (bits - 1) & 1, x - (1 << bits), x) if signed else x


@op
def shift(kind: str, a, b, bits: int, signed: bool):
    """``shl`` and ``shr``: amounts at or past the width give 0 (or the sign)."""
    amount = (
        np.minimum(_word(b, 32), bits) if isinstance(b, np.ndarray) else min(_word(b, 32), bits)
    )
    if kind == "shl":
        if not isinstance(a, np.ndarray) and not isinstance(amount, np.ndarray):
            return _plain(_word(a, bits) << int(amount), bits, signed)
        word, many = np.broadcast_arrays(_word(np.asarray(a), bits), np.asarray(amount))
        many = many.astype(np.uint64)
        moved = np.where(many >= 64, np.uint64(0), word << np.minimum(many, np.uint64(63)))
        return _plain(moved, bits, signed)
    if signed:
        amount = (
            np.minimum(amount, bits - 1)
            if isinstance(amount, np.ndarray)
            else min(amount, bits - 1)
        )
        if isinstance(a, np.ndarray) or isinstance(amount, np.ndarray):
            return np.asarray(a).astype(np.int64) >> np.asarray(amount).astype(np.int64)
        return a >> amount
    if not isinstance(a, np.ndarray) and not isinstance(amount, np.ndarray):
        return _word(a, bits) >> int(amount)
    word, many = np.broadcast_arrays(_word(np.asarray(a), bits), np.asarray(amount))
    many = many.astype(np.uint64)
    moved = np.where(many >= 64, np.uint64(0), word >> np.minimum(many, np.uint64(63)))
    return _plain(moved, bits, False)


@op
def lop3(a, b, c, table: int):
    """``lop3.b32``: any logic function of three bits, by its truth table."""
    total = 0
    for i in range(8):
        if table >> i & 1:
            x = a if i & 4 else ~a
            y = b if i & 2 else ~b
            z = c if i & 1 else ~c
            total = total | (x & y & z)
    return total & 0xFFFFFFFF


@op
def mul_high(a, b, bits: int, signed: bool):
    """``mul.hi``: the upper half of a product."""
    if not isinstance(a, np.ndarray) and not isinstance(b, np.ndarray):
        return _plain(int(a) * int(b) >> bits, bits, signed)
    product = [
        x * y for x, y in zip(*(np.broadcast_to(v, (32,)).tolist() for v in (a, b)), strict=True)
    ]
    return np.array([_plain(p >> bits, bits, signed) for p in product], dtype=np.int64)


@op
def count_bits(kind: str, a, bits: int):
    """``popc`` and ``clz``."""

    def one(x: int) -> int:
        x &= (1 << bits) - 1
        return x.bit_count() if kind == "popc" else bits - x.bit_length()

    if not isinstance(a, np.ndarray):
        return one(int(a))
    return np.array([one(int(x)) for x in a.reshape(-1)], dtype=np.int64).reshape(a.shape)


@op
def permute_bytes(a, b, selector):
    """``prmt.b32`` in its default mode: four bytes chosen from the eight of ``b:a``."""

    def part(x):
        return np.asarray(x, dtype=np.int64) & 0xFFFFFFFF

    low, high, chosen = np.broadcast_arrays(part(a), part(b), part(selector))
    result = np.zeros(low.shape, dtype=np.int64)
    for i in range(4):
        nibble = chosen >> 4 * i & 15
        index = nibble & 7
        byte = np.where(index < 4, low >> 8 * (index & 3), high >> 8 * (index & 3)) & 0xFF
        byte = np.where(nibble & 8, np.where(byte & 0x80, 0xFF, 0), byte)
        result |= byte << 8 * i
    return int(result) if result.ndim == 0 else result
