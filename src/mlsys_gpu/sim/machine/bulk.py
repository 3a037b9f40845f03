"""Copies that engines make: the tensor memory accelerator (TMA), bulk copies, and ``cp.async``.

A copy takes effect when its engine's turn comes. Its accesses are checked and stamped when it is
issued. A load that completes on an mbarrier is stamped with that barrier's agent and the phase it
is charged to: who has waited for the phase has seen the copy. Stores, and what else completes in a
bulk group, are stamped with the issuing thread's group.

Source: PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy" and "Tensors".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from mlsys_gpu.sim.machine import access, memory, order
from mlsys_gpu.sim.machine.barriers import MBarrier, barrier_at, uniform
from mlsys_gpu.sim.machine.clocks import stamp, unseen
from mlsys_gpu.sim.machine.core import EXIT_HOOKS, Cta, Pipe, Stop, Warp, op, threads_in
from mlsys_gpu.sim.machine.numerics import COMBINE, from_f32, to_f32

_SWIZZLE_BYTES = {0: 0, 1: 32, 2: 64, 3: 128}


class TensorMap:
    """A tensor map, as ``cuTensorMapEncodeTiled`` makes it.

    Dimensions are innermost first. ``strides`` are bytes (of the dimensions but the innermost),
    ``box`` and ``steps`` elements; ``swizzle`` is bytes; ``fill`` is the out-of-bounds value's
    kind: 0 zeros, 1 NaN.
    """

    def __init__(self, record: dict[str, Any], tensor: memory.Tensor, itemsize: int):
        self.tensor = tensor
        self.dtype = record["dtype"]
        self.itemsize = itemsize
        self.offset = record["offset"]
        self.shape = record["shape"]
        self.strides = [itemsize, *record["strides"]]
        self.box = record["box"]
        self.steps = record["steps"]
        self.swizzle = _SWIZZLE_BYTES[record["swizzle"]]
        self.fill = record["fill"]
        #: Elements that one copy moves along each dimension.
        self.extent = [-(-b // s) for b, s in zip(self.box, self.steps, strict=True)]
        self.nbytes = itemsize * int(np.prod(self.extent))

    def clip(self, coords: list[int]) -> list[tuple[int, int]]:
        """For each dimension the part of the box that lies in the tensor, in box elements."""
        parts = []
        for start, extent, step, size in zip(
            coords, self.extent, self.steps, self.shape, strict=True
        ):
            first = 0 if start >= 0 else -(start // step)
            last = min(extent, -(-(size - start) // step))
            parts.append((first, max(first, last)))
        return parts

    def window(self, coords: list[int], parts: list[tuple[int, int]]) -> np.ndarray:
        """The tensor's elements in the clipped box, as raw unsigned integers, outermost first."""
        typed = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[self.itemsize]
        shape = [last - first for first, last in reversed(parts)]
        if 0 in shape:  # the box lies outside the tensor
            return np.empty(shape, typed)
        base = self.offset + sum(
            (start + first * step) * stride
            for start, (first, _), step, stride in zip(
                coords, parts, self.steps, self.strides, strict=True
            )
        )
        strides = [
            step * stride
            for step, stride in zip(reversed(self.steps), reversed(self.strides), strict=True)
        ]
        return np.ndarray(shape, typed, self.tensor.data.data, base, strides)

    def inside(self, parts: list[tuple[int, int]]) -> tuple[slice, ...]:
        """The clipped box as slices of a whole box, outermost first."""
        return tuple(slice(first, last) for first, last in reversed(parts))

    def box_array(self) -> np.ndarray:
        """A whole box of the out-of-bounds fill."""
        typed = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[self.itemsize]
        box = np.zeros(tuple(reversed(self.extent)), dtype=typed)
        if self.fill == 1:
            nan = {"float16": 0x7E00, "bfloat16": 0x7FC0, "float32": 0x7FC00000}
            box[...] = nan.get(self.dtype, 0)
        return box


