"""PTX's arithmetic, instruction by instruction, against the ISA's formulas in Python's integers.

One kernel holds all instructions; each thread has operands of its own. The expected results are
computed one thread at a time, from the PTX ISA's semantics, with exact rationals where rounding
matters.
"""

import math
import struct
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from mlsys_gpu import sim

from .sources import module_from

N = 64
RNG = np.random.default_rng(11)
M32, M64 = (1 << 32) - 1, (1 << 64) - 1

EDGES = [0, 1, 2, 31, 32, 33, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x0000FF80, 0x00800000, 24]


def words(bits, edges=()):
    values = RNG.integers(0, 1 << bits, N, dtype=np.uint64, endpoint=False)
    values[: len(edges)] = [e & ((1 << bits) - 1) for e in edges]
    return values.astype(f"uint{bits}")


def some_floats(dtype):
    scale = 2.0 ** RNG.integers(-12, 12, N)
    values = (RNG.standard_normal(N) * scale).astype(dtype)
    values[:10] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.5, 0.5, 3.0, -65504.0]
    return values


INPUTS = {
    "u": [words(32, EDGES), words(32, EDGES[::-1]), words(32, [0, 5, 31, 32, 40, 255, 3, 7])],
    "q": [words(64, [0, 1, M64, 1 << 63]), words(64, [3, M64, 2, 1 << 63])],
    "f": [some_floats(np.float32) for _ in range(3)],
    "h": [some_floats(np.float16).view(np.uint16) for _ in range(3)],
    "e": [some_floats(ml_dtypes.bfloat16).view(np.uint16) for _ in range(3)],
    "d": [some_floats(np.float64) for _ in range(3)],
}
INPUTS["u"][2][8:] %= 40  # often a shift or a length
INPUTS["q"][1][8:] %= 1000
DTYPES = {"u": "uint32", "q": "uint64", "f": "float32", "h": "uint16", "e": "uint16",
          "d": "float64", "i": "int32", "l": "int64", "c": "uint8"}  # fmt: skip


