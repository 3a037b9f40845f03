"""PTX's integer, logic and shift instructions.

Integers of up to 32 bits are Python ints or int64 arrays, within their type's range; unsigned ones
of 64 bits are Python ints or uint64 arrays. Source: PTX ISA, "Integer Arithmetic Instructions",
"Logic and Shift Instructions" and "Data Movement and Conversion Instructions: prmt, cvt.pack".
"""

from __future__ import annotations

import numpy as np

from mlsys_gpu.sim.machine.compute import tdiv, tmod
from mlsys_gpu.sim.machine.core import op


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


def _each(function, bits: int, signed: bool, *args):
    """A function of Python integers, for each element of the arguments."""
    if not any(isinstance(a, np.ndarray) for a in args):
        return _plain(function(*(int(a) for a in args)), bits, signed)
    arrays = np.broadcast_arrays(*args)
    rows = zip(*(a.reshape(-1).tolist() for a in arrays), strict=True)
    dtype = np.uint64 if bits == 64 and not signed else np.int64
    flat = [_plain(int(function(*row)), bits, signed) for row in rows]
    return np.array(flat, dtype=dtype).reshape(arrays[0].shape)


@op
def mul_high(a, b, bits: int, signed: bool):
    """``mul.hi``: the upper half of a product."""
    if bits <= 32 and (isinstance(a, np.ndarray) or isinstance(b, np.ndarray)):
        product = np.asarray(a, dtype=np.int64) * np.asarray(b, dtype=np.int64)
        if signed or bits < 32:
            return product >> bits
        return (product.astype(np.uint64) >> np.uint64(32)).astype(np.int64)
    return _each(lambda x, y: x * y >> bits, bits, signed, a, b)


@op
def divided(kind: str, a, b):
    """``div`` and ``rem``. By zero they give all ones, as an H200 does (the ISA leaves it open)."""
    function = tdiv if kind == "div" else tmod
    if not isinstance(a, np.ndarray) and not isinstance(b, np.ndarray):
        return function(int(a), int(b)) if b else -1
    a, b = np.broadcast_arrays(a, b)
    zero = b == 0
    r = np.asarray(function(a, np.where(zero, b.dtype.type(1), b)))
    return np.where(zero, ~r.dtype.type(0), r)


@op
def saturated(value, bits: int, signed: bool):
    """An integer held within the range of a type (``.sat``)."""
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    if isinstance(value, np.ndarray):
        if value.dtype == np.uint64:
            return np.minimum(value, np.uint64(high)).astype(np.uint64 if bits == 64 else np.int64)
        return np.clip(value, max(low, -(1 << 63)), min(high, (1 << 63) - 1))
    return min(max(int(value), low), high)


@op
def pairwise(kind: str, signed: bool, relu: bool, *args):
    """``add``, ``min`` or ``max`` of two 16-bit integers in one register."""
    x = []
    for a in args:
        word = np.asarray(a, dtype=np.int64) & 0xFFFFFFFF
        pair = np.stack([word & 0xFFFF, word >> 16], axis=-1)
        x.append((pair ^ 0x8000) - 0x8000 if signed else pair)
    r = {"add": np.add, "min": np.minimum, "max": np.maximum}[kind](*x)
    r = np.maximum(r, 0) if relu else r
    r = (r & 0xFFFF) << np.array([0, 16])
    r = r[..., 0] | r[..., 1]
    return int(r) if r.ndim == 0 else r


@op
def count_bits(kind: str, a, bits: int):
    """``popc`` and ``clz``."""
    if kind == "popc":
        return _each(lambda x: (x & ((1 << bits) - 1)).bit_count(), 32, False, a)
    return _each(lambda x: bits - (x & ((1 << bits) - 1)).bit_length(), 32, False, a)


@op
def reverse_bits(a, bits: int):
    """``brev``."""
    mask = (1 << bits) - 1
    return _each(lambda x: int(f"{x & mask:0{bits}b}"[::-1], 2), bits, False, a)


@op
def find_bit(a, bits: int, signed: bool, shift_amount: bool):
    """``bfind``: the most significant bit that is not the sign, or 0xffffffff."""

    def one(x: int) -> int:
        if signed and x < 0:
            x = ~x
        at = (x & ((1 << bits) - 1)).bit_length() - 1
        return at if at < 0 or not shift_amount else bits - 1 - at

    return _each(one, 32, False, a)