def _map_at(w: Warp, address) -> TensorMap:
    address = int(uniform(w, address, "a tensor map's address"))
    index = (address >> memory.SPACE_BITS) - memory.FIRST_TENSOR - len(w.machine.tensors)
    if not 0 <= index < len(w.machine.maps) or address & memory.OFFSET_MASK:
        w.machine.report(
            "out-of-bounds",
            w,
            f"the address {address:#x} is no tensor map",
            memory="tensor maps",
            fix="pass the address of a tensor map that the host encoded",
        )
        raise Stop
    return w.machine.maps[index]


def _coords(w: Warp, coords) -> list[int]:
    return [int(uniform(w, c, "a tensor coordinate")) for c in coords]


def _one_thread(w: Warp, mask, what: str) -> bool:
    """Whether a thread issues the copy; more than one issue it as often."""
    threads = threads_in(w, mask)
    if threads > 1:
        w.machine.report(
            "divergent-collective",
            w,
            f"{what} is issued by {threads} threads of the warp: each issues its own copy",
            memory="shared memory",
            fix="let one elected thread issue it (if T.cuda.elect_sync(): …)",
        )
        raise Stop
    return threads == 1


def _rows(w: Warp, cta: Cta, start: int, nbytes: int, swizzle: int, what: str) -> np.ndarray:
    """The 16-byte rows of shared memory that a box occupies, in the box's order."""
    align = max(128, swizzle and swizzle * 8)
    if start % align:
        w.machine.report(
            "misaligned",
            w,
            f"{what} at shared memory byte {start - memory.RESERVED_SHARED}, which {align} does "
            "not divide"
            + (f" (the {swizzle}B swizzle repeats every {align} bytes)" if swizzle else ""),
            memory=cta.region(start),
            fix=f"align the tile in shared memory to {align} bytes",
        )
        raise Stop
    if start < memory.RESERVED_SHARED or start + nbytes > cta.shared.size:
        w.machine.report(
            "out-of-bounds",
            w,
            f"{what} of {nbytes} bytes at shared memory byte {start - memory.RESERVED_SHARED}, "
            f"beyond the CTA's {cta.shared.size - memory.RESERVED_SHARED}",
            memory="shared memory",
            fix="make the buffer as large as the tensor map's box",
        )
        raise Stop
    base = start & ~1023
    return _pattern(start - base, nbytes, swizzle) + (base >> 4)


@lru_cache(maxsize=256)
def _pattern(start: int, nbytes: int, swizzle: int) -> np.ndarray:
    """:func:`_rows` from a multiple of 1024 bytes on, at which every swizzle begins anew."""
    at = start + np.arange(0, nbytes, 16, dtype=np.int64)
    if swizzle:
        at = at ^ (at >> 3 & (swizzle - 16))
    return at >> 4


def _block(start: int, nbytes: int, swizzle: int) -> slice | None:
    """The same rows in the order of their addresses, where they leave no gap: a swizzle exchanges
    the 16-byte chunks of one of its rows."""
    if nbytes % (swizzle or 16):
        return None
    return slice(start >> 4, (start + nbytes) >> 4)


def _destination(w: Warp, address) -> tuple[int, int]:
    address = int(uniform(w, address, "a shared-memory address"))
    if address >> memory.SPACE_BITS == memory.SHARED_SPACE:
        address -= memory.SHARED_TAG
    return address >> memory.RANK_BITS, address & memory.SHARED_OFFSET


# ------------------------------------------------------------------------ copies into shared memory


def _async_write(w: Warp, cta: Cta, rows, barrier: MBarrier, what: str) -> int:
    """Check and stamp an engine's write of shared memory; returns the phase it is charged to.

    ``rows``: indices of 16-byte rows, or a slice of them.
    """
    phase = barrier.phase + 1
    if not w.checks:
        return phase
    agent = w.cluster.agents.barrier(barrier.cta.rank, barrier.index)
    moment = barrier.epoch + phase
    clock = w.clock.copy()
    clock[:, agent] = moment
    before = cta.shadow.writer[rows]
    bad = unseen(before, clock[0])
    if bad is not None:
        at = access.indices(rows)
        access.race(w, cta, at, True, before, bad, "write", "write", agent, w.s, None)
    else:
        hidden = unseen(before, clock[1])
        if hidden is not None:
            generic = ~w.cluster.agents.asynchronous[before >> 48]
            if (hidden & generic).any():
                access.proxy(w, cta, access.indices(rows), before, hidden & generic, what, w.s)
    for reader, stamps in cta.shadow.readers.items():
        if reader != agent:
            read = stamps[rows]
            bad = unseen(read, clock[0])
            if bad is not None:
                at = access.indices(rows)
                access.race(w, cta, at, True, read, bad, "write", "read", agent, w.s, None)
    w.machine.readings.setdefault(
        "proxy-war",
        "threads' reads of shared memory need no proxy fence before an engine overwrites it; a "
        "barrier between them is enough",
    )
    cta.shadow.write(rows, stamp(agent, moment, w.s))
    return phase


