"""Operations across the lanes of a warp: votes, shuffles, matches, reductions.

Each takes a mask of the lanes that take part (None for all of them). Source: PTX ISA, "Parallel
Synchronization and Communication Instructions" (vote.sync, match.sync, redux.sync, elect.sync) and
"Data Movement and Conversion Instructions: shfl.sync".
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from mlsys_gpu.sim.machine.compute import other_poison, poison, wrap
from mlsys_gpu.sim.machine.core import Stop, Warp, op, ranges
from mlsys_gpu.sim.machine.numerics import COMBINE, STORAGE

_BITS = np.int64(1) << np.arange(32)


def _bits(lanes: np.ndarray) -> int:
    """Lanes (booleans) as a mask: bit i is lane i."""
    return int(_BITS[lanes].sum())


@op
def leader(mask) -> int:
    """The lane that ``elect.sync`` elects: the lowest active one."""
    return 0 if mask is None else int(np.argmax(mask))


@op
def elected(flags, mask) -> int:
    """The active lane whose flag ``elect.sync`` has set, or -1."""
    lanes = np.broadcast_to(np.asarray(flags) != 0, (32,))
    found = np.flatnonzero(lanes if mask is None else lanes & mask)
    return int(found[0]) if found.size else -1


@op
def active_lanes(w: Warp, mask=None) -> int:
    """``activemask``: bit i is set where lane i executes the instruction."""
    return _bits(w.present if mask is None else mask & w.present)


@op
def members(w: Warp, members, what: str, mask=None) -> None:
    """Report a member mask that is not exactly the lanes that execute a warp-wide operation.

    A lane that the mask names must execute the operation too, and none but those may (PTX ISA:
    undefined otherwise). Lanes that may come by another path are not waited for.
    """
    named = _mask_of(members, mask)
    active = w.present if mask is None else mask & w.present
    absent, others = named & ~active & w.present, active & ~named
    if not absent.any() and not others.any():
        return
    who, rest = (absent, "do not reach it") if absent.any() else (others, "are not in it")
    lanes = ranges([int(i) for i in np.flatnonzero(who)])
    w.machine.report(
        "divergent-collective",
        w,
        f"{what.removesuffix(' of all 32 lanes')} for the member mask {_bits(named):#010x} is "
        f"executed by the lanes {_bits(active):#010x}: lanes {lanes} {rest}",
        memory="",
        threads=w.threads(active),
        fix="let the member mask name exactly the lanes that execute the instruction",
    )
    raise Stop


def _mask_of(members, mask) -> np.ndarray:
    """A member mask as booleans; where lanes give different ones, each lane's own word for it."""
    value = np.asarray(members, dtype=np.int64)
    if value.ndim == 0:
        return (int(value) >> np.arange(32) & 1).astype(bool)
    own = (value >> np.arange(32) & 1).astype(bool)
    active = np.ones(32, dtype=bool) if mask is None else mask
    return np.where(active, own, (np.bitwise_or.reduce(value[active]) >> np.arange(32) & 1) > 0)


def _values(w: Warp, value, mask) -> np.ndarray:
    """The values of the lanes that take part."""
    values = np.broadcast_to(np.asarray(value), (32,))
    return values[w.present if mask is None else mask & w.present]


@op
def vote(w: Warp, mode: str, predicate, mask=None) -> int:
    """``vote.sync``: ``any``, ``all``, ``uni`` (all the same), or the lanes' bits (``ballot``)."""
    if mode == "ballot":
        active = w.present if mask is None else mask & w.present
        return _bits(np.broadcast_to(np.asarray(predicate, dtype=bool), (32,)) & active)
    values = _values(w, predicate, mask)
    if mode == "uni":
        return int(values.all() or not values.any())
    return int(values.any() if mode == "any" else values.all())


@op
def match(w: Warp, mode: str, value, mask=None):
    """``match.any``: for each lane the lanes with its value; ``match.all``: all lanes, or none."""
    lanes = w.present if mask is None else mask & w.present
    values = np.broadcast_to(np.asarray(value), (32,))
    if mode == "all":
        same = values[lanes]
        return _bits(lanes) if (same == same[0]).all() else 0
    equal = (values[:, None] == values[None, :]) & lanes[None, :]
    found = (equal * _BITS[None, :]).sum(axis=1)
    return np.where(lanes, found, 0)


