"""``cp.async``: copies of 4, 8 or 16 bytes that threads start and do not wait for.

A copy completes in its thread's group (``commit_group``, ``wait_group``), or makes an mbarrier
track it. Source: PTX ISA, "cp.async" and "cp.async.mbarrier.arrive".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlsys_gpu.sim.machine import access, loose, order
from mlsys_gpu.sim.machine.barriers import barrier_at, came_after, groups_of, lanes_in
from mlsys_gpu.sim.machine.clocks import stamp, unseen
from mlsys_gpu.sim.machine.core import Cta, Pipe, Warp, op


@dataclass
class _Group:
    """What some lanes have committed together: each has a group of its own in it."""

    clock: int
    pipes: list[Pipe]
    lanes: np.ndarray  # whose turn to wait for it is still to come
    copied: np.ndarray  # of those, the ones that have copies in it


class _AsyncCopies:
    """A warp's ``cp.async`` copies: those not yet committed, and the committed groups."""

    def __init__(self) -> None:
        self.clock = 1
        self.open: list[tuple[Pipe, np.ndarray]] = []  # with the lanes whose copies they are
        self.committed: list[_Group] = []


def _async_copies(w: Warp) -> _AsyncCopies:
    found = w.state.get("cp_async")
    if found is None:
        found = w.state["cp_async"] = _AsyncCopies()
    return found


