"""Helpers that generated code calls: registers, integers, addresses, and what helps debugging."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

from mlsys_gpu.sim.machine import memory, numerics
from mlsys_gpu.sim.machine.core import OPS, SM_COUNT, Stop, Warp, op

#: Rounds of one while loop before it counts as endless.
MAX_ROUNDS = 500_000

OPS["bf16_to_f32"] = numerics.bf16_to_f32
OPS["f32_to_bf16"] = numerics.f32_to_bf16
OPS["f32_to_f16"] = numerics.f32_to_f16


@op
@lru_cache(maxsize=64)
def poison(dtype: str):
    """What a register of a dtype holds before it is written: no number that looks right by chance.

    :func:`written` tells the poisons of 32 bits from values.
    """
    if dtype == "uint128":
        return int.from_bytes(numerics.INTEGER_POISON * 16, "little")
    storage = np.dtype(numerics.STORAGE[dtype])
    if dtype == "float32":
        return numerics.POISON.view(np.float32)
    if storage.kind == "f":
        return storage.type(np.nan)
    if dtype == "bfloat16":
        return np.uint16(0x7FFF)
    if storage.kind in "iu":
        return np.frombuffer(numerics.INTEGER_POISON * storage.itemsize, dtype=storage)[0]
    return storage.type(0)


_POISONED = int(poison("int32"))


@op
def fresh(count: int, dtype: str) -> np.ndarray:
    """Registers of a local array, ``[32, count]``, which nothing has written."""
    return _unwritten(count, dtype).copy()


@lru_cache(maxsize=256)
def _unwritten(count: int, dtype: str) -> np.ndarray:
    value = poison(dtype)
    return np.full((32, count), value, dtype=value.dtype)


@op
def other_poison(dtype: str):
    """Another value for a register that nothing has written, and no NaN."""
    storage = np.dtype(numerics.STORAGE.get(dtype, np.uint64))
    if dtype == "uint128":
        return int.from_bytes(b"\xa5" * 16, "little")
    if dtype == "bfloat16":
        return np.uint16(0x3FB0)
    if storage.kind == "f":
        return storage.type(1.375)
    if storage.kind in "iu":
        return np.frombuffer(b"\xa5" * storage.itemsize, dtype=storage)[0]
    return storage.type(1)


@op
def other_fresh(count: int, dtype: str) -> np.ndarray:
    """Registers of a local array that nothing has written, as :func:`other_poison` fills them."""
    value = other_poison(dtype)
    return np.full((32, count), value, dtype=value.dtype)


@op
def tdiv(a, b):
    """C's integer division: truncated towards zero."""
    if np.ndim(b) == 0 and b == 0:
        raise ZeroDivisionError
    quotient = np.abs(a) // np.abs(b)
    signed = np.where((np.asarray(a) < 0) != (np.asarray(b) < 0), -quotient, quotient)
    return signed if np.ndim(signed) else signed.item()


@op
def tmod(a, b):
    """C's remainder: the sign of the dividend."""
    return a - b * tdiv(a, b)