@op
def nth_set(mask, base, offset):
    """``fns``: the n-th set bit of ``mask`` from bit ``base`` on, backwards where ``offset`` is
    negative; 0xffffffff where there is none."""

    def one(mask: int, base: int, offset: int) -> int:
        step, left = (1 if offset >= 0 else -1), max(abs(offset) - 1, 0)
        at = base
        while 0 <= at < 32:
            if mask >> at & 1:
                if left == 0:
                    return at
                left -= 1
            elif offset == 0:
                break
            at += step
        return 0xFFFFFFFF

    return _each(one, 32, False, mask, base, offset)


@op
def extract_bits(a, position, length, bits: int, signed: bool):
    """``bfe``: a field of ``length`` bits from ``position`` on, sign-extended for signed types.

    The ISA takes position and length modulo 256; of 64 bits, an H200 takes them as they are.
    """
    most = 0xFF if bits == 32 else 0xFFFFFFFF

    def one(x: int, position: int, length: int) -> int:
        position, length = min(position & most, 256), min(length & most, 256)
        word = x & ((1 << bits) - 1)
        field = word >> position & ((1 << length) - 1)
        if signed and length:
            sign = word >> min(position + length - 1, bits - 1) & 1
            inside = min(length, max(bits - position, 0))
            if sign:
                field |= -1 << inside
        return field

    return _each(one, bits, signed, a, position, length)


@op
def insert_bits(a, b, position, length, bits: int):
    """``bfi``: the lowest ``length`` bits of ``a`` put into ``b`` from ``position`` on.

    The ISA takes position and length modulo 256; of 64 bits, an H200 takes them as they are.
    """
    most = 0xFF if bits == 32 else 0xFFFFFFFF

    def one(a: int, b: int, position: int, length: int) -> int:
        position, length = min(position & most, 256), min(length & most, 256)
        mask = ((1 << length) - 1) << position
        return (b & ~mask) | (a << position & mask)

    return _each(one, bits, False, a, b, position, length)


@op
def extend_bits(a, length, clamp: bool, signed: bool):
    """``szext``: the lowest ``length`` bits as a number of 32 bits."""

    def one(x: int, length: int) -> int:
        if clamp and length & 0xFFFFFFFF >= 32:
            return x
        length &= 31
        field = x & ((1 << length) - 1)
        return field - (1 << length) if signed and length and field >> (length - 1) else field

    return _each(one, 32, signed, a, length)


@op
def bit_mask(start, length, clamp: bool):
    """``bmsk``: ones from bit ``start`` on, ``length`` of them."""

    def one(start: int, length: int) -> int:
        start, length = start & 0xFFFFFFFF, length & 0xFFFFFFFF
        if clamp and start >= 32:
            return 0
        if clamp and length >= 32:
            return -1 << (start & 31)
        return ((1 << (length & 31)) - 1) << (start & 31)

    return _each(one, 32, False, start, length)


@op
def funnel(direction: str, clamp: bool, low, high, amount):
    """``shf``: 32 bits of the 64-bit ``high:low`` shifted left or right."""

    def one(low: int, high: int, amount: int) -> int:
        amount &= 0xFFFFFFFF
        amount = min(amount, 32) if clamp else amount & 31
        both = (high & 0xFFFFFFFF) << 32 | low & 0xFFFFFFFF
        return both << amount >> 32 if direction == "l" else both >> amount

    return _each(one, 32, False, low, high, amount)


@op
def dot_bytes(a, b, c, signed_a: bool, signed_b: bool):
    """``dp4a``: four products of bytes, added to ``c``."""
    return _dot(a, b, c, 8, 8, 4, 0, signed_a, signed_b)


@op
def dot_halves(a, b, c, signed_a: bool, signed_b: bool, upper: bool):
    """``dp2a``: two products of 16-bit numbers with two bytes, added to ``c``."""
    return _dot(a, b, c, 16, 8, 2, 2 if upper else 0, signed_a, signed_b)