def s(value, bits=32):
    """A word as a signed integer."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


CASES = []


def op(text, into, *operands, want):
    """``text``: the instruction; ``into``: the kind of its result; ``want`` gets its operands."""
    CASES.append((text, into, operands, want))


# ------------------------------------------------------------------------------------ integers

op("add.u32", "u", "u0", "u1", want=lambda a, b: a + b)
op("sub.s32", "i", "i0", "i1", want=lambda a, b: a - b)
op("add.sat.s32", "i", "i0", "i1", want=lambda a, b: min(max(a + b, -(1 << 31)), (1 << 31) - 1))
op("add.u64", "q", "q0", "q1", want=lambda a, b: a + b)
op("sub.s64", "l", "l0", "l1", want=lambda a, b: a - b)
op("mul.lo.u32", "u", "u0", "u1", want=lambda a, b: a * b)
op("mul.hi.u32", "u", "u0", "u1", want=lambda a, b: a * b >> 32)
op("mul.hi.s32", "i", "i0", "i1", want=lambda a, b: a * b >> 32)
op("mul.hi.u64", "q", "q0", "q1", want=lambda a, b: a * b >> 64)
op("mul.hi.s64", "l", "l0", "l1", want=lambda a, b: a * b >> 64)
op("mul.wide.u32", "q", "u0", "u1", want=lambda a, b: a * b)
op("mul.wide.s32", "l", "i0", "i1", want=lambda a, b: a * b)
op("mad.lo.s32", "i", "i0", "i1", "i2", want=lambda a, b, c: a * b + c)
op("mad.hi.u32", "u", "u0", "u1", "u2", want=lambda a, b, c: (a * b >> 32) + c)
op("mad.wide.u32", "q", "u0", "u1", "q0", want=lambda a, b, c: a * b + c)
op("sad.u32", "u", "u0", "u1", "u2", want=lambda a, b, c: c + abs(a - b))
op("sad.s32", "i", "i0", "i1", "i2", want=lambda a, b, c: c + abs(a - b))
op("abs.s32", "i", "i0", want=abs)
op("neg.s32", "i", "i0", want=lambda a: -a)
op("neg.s64", "l", "l0", want=lambda a: -a)
op("min.s32", "i", "i0", "i1", want=min)
op("max.u64", "q", "q0", "q1", want=max)
op("max.relu.s32", "i", "i0", "i1", want=lambda a, b: max(a, b, 0))
op("rem.s32", "i", "i0", "ic", want=lambda a, b: int(math.fmod(a, b)) if abs(a) < 1 << 50 else 0)
op("div.u32", "u", "u0", "uc", want=lambda a, b: a // b)


def halves_of(word, signed):
    pair = [word & 0xFFFF, word >> 16]
    return [s(x, 16) if signed else x for x in pair]


def paired(function, signed=False):
    def want(a, b):
        low, high = (
            function(x, y) for x, y in zip(halves_of(a, signed), halves_of(b, signed), strict=True)
        )
        return low & 0xFFFF | (high & 0xFFFF) << 16

    return want


op("add.u16x2", "u", "u0", "u1", want=paired(lambda x, y: x + y))
op("max.s16x2", "u", "u0", "u1", want=paired(max, True))
op("min.u16x2", "u", "u0", "u1", want=paired(min))
op("max.relu.s16x2", "u", "u0", "u1", want=paired(lambda x, y: max(x, y, 0), True))


def low24(value, signed):
    value &= 0xFFFFFF
    return s(value, 24) if signed else value


op("mul24.lo.u32", "u", "u0", "u1", want=lambda a, b: low24(a, False) * low24(b, False))
op("mul24.hi.s32", "i", "i0", "i1", want=lambda a, b: low24(a, True) * low24(b, True) >> 16)
op("mad24.lo.s32", "i", "i0", "i1", "i2",
   want=lambda a, b, c: low24(a, True) * low24(b, True) + c)  # fmt: skip


def dot(a, b, c, size, count, signed_a, signed_b, first=0):
    for k in range(count):
        x = a >> size * k & ((1 << size) - 1)
        y = b >> 8 * (first + k) & 0xFF
        c += (s(x, size) if signed_a else x) * (s(y, 8) if signed_b else y)
    return c


op("dp4a.u32.u32", "u", "u0", "u1", "u2",
   want=lambda a, b, c: dot(a, b, c, 8, 4, False, False))  # fmt: skip
op("dp4a.s32.u32", "i", "i0", "u1", "i2",
   want=lambda a, b, c: dot(a & M32, b, c, 8, 4, True, False))  # fmt: skip
op("dp2a.hi.s32.s32", "i", "i0", "i1", "i2",
   want=lambda a, b, c: dot(a & M32, b & M32, c, 16, 2, True, True, 2))  # fmt: skip

# ------------------------------------------------------------------------------ bits and shifts

op("and_.b32", "u", "u0", "u1", want=lambda a, b: a & b)
op("or_.b64", "q", "q0", "q1", want=lambda a, b: a | b)
op("xor.b32", "u", "u0", "u1", want=lambda a, b: a ^ b)
op("not_.b32", "u", "u0", want=lambda a: ~a)
op("cnot.b32", "u", "u0", want=lambda a: int(a == 0))
op("shl.b32", "u", "u0", "u2", want=lambda a, n: a << n if n < 32 else 0)
op("shr.u32", "u", "u0", "u2", want=lambda a, n: a >> n)
op("shr.s32", "i", "i0", "u2", want=lambda a, n: a >> min(n, 31))
op("shl.b64", "q", "q0", "u2", want=lambda a, n: a << n if n < 64 else 0)
op("shr.s64", "l", "l0", "u2", want=lambda a, n: a >> min(n, 63))
op("shf.l.wrap.b32", "u", "u0", "u1", "u2", want=lambda a, b, n: (b << 32 | a) << n % 32 >> 32)
op("shf.r.clamp.b32", "u", "u0", "u1", "u2", want=lambda a, b, n: (b << 32 | a) >> min(n, 32))
op("lop3.b32", "u", "u0", "u1", "u2", "T.int32(0xE8)",
   want=lambda a, b, c, _: a & b | a & c | b & c)  # fmt: skip
op("popc.b32", "u", "u0", want=lambda a: bin(a).count("1"))
op("popc.b64", "u", "q0", want=lambda a: bin(a).count("1"))
op("clz.b32", "u", "u0", want=lambda a: 32 - a.bit_length())
op("brev.b32", "u", "u0", want=lambda a: int(f"{a:032b}"[::-1], 2))
op("brev.b64", "q", "q0", want=lambda a: int(f"{a:064b}"[::-1], 2))


def bfind(a, bits, signed, amount=False):
    if signed and a < 0:
        a = ~a
    for i in range(bits - 1, -1, -1):
        if a >> i & 1:
            return bits - 1 - i if amount else i
    return M32


op("bfind.u32", "u", "u0", want=lambda a: bfind(a, 32, False))
op("bfind.s32", "u", "i0", want=lambda a: bfind(a, 32, True))
op("bfind.shiftamt.u32", "u", "u0", want=lambda a: bfind(a, 32, False, True))


def field(pos, length, bits):
    """The ISA takes both modulo 256; of 64 bits an H200 takes them whole (tests/sim/vectors)."""
    most = 0xFF if bits == 32 else M32
    return min(pos & most, 256), min(length & most, 256)


def bfe(a, pos, length, bits, signed):
    pos, length = field(pos, length, bits)
    a &= (1 << bits) - 1
    sign = 0 if not signed or length == 0 else a >> min(pos + length - 1, bits - 1) & 1
    d = 0
    for i in range(bits):
        inside = i < length and pos + i < bits
        d |= (a >> (pos + i) & 1 if inside else sign) << i
    return d


def bfi(a, b, pos, length, bits):
    f = b
    pos, length = field(pos, length, bits)
    for i in range(length):
        at = pos + i
        if at < bits:
            f = f & ~(1 << at) | (a >> i & 1) << at
    return f


op("bfe.u32", "u", "u0", "u2", "u1", want=lambda a, p, n: bfe(a, p, n, 32, False))
op("bfe.s32", "i", "i0", "u2", "u1", want=lambda a, p, n: bfe(a, p, n, 32, True))
op("bfe.s64", "l", "l0", "u2", "u2", want=lambda a, p, n: bfe(a, p, n, 64, True))
op("bfi.b32", "u", "u0", "u1", "u2", "u2", want=lambda a, b, p, n: bfi(a, b, p, n, 32))
op("bfi.b64", "q", "q0", "q1", "u2", "u1", want=lambda a, b, p, n: bfi(a, b, p, n, 64))


def bmsk(a, b, clamp):
    low = M32 << (a & 31) & M32
    total = (a & 31) + (b & 31)
    above = M32 << total & M32 if total < 32 else 0
    if clamp and a >= 32:
        low = 0
    if total >= 32 or (clamp and (a >= 32 or b >= 32)):
        above = 0
    elif b & 31 == 0:
        above = M32
    return low & ~above


def szext(a, n, clamp, signed):
    if clamp and n >= 32:
        return a
    n &= 31
    field = a & ((1 << n) - 1)
    return s(field, n) if signed and n else field


def fns(mask, base, offset):
    if offset == 0:
        return base if base < 32 and mask >> base & 1 else M32
    at, count, step = base, abs(offset) - 1, 1 if offset > 0 else -1
    while 0 <= at < 32:
        if mask >> at & 1:
            if count == 0:
                return at
            count -= 1
        at += step
    return M32


op("bmsk.clamp.b32", "u", "u2", "u0", want=lambda a, b: bmsk(a, b, True))
op("bmsk.wrap.b32", "u", "u0", "u2", want=lambda a, b: bmsk(a, b, False))
op("szext.clamp.s32", "i", "i0", "u2", want=lambda a, n: szext(a & M32, n, True, True))
op("szext.wrap.u32", "u", "u0", "u2", want=lambda a, n: szext(a, n, False, False))
op("fns.b32", "u", "u0", "u2", "iv", want=fns)


def prmt(a, b, c, rows=None):
    source = b << 32 | a
    picks = [c >> 4 * k & 15 for k in range(4)] if rows is None else rows[c & 3]
    d = 0
    for k, n in enumerate(picks):
        byte = source >> 8 * (n & 7) & 0xFF
        if n & 8:
            byte = 0xFF if byte & 0x80 else 0
        d |= byte << 8 * k
    return d


op("prmt.b32", "u", "u0", "u1", "u0", want=prmt)
op("prmt.b32.f4e", "u", "u0", "u1", "u2",
   want=lambda a, b, c: prmt(a, b, c, [[k + r for k in range(4)] for r in range(4)]))  # fmt: skip
op("prmt.b32.rc16", "u", "u0", "u1", "u2",
   want=lambda a, b, c: prmt(a, b, c, [[0, 1, 0, 1], [2, 3, 2, 3]] * 2))  # fmt: skip


def packed(a, b, c, bits, signed):
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    one, two = (min(max(x, low), high) & ((1 << bits) - 1) for x in (a, b))
    return c << 2 * bits | one << bits | two


op("cvt_pack.sat.u16.s32", "u", "i0", "i1", want=lambda a, b: packed(a, b, 0, 16, False))
op("cvt_pack.sat.s8.s32.b32", "u", "i0", "i1", "u2",
   want=lambda a, b, c: packed(a, b, c, 8, True))  # fmt: skip

# --------------------------------------------------------------------------------- comparisons


def ones(test):
    return M32 if test else 0


op("set.lt.u32.s32", "u", "i0", "i1", want=lambda a, b: ones(a < b))
op("set.hi.u32.u32", "u", "u0", "u1", want=lambda a, b: ones(a > b))
op("set.ne.u32.f32", "u", "f0", "f1", want=lambda a, b: ones(a == a and b == b and a != b))
op("set.neu.u32.f32", "u", "f0", "f1", want=lambda a, b: ones(a != b))
op("set.ltu.f32.f32", "f", "f0", "f1", want=lambda a, b: float(not a >= b))
op("set.num.u32.f32", "u", "f0", "f1", want=lambda a, b: ones(a == a and b == b))
op("slct.u32.s32", "u", "u0", "u1", "i2", want=lambda a, b, c: a if c >= 0 else b)
op("slct.u32.f32", "u", "u0", "u1", "f0", want=lambda a, b, c: a if c >= 0 else b)

# -------------------------------------------------------------------------------------- floats


def exact(value):
    return Fraction(float(value))


def to_float32(value, mode="rn"):
    """A rational rounded to float32: the nearest is Python's, the directed ones its neighbour's."""
    with np.errstate(over="ignore"):
        near = np.float32(float(value))  # float(Fraction) rounds to nearest once
    candidates = {np.nextafter(near, np.float32(t)) for t in (-np.inf, np.inf)} | {near}
    finite = [x for x in candidates if np.isfinite(x)]
    below = max((x for x in finite if exact(x) <= value), default=None)
    above = min((x for x in finite if exact(x) >= value), default=None)
    if mode == "rn":
        if below is None or above is None or below == above:
            return near
        lower, upper = value - exact(below), exact(above) - value
        if lower == upper:
            return below if struct.unpack("<I", struct.pack("<f", below))[0] % 2 == 0 else above
        return below if lower < upper else above
    if mode == "rz":
        mode = "rm" if value > 0 else "rp"
    return below if mode == "rm" else above


def rational(function, mode):
    def want(*args):
        if not all(np.isfinite(args)):
            return None  # looked at elsewhere
        value = function(*(exact(a) for a in args))
        return None if value is None or value == 0 else to_float32(value, mode)

    return want


def quotient(a, b):
    return a / b if b else None


for mode in ("rn", "rz", "rm", "rp"):
    op(f"add.{mode}.f32", "f", "f0", "f1", want=rational(lambda a, b: a + b, mode))
    op(f"mul.{mode}.f32", "f", "f0", "f1", want=rational(lambda a, b: a * b, mode))
    op(f"fma.{mode}.f32", "f", "f0", "f1", "f2", want=rational(lambda a, b, c: a * b + c, mode))
    op(f"div.{mode}.f32", "f", "f0", "f1", want=rational(quotient, mode))
    op(f"rcp.{mode}.f32", "f", "f1", want=rational(lambda a: quotient(Fraction(1), a), mode))


def root(mode):
    def want(a):
        if not a > 0 or np.isinf(a):
            return None
        return to_float32(Fraction(math.isqrt(int(exact(a) * 2**300))) / 2**150, mode)

    return want


for mode in ("rn", "rz", "rp"):
    op(f"sqrt.{mode}.f32", "f", "f0", want=root(mode))


def fused(*x):
    return float(exact(x[0]) * exact(x[1]) + exact(x[2])) if all(np.isfinite(x)) else None


op("fma.rn.f64", "d", "d0", "d1", "d2", want=fused)
op("abs.f32", "f", "f0", want=abs)
op("neg.f64", "d", "d0", want=lambda a: -a)
op("copysign.f32", "f", "f0", "f1", want=lambda a, b: math.copysign(b, a))


def extreme(pick, nan):
    def want(a, b):
        if a != a or b != b:
            return math.nan if nan or (a != a and b != b) else (b if a != a else a)
        if a == b == 0:
            negative = [math.copysign(1, x) < 0 for x in (a, b)]
            return -0.0 if (all if pick is max else any)(negative) else 0.0
        return pick(a, b)

    return want


op("max.f32", "f", "f0", "f1", want=extreme(max, False))
op("min.NaN.f32", "f", "f0", "f1", want=extreme(min, True))
op("max.xorsign.abs.f32", "f", "f1", "f2",
   want=lambda a, b: None if a != a or b != b else math.copysign(
       max(abs(a), abs(b)), math.copysign(1, a) * math.copysign(1, b)))  # fmt: skip

# ------------------------------------------------------------------------------- 16-bit floats

HALF = {"h": ("f16", np.float16), "e": ("bf16", ml_dtypes.bfloat16)}


def narrow(value, dtype):
    """A rational as a 16-bit float, to nearest even, by way of a float64 rounded to odd."""
    wide = float(value)
    if Fraction(wide) != value and struct.unpack("<Q", struct.pack("<d", wide))[0] % 2 == 0:
        wide = math.nextafter(wide, math.inf if value > Fraction(wide) else -math.inf)
    if dtype is np.float16:
        with np.errstate(over="ignore"):
            return np.float16(wide)
    single = np.float32(wide)
    if exact(single) != Fraction(wide) and int(single.view(np.uint32)) % 2 == 0:
        single = np.nextafter(single, np.float32(math.inf if wide > single else -math.inf))
    return ml_dtypes.bfloat16(single)


def of_halves(function, kind):
    dtype = HALF[kind][1]

    def want(*args):
        numbers = [np.uint16(a).view(dtype) for a in args]
        if not all(np.isfinite(np.float64(n)) for n in numbers):
            return None
        value = function(*(exact(np.float64(n)) for n in numbers))
        return None if value == 0 else int(narrow(value, dtype).view(np.uint16))

    return want


for kind, (name, _) in HALF.items():
    op(f"add.{name}", kind, f"{kind}0", f"{kind}1", want=of_halves(lambda a, b: a + b, kind))
    op(f"mul.{name}", kind, f"{kind}0", f"{kind}1", want=of_halves(lambda a, b: a * b, kind))
    op(f"fma.rn.{name}", kind, f"{kind}0", f"{kind}1", f"{kind}2",
       want=of_halves(lambda a, b, c: a * b + c, kind))  # fmt: skip
    op(f"neg.{name}", kind, f"{kind}0", want=of_halves(lambda a: -a, kind))


def in_pairs(function, dtype):
    """An operation of packed numbers, rounded by NumPy or ml_dtypes."""

    def want(*args):
        pairs = [np.array([a & 0xFFFF, a >> 16], np.uint16).view(dtype) for a in args]
        with np.errstate(all="ignore"):
            r = function(*(p.astype(np.float32) for p in pairs)).astype(dtype)
        if np.isnan(r.astype(np.float32)).any():
            return None
        low, high = r.view(np.uint16).tolist()
        return low | high << 16

    return want


def larger(a, b):
    """The maximum, with +0 above -0."""
    return np.where((a == 0) & (b == 0), a + b, np.maximum(a, b))


for name, dtype in (("f16x2", np.float16), ("bf16x2", ml_dtypes.bfloat16)):
    op(f"add.{name}", "u", "u0", "u1", want=in_pairs(lambda a, b: a + b, dtype))
    op(f"sub.{name}", "u", "u0", "u1", want=in_pairs(lambda a, b: a - b, dtype))
    op(f"mul.{name}", "u", "u0", "u1", want=in_pairs(lambda a, b: a * b, dtype))
    op(f"max.{name}", "u", "u0", "u1", want=in_pairs(larger, dtype))
    op(f"abs.{name}", "u", "u0", want=in_pairs(np.abs, dtype))
op("add.rn.f32.bf16", "f", "e0", "f1",
   want=lambda a, b: to_float32(exact(np.float64(np.uint16(a).view(ml_dtypes.bfloat16))) + exact(b))
   if np.isfinite(b) and np.isfinite(np.float64(np.uint16(a).view(ml_dtypes.bfloat16)))
   and np.float64(np.uint16(a).view(ml_dtypes.bfloat16)) + b != 0 else None)  # fmt: skip

# --------------------------------------------------------------------------------- conversions


def whole(a, low, high, rounding):
    if a != a:  # of 64 bits, the uppermost alone: so on an H200 (tests/sim/vectors)
        return low if low == -(1 << 63) else 0
    return int(min(max(rounding(a), low), high)) if np.isfinite(a) else (high if a > 0 else low)


op("cvt.rni.s32.f32", "i", "f0", want=lambda a: whole(a, -(1 << 31), (1 << 31) - 1, np.rint))
op("cvt.rzi.u32.f32", "u", "f0", want=lambda a: whole(a, 0, M32, np.trunc))
op("cvt.rmi.s32.f32", "i", "f0", want=lambda a: whole(a, -(1 << 31), (1 << 31) - 1, np.floor))
op("cvt.rpi.f32.f32", "f", "f0", want=lambda a: float(np.ceil(a)))
op("cvt.rzi.s64.f64", "l", "d0", want=lambda a: whole(a, -(1 << 63), (1 << 63) - 1, np.trunc))
op("cvt.rz.f32.s32", "f", "i0", want=lambda a: to_float32(Fraction(a), "rz"))
op("cvt.rp.f32.u64", "f", "q0", want=lambda a: to_float32(Fraction(a), "rp"))
op("cvt.rn.f32.s64", "f", "l0", want=lambda a: to_float32(Fraction(a)))
op("cvt.rz.f32.f64", "f", "d0",
   want=lambda a: to_float32(exact(a), "rz") if np.isfinite(a) and a else None)  # fmt: skip
op("cvt.u64.u32", "q", "u0", want=lambda a: a)
op("cvt.s64.s32", "l", "i0", want=lambda a: a)
op("cvt.sat.f32.f32", "f", "f0", want=lambda a: 0.0 if a != a else min(max(0.0, a), 1.0))
op("cvt.rn.f16.f32", "h", "f0",
   want=lambda a: None if a != a else int(np.float16(np.float32(a)).view(np.uint16)))  # fmt: skip
op("cvt.rn.relu.bf16.f32", "e", "f0",
   want=lambda a: None if a != a else int(
       ml_dtypes.bfloat16(np.float32(max(0.0, a))).view(np.uint16)))  # fmt: skip


def tf32(a):
    bits = struct.unpack("<I", struct.pack("<f", a))[0]
    return (bits + 0x1000) & 0xFFFFE000  # ties away from zero: half of the last place is added


op("cvt.rna.tf32.f32", "u", "f0", want=lambda a: tf32(a) if np.isfinite(a) else None)


def narrowest(dtype, bits):
    limit = float(ml_dtypes.finfo(dtype).max)

    def want(a, b):
        if a != a or b != b:
            return None
        codes = []
        for x in (a, b):
            clipped = np.float32(min(max(x, -limit), limit))
            codes.append(int(np.asarray(clipped).astype(dtype).view(np.uint8)))
        return codes[0] << bits | codes[1]

    return want


op("cvt.rn.satfinite.e4m3x2.f32", "h", "f0", "f1",
   want=narrowest(ml_dtypes.float8_e4m3fn, 8))  # fmt: skip
op("cvt.rn.satfinite.e5m2x2.f32", "h", "f0", "f1", want=narrowest(ml_dtypes.float8_e5m2, 8))
op("cvt.rn.satfinite.e2m1x2.f32", "c", "f0", "f1", want=narrowest(ml_dtypes.float4_e2m1fn, 4))


def widened(dtype):
    def want(a):
        pair = np.array([a & 0xFF, a >> 8], np.uint8).view(dtype).astype(np.float32)
        if np.isnan(pair).any():
            return None
        low, high = pair.astype(np.float16).view(np.uint16).tolist()
        return low | high << 16

    return want


op("cvt.rn.f16x2.e4m3x2", "u", "h0", want=widened(ml_dtypes.float8_e4m3fn))
op("cvt.rn.f16x2.e5m2x2", "u", "e0", want=widened(ml_dtypes.float8_e5m2))


def powers(mode):
    def exponent(x):
        if x == 0:
            return 0
        m, e = math.frexp(abs(x))
        return max(e - 1 + (mode == "rp" and m != 0.5) + 127, 0)

    return lambda a, b: (
        exponent(a) << 8 | exponent(b) if np.isfinite(a) and np.isfinite(b) else None
    )


op("cvt.rp.satfinite.ue8m0x2.f32", "h", "f0", "f1", want=powers("rp"))
op("cvt.rz.satfinite.ue8m0x2.f32", "h", "f0", "f1", want=powers("rz"))


def stochastic(a, b, bits):
    """Random bits added below float16's last place, and the rest cut off (normal numbers)."""
    total = 0
    for x, random in ((a, bits >> 16 & 0x1FFF), (b, bits & 0x1FFF)):
        if not np.isfinite(x) or not 2.0**-14 <= abs(x) < 60000:
            return None
        word = struct.unpack("<I", struct.pack("<f", x))[0] + random & ~0x1FFF
        (cut,) = struct.unpack("<f", struct.pack("<I", word))
        total = total << 16 | int(np.float16(cut).view(np.uint16))
    return total