@op
def shuffle(w: Warp, value, source, mode: str, width: int = 32, mask=None):
    """``__shfl_sync``: each lane's value from another lane, within segments of ``width`` lanes.

    ``idx`` reads lane ``source``, ``up`` and ``down`` lane ∓ ``source``, ``bfly`` lane XOR
    ``source``; out of the segment a lane keeps its own.
    """
    lanes = np.arange(32)
    values = np.broadcast_to(np.asarray(value), (32,))
    start = lanes // width * width
    if mode == "idx":
        lane = start + np.asarray(source) % width
    elif mode == "up":
        lane = lanes - source
        lane = np.where(lane < start, lanes, lane)
    elif mode == "down":
        lane = lanes + source
        lane = np.where(lane >= start + width, lanes, lane)
    else:
        lane = lanes ^ source
        lane = np.where(lane >= start + width, lanes, lane)
    return _from_lanes(w, values, lane, mask)


def _from_lanes(w: Warp, values: np.ndarray, source: np.ndarray, mask) -> np.ndarray:
    """The values of other lanes; what a lane reads from one that takes no part is undefined."""
    taken = values[source]
    if mask is None or mask[source][mask].all():
        return taken
    readers = mask & ~mask[source]
    if w.checks:
        lane = int(np.flatnonzero(readers)[0])
        w.machine.report(
            "divergent-collective",
            w,
            f"lane {lane} takes the value of lane {int(source[lane])} in a shuffle that this lane "
            "does not reach; the value is undefined",
            memory="",
            threads=w.threads(readers),
            fix="let the lane that is read reach the shuffle, or read one that does",
            undefined=True,
        )
    unknown = (other_poison if w.machine.other else poison)(taken.dtype.name)
    return np.where(mask[source], taken, unknown)


@op
def shfl_p(w: Warp, mode: str, value, b, c, mask=None):
    """``shfl.sync`` with the ISA's clamp and segment mask in ``c``: values, and whether each lane's
    source lies in its segment. A lane that reads one that takes no part gets poison."""
    source, inside = (_partners if isinstance(b, int) and isinstance(c, int) else _sources)(
        mode, b, c
    )
    values = np.broadcast_to(np.asarray(value), (32,))
    return _from_lanes(w, values, source, mask), inside


def _sources(mode: str, b, c) -> tuple[np.ndarray, np.ndarray]:
    """The lane that each lane of a shuffle reads, and whether that lies in its segment."""
    lane = np.arange(32)
    by, clamp = np.asarray(b) & 31, np.asarray(c)
    last, segment = clamp & 31, clamp >> 8 & 31
    low = lane & segment
    high = low | (last & ~segment & 31)
    if mode == "up":
        source = lane - by
        inside = source >= high
    elif mode == "down":
        source = lane + by
        inside = source <= high
    elif mode == "bfly":
        source = lane ^ by
        inside = source <= high
    else:
        source = low | (by & ~segment & 31)
        inside = source <= high
    source = np.where(inside, source, lane)
    for known in (source, inside):  # the next shuffle like this one has the same
        known.setflags(write=False)
    return source, inside


_partners = lru_cache(maxsize=256)(_sources)


@op
def shfl(w: Warp, mode: str, value, b, c, mask=None):
    """``shfl.sync``: the values of :func:`shfl_p`."""
    return shfl_p(w, mode, value, b, c, mask)[0]


@op
def redux(w: Warp, kind: str, value, mask=None):
    """``redux.sync``: one value from all lanes that take part.

    Of floats, ``min`` and ``max`` pass NaN over unless ``.NaN`` is given; ``.abs`` compares
    magnitudes.
    """
    values = _values(w, value, mask)
    how, *options = kind.split(".")
    if values.dtype == np.float32:
        if "abs" in options:
            values = np.abs(values)
        if "NaN" in options and np.isnan(values).any():
            return np.uint32(0x7FFFFFFF).view(np.float32)
        return (np.fmin if how == "min" else np.fmax).reduce(values)
    result = COMBINE[how].reduce(values)
    if how == "add":
        result = int(result) & 0xFFFFFFFF
    return result.item() if isinstance(result, np.integer) else result


@op
def all_lanes(values, mask=None) -> bool:
    """Whether all lanes that take part hold True."""
    if not isinstance(values, np.ndarray):
        return bool(values)
    return bool(values.all() if mask is None or mask is True else values[mask].all())


@op
def warp_reduce(w: Warp, value, kind: str, width: int, dtype: str) -> np.ndarray:
    """A reduction over groups of ``width`` lanes: exchanges with the lane XOR width/2, …, 1."""
    values = np.array(np.broadcast_to(np.asarray(value), (32,)))
    floats = values.dtype.kind == "f"
    combine = {
        "sum": np.add,
        "max": np.fmax if floats else np.maximum,
        "min": np.fmin if floats else np.minimum,
    }[kind]
    lanes, step = np.arange(32), width // 2
    while step:
        values = combine(values, values[lanes ^ step])
        if not floats:
            values = wrap(values, np.dtype(STORAGE[dtype]).itemsize * 8, not dtype.startswith("u"))
        step //= 2
    return values