def _copy_in(
    w: Warp,
    cta: Cta,
    rows,
    barrier: MBarrier,
    what: str,
    data: Callable[[], np.ndarray],
    block: slice | None = None,
):
    """Issue a copy of whole 16-byte rows into a CTA's shared memory, completing on a barrier.

    ``block``: the same rows as a slice, where they leave no gap.
    """
    whole = rows if block is None else block
    phase = _async_write(w, cta, whole, barrier, what)
    nbytes = 16 * rows.size
    site = w.s
    barrier.charge(phase, nbytes, w.clock)
    w.tick()
    if not w.cluster.eager:
        cta.shared.view(4, 4)[whole] = 0xFFFFFFFF  # in flight: NaN in every format
        cta.version += 1

    def land() -> None:
        cta.shared.rows[rows] = data().reshape(-1).view(np.complex128)
        cta.version += 1
        barrier.complete(nbytes, phase, w, site)

    Pipe(w.cluster, f"{what} of {w.name()}").submit(land)


def _note_in(
    w: Warp, tensor: memory.Tensor, index, wide: bool, barrier: MBarrier, what: str
) -> None:
    """Check and record what a copy reads of a tensor that the kernel may also write."""
    if index.size:
        agent = w.cluster.agents.barrier(barrier.cta.rank, barrier.index)
        now = stamp(agent, barrier.phase + 1, w.s)
        order.global_read(w, tensor, index, wide, agent, now, w.s, w.clock, through=what)


@op
def tma_load(w: Warp, destination, map_address, coords, barrier, ranks=None, mask=None) -> None:
    """``cp.async.bulk.tensor`` from global to shared memory, tile mode.

    ``ranks`` is the multicast mask over the cluster's CTAs, or None for the destination's own.
    """
    if not _one_thread(w, mask, "a TMA load"):
        return
    tmap, where = _map_at(w, map_address), _coords(w, coords)
    rank, offset = _destination(w, destination)
    mrank, moffset = _destination(w, barrier)
    targets = [rank]
    if ranks is not None:
        bits = int(uniform(w, ranks, "a multicast mask"))
        targets = [r for r in range(16) if bits >> r & 1]
        if not targets or targets[-1] >= w.cluster.size:
            w.machine.report(
                "out-of-bounds",
                w,
                f"the multicast mask {bits:#x} names CTAs outside a cluster of {w.cluster.size}",
                memory="distributed shared memory",
                fix="set bit r for each CTA rank r of the cluster that shall receive the tile",
            )
            raise Stop
    w.machine.count("tma_load_bytes", tmap.nbytes)
    w.machine.count("global_load_bytes", tmap.nbytes)
    parts = tmap.clip(where)

    def data() -> np.ndarray:
        window = tmap.window(where, parts)
        if window.size * tmap.itemsize == tmap.nbytes:  # no part of the box lies outside
            return np.ascontiguousarray(window)
        box = tmap.box_array()
        box[tmap.inside(parts)] = window
        return box

    for target in targets:
        cta = w.cluster.ctas[target]
        rows = _rows(w, cta, offset, tmap.nbytes, tmap.swizzle, "a TMA load")
        # a multicast completes on the barrier at the same offset in each receiving CTA
        owner = target if ranks is not None else mrank
        bar = barrier_at(w, owner << memory.RANK_BITS | moffset)
        if w.checks and tmap.tensor.mixed and target == targets[0]:
            _note_in(w, tmap.tensor, *_touched(tmap, where, parts), bar, "a TMA load")
        block = _block(offset, tmap.nbytes, tmap.swizzle)
        _copy_in(w, cta, rows, bar, "a TMA load", data, block)