@op
def wrap(value, bits: int, signed: bool):
    """An integer wrapped to ``bits`` bits."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        if bits == 64:
            return value.astype(np.int64 if signed else np.uint64, copy=False)
        if value.dtype == np.uint64:
            value = (value & np.uint64((1 << bits) - 1)).astype(np.int64)
    value = value & ((1 << bits) - 1)
    if not signed:
        return value
    half = 1 << (bits - 1)
    return (value ^ half) - half


@op
def product32(w: Warp, a, b, mask=None):
    """An int32 product of which an address is made; a finding where it leaves 32 bits.

    C++ leaves that undefined; the value goes on as a GPU gives it, wrapped.
    """
    value = a * b
    if not isinstance(value, np.ndarray):
        if -0x80000000 <= value <= 0x7FFFFFFF:
            return value
        one, other, lanes = int(a), int(b), None
    else:
        outside = (value < -0x80000000) | (value > 0x7FFFFFFF)
        if mask is not None and value.shape[0] == 32:
            outside = outside & mask.reshape(-1, *[1] * (value.ndim - 1))
        if not outside.any():
            return value
        factors = np.broadcast_arrays(a, b)
        one, other = (int(factor[outside].flat[0]) for factor in factors)
        lanes = outside.reshape(outside.shape[0], -1).any(axis=1) if value.shape[0] == 32 else None
    if w.checks:
        w.machine.report(
            "integer-overflow",
            w,
            f"{one} * {other} = {one * other} does not fit into 32 bits, and an address is made of "
            f"it: a GPU goes on with {wrap(one * other, 32, True)}",
            memory="",
            threads=w.threads(lanes),
            fix='compute it in 64 bits: cast a factor first, T.Cast("int64", …) * …',
        )
    return wrap(value, 32, True)


@op
def register_index(w: Warp, index, size: int, name: str, mask=None):
    """An index into a local array of ``size`` registers; lanes outside the mask index nothing."""
    if not isinstance(index, np.ndarray):
        bad = not 0 <= index < size
        if bad and mask is not None and not mask.any():
            return 0
        first = int(index)
    else:
        if mask is not None:
            index = np.where(mask, index, 0)
        outside = (index < 0) | (index >= size)
        bad = bool(outside.any())
        first = int(index[outside][0]) if bad else 0
    if bad:
        w.machine.report(
            "out-of-bounds",
            w,
            f"register {first} of {name}, which has {size} (0 to {size - 1})",
            memory=f"registers of {name}",
            fix="keep the index inside the array",
        )
        raise Stop
    return index


@op
def register_range(w: Warp, first, count: int, size: int, name: str):
    """The first of ``count`` registers of a local array of ``size``, which must hold them all."""
    if not 0 <= first <= size - count:
        register_index(w, first if first < 0 else first + count - 1, size, name)
    return first


@op
def to_integer(value, bits: int, signed: bool):
    """A float as an integer, truncated: ``cvt.rzi``, which saturates, and makes NaN zero (of 64
    bits, the uppermost bit alone: so on an H200)."""
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    if not isinstance(value, np.ndarray) or not value.ndim:
        number = float(value)
        if number != number:
            return low if signed and bits == 64 else 1 << 63 if bits == 64 else 0
        return (
            int(min(max(number, low), high)) if abs(number) != np.inf else (low, high)[number > 0]
        )
    wide = np.trunc(
        np.nan_to_num(value.astype(np.float64), nan=0.0, posinf=2.0**70, neginf=-(2.0**70))
    )
    if bits == 64:
        kind = np.int64 if signed else np.uint64
        top = wide >= 2.0 ** (63 if signed else 64)
        whole = np.where(top, 0, np.maximum(wide, low)).astype(kind)
        nan = np.isnan(value)
        if nan.any():
            whole = np.where(nan, kind(low if signed else 1 << 63), whole)
        return np.where(top, kind(high), whole)
    return np.clip(wide, low, high).astype(np.int64)


@op
def spread(value, dtype: str) -> np.ndarray:
    """A value that all lanes share, as 32 values (integers below 64 bits as int64)."""
    if dtype == "uint128":
        return np.full(32, value, dtype=object)
    values = np.empty(32, dtype=_held_as(dtype))
    values[...] = value
    return values


@lru_cache(maxsize=64)
def _held_as(dtype: str) -> np.dtype:
    """The type in which 32 lanes' values of a dtype are computed."""
    storage = np.dtype(numerics.STORAGE[dtype])
    narrow = storage.kind in "iu" and dtype not in ("uint64", "bfloat16")
    return np.dtype(np.int64) if narrow else storage


@op
def held(value):
    """A value to keep: a copy where it is a view of registers or memory, which may change later."""
    if isinstance(value, np.ndarray) and value.base is not None:
        return value.copy()
    return value


@op
def written(w: Warp, value, name: str, mask=None):
    """A register's value; a finding where an active lane's still holds the poison."""
    if not w.checks or (isinstance(value, int) and value != _POISONED):
        return value
    bits = np.asarray(value)
    if bits.dtype == np.float32:
        bad = bits.view(np.uint32) == numerics.POISON
    else:
        bad = bits == poison("int32")
    if bad.any():
        if bad.ndim:
            active = np.arange(32) < w.active if mask is None else mask
            if bad.shape[0] == 32:
                bad = bad & active.reshape(-1, *[1] * (bad.ndim - 1))
            if not bad.any():
                return value
        w.machine.report(
            "uninitialised-read",
            w,
            f"{name} is read, and nothing has written it",
            memory=f"registers of {name}",
            threads=w.threads(mask),
            fix=f"give {name} a value on every path that leads here",
        )
    return value


@op
def endless(w: Warp, rounds: int) -> None:
    """Report a while loop that has gone round more often than any kernel's does, and stop."""
    if rounds <= MAX_ROUNDS:
        return
    w.machine.report(
        "deadlock",
        w,
        f"a while loop has gone round {MAX_ROUNDS:,} times and does not end",
        memory="",
        fix="make sure that the loop's body changes what its condition reads",
    )
    raise Stop


@op
def lanes_return(w: Warp, gone) -> None:
    """Lanes that return: collectives no longer wait for them."""
    w.present = w.present & ~gone


@op
def set_lane(value, lane: int, new):
    """A variable of 32 values with one lane's replaced."""
    values = np.array(np.broadcast_to(np.asarray(value), (32,)))
    values[lane] = new
    return values