op("cvt.rs.f16x2.f32", "u", "f0", "f1", "u0", want=stochastic)

# ---------------------------------------------------------------------------------- the kernel


def argument(name):
    """An operand in the kernel's text: from the registers of its kind."""
    if name.startswith("T."):
        return name
    if name == "uc":
        return "(u[1] | T.uint32(1))"
    if name == "ic":
        return "(i[1] | T.int32(1))"
    if name == "iv":
        return "(i[2] % T.int32(5) - T.int32(2))"
    return f"{name[0]}[{name[1]}]"


def operand(name, lane):
    """The operand's value for a thread."""
    if name.startswith("T."):
        return None
    if name == "uc":
        return int(INPUTS["u"][1][lane]) | 1
    if name == "ic":
        return s(int(INPUTS["u"][1][lane])) | 1
    if name == "iv":
        return s(int(INPUTS["u"][2][lane])) % 5 - 2
    kind, which = name[0], int(name[1])
    if kind == "i":
        return s(int(INPUTS["u"][which][lane]))
    if kind == "l":
        return s(int(INPUTS["q"][which][lane]), 64)
    value = INPUTS[kind][which][lane]
    return float(value) if kind in "fd" else int(value)


def script(one_lane):
    counts = {kind: max(1, sum(c[1] == kind for c in CASES)) for kind in DTYPES}
    lines = [
        "from tvm.script import tirx as T",
        "",
        f"N = {N}",
        "",
        "",
        "@T.prim_func",
        "def kernel(",
    ]
    for kind, arrays in INPUTS.items():
        lines.append(f'    X{kind}: T.Buffer(({len(arrays)}, N), "{DTYPES[kind]}"),')
    for kind, dtype in DTYPES.items():
        lines.append(f'    Y{kind}: T.Buffer(({counts[kind]}, N), "{dtype}"),')
    lines += ["):", "    T.device_entry()", "    cta = T.cta_id([1])", "    tid = T.thread_id([N])"]
    body = len(lines)
    for kind, dtype in DTYPES.items():
        lines.append(f'    {kind} = T.alloc_local((3,), "{dtype}")')
        lines.append(f'    {kind}r = T.alloc_local(({counts[kind]},), "{dtype}")')
    for kind, arrays in INPUTS.items():
        lines += [f"    {kind}[{k}] = X{kind}[{k}, tid]" for k in range(len(arrays))]
    lines += [f'    i[{k}] = T.reinterpret("int32", u[{k}])' for k in range(3)]
    lines += [f'    l[{k}] = T.reinterpret("int64", q[{k}])' for k in range(2)]
    place = dict.fromkeys(DTYPES, 0)
    for text, into, operands, _ in CASES:
        args = ", ".join([f"{into}r[{place[into]}]", *map(argument, operands)])
        lines.append(f"    T.ptx.{text}({args})")
        place[into] += 1
    for kind in DTYPES:
        lines += [f"    Y{kind}[{k}, tid] = {kind}r[{k}]" for k in range(place[kind])]
    if one_lane is not None:
        lines[body:] = [
            f"    if tid == {one_lane}:",
            *("    " + line for line in lines[body:]),
        ]
    return "\n".join(lines) + "\n", counts