@op
def cp_async(
    w: Warp, destination, source, size: int, source_size=None, ignored=None, mask=None
) -> None:
    """``cp.async``: each active thread copies ``size`` bytes; past ``source_size`` come zeros.

    Where ``ignored`` is true, zeros alone; the source is not read then.
    """
    copies = _async_copies(w)
    lanes = np.flatnonzero(w.present if mask is None else mask & w.present)
    if lanes.size == 0:
        return
    into = np.broadcast_to(np.asarray(destination, dtype=np.int64), (32,))[lanes]
    origin = np.broadcast_to(np.asarray(source, dtype=np.int64), (32,))[lanes]
    taken = np.full(lanes.size, size)
    if source_size is not None:
        taken = np.broadcast_to(np.asarray(source_size, dtype=np.int64), (32,))[lanes]
        taken = np.minimum(taken, size)
    if ignored is not None:
        taken = np.where(np.broadcast_to(np.asarray(ignored) != 0, (32,))[lanes], 0, taken)
    cta, offsets = access._shared(w, into, size, mask, "cp.async")
    tensor, starts = _sources(w, copies, origin, size, taken, mask)
    if w.checks:
        _check_write(w, copies, cta, access.words_of(offsets, size, w.machine.program.grain), mask)
    w.machine.count("global_load_bytes", int(taken.sum()))
    active = taken > 0
    pipe = Pipe(w.cluster, f"cp.async of {w.name()}")

    def land() -> None:
        raw = np.zeros((lanes.size, size // 4), dtype=np.uint32)
        if tensor is not None and starts is not None:
            raw[active] = tensor.view(4, size // 4)[starts // size].reshape(-1, size // 4)
        flat = raw.view(np.uint8)
        flat[np.arange(size)[None, :] >= taken[:, None]] = 0
        target = cta.shared.view(4, size // 4)
        target[offsets // size] = raw if size > 4 else raw[:, 0]
        cta.version += 1

    copies.open.append((pipe, loose.mask_of(lanes)))
    pipe.submit(land)


def _sources(w: Warp, copies: _AsyncCopies, origin, size: int, taken, mask):
    """The tensor that the threads copy from and their byte offsets in it; checked and recorded."""
    active = taken > 0
    if not active.any():
        return None, None
    whole, some = taken == size, active & (taken < size)
    if whole.any():
        access._span(w, origin[whole], size, mask, "cp.async")
    if some.any():  # of a part only its own bytes must lie in the tensor
        access._span(w, origin[some], 4, mask, "cp.async")
        access._span(w, origin[some] + taken[some] - 1, 1, mask, "cp.async")
    tensor, _ = access._span(w, origin[active], 1, mask, "cp.async")
    starts = access._span(w, origin[active], 1, mask, "cp.async")[1]
    if w.checks and tensor.mixed:
        index = access.words_of(np.asarray(starts), size, tensor.grain)
        unit = w.unit["cp_async"]
        now = stamp(unit, copies.clock, w.s)
        order.global_read(w, tensor, index, False, unit, now, w.s, w.clock)
    return tensor, starts


def _check_write(w: Warp, copies: _AsyncCopies, cta: Cta, words, mask) -> None:
    agent = w.unit["cp_async"]
    clock = w.clock[0].copy()
    clock[agent] = copies.clock
    shadow = cta.shadow.flat()
    index = np.asarray(words)
    before = shadow.writer[index]
    bad = unseen(before, clock)
    if bad is not None:
        access.race(w, cta, index, False, before, bad, "write", "write", agent, w.s, mask)
    for stamps in list(shadow.readers.values()):
        bad = unseen(stamps[index], clock)
        if bad is not None:
            read = stamps[index]
            access.race(w, cta, index, False, read, bad, "write", "read", agent, w.s, mask)
    shadow.write(index, stamp(agent, copies.clock, w.s))


@op
def cp_async_commit(w: Warp, mask=None) -> None:
    """``cp.async.commit_group``: the copies of these threads so far become a group of each."""
    copies = _async_copies(w)
    lanes = loose.mask_of(lanes_in(w, mask))
    pipes = [pipe for pipe, of in copies.open if (of & lanes).any()]
    copied = np.zeros(32, dtype=bool)
    for _, of in copies.open:
        copied |= of & lanes
    copies.open = [(pipe, of & ~lanes) for pipe, of in copies.open if (of & ~lanes).any()]
    # one clock for the warp: a group beside copies that are still open does not show those
    clock = copies.clock - bool(copies.open)
    copies.committed.append(_Group(clock, pipes, lanes, copied))
    copies.clock += 1


@op
def cp_async_wait(w: Warp, count: int, mask=None) -> None:
    """``cp.async.wait_group N``: all but the latest N groups of these threads are done.

    A group counts as done for the warp once all lanes that have copies in it have waited.
    """
    copies = _async_copies(w)
    lanes, later = loose.mask_of(lanes_in(w, mask)), np.zeros(32, dtype=np.int64)
    for group in reversed(copies.committed):
        done = lanes & (later >= int(count))
        later += group.lanes
        group.lanes = group.lanes & ~done
        group.copied = group.copied & ~done
    unit, before = w.unit["cp_async"], True
    for group in copies.committed:
        before = before and not group.copied.any()
        if before:
            for pipe in group.pipes:
                pipe.drain()
            w.clock[0, unit] = max(int(w.clock[0, unit]), group.clock)
    copies.committed = [g for g in copies.committed if g.lanes.any()]


@op
def cp_async_wait_all(w: Warp, mask=None) -> None:
    """``cp.async.wait_all``."""
    cp_async_commit(w, mask)
    cp_async_wait(w, 0, mask)


@op
def cp_async_mbarrier_arrive(w: Warp, address, counted: bool, mask=None) -> None:
    """``cp.async.mbarrier.arrive``: each active thread arrives once its copies so far have come.

    ``counted`` (``.noinc``): the barrier's count includes these arrivals; else each of them first
    raises the pending count, so that it comes to nothing but a delay. An arrival publishes the
    copies, and nothing else of what its thread has done.
    """
    copies = _async_copies(w)
    agent = w.unit["cp_async"]
    pipes = [p for group in copies.committed for p in group.pipes]
    pipes += [pipe for pipe, _ in copies.open]
    clock = np.zeros_like(w.clock)
    clock[0, agent] = max(copies.clock, int(w.clock[0, agent]))
    came_after(clock, w.clock)
    copies.clock += 1  # what comes now is not covered
    w.tick()
    for (place,), lanes in groups_of(w, mask, address):
        barrier, threads, site = barrier_at(w, place), lanes.size, w.s
        who = f"cp.async of {w.name()}" + (f" ({threads} threads)" if threads > 1 else "")
        barrier.arrivers.add(w.agent)
        if not counted:
            barrier.pending += threads

        def arrive(barrier=barrier, threads=threads, who=who, site=site) -> None:
            for pipe in pipes:
                pipe.drain()
            barrier.arrive(clock, threads, w, who, site)

        Pipe(w.cluster, who).submit(arrive)