@op
def column(value):
    """A value of 32 lanes as a column, to meet a loop's axis; scalars as they are."""
    return value[:, None] if isinstance(value, np.ndarray) and value.ndim == 1 else value


@op
def mapa(w: Warp, address, rank, mask=None):
    """``mapa``: the shared address of the same offset in the CTA of another rank."""
    if mask is not None and isinstance(rank, np.ndarray):  # whatever the other lanes' rank is
        rank = np.where(mask if rank.ndim == 1 else mask[:, None], rank, w.rank)
    window = memory.SHARED_OFFSET
    if isinstance(address, np.ndarray):
        address = address.astype(np.int64, copy=False)
        tag = address & ~np.int64((1 << 32) - 1)
    else:
        tag = address >> memory.SPACE_BITS << memory.SPACE_BITS
    low, high = (np.min(rank), np.max(rank)) if isinstance(rank, np.ndarray) else (rank, rank)
    if low < 0 or high >= w.cluster.size:
        w.machine.report(
            "out-of-bounds",
            w,
            f"mapa asks for CTA rank {int(high if low >= 0 else low)} of a cluster of "
            f"{w.cluster.size}",
            memory="distributed shared memory",
            fix="name a rank below the cluster's size",
        )
        raise Stop
    return tag | rank << memory.RANK_BITS | (address & window)


@op
def wide(words):
    """Two 64-bit words, on a last axis, as one 128-bit integer."""
    if words.ndim == 1:
        return int(words[0]) | int(words[1]) << 64
    low, high = words[..., 0].astype(object), words[..., 1].astype(object)
    return low | high << 64


@op
def words(value) -> np.ndarray:
    """A 128-bit integer as two 64-bit words on a last axis."""
    if not isinstance(value, np.ndarray):
        value = np.array(value, dtype=object)
    mask = (1 << 64) - 1
    return np.stack([(value & mask).astype(np.uint64), (value >> 64).astype(np.uint64)], axis=-1)


@op
def pack_pair(low, high, dtype: str):
    """Two float32 values rounded to 16 bits each and packed into 32, ``low`` in the lower half."""
    shape = np.shape(low)
    if np.shape(high) != shape:
        shape = np.broadcast_shapes(shape, np.shape(high))
    pair = np.empty((*shape, 2), dtype=np.float32)
    pair[..., 0], pair[..., 1] = low, high
    words = numerics.from_f32(pair, dtype).view(np.uint32)[..., 0]
    return int(words) if words.ndim == 0 else words.astype(np.int64)


@op
def stacked(values, dtype) -> np.ndarray:
    """Elements of a short vector as a last axis."""
    return np.stack(np.broadcast_arrays(*[np.asarray(v, dtype=dtype) for v in values]), axis=-1)


@op
def smid(w: Warp) -> int:
    """``%smid``: a number of the SM; here CTAs take the SMs in turn."""
    return w.cta.index % nsmid(w)


@op
def nsmid(w: Warp) -> int:
    """``%nsmid``: SMs of the GPU that is modelled."""
    return SM_COUNT.get(w.machine.program.arch.rstrip("af"), 132)


@op
def clock(w: Warp) -> int:
    """``%clock64`` and ``%globaltimer``: it counts its readings, and measures no time."""
    w.machine.ticks += 1
    return w.machine.ticks


@op
def assertion(w: Warp, holds, mask=None) -> None:
    """Stop where an assertion of the kernel's author fails in an active lane."""
    held = np.asarray(holds)
    failed = ~held if held.ndim == 0 else ~held.reshape(held.shape[0], -1).all(axis=1)
    if failed.ndim and failed.size == 32:
        failed = failed & (w.present if mask is None else mask)
    if failed.any():
        w.machine.report(
            "assertion",
            w,
            "an assertion of the kernel fails: the GPU traps here, and the launch ends in an error",
            memory="",
            threads=w.threads(failed if failed.size == 32 else mask),
            fix="find out why the condition does not hold, or correct the condition",
        )
        raise Stop


_LENGTHS = re.compile(r"(%[-+ #0]*\d*(?:\.\d+)?)(?:hh|h|ll|l|z|j|t)?([diouxXeEfFgGcs%])")


@op
def printf(w: Warp, text: str, values, mask=None) -> None:
    """``printf`` of the active lanes, in order; the run prints it when it ends."""
    template = _LENGTHS.sub(lambda m: m[1] + ("d" if m[2] in "iu" else m[2]), text)
    lanes = np.flatnonzero(w.present if mask is None else mask)
    for lane in lanes.tolist():
        given = tuple(
            v[lane].item() if isinstance(v, np.ndarray) and v.size == 32 else np.asarray(v).item()
            for v in values
        )
        w.machine.printed.append(template % given)