@pytest.fixture(scope="module", params=[None, 43], ids=["warps", "one lane"])
def results(request, tmp_path_factory):
    text, counts = script(request.param)
    kernel = module_from(tmp_path_factory.mktemp("arithmetic") / "kernel.py", text).kernel
    inputs = [np.stack(arrays) for arrays in INPUTS.values()]
    outputs = {k: np.zeros((counts[k], N), d) for k, d in DTYPES.items()}
    report = sim.simulate(kernel, *inputs, *outputs.values())
    assert not report.findings, report
    place, found = dict.fromkeys(DTYPES, 0), {}
    for text, into, operands, _ in CASES:
        found[text, operands] = outputs[into][place[into]]
        place[into] += 1
    return range(N) if request.param is None else [request.param], found


@pytest.mark.parametrize("case", CASES, ids=[f"{c[0]}-{'-'.join(c[2])}" for c in CASES])
def test_instruction(case, results):
    text, into, operands, want = case
    lanes, found = results
    got = found[text, operands]
    looked_at = 0
    for lane in lanes:
        expected = want(*(operand(name, lane) for name in operands))
        if expected is None:
            continue
        looked_at += 1
        if into in "fd":
            expected = np.asarray(expected, got.dtype)
            same = got[lane].tobytes() == expected.tobytes() or (
                got[lane] != got[lane] and expected != expected
            )
        else:
            same = int(got[lane]) & M64 == expected & M64 or int(got[lane]) & (
                (1 << 8 * got.itemsize) - 1
            ) == expected & ((1 << 8 * got.itemsize) - 1)
        inputs = [operand(name, lane) for name in operands]
        assert same, f"thread {lane}: {text} of {inputs} gave {got[lane]}, not {expected}"
    assert looked_at > N // 4 or len(lanes) == 1