def _dot(a, b, c, bits_a, bits_b, count, first, signed_a, signed_b):
    def parts(x, bits, signed, start):
        word = np.asarray(x, dtype=np.int64) & 0xFFFFFFFF
        field = word[..., None] >> (bits * (start + np.arange(count))) & ((1 << bits) - 1)
        half = 1 << (bits - 1)
        return (field ^ half) - half if signed else field

    products = parts(a, bits_a, signed_a, 0) * parts(b, bits_b, signed_b, first)
    total = np.asarray(c) + products.sum(axis=-1)
    signed = signed_a or signed_b
    total = total & 0xFFFFFFFF
    total = (total ^ (1 << 31)) - (1 << 31) if signed else total
    return int(total) if np.ndim(total) == 0 else total


@op
def product24(a, b, c, high: bool, signed: bool, sat: bool):
    """``mul24`` and ``mad24``: of the lower 24 bits, the lower or upper 32 of 48, plus ``c``."""

    def one(a: int, b: int, c: int) -> int:
        a, b = a & 0xFFFFFF, b & 0xFFFFFF
        if signed:
            a, b = (a ^ 0x800000) - 0x800000, (b ^ 0x800000) - 0x800000
        total = int(_plain(a * b >> 16 if high else a * b, 32, signed)) + c
        return min(max(total, -(1 << 31)), (1 << 31) - 1) if sat else total

    return _each(one, 32, signed, a, b, c)


_SELECTORS = {
    "f4e": [(0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)],
    "b4e": [(0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)],
    "rc8": [(0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)],
    "ecl": [(0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)],
    "ecr": [(0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)],
    "rc16": [(0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)],
}


@op
def permute_bytes(a, b, selector, mode: str = ""):
    """``prmt.b32``: four bytes chosen from the eight of ``b:a``, the lowest first.

    Without a mode each nibble of ``selector`` picks one (its upper bit: the byte's sign, eight
    times); in a mode the two lowest bits pick a row of the ISA's table.
    """

    def part(x):
        return np.asarray(x, dtype=np.int64) & 0xFFFFFFFF

    low, high, chosen = np.broadcast_arrays(part(a), part(b), part(selector))
    if mode:
        rows = np.array([sum(n << 4 * i for i, n in enumerate(row)) for row in _SELECTORS[mode]])
        chosen = rows[chosen & 3]
    result = np.zeros(low.shape, dtype=np.int64)
    for i in range(4):
        nibble = chosen >> 4 * i & 15
        index = nibble & 7
        byte = np.where(index < 4, low >> 8 * (index & 3), high >> 8 * (index & 3)) & 0xFF
        byte = np.where(nibble & 8, np.where(byte & 0x80, 0xFF, 0), byte)
        result |= byte << 8 * i
    return int(result) if result.ndim == 0 else result


@op
def pack_integers(a, b, c, bits: int, signed: bool):
    """``cvt.pack.sat``: two integers saturated to ``bits`` bits, ``b`` lowest, ``c`` above them."""

    def one(a: int, b: int, c: int) -> int:
        mask = (1 << bits) - 1
        upper, lower = int(saturated(a, bits, signed)), int(saturated(b, bits, signed))
        both = (upper & mask) << bits | lower & mask
        return both | c << 2 * bits

    return _each(one, 32, False, a, b, c)


@op
def equal_parts(cmp: str, bits: int, signed: bool, a, b):
    """``set`` of packed integers: ones in each part for which the comparison is true."""
    compare = {
        "eq": np.equal,
        "ne": np.not_equal,
        "lt": np.less,
        "lo": np.less,
        "le": np.less_equal,
        "ls": np.less_equal,
        "gt": np.greater,
        "hi": np.greater,
        "ge": np.greater_equal,
        "hs": np.greater_equal,
    }[cmp]
    at = np.arange(0, 32, bits)

    def parts(x):
        field = (np.asarray(x, dtype=np.int64) & 0xFFFFFFFF)[..., None] >> at & ((1 << bits) - 1)
        half = 1 << (bits - 1)
        return (field ^ half) - half if signed else field

    r = np.where(compare(parts(a), parts(b)), ((1 << bits) - 1) << at, 0).sum(axis=-1)
    return int(r) if r.ndim == 0 else r