@op
def bulk_load(w: Warp, destination, source, size, barrier, ranks=None, mask=None) -> None:
    """``cp.async.bulk`` of ``size`` bytes from global (or own shared) to shared memory."""
    if not _one_thread(w, mask, "a bulk copy"):
        return
    size = int(uniform(w, size, "a byte count"))
    source = int(uniform(w, source, "an address"))
    rank, offset = _destination(w, destination)
    mrank, moffset = _destination(w, barrier)
    if size % 16 or size <= 0 or source % 16 or offset % 16:
        raise _bulk_alignment(w, size)
    targets = [rank]
    if ranks is not None:
        bits = int(uniform(w, ranks, "a multicast mask"))
        targets = [r for r in range(w.cluster.size) if bits >> r & 1]
    if source >> memory.SPACE_BITS > memory.SHARED_SPACE:
        tensor, start = access._span(w, source, 16, None, "a bulk copy")
        access._span(w, source + size - 16, 16, None, "a bulk copy")
        w.machine.count("global_load_bytes", size)
        rows_in = None
        origin: memory.Linear = tensor
    else:
        srank, start = _destination(w, source)
        cta_in = w.cluster.ctas[srank]
        rows_in = _rows_linear(w, cta_in, start, size)
        origin = cta_in.shared
        if w.checks:
            agent = w.unit["bulk_read"]
            now = stamp(agent, _groups(w).clock)
            access.async_read(w, cta_in, rows_in, w.clock, agent, now, w.s, "a bulk copy")

    def data() -> np.ndarray:
        return origin.view(4, 4)[start // 16 : (start + size) // 16].copy()

    for target in targets:
        cta = w.cluster.ctas[target]
        rows = _rows_linear(w, cta, offset, size)
        owner = target if ranks is not None else mrank
        bar = barrier_at(w, owner << memory.RANK_BITS | moffset)
        if w.checks and isinstance(origin, memory.Tensor) and origin.mixed and target == targets[0]:
            words = np.arange(start >> 4, (start + size) >> 4)
            _note_in(w, origin, words, True, bar, "a bulk copy")
        _copy_in(w, cta, rows, bar, "a bulk copy", data)


def _bulk_alignment(w: Warp, size: int) -> Stop:
    w.machine.report(
        "misaligned",
        w,
        f"a bulk copy of {size} bytes",
        memory="shared memory",
        fix="addresses and size of cp.async.bulk are multiples of 16 bytes",
    )
    return Stop()


def _rows_linear(w: Warp, cta: Cta, offset: int, size: int) -> np.ndarray:
    if offset % 16:
        raise _bulk_alignment(w, size)
    if offset < memory.RESERVED_SHARED or offset + size > cta.shared.size:
        w.machine.report(
            "out-of-bounds",
            w,
            f"a bulk copy of {size} bytes at shared memory byte {offset - memory.RESERVED_SHARED}",
            memory="shared memory",
            fix="keep the copy inside its buffer",
        )
        raise Stop
    return np.arange(offset >> 4, (offset + size) >> 4, dtype=np.int64)


# ----------------------------------------------------------------------- copies out, in bulk groups


class BulkGroups:
    """A thread's bulk groups: copies not yet committed, and those committed, oldest first."""

    def __init__(self) -> None:
        self.clock = 1  # the group that a copy issued now will belong to
        self.open: list[Pipe] = []
        self.committed: list[tuple[int, list[Pipe]]] = []
        self.read = 0  # groups whose sources have been waited for
        self.sites: dict[int, int] = {}


def _groups(w: Warp) -> BulkGroups:
    found = w.state.get("bulk_groups")
    if found is None:
        found = w.state["bulk_groups"] = BulkGroups()
    return found


def _copy_out(w: Warp, cta: Cta, rows, what: str, effect: Callable[[np.ndarray], None]) -> None:
    """Issue a copy out of shared memory as part of the thread's current bulk group."""
    groups = _groups(w)
    if w.checks:
        agent = w.unit["bulk_read"]
        clock = w.clock.copy()
        clock[:, agent] = groups.clock
        access.async_read(w, cta, rows, clock, agent, stamp(agent, groups.clock), w.s, what)
    groups.sites[groups.clock] = w.s
    pipe = Pipe(w.cluster, f"{what} of {w.name()}")
    groups.open.append(pipe)
    pipe.submit(lambda: effect(cta.shared.rows[rows]))


@op
def tma_store(w: Warp, map_address, coords, source, reduce: str = "", mask=None) -> None:
    """``cp.async.bulk.tensor`` from shared to global memory; ``reduce`` names a reduction."""
    if not _one_thread(w, mask, "a TMA store"):
        return
    tmap, where = _map_at(w, map_address), _coords(w, coords)
    rank, offset = _destination(w, source)
    cta = w.cluster.ctas[rank]
    rows = _rows(w, cta, offset, tmap.nbytes, tmap.swizzle, "a TMA store")
    parts = tmap.clip(where)
    tensor = tmap.tensor
    w.machine.count("tma_store_bytes", tmap.nbytes)
    w.machine.count("global_store_bytes", tmap.nbytes)
    tensor.written = True

    def effect(data: np.ndarray) -> None:
        window = tmap.window(where, parts)
        box = data.reshape(-1).view(window.dtype).reshape(tuple(reversed(tmap.extent)))
        values = box[tmap.inside(parts)]
        window[...] = _reduced(window, values, tmap.dtype, reduce) if reduce else values
        w.machine.writes += 1

    if w.checks:
        touched, wide = _touched(tmap, where, parts)
        if touched.size:
            _note_out(w, tensor, touched, wide, bool(reduce))
    _copy_out(w, cta, rows, "a TMA store", effect)


def _note_out(w: Warp, tensor: memory.Tensor, index, wide: bool, strong: bool) -> None:
    """Check and record the words that a bulk store writes; a reduction is a strong write."""
    agent, clock = w.unit["bulk"], w.clock.copy()
    moment = _groups(w).clock
    clock[:, agent] = moment
    now = stamp(agent, moment, w.s)
    order.global_write(w, tensor, index, wide, agent, now, w.s, clock, strong=strong)


def _touched(tmap: TensorMap, where, parts) -> tuple[np.ndarray, bool]:
    """The words of the tensor that lie in the clipped box; rows of 16 bytes where True."""
    if any(first >= last for first, last in parts):
        return np.empty(0, dtype=np.int64), False
    tensor = tmap.tensor
    starts = np.asarray(tmap.offset, dtype=np.int64)  # bytes, of each run along the last dimension
    for start, (first, last), step, stride in reversed(
        list(zip(where, parts, tmap.steps, tmap.strides, strict=True))[1:]
    ):
        starts = starts[..., None] + (start + np.arange(first, last) * step) * stride
    (first, last), step = parts[0], tmap.steps[0]
    starts = starts + (where[0] + first * step) * tmap.itemsize
    nbytes = (last - first) * tmap.itemsize
    together = int(np.bitwise_or.reduce(starts, axis=None)) | nbytes if step == 1 else 1
    if together % 16 == 0:
        return starts[..., None] // 16 + np.arange(nbytes // 16), True
    if together % tensor.grain == 0:
        return starts[..., None] // tensor.grain + np.arange(nbytes // tensor.grain), False
    each = starts[..., None] + np.arange(last - first) * (step * tmap.itemsize)
    return np.unique(access.words_of(each, tmap.itemsize, tensor.grain)), False


@op
def bulk_store(w: Warp, destination, source, size, reduce: str = "", dtype: str = "", mask=None):
    """``cp.async.bulk`` (or ``cp.reduce``) of ``size`` bytes from shared to global memory."""
    if not _one_thread(w, mask, "a bulk store"):
        return
    size = int(uniform(w, size, "a byte count"))
    target = int(uniform(w, destination, "an address"))
    rank, offset = _destination(w, source)
    if size % 16 or size <= 0 or target % 16:
        raise _bulk_alignment(w, size)
    cta = w.cluster.ctas[rank]
    rows = _rows_linear(w, cta, offset, size)
    tensor, start = access._span(w, target, 16, None, "a bulk store")
    access._span(w, target + size - 16, 16, None, "a bulk store")
    tensor.written = True
    w.machine.count("global_store_bytes", size)

    def effect(data: np.ndarray) -> None:
        held = tensor.view(4, 4)[start // 16 : (start + size) // 16]
        if reduce:
            raw = {2: np.uint16, 4: np.uint32, 8: np.uint64}[_SIZES[dtype]]
            flat, values = held.reshape(-1).view(raw), data.reshape(-1).view(raw)
            flat[...] = _reduced(flat, values, dtype, reduce)
        else:
            held[...] = data.view(np.uint32).reshape(-1, 4)
        w.machine.writes += 1

    if w.checks:
        _note_out(w, tensor, np.arange(start >> 4, (start + size) >> 4), True, bool(reduce))
    _copy_out(w, cta, rows, "a bulk store", effect)


_SIZES = {
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "uint32": 4, "int32": 4,
    "uint64": 8, "int64": 8,
}  # fmt: skip


def _reduced(held: np.ndarray, values: np.ndarray, dtype: str, how: str) -> np.ndarray:
    """Raw bits of ``held`` combined with ``values`` by a reduction."""
    held, values = np.ascontiguousarray(held), np.ascontiguousarray(values)
    if dtype in ("float16", "bfloat16"):
        kind = np.float16 if dtype == "float16" else np.uint16
        a, b = to_f32(held.view(kind), dtype), to_f32(values.view(kind), dtype)
        combine = {"add": np.add, "min": np.fmin, "max": np.fmax}[how]
        return np.asarray(from_f32(combine(a, b), dtype)).view(held.dtype)
    typed = np.dtype(dtype)
    a, b = held.view(typed), values.view(typed)
    if how == "inc":
        return np.where(a >= b, 0, a + 1).astype(typed).view(held.dtype)
    if how == "dec":
        return np.where((a == 0) | (a > b), b, a - 1).astype(typed).view(held.dtype)
    return COMBINE[how](a, b).view(held.dtype)


@op
def bulk_commit(w: Warp, mask=None) -> None:
    """``cp.async.bulk.commit_group``: the copies since the last commit are one group."""
    groups = _groups(w)
    groups.committed.append((groups.clock, groups.open))
    groups.open = []
    groups.clock += 1


@op
def bulk_wait(w: Warp, count: int, read: bool, mask=None) -> None:
    """``cp.async.bulk.wait_group{.read} N``: all but the latest N groups are done (or read)."""
    groups = _groups(w)
    keep = max(0, len(groups.committed) - int(count))
    for clock, pipes in groups.committed[:keep]:
        for pipe in pipes:
            pipe.drain()
        groups.read = max(groups.read, clock)
        w.clock[:, w.unit["bulk_read"]] = max(int(w.clock[0, w.unit["bulk_read"]]), clock)
        if not read:
            w.clock[:, w.unit["bulk"]] = max(int(w.clock[0, w.unit["bulk"]]), clock)
    if not read:
        del groups.committed[:keep]


def _bulk_exit(w: Warp) -> None:
    """Shared memory must not be given back while a store still reads it."""
    groups = w.state.get("bulk_groups")
    if groups is None:
        return
    unread = [c for c, pipes in groups.committed if pipes and c > groups.read]
    if groups.open:
        unread.append(groups.clock)
    if unread:
        site = groups.sites.get(unread[0], w.s)
        w.machine.report(
            "in-flight-at-exit",
            w,
            f"exits with {len(unread)} bulk group{'s' * (len(unread) != 1)} of stores whose shared "
            "memory may still be read",
            memory="shared memory",
            fix="commit the group, and execute cp.async.bulk.wait_group.read 0 in the same thread",
            site=site,
        )


EXIT_HOOKS.append(_bulk_exit)


# ------------------------------------------------------------------------------------- cp.async


class _AsyncCopies:
    """A warp's ``cp.async`` copies: those not yet committed, and the committed groups."""

    def __init__(self) -> None:
        self.clock = 1
        self.open: list[Pipe] = []
        self.committed: list[tuple[int, list[Pipe]]] = []


def _async_copies(w: Warp) -> _AsyncCopies:
    found = w.state.get("cp_async")
    if found is None:
        found = w.state["cp_async"] = _AsyncCopies()
    return found


@op
def cp_async(w: Warp, destination, source, size: int, source_size=None, mask=None) -> None:
    """``cp.async``: each active thread copies ``size`` bytes; past ``source_size`` come zeros."""
    copies = _async_copies(w)
    lanes = np.arange(32) if mask is None else np.flatnonzero(mask)
    if lanes.size == 0:
        return
    into = np.broadcast_to(np.asarray(destination, dtype=np.int64), (32,))[lanes]
    origin = np.broadcast_to(np.asarray(source, dtype=np.int64), (32,))[lanes]
    taken = None
    if source_size is not None:
        taken = np.broadcast_to(np.asarray(source_size, dtype=np.int64), (32,))[lanes]
    cta, offsets = access._shared(w, into, size, mask, "cp.async")
    active = np.ones(lanes.size, dtype=bool) if taken is None else taken > 0
    if active.any():
        tensor, starts = access._span(w, origin[active], size, mask, "cp.async")
        if w.checks and tensor.mixed:
            index = access.words_of(np.asarray(starts), size, tensor.grain)
            now = stamp(w.unit["cp_async"], copies.clock, w.s)
            order.global_read(w, tensor, index, False, w.unit["cp_async"], now, w.s, w.clock)
    words = access.words_of(offsets, size, w.machine.program.grain)
    if w.checks:
        agent = w.unit["cp_async"]
        clock = w.clock[0].copy()
        clock[agent] = copies.clock
        shadow = cta.shadow.flat()
        index = np.asarray(words)
        before = shadow.writer[index]
        bad = unseen(before, clock)
        if bad is not None:
            access.race(w, cta, index, False, before, bad, "write", "write", agent, w.s, mask)
        for reader, stamps in list(shadow.readers.items()):
            bad = unseen(stamps[index], clock)
            if bad is not None:
                access.race(
                    w, cta, index, False, stamps[index], bad, "write", "read", agent, w.s, mask
                )
            del reader
        shadow.write(index, stamp(agent, copies.clock, w.s))
    w.machine.count("global_load_bytes", size * lanes.size)
    pipe = Pipe(w.cluster, f"cp.async of {w.name()}")

    def land() -> None:
        raw = np.zeros((lanes.size, size // 4), dtype=np.uint32)
        if active.any():
            tensor, starts = access._span(w, origin[active], size, mask, "cp.async")
            raw[active] = tensor.view(4, size // 4)[starts // size].reshape(-1, size // 4)
        if taken is not None:
            flat = raw.view(np.uint8)
            flat[np.arange(size)[None, :] >= taken[:, None]] = 0
        target = cta.shared.view(4, size // 4)
        target[offsets // size] = raw if size > 4 else raw[:, 0]
        cta.version += 1

    copies.open.append(pipe)
    pipe.submit(land)


@op
def cp_async_commit(w: Warp, mask=None) -> None:
    """``cp.async.commit_group``."""
    copies = _async_copies(w)
    copies.committed.append((copies.clock, copies.open))
    copies.open = []
    copies.clock += 1


@op
def cp_async_wait(w: Warp, count: int, mask=None) -> None:
    """``cp.async.wait_group N``: all but the latest N groups of these threads are done."""
    copies = _async_copies(w)
    keep = max(0, len(copies.committed) - int(count))
    for clock, pipes in copies.committed[:keep]:
        for pipe in pipes:
            pipe.drain()
        w.clock[0, w.unit["cp_async"]] = max(int(w.clock[0, w.unit["cp_async"]]), clock)
    del copies.committed[:keep]


@op
def cp_async_wait_all(w: Warp, mask=None) -> None:
    """``cp.async.wait_all``."""
    cp_async_commit(w)
    cp_async_wait(w, 0)
