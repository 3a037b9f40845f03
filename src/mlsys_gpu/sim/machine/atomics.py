"""Atomics and reductions on memory (``atom``, ``red``), and loads and stores that synchronise.

The lanes of a warp act one after the other, in an order that the ISA leaves open: by lane number,
or drawn under the seeded schedule. Source: PTX ISA, ``atom``, ``red``, ``ld``, ``st``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mlsys_gpu.sim.machine import access, memory, numerics, order
from mlsys_gpu.sim.machine.barriers import barrier_at
from mlsys_gpu.sim.machine.clocks import unseen
from mlsys_gpu.sim.machine.core import Cta, Pipe, Warp, op

_UINT = {2: np.uint16, 4: np.uint32, 8: np.uint64}
#: The NaN that float32 operations give.
_NAN = np.uint32(0x7FFFFFFF)


def _flush(values: np.ndarray) -> np.ndarray:
    """Subnormal float32 values become zeros of their sign."""
    return np.where(np.abs(values) < np.float32(2.0**-126), np.copysign(0, values), values).astype(
        np.float32
    )


def _float(how: str, a: np.ndarray, b: np.ndarray, dtype: str, flush: bool) -> np.ndarray:
    """``add``, ``min`` or ``max`` of floats in their storage; one rounding, to nearest even."""
    combine: Any = {"add": np.add, "min": np.fmin, "max": np.fmax}[how]
    if dtype in ("float16", "bfloat16"):
        wide = combine(
            *(numerics.to_f32(x.view(numerics.STORAGE[dtype]), dtype).astype(np.float64)
              for x in (a, b))
        )  # fmt: skip
        # a float64 sum of two 16-bit floats is exact or far from a tie of 16 bits: one rounding
        if how != "add" and not wide.all():
            wide = _which_zero(how, a, b, wide)
        if dtype == "float16":
            r = wide.astype(np.float16).view(np.uint16)
            return np.where(wide != wide, np.uint16(0x7FFF), r)
        return np.asarray(numerics.f32_to_bf16(_to_odd(wide))).view(np.uint16)
    typed = np.dtype(dtype)
    x, y = a.view(typed), b.view(typed)
    if flush and dtype == "float32":
        x, y = _flush(x), _flush(y)
    r = combine(x, y)
    if flush and dtype == "float32":
        r = _flush(r)
    nan = r != r
    if dtype == "float32" and nan.any():
        return np.where(nan, _NAN, r.view(np.uint32))
    return r.view(a.dtype)


def _which_zero(how: str, a: np.ndarray, b: np.ndarray, r: np.ndarray) -> np.ndarray:
    """``min`` and ``max`` of 16-bit floats where -0 is less than +0."""
    negative = (a | b if how == "min" else a & b) >> 15 & 1
    return np.where((r == 0) & (((a | b) & 0x7FFF) == 0), np.where(negative, -0.0, 0.0), r)


def _to_odd(wide: np.ndarray) -> np.ndarray:
    """float64 to float32, rounded to odd where inexact: a second rounding then gives no double."""
    near = wide.astype(np.float32)
    bits = near.view(np.uint32)
    inexact = (near.astype(np.float64) != wide) & np.isfinite(near)
    toward = np.where(np.abs(near.astype(np.float64)) > np.abs(wide), bits - 1, bits)
    return np.where(inexact, toward | 1, bits).astype(np.uint32).view(np.float32)


def combined(how: str, held: np.ndarray, value: np.ndarray, compare, dtype: str, flush: bool):
    """What an atomic leaves in memory: raw bits (uint) in, raw bits out."""
    if how == "exch":
        return value
    if how == "cas":
        return np.where(held == compare, value, held)
    if dtype.endswith("float16") or dtype.startswith(("float", "bfloat")):
        return _float(how, held, value, dtype, flush)
    if how == "inc":
        return np.where(held >= value, 0, held + 1).astype(held.dtype)
    if how == "dec":
        return np.where((held == 0) | (held > value), value, held - 1).astype(held.dtype)
    typed = np.dtype(dtype)
    return numerics.COMBINE[how](held.view(typed), value.view(typed)).view(held.dtype)


def _place(w: Warp, address: np.ndarray, width: int, mask, space: str, what: str):
    """Memory and byte offsets of an access, one for each active lane."""
    first = int(address.flat[0])
    if space == "generic" and first >> memory.SPACE_BITS == memory.SHARED_SPACE:
        address, space = address - memory.SHARED_TAG, "shared"
    if space == "shared":
        cta, offsets = access._shared(w, address, width, mask, what)
        return cta, cta.shared, offsets
    tensor, offsets = access._span(w, address, width, mask, what)
    return None, tensor, offsets


def _lanes(w: Warp, mask, lane) -> np.ndarray:
    if lane is not None:
        return np.array([int(lane)])
    return np.flatnonzero(w.present if mask is None else np.asarray(mask) & w.present)


def _of_lanes(value, lanes: np.ndarray, dtype) -> np.ndarray:
    """A value for each of the lanes, from one that all share or one for each of 32."""
    array = np.asarray(value)
    if array.dtype.kind == "f":
        array = np.ascontiguousarray(array).view(_UINT[array.dtype.itemsize])
    if array.ndim and array.shape[0] == 32:
        array = array[lanes]
    elif array.ndim == 0 or array.shape[0] == 1:
        array = np.broadcast_to(array, (lanes.size, *array.shape[1:]))
    mask = np.iinfo(dtype).max
    return (array.astype(np.int64) & mask if array.dtype != dtype else array).astype(dtype)


def _addresses(address, lanes: np.ndarray) -> np.ndarray:
    """Addresses of the lanes, from one that all share or one for each of 32."""
    many = np.asarray(address, dtype=np.int64).reshape(-1)
    return np.broadcast_to(many, (32,))[lanes]


def _parts(w: Warp, space: str, address: np.ndarray, lanes: np.ndarray) -> list[np.ndarray]:
    """The lanes by the CTA whose shared memory they address, where those differ."""
    ranks = address >> memory.RANK_BITS
    if space == "global" or (ranks == ranks[0]).all():
        return [np.arange(lanes.size)]
    return [np.flatnonzero(ranks == rank) for rank in np.unique(ranks)]


@op
def atom(
    w: Warp, space: str, address, value, how: str, dtype: str, vec: int = 1, compare=None,
    sem: str = "relaxed", scope: str = "gpu", flush: bool = False, mask=None, lane=None,
):  # fmt: skip
    """``atom`` or ``red``: returns the old values as unsigned integers, ``[32]`` or ``[32, vec]``.

    ``how``: and, or, xor, add, inc, dec, min, max, exch or cas; ``dtype`` of one element;
    ``flush``: subnormal float32 are flushed (on global memory, without ``.noftz``).
    """
    lanes = _lanes(w, mask, lane)
    size = np.dtype(numerics.STORAGE[dtype]).itemsize
    raw = _UINT[size]
    old = np.zeros((32, vec) if vec > 1 else 32, dtype=raw)
    if lanes.size == 0:
        return old
    if w.open is not None:
        w.open.flush()
    where = _addresses(address, lanes)
    values = _of_lanes(value, lanes, raw)
    expected = None if compare is None else _of_lanes(compare, lanes, raw)
    shown = np.zeros(32, dtype=bool)
    shown[lanes] = True
    for part in _parts(w, space, where, lanes):
        got = _atom_here(
            w, space, where[part], values[part], None if expected is None else expected[part],
            how, dtype, vec, sem, scope, flush, shown, lanes[part],
        )  # fmt: skip
        old[lanes[part]] = got
    return old[int(lane)] if lane is not None and vec == 1 else old


def _atom_here(
    w, space, where, values, compare, how, dtype, vec, sem, scope, flush, mask, lanes
):  # fmt: skip
    size = values.dtype.itemsize
    width = size * vec
    cta, place, offsets = _place(w, where, width, mask, space, "an atomic")
    offsets = np.broadcast_to(offsets, (lanes.size,))
    flush = flush and cta is None
    w.machine.count("shared_atomics" if cta is not None else "global_atomics", lanes.size)
    view = place.view(size, vec)
    index = offsets // width
    touched = np.unique(offsets).tolist()
    _check(w, cta, place, offsets, width, lanes, mask, wrote=True)
    if sem in ("acquire", "acq_rel"):
        for offset in touched:
            order.observe(w, place, offset, sem, scope)
    if len(touched) == lanes.size:
        old = view[index].copy()
        view[index] = combined(how, old, values, compare, dtype, flush)
    else:
        old = np.empty_like(values)
        turn = list(range(lanes.size))
        if w.machine.rng is not None:
            w.machine.rng.shuffle(turn)
        for i in turn:
            at = index[i : i + 1]
            old[i : i + 1] = view[at]
            other = None if compare is None else compare[i : i + 1]
            view[at] = combined(how, old[i : i + 1], values[i : i + 1], other, dtype, flush)
    for offset in touched:
        if sem not in ("acquire", "acq_rel"):
            order.observe(w, place, offset, sem, scope)
        order.publish(w, place, offset, sem, scope, True, lanes)
    _wrote(w, cta, place)
    return old


def _wrote(w: Warp, cta: Cta | None, place: Any) -> None:
    w.machine.writes += 1
    if cta is not None:
        cta.version += 1
    else:
        place.written = True


def _check(w: Warp, cta, place, offsets, width: int, lanes, mask, wrote: bool) -> None:
    """Happens-before of a strong access: against weak ones alone."""
    if not w.checks:
        return
    index = access.words_of(np.asarray(offsets), width, w.machine.program.grain)
    if cta is None:
        if wrote:
            order.global_write(
                w, place, index, False, w.agent, w.now | w.s, w.s, w.clock, strong=True
            )
        elif place.mixed:
            order.global_read(
                w, place, index, False, w.agent, w.now | w.s, w.s, w.clock, strong=True
            )
        return
    if cta is not w.cta:
        access.reach(w, cta)
    shadow = cta.shadow.flat()
    strong = cta.shadow.strong_words()
    before = shadow.writer[index]
    if not before.all():
        access.uninitialised(w, cta, index, False, before == 0, "an atomic", mask)
    bad = unseen(before, w.clock[0])
    if bad is not None:
        bad = bad & ~strong[index]
        if bad.any():
            access.race(w, cta, index, False, before, bad, "read", "write", w.agent, w.s, mask)
    if not wrote:
        return
    for agent, stamps in cta.shadow.readers.items():
        if agent != w.agent:
            read = stamps.reshape(-1)[index]
            bad = unseen(read, w.clock[0])
            if bad is not None:
                access.race(w, cta, index, False, read, bad, "write", "read", w.agent, w.s, mask)
    shadow.write(index, w.now | w.s)
    shadow.writer_lane[index] = (
        np.int8(lanes[0]) if lanes.size == 1 else access._meet(lanes.astype(np.int8), before)
    )
    strong[index] = True


@op
def ld_strong(
    w: Warp, space: str, address, size: int, vec: int, sem: str, scope: str, mask=None, lane=None
):
    """``ld`` with ``.relaxed``, ``.acquire`` or ``.volatile``: unsigned values, as a plain load."""
    lanes = _lanes(w, mask, lane)
    if lanes.size:
        if w.open is not None:
            w.open.flush()
        width, many = size * vec, _addresses(address, lanes)
        for part in _parts(w, space, many, lanes):
            cta, place, offsets = _place(w, many[part], width, mask, space, "load")
            _check(w, cta, place, np.broadcast_to(offsets, part.shape), width, lanes[part], mask,
                   wrote=False)  # fmt: skip
            for offset in np.unique(offsets).tolist():
                order.observe(w, place, offset, sem, scope)
    load = {"global": access.ld_global, "shared": access.ld_shared}.get(space, access.ld_generic)
    checks, w.checks = w.checks, False  # checked above, as a strong access
    try:
        return load(w, address, size, vec, mask, lane)
    finally:
        w.checks = checks


@op
def st_strong(
    w: Warp, space: str, address, value, size: int, vec: int, sem: str, scope: str, mask=None,
    lane=None,
) -> None:  # fmt: skip
    """``st`` with ``.relaxed``, ``.release`` or ``.volatile``."""
    lanes = _lanes(w, mask, lane)
    if lanes.size == 0:
        return
    if w.open is not None:
        w.open.flush()
    width, many = size * vec, _addresses(address, lanes)
    targets = []
    for part in _parts(w, space, many, lanes):
        cta, place, offsets = _place(w, many[part], width, mask, space, "store")
        _check(w, cta, place, np.broadcast_to(offsets, part.shape), width, lanes[part], mask,
               wrote=True)  # fmt: skip
        targets.append((cta, place, np.unique(offsets).tolist()))
    store = {"global": access.st_global, "shared": access.st_shared}.get(space, access.st_generic)
    checks, w.checks = w.checks, False  # checked above, as a strong access
    try:
        store(w, address, value, size, vec, mask, lane)
    finally:
        w.checks = checks
    for cta, place, touched in targets:
        for offset in touched:
            order.publish(w, place, offset, sem, scope, False, lanes)
        _wrote(w, cta, place)


# ------------------------------------------------------------------- asynchronous remote stores


@op
def st_async(
    w: Warp, address, value, barrier, size: int, vec: int = 1, how: str = "", dtype: str = "",
    mask=None, lane=None,
) -> None:  # fmt: skip
    """``st.async`` and ``red.async`` to a CTA of the cluster; completes bytes on its mbarrier."""
    lanes = _lanes(w, mask, lane)
    raw = _UINT[size]
    values = np.asarray(value)
    if vec > 1:
        values = np.broadcast_to(values, (32, vec)) if values.ndim < 2 else values
    values = _of_lanes(values, lanes, raw)
    width = size * vec
    places = zip(
        _addresses(address, lanes).tolist(), _addresses(barrier, lanes).tolist(), strict=True
    )
    for i, (at, completes) in enumerate(places):
        bar = barrier_at(w, completes)
        cta, offset = access._shared(w, at, width, None, "st.async")
        if cta is not bar.cta:
            w.machine.report(
                "out-of-bounds",
                w,
                f"st.async writes to CTA rank {cta.rank} and completes on an mbarrier of CTA rank "
                f"{bar.cta.rank}",
                memory="distributed shared memory",
                fix="give it an mbarrier of the CTA that it writes to (mapa for both addresses)",
            )
        _send(w, cta, int(offset), values[i], bar, width, vec, how, dtype)
    w.tick()


def _send(w: Warp, cta: Cta, offset: int, value, bar, width: int, vec: int, how: str, dtype: str):
    phase, agent = bar.phase + 1, bar.agent
    moment = bar.epoch + phase
    index = access.words_of(np.array([offset]), width, w.machine.program.grain)
    if w.checks:
        clock = w.clock.copy()
        clock[:, agent] = moment
        shadow = cta.shadow.flat()
        before = shadow.writer[index]
        bad = unseen(before, clock[0])
        if bad is not None:
            access.race(w, cta, index, False, before, bad, "write", "write", agent, w.s, None)
        for reader, stamps in cta.shadow.readers.items():
            bad = unseen(stamps.reshape(-1)[index], clock[0])
            if bad is not None and reader != agent:
                read = stamps.reshape(-1)[index]
                access.race(w, cta, index, False, read, bad, "write", "read", agent, w.s, None)
        shadow.write(index, agent << 48 | moment << 16 | w.s)
        if cta is not w.cta:
            access.reach(w, cta)
    site = w.s
    bar.charge(phase, width, w, cta.rank)
    view = cta.shared.view(width // vec, 1)
    first = offset // (width // vec)

    def land() -> None:
        target = view[first : first + vec]
        target[...] = (
            combined(how, target.copy(), value.reshape(-1), None, dtype, False) if (how) else value
        )
        cta.version += 1
        bar.complete(width, phase, w, site)

    Pipe(w.cluster, f"st.async of {w.name()}").submit(land)


@op
def grid_sync(w: Warp, mask=None):
    """``cooperative_groups::grid_group::sync``: every thread of the grid meets every other."""
    machine = w.machine
    total = machine.program.launch["grid"][0] * machine.program.launch["grid"][1]
    total *= machine.program.launch["grid"][2] * len(w.cta.warps)
    turn = w.state["grid_turn"] = w.state.get("grid_turn", -1) + 1
    turns = machine.grid_turns
    while len(turns) <= turn:
        turns.append({"count": 0, "place": memory.Linear(np.zeros(16, dtype=np.uint8))})
    order.publish(w, turns[turn]["place"], 0, "release", "gpu", True)
    turns[turn]["count"] += 1
    machine.writes += 1
    return (turns[turn], total)


@op
def grid_passed(w: Warp, ticket) -> bool:
    """Whether all threads of the grid have come to the barrier of a ticket."""
    turn, total = ticket
    if turn["count"] < total:
        return False
    order.observe(w, turn["place"], 0, "acquire", "gpu")
    return True


@op
def halves(words, count: int) -> np.ndarray:
    """Pairs of 16-bit elements in registers as elements, ``[lanes or 1, 2 * count]``."""
    array = np.asarray(words, dtype=np.uint32)
    rows = array.shape[0] if array.ndim and array.shape[0] == 32 else 1
    array = np.ascontiguousarray(array.reshape(rows, count))
    return array.view(np.uint16)


@op
def paired(elements: np.ndarray, count: int) -> np.ndarray:
    """Elements back as pairs in registers: ``[32]``, or ``[32, count]``."""
    words = np.ascontiguousarray(elements).view(np.uint32)
    return words.reshape(32, count) if count > 1 else words.reshape(32)
