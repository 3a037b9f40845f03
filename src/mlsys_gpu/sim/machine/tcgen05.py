"""``tcgen05``: tensor memory and the tensor core that writes it (Blackwell).

Products are computed when their engine's turn comes, adjacent k16 steps in one matrix product. What
they read and write is checked and stamped when they are issued: whether two accesses are ordered
does not depend on when the schedule lets an engine work.
Products of 16-bit floats are exact in float32; their sum is accumulated in float32 in an order that
the ISA leaves open, as the hardware does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from mlsys_gpu.sim.machine import access, descriptors, memory
from mlsys_gpu.sim.machine.barriers import barrier_at, came_after, uniform
from mlsys_gpu.sim.machine.clocks import (
    AGENT_SHIFT,
    CLOCK_MASK,
    CLOCK_SHIFT,
    SITE_MASK,
    TCGEN05_ROW,
    stamp,
    unseen,
    unseen_of,
)
from mlsys_gpu.sim.machine.core import (
    END_HOOKS,
    EXIT_HOOKS,
    Cta,
    Pipe,
    Stop,
    Waiting,
    Warp,
    op,
    threads_in,
    whole_warp,
)
from mlsys_gpu.sim.machine.numerics import POISON, f32_to_f16, to_f32
from mlsys_gpu.sim.machine.operands import (
    bad_descriptor,
    count_product,
    decode,
    discarded,
    note,
    out_of_shared,
)

# ---------------------------------------------------------------------------- tensor memory

COLUMNS = 512


class Allocation(NamedTuple):
    """Columns that a warp has allocated: how many, when (a stamp), and by whom."""

    columns: int
    made: int
    warp: Warp


class Tmem:
    """A CTA's tensor memory: 128 lanes of 512 32-bit columns, and who holds which columns."""

    def __init__(self, checks: bool, other: bool = False):
        self.unwritten = np.uint32(0x3FB00000) if other else POISON
        self.data = np.full((128, COLUMNS), self.unwritten, dtype=np.uint32)
        self.floats = self.data.view(np.float32)
        #: For each column the allocation it belongs to, or 0.
        self.owner = np.zeros(COLUMNS, dtype=np.int32)
        #: For each column the stamp of the last dealloc.
        self.freed = np.zeros(COLUMNS, dtype=np.int64)
        #: The same of the peer's dealloc, where there has been one for the pair.
        self.pair_freed: np.ndarray | None = None
        self.allocations: dict[int, Allocation] = {}
        self.last: Allocation | None = None
        self.count = 0
        self.permit = True
        self.waiting: list[Warp] = []  # warps that wait for free columns
        self.pair_turn = 0  # allocations made as one of a pair
        #: Stamps by 16 lanes and column: the finest division that an MMA's layout makes.
        self.shadow = memory.Shadow((8, COLUMNS if checks else 0))
        #: Where the last write added to what was there, and where nothing has read it since.
        self.added = np.zeros(self.shadow.shape, dtype=bool)
        self.unread = np.zeros(self.shadow.shape, dtype=bool)


def tmem_of(cta: Cta) -> Tmem:
    found = cta.state.get("tmem")
    if found is None:
        found = cta.state["tmem"] = Tmem(cta.machine.checks, cta.machine.other)
    return found


@op
def tcgen05_alloc(w: Warp, address, columns, group: int = 1, mask=None):
    """``tcgen05.alloc``: reserve columns; the first one's address goes to shared memory.

    Source: PTX ISA, "tcgen05.alloc, tcgen05.dealloc, tcgen05.relinquish_alloc_permit".
    """
    whole_warp(w, mask, "tcgen05.alloc")
    _one_group(w, group, "tcgen05.alloc")
    columns = int(uniform(w, columns, "a column count"))
    tmem = tmem_of(w.cta)
    if columns & (columns - 1) or not 32 <= columns <= COLUMNS:
        w.machine.report(
            "tmem-lifetime",
            w,
            f"tcgen05.alloc of {columns} columns",
            memory="tensor memory",
            fix="ask for a power of two of columns, 32 to 512",
        )
        raise Stop
    if not tmem.permit:
        w.machine.report(
            "tmem-lifetime",
            w,
            "tcgen05.alloc after relinquish_alloc_permit",
            memory="tensor memory",
            fix="relinquish the permit only after the last allocation",
        )
        raise Stop
    if tmem.last is not None and columns > tmem.last.columns:
        w.machine.report(
            "tmem-lifetime",
            w,
            f"tcgen05.alloc of {columns} columns, after one of {tmem.last.columns} in the same CTA:"
            " the number must not increase from one allocation to the next",
            memory="tensor memory",
            fix="allocate the larger part first",
            related=[("the one before", w.machine.program.location(tmem.last.made & SITE_MASK))],
        )
    start = _free_columns(w, tmem, columns) if group == 1 else _pair_columns(w, columns)
    if start is None:
        return w.waiting
    tmem.count += 1
    tmem.owner[start : start + columns] = tmem.count
    tmem.allocations[start] = tmem.last = Allocation(columns, w.now | w.s, w)
    tmem.data[:, start : start + columns] = tmem.unwritten
    if tmem.pair_freed is not None:
        tmem.pair_freed[start : start + columns] = 0
    if w.checks:
        tmem.shadow.forget((slice(None), slice(start, start + columns)))
        tmem.unread[:, start : start + columns] = False
    access.st_shared(w, uniform(w, address, "an address"), start, 4, 1)
    return None


def _choice(w: Warp, free: list[int]) -> int | None:
    """One of the free places. Which one an allocation gets is the hardware's choice, and other CTAs
    on the SM may hold the first columns: only the eager schedule starts at column 0."""
    if not free:
        return None
    rng = w.machine.rng
    if rng is not None:
        return free[rng.randrange(len(free))]
    return free[0] if w.cluster.eager else free[-1]


def _free(tmem: Tmem, columns: int) -> set[int]:
    return {c for c in range(0, COLUMNS, columns) if not tmem.owner[c : c + columns].any()}


def _free_columns(w: Warp, tmem: Tmem, columns: int) -> int | None:
    """The first column of a new allocation, or None once the warp has been parked."""
    start = _choice(w, sorted(_free(tmem, columns)))
    if start is None:
        _park_for_columns(w, [tmem], columns)
    return start


def _park_for_columns(w: Warp, tmems: list[Tmem], columns: int) -> None:
    """Let a warp wait until columns come free; where they never do, say who holds them."""
    for tmem in tmems:
        tmem.waiting.append(w)
    site = w.s

    def holders() -> list[tuple[str, Allocation]]:
        return [
            (f"columns {start}-{start + held.columns - 1} ({held.warp.name()})", held)
            for tmem in tmems
            for start, held in sorted(tmem.allocations.items())
        ]

    def describe() -> str:
        held = max(int((tmem.owner != 0).sum()) for tmem in tmems)
        return f"waits for {columns} free columns of tensor memory; {held} of 512 are held"

    def missed() -> None:
        w.machine.report(
            "tmem-lifetime",
            w,
            f"tcgen05.alloc of {columns} columns can never succeed: "
            + ", ".join(name for name, _ in holders())
            + " are held, and nobody gives them back",
            memory="tensor memory",
            fix="ask for what is needed once, or give columns back before asking for more",
            site=site,
            related=[
                (f"allocates {name}", w.machine.program.location(held.made & SITE_MASK))
                for name, held in holders()
            ],
        )

    w.waiting = Waiting("tcgen05.alloc", tmems[0], describe, missed)


def _one_group(w: Warp, group: int, what: str) -> None:
    """All tcgen05 instructions of a kernel have the same ``.cta_group`` (PTX ISA)."""
    state = w.cluster.state
    first = state.setdefault("cta_group", (group, w.s, what))
    if first[0] != group:
        _mixed_groups(w, group, what, first)


def _mixed_groups(w: Warp, group: int, what: str, other: tuple[int, int, str]) -> None:
    place = w.machine.program.location(other[1])
    w.machine.report(
        "cta-group",
        w,
        f"{what} is cta_group::{group} here, and {other[2]} ({place}) is cta_group::{other[0]}: "
        "all tcgen05 instructions of a kernel must have the same",
        memory="tensor memory",
        fix="give every tcgen05 instruction the same cta_group",
        related=[("the other group", place)],
        fault=("mixed", w.s),
    )


def _peer(w: Warp, rank: int) -> Cta:
    """The other CTA of a pair (``cta_group::2``)."""
    if rank ^ 1 >= w.cluster.size:
        w.machine.report(
            "cta-group",
            w,
            "cta_group::2 in a cluster without a pair of CTAs",
            memory="",
            fix="launch clusters of an even number of CTAs",
        )
        raise Stop
    return w.cluster.ctas[rank ^ 1]


def _pair_columns(w: Warp, columns: int) -> int | None:
    """The first column of a pair's allocation: both CTAs must ask, and both get the same."""
    peer, tmem = _peer(w, w.rank), tmem_of(w.cta)
    pairs = w.cluster.state.setdefault("tmem_pairs", {})
    turn = pairs.setdefault((w.rank & ~1, tmem.pair_turn), {"asked": {}, "start": None})
    turn["asked"][w.rank] = w
    turn.setdefault("columns", (columns, w.s))
    if turn["columns"][0] != columns:
        w.machine.report(
            "cta-group",
            w,
            f"tcgen05.alloc.cta_group::2 of {columns} columns, and the peer's is of "
            f"{turn['columns'][0]}: the two allocate together",
            memory="tensor memory",
            fix="let both CTAs of the pair ask for the same number of columns",
            related=[("the peer's", w.machine.program.location(turn["columns"][1]))],
        )
        raise Stop
    if len(turn["asked"]) < 2:
        w.waiting = Waiting(
            "tcgen05.alloc",
            tmem,
            lambda: (
                "waits in tcgen05.alloc.cta_group::2 for a warp of the peer, CTA rank "
                f"{peer.rank}, to allocate too"
            ),
        )
        return None
    if turn["start"] is None:
        free = _free(tmem, columns) & _free(tmem_of(peer), columns)
        turn["start"] = _choice(w, sorted(free))
        if turn["start"] is None:
            _park_for_columns(w, [tmem, tmem_of(peer)], columns)
            return None
        other = turn["asked"][w.rank ^ 1]
        if other.waiting is not None:
            w.cluster.wake(other)
    tmem.pair_turn += 1
    return turn["start"]


@op
def tcgen05_dealloc(w: Warp, address, columns, group: int = 1, mask=None) -> None:
    """``tcgen05.dealloc``: give columns back; nothing may still be using them.

    With ``cta_group::2`` nothing in the peer either: the pair gives them back together (PTX ISA,
    "Issue Granularity").
    """
    whole_warp(w, mask, "tcgen05.dealloc")
    _one_group(w, group, "tcgen05.dealloc")
    if w.open is not None:
        w.open.flush()
    start = int(uniform(w, address, "a tensor-memory address")) & 0xFFFF
    columns = int(uniform(w, columns, "a column count"))
    tmem = tmem_of(w.cta)
    held = tmem.allocations.get(start)
    if held is None or held.columns != columns:
        known = ", ".join(f"{h.columns} columns at {s}" for s, h in tmem.allocations.items())
        w.machine.report(
            "tmem-lifetime",
            w,
            f"tcgen05.dealloc of {columns} columns at {start}, which is no allocation "
            f"(held: {known or 'none'})",
            memory="tensor memory",
            fix="give back what tcgen05.alloc returned, once, with the same column count",
        )
        raise Stop
    if w.checks:
        access = _access(w, _known(w), {}, "free", "tcgen05.dealloc", "warp", w.s)
        _tmem_check(w, w.cta, slice(0, 8), start, columns, access)
        if group == 2:
            _check_peer(w, _peer(w, w.rank), start, columns, access)
    tmem.owner[start : start + columns] = 0
    tmem.freed[start : start + columns] = w.now | w.s
    del tmem.allocations[start]
    waiting, tmem.waiting = tmem.waiting, []
    for other in waiting:
        other.cluster.wake(other)


def _check_peer(w: Warp, peer: Cta, start: int, columns: int, access: Access) -> None:
    """A pair's columns are given back after the peer's allocation and the peer's last use."""
    theirs = tmem_of(peer)
    held = theirs.allocations.get(start)
    early = theirs.pair_turn < tmem_of(w.cta).pair_turn  # still in its tcgen05.alloc
    if held is not None:
        early = (held.made >> CLOCK_SHIFT) & CLOCK_MASK > access.clock[held.made >> AGENT_SHIFT]
    if not early:
        if w.machine.reading("tcgen05-dealloc") == "pair":
            _tmem_check(w, peer, slice(0, 8), start, columns, access)
            if held is not None:
                if theirs.pair_freed is None:
                    theirs.pair_freed = np.zeros(COLUMNS, dtype=np.int64)
                theirs.pair_freed[start : start + columns] = w.now | w.s
        return
    w.machine.report(
        "cta-group",
        w,
        f"tcgen05.dealloc.cta_group::2 in CTA rank {w.rank} does not wait for the tcgen05.alloc of "
        f"CTA rank {peer.rank}, which may not be complete",
        memory=f"tensor memory, columns {start}-{start + columns - 1}",
        fix=PAIR_FIX,
        fault=("pair", w.s),
    )


@op
def tcgen05_relinquish(w: Warp, group: int = 1, mask=None) -> None:
    """``tcgen05.relinquish_alloc_permit``: this CTA will allocate no more."""
    whole_warp(w, mask, "tcgen05.relinquish_alloc_permit")
    _one_group(w, group, "tcgen05.relinquish_alloc_permit")
    tmem_of(w.cta).permit = False


def _tmem_columns(
    w: Warp, cta: Cta, start: int, count: int, what: str, site: int, agent: int, clock: np.ndarray
) -> Tmem:
    """Tensor memory, once the columns have been found to lie in one live allocation."""
    tmem = tmem_of(cta)
    end = start + count
    owners = tmem.owner[start:end] if start >= 0 and end <= COLUMNS else np.zeros(1, dtype=np.int32)
    if owners.size == 0 or not owners.all():
        freed = int(tmem.freed[start:end].max()) if 0 <= start < end <= COLUMNS else 0
        unseen = (freed >> CLOCK_SHIFT) & CLOCK_MASK > clock[freed >> AGENT_SHIFT]
        if freed and unseen and w.checks:
            late, early = (freed >> AGENT_SHIFT, freed & SITE_MASK), (agent, site)
            _tmem_race(w, cta, start, "free", late, early, "tcgen05.dealloc", "uses")
            raise Stop
        place = w.machine.program.location(freed & SITE_MASK) if freed else None
        w.machine.report(
            "tmem-lifetime",
            w,
            f"{what} uses tensor-memory columns {start} to {end - 1}, "
            + ("which do not exist" if end > COLUMNS else "which are not allocated")
            + (f" any more: {place} gave them back" if place else ""),
            memory=f"tensor memory, columns {start}-{end - 1}",
            fix="allocate the columns first (tcgen05.alloc), and give them back after the last use",
            site=site,
            related=[("given back", place)],
        )
        raise Stop
    if tmem.pair_freed is not None and tmem.pair_freed[start:end].any():
        freed = int(tmem.pair_freed[start:end].max())
        late, early = (freed >> AGENT_SHIFT, freed & SITE_MASK), (agent, site)
        _tmem_race(w, cta, start, "free", late, early, "tcgen05.dealloc", "uses")
    return tmem


class Order(NamedTuple):
    """What ``tcgen05.fence::after_thread_sync`` has put ahead of a thread's tcgen05 operations.

    Clocks of one row, never written again. ``fenced``: accesses that a fence before their thread's
    synchronisation and one behind this thread's order; ``done``: products whose completion a
    relaxed wait has shown; ``barriers``: what came before a CTA, named or cluster barrier that has
    such a fence behind it.
    """

    fenced: np.ndarray
    done: np.ndarray
    barriers: np.ndarray


class Known(NamedTuple):
    """What a thread knows when it issues a tcgen05 operation.

    ``clock``: what comes before it; ``published``: that of it which stands behind a
    ``before_thread_sync``; ``relaxed``: what relaxed waits have shown and nothing has acquired.
    The last three are None where no fences are followed.
    """

    clock: np.ndarray
    published: np.ndarray | None = None
    relaxed: np.ndarray | None = None
    order: Order | None = None


class Access(NamedTuple):
    """An access to tensor memory: ``kind`` is ``read``, ``write`` or ``free``.

    ``clock``: what is ordered before it; ``fenced``: the same by the fences of tcgen05 alone, where
    they are followed; ``shown``: what waits have shown without ordering it; ``adds``: the write
    accumulates.
    """

    kind: str
    what: str
    agent: int
    site: int
    known: Known
    clock: np.ndarray
    fenced: np.ndarray | None = None
    shown: np.ndarray | None = None
    adds: bool = False


def _keep(issued: dict[int, int], key: int, moment: int) -> None:
    """Remember when an operation was issued; of many, those of late."""
    issued[key] = moment
    if len(issued) > 4096:
        del issued[next(iter(issued))]


def _issue_seen(w: Warp, value: int, access: Access) -> bool:
    """Whether an access comes after the issue of another one (a stamp), by the threads' order."""
    agents, unit = w.cluster.agents, w.cluster.agents.unit_of(value >> AGENT_SHIFT)
    place = agents.warp_of(value >> AGENT_SHIFT)
    if place is None or unit not in ("tmem_load", "tmem_store", "tcgen05"):
        return False
    other = w.cluster.ctas[place[0]].warps[place[1]]
    clock, site = value >> CLOCK_SHIFT & CLOCK_MASK, value & SITE_MASK
    issued = other.state[unit].issued
    moment = issued.get(clock << CLOCK_SHIFT | site if unit == "tcgen05" else clock)
    return moment is not None and moment <= access.known.clock[other.agent]


def _known(w: Warp) -> Known:
    if not w.machine.fences:
        return Known(w.clock[0].copy())
    order = w.state.get("tcgen05_order")
    if order is None:
        nothing = w.cluster.agents.clock()[0]
        order = w.state["tcgen05_order"] = Order(nothing, nothing, nothing)
    return Known(w.clock[0].copy(), w.clock[TCGEN05_ROW].copy(), w.state.get("unacquired"), order)


def _access(
    w: Warp, known: Known, own: dict[str, int], kind: str, what: str, unit: str, site: int, **more
) -> Access:
    """An access by a unit of the warp (``warp`` itself for ``free``).

    ``own`` are units whose operations are in order with this one by the thread's own order, with
    their clocks. Products must be complete before a load, a store or a dealloc; before another
    product they need only come first.
    """
    clock, agent = known.clock, w.unit[unit]
    if known.order is None:
        for name, value in own.items():
            clock[w.unit[name]] = value
        return Access(kind, what, agent, site, known, clock, **more)
    order, published = known.order, known.published
    assert published is not None
    shown = (
        published if known.relaxed is None else np.maximum(published, known.relaxed[TCGEN05_ROW])
    )
    fenced = (published if kind == "free" else order.fenced).copy()
    if unit == "tcgen05":
        clock = np.maximum(clock, order.fenced)
    else:
        cores = w.cluster.agents.tensor_core
        clock = np.maximum(clock, np.where(cores, order.done, order.fenced))
        shown = np.where(cores, 0, shown)
    for name, value in own.items():
        clock[w.unit[name]] = value
        fenced[w.unit[name]] = CLOCK_MASK
    if known.relaxed is not None:
        shown = np.maximum(shown, known.relaxed[0])
    return Access(kind, what, agent, site, known, clock, fenced, shown, **more)


@op
def tcgen05_fence_before(w: Warp) -> None:
    """``tcgen05.fence::before_thread_sync``: this thread's tcgen05 operations so far come before
    its later synchronisation (loads and stores those that it has waited for).

    Source: PTX ISA, "Specialized Inter-thread Synchronization for tcgen05 instructions".
    """
    if not w.machine.fences:
        return
    row = w.clock[TCGEN05_ROW]
    np.maximum(row, w.clock[0], out=row)
    pipe = w.state.get("tcgen05")
    if pipe is not None:  # products that are not done yet: other products can follow them
        row[w.unit["tcgen05"]] = pipe.clock


@op
def tcgen05_fence_after(w: Warp) -> None:
    """``tcgen05.fence::after_thread_sync``: this thread's later tcgen05 operations come after what
    its synchronisation so far has shown."""
    if not w.machine.fences:
        return
    known = _known(w)
    order, published = known.order, known.published
    assert order is not None
    assert published is not None
    fenced, done, barriers = np.maximum(order.fenced, published), order.done, order.barriers
    if known.relaxed is not None:
        fenced, done = (
            np.maximum(fenced, known.relaxed[TCGEN05_ROW]),
            np.maximum(done, known.relaxed[0]),
        )
    if w.synced[0] == "barrier":
        barriers = np.maximum(barriers, known.clock)
    w.state["tcgen05_order"] = Order(fenced, done, barriers)


COMMIT_FIX = (
    "wait for an mbarrier that a tcgen05.commit, issued after the MMA by the same thread, arrives "
    "at; a CTA barrier shows only that the MMA was issued"
)
PAIR_FIX = (
    "put a cluster barrier (or an mbarrier that the peer arrives at) between the last use of "
    "tensor memory in either CTA of the pair and tcgen05.dealloc"
)
TRANSFER_FIX = (
    "execute tcgen05.wait::ld (or ::st), then a barrier, or an arrival at an mbarrier, and let the "
    "other wait for it before its access"
)
FENCE_FIX = {
    "after": (
        "execute tcgen05.fence::after_thread_sync behind the wait (at the mbarrier or barrier), "
        "before the first tcgen05 operation that relies on it"
    ),
    "before": (
        "execute tcgen05.fence::before_thread_sync behind tcgen05.wait::ld (or ::st), before the "
        "arrival or barrier that hands the columns over"
    ),
}


def _tmem_check(w: Warp, cta: Cta, lanes, start: int, count: int, access: Access) -> bool:
    """Check an access to tensor memory against all before it; returns whether it is in order.

    As with shared memory the report stands at the access that fails to wait, whichever came first
    in this run: a read does not wait for a product that it should have contained, unless the
    product overwrites what the read was meant to get.
    """
    shadow = tmem_of(cta).shadow
    box = (lanes, slice(start, start + count))
    kind, clock, what = access.kind, access.clock, access.what
    this = (access.agent, access.site)
    before = shadow.writer[box]
    bad = unseen(before, clock)
    if bad is not None:
        other = _other(before, bad)
        column = start + int(np.argwhere(bad)[0][1])
        if _behind_relaxed_wait(w, cta, column, before[bad], access):
            return False
        if _not_waited(w, cta, column, before[bad], access):
            return False
        if kind == "read":
            held = shadow.previous[box][bad]
            seen = (held >> CLOCK_SHIFT) & CLOCK_MASK <= clock[held >> AGENT_SHIFT]
            kept = (held != 0) & seen & ~tmem_of(cta).added[box][bad]
            if kept.any() and not _issue_seen(w, int(before[bad].flat[0]), access):
                _tmem_race(w, cta, column, "write", other, this, what, "reads")
            else:
                _tmem_race(w, cta, column, "read", this, other, what)
        else:
            _tmem_race(w, cta, column, kind, this, other, what)
        return False
    if access.fenced is not None:
        _check_fences(w, cta, start, before, access)
    if kind == "read":
        return True
    for reader, readers in shadow.readers.items():
        if reader == access.agent:
            continue
        stamps = readers[box]
        bad = unseen_of(reader, stamps, clock)
        if bad is None:
            if access.fenced is not None:
                _check_fences(w, cta, start, stamps, access)
            continue
        other = _other(stamps, bad)
        column = start + int(np.argwhere(bad)[0][1])
        if _behind_relaxed_wait(w, cta, column, stamps[bad], access):
            return False
        if _not_waited(w, cta, column, stamps[bad], access):
            return False
        if kind == "write" and (access.adds or bool((before[bad] == 0).any())):
            _tmem_race(w, cta, column, "read", other, this, what)
        else:
            _tmem_race(w, cta, column, kind, this, other, what, "reads")
        return False
    return True


#: What the readings of tcgen05-ld have to do with a load that nobody has waited for.
_LOADS = {
    "dependency": (
        "; that its registers have been used says nothing of that (reading tcgen05-ld: dependency)"
    ),
    "wait": "; nor may its registers be used before (reading tcgen05-ld: wait)",
}


def _not_waited(w: Warp, cta: Cta, column: int, stamps: np.ndarray, access: Access) -> bool:
    """Report a load or store that was issued before an access and that its thread has not waited
    for: the order of the threads alone does not finish it."""
    value = int(stamps.flat[0])
    early, site = value >> AGENT_SHIFT, value & SITE_MASK
    agents, machine = w.cluster.agents, w.machine
    unit = agents.unit_of(early)
    if unit not in ("tmem_load", "tmem_store"):
        return False
    place = agents.warp_of(early)
    assert place is not None
    other = w.cluster.ctas[place[0]].warps[place[1]]
    if not _issue_seen(w, value, access):
        return False
    what, wait = ("tcgen05.ld", "::ld") if unit == "tmem_load" else ("tcgen05.st", "::st")
    verb = "read" if unit == "tmem_load" else "written"
    later = {"read": "reads it", "write": "overwrites it", "free": "gives it back"}[access.kind]
    here, there = machine.program.location(site), machine.program.location(access.site)
    own = other is w and access.agent != w.unit["tcgen05"]
    machine.report(
        "missing-tcgen05-wait",
        w,
        f"{other.name()} has not waited for this {what} (no tcgen05.wait{wait} behind it), which "
        f"may not have {verb} tensor-memory column {column} yet when {agents.name(access.agent)} "
        f"{later} ({there})"
        + ("" if own else ": what hands the column over shows only that it was issued")
        + (_LOADS[machine.reading("tcgen05-ld")] if unit == "tmem_load" else ""),
        memory=f"tensor memory, column {column}",
        threads=f"{agents.name(early)} and {agents.name(access.agent)}, CTA {cta.label()}",
        fix=(
            f"execute tcgen05.wait{wait} behind the {what}"
            + (", before the next access" if own else ", before the arrival or barrier")
        ),
        site=site,
        related=[("the later access", there)] if here != there else [],
        fault=("wait", site),
    )
    return True


def _behind_relaxed_wait(w: Warp, cta: Cta, column: int, stamps, access: Access) -> bool:
    """Report accesses that a wait has shown, where a relaxed one orders nothing by itself."""
    if access.shown is None or unseen(stamps, access.shown) is not None:
        return False
    _missing_fence(w, cta, column, access, int(stamps.flat[0]), "after", "error")
    return True


def _check_fences(w: Warp, cta: Cta, start: int, stamps: np.ndarray, access: Access) -> None:
    """Report accesses that waits order and the fences of tcgen05 do not."""
    assert access.fenced is not None
    bad = unseen(stamps, access.fenced)
    if bad is None:
        return
    reading = w.machine.reading("tcgen05-fence")
    if reading == "acquire":
        return
    published, order = access.known.published, access.known.order
    assert published is not None
    assert order is not None
    for value in np.unique(stamps[bad]).tolist():
        agent, clock = value >> AGENT_SHIFT, value >> CLOCK_SHIFT & CLOCK_MASK
        side = "before"
        if w.cluster.agents.tensor_core[agent] or published[agent] >= clock:
            side = "after"
        expected = f"tcgen05_fence_{side}" in w.machine.program.source
        if side == "before":
            expected = expected or order.barriers[agent] >= clock
        if expected or reading == "isa":
            column = start + int(np.argwhere(stamps == value)[0][1])
            _missing_fence(w, cta, column, access, value, side, "warning")


def _missing_fence(
    w: Warp, cta: Cta, column: int, access: Access, other: int, side: str, severity: str
) -> None:
    """Report that no ``tcgen05.fence`` stands at one side of the synchronisation that puts
    ``other`` (a stamp) ahead of an access."""
    machine, agents = w.machine, w.cluster.agents
    early, early_site = other >> AGENT_SHIFT, other & SITE_MASK
    name, before = agents.name(access.agent), agents.name(early)
    here, there = (machine.program.location(s) for s in (access.site, early_site))
    if side == "after":
        wait = "relaxed wait" if severity == "error" else "wait"
        message = (
            f"{name} uses tensor-memory column {column} behind a {wait} for {before} ({there}), "
            "and no tcgen05.fence::after_thread_sync stands between that wait and it"
        )
        related = [("the earlier access", there)]
        if w.synced[1]:
            related.append(("the wait", machine.program.location(w.synced[1])))
    else:
        message = (
            f"{before} is done with tensor-memory column {column} and hands it on to {name} "
            f"({here}) without a tcgen05.fence::before_thread_sync"
        )
        related = [("the later access", here)]
    site = access.site if side == "after" else early_site
    machine.report(
        "missing-tcgen05-fence",
        w,
        message,
        memory=f"tensor memory, column {column}",
        threads=f"{name} and {before}, CTA {cta.label()}",
        fix=FENCE_FIX[side],
        site=site,
        related=related,
        severity=severity,
        fault=(side, site),
    )


def _other(stamps: np.ndarray, bad: np.ndarray) -> tuple[int, int]:
    value = int(stamps[bad].flat[0])
    return value >> AGENT_SHIFT, value & SITE_MASK


def _tmem_race(
    w: Warp, cta: Cta, column: int, kind: str, late, early, what: str, verb: str = "writes"
) -> None:
    """Report accesses to tensor memory: ``late`` (agent and site) had to wait for ``early``."""
    machine, agents = w.machine, w.cluster.agents
    who, site = late
    whose, other_site = early
    place = machine.program.location(other_site)
    name, other = agents.name(who), agents.name(whose)
    engine = agents.unit_of(whose) == "tcgen05"
    fix = COMMIT_FIX if engine else TRANSFER_FIX
    if kind == "free" and (other_site in machine.uncommitted):
        return  # the same products were read too early: that says it already
    if kind == "read":
        machine.raced.add(site)
        if engine:
            machine.uncommitted.add(other_site)
        code = "missing-commit" if engine else "race-tmem"
        message = (
            f"{name} reads tensor-memory column {column}, which {other} writes ({place}), and "
        )
        message += (
            "has waited for nothing that says that the product is done"
            if engine
            else "does not wait for that"
        )
    elif kind == "write":
        code = "race-tmem"
        message = (
            f"{name} overwrites tensor-memory column {column} and does not wait for {other}, which "
            f"{verb} it ({place})"
        )
    else:
        code = "missing-commit" if engine else "race-tmem"
        message = (
            f"{what} gives back tensor-memory column {column} and does not wait for {other}, which "
            f"{verb} it ({place})"
        )
        if agents.rank(who) != agents.rank(whose):  # columns that a pair of CTAs holds together
            code, fix = "cta-group", PAIR_FIX
    machine.report(
        code,
        w,
        message,
        memory=f"tensor memory, column {column}",
        threads=f"{name} and {other}, CTA {cta.label()}",
        fix=fix,
        site=site,
        related=[("the other access", place)],
        hints=lambda: w.cluster.early_waits(who, whose),
        fault=frozenset((site, other_site)),
    )


# ----------------------------------------------------------------------------- tcgen05.mma


class Step(NamedTuple):
    """One ``tcgen05.mma`` as it was issued: a step of 16 along K."""

    d: int
    a: int  # a descriptor, or an address in tensor memory
    b: int
    idesc: int
    accumulate: bool
    site: int
    seen: np.ndarray | None  # the issuer's clock
    known: Known | None
    clock: int  # the engine's
    group: int
    a_in_tmem: bool
    off: tuple[int, ...]  # masks of lanes that are not written

    def continued_by(self, other: Step) -> bool:
        """Whether ``other`` adds the next K step to the same accumulator."""
        high = ~((1 << 14) - 1)
        left, right = (self.a, other.a) if not self.a_in_tmem else (self.a >> 16, other.a >> 16)
        if not self.a_in_tmem:
            left, right = left & high, right & high
        return (
            other.accumulate
            and (self.d, self.idesc, self.site) == (other.d, other.idesc, other.site)
            and (self.group, self.off) == (other.group, other.off)
            and self.a_in_tmem == other.a_in_tmem
            and left == right
            and self.b & high == other.b & high
        )


class TensorPipe:
    """What one warp has asked of the fifth-generation tensor core: MMAs and commits, in order."""

    def __init__(self, w: Warp):
        self.warp = w
        self.pipe = Pipe(w.cluster, f"tcgen05 of {w.name()}")
        self.batch: list[Step] = []
        self.clock = 1  # of the MMAs since the last commit
        self.open: list[tuple[int, int, int]] = []  # their groups, with a site and the lane
        self.seen: np.ndarray | None = None  # the issuer's clock at its last MMA
        self.issued: dict[int, int] = {}  # its own at its last MMA, by the MMA's clock and site

    def flush(self) -> None:
        """Hand the MMAs gathered so far to the engine as one product, once they are checked."""
        self.warp.open = None
        if self.batch:
            batch, self.batch = self.batch, []
            self.pipe.submit(_product(self.warp, batch))


def _tensor_pipe(w: Warp) -> TensorPipe:
    found = w.state.get("tcgen05")
    if found is None:
        found = w.state["tcgen05"] = TensorPipe(w)
    return found


@op
def tcgen05_mma(
    w: Warp, d, a, b, idesc, accumulate, group: int = 1, mask=None, a_in_tmem=False, off=()
) -> None:
    """``tcgen05.mma.kind::f16``: queue one k16 step, ``D (+)= A @ B``.

    ``a`` is the descriptor of A in shared memory or, with ``a_in_tmem``, its address in tensor
    memory; ``off`` is the disable-output-lane vector, 32 lanes a word.
    """
    threads = threads_in(w, mask)
    if threads == 0:
        return
    if threads != 1:
        w.machine.report(
            "divergent-collective",
            w,
            f"tcgen05.mma is issued by {threads} threads of the warp: each issues its own product",
            memory="tensor memory",
            fix="let one elected thread issue it (if T.cuda.elect_sync(): …)",
        )
        raise Stop
    pipe = _tensor_pipe(w)
    if not pipe.open or (pipe.open[-1][0], pipe.open[-1][2]) != (group, w.one):
        pipe.open.append((group, w.s, w.one))
        _one_group(w, group, "tcgen05.mma")
    known = _known(w) if w.checks else None
    what = "a tensor-memory address" if a_in_tmem else "a descriptor"
    if off:
        off = tuple(int(uniform(w, word, "a lane mask")) & 0xFFFFFFFF for word in off)
    step = Step(
        int(uniform(w, d, "a tensor-memory address")),
        int(uniform(w, a, what)),
        int(uniform(w, b, "a descriptor")),
        int(uniform(w, idesc, "an instruction descriptor")),
        bool(uniform(w, accumulate, "the accumulate flag")),
        w.s,
        w.release() if w.checks else None,  # the commit publishes it; what comes next comes after
        known,
        pipe.clock,
        group,
        a_in_tmem,
        off if any(off) else (),
    )
    if pipe.batch:
        last = pipe.batch[-1]
        if len(pipe.batch) >= 16 or not last.continued_by(step) or _has_waited(w, last, step):
            pipe.flush()
    pipe.seen = step.seen
    if known is not None:
        _keep(pipe.issued, pipe.clock << CLOCK_SHIFT | w.s, int(known.clock[w.agent]))
    pipe.batch.append(step)
    w.open = pipe
    w.machine.count("mma_instructions")


def _has_waited(w: Warp, last: Step, step: Step) -> bool:
    """Whether the issuer has come to know more than of itself between two MMAs.

    A product that takes both together would be checked by what was known before the first.
    """
    if last.seen is None or step.seen is None:
        return False
    news = last.seen != step.seen
    news[:, w.agent] = False
    return bool(news.any())


def _shape_rule(form: descriptors.Instruction, group: int) -> None:
    """Raise for an M and N that ``tcgen05.mma.kind::f16`` does not have."""
    rows = (64, 128) if group == 1 else (128, 256)
    step = 8 if form.m == 64 else 16
    if form.m not in rows or not step <= form.n <= 256 or form.n % step:
        raise descriptors.DescriptorError(
            f"the instruction descriptor asks for M = {form.m}, N = {form.n}: with "
            f"cta_group::{group}, M is {rows[0]} or {rows[1]}, "
            f"and N a multiple of {step} up to 256"
        )


class Place:
    """Where a CTA's part of D lies in tensor memory (PTX ISA, "Data Path Layout Organization").

    ``lanes`` are the lanes that are written, by 16 as the shadow has them; ``column`` and
    ``columns`` the columns; ``lane`` is the first lane (Layout F takes 0 or 16).
    """

    def __init__(
        self,
        form: descriptors.Instruction,
        group: int,
        column: int,
        lane: int = 0,
        off: tuple[int, ...] = (),
    ):
        rows = form.m // group
        self.columns = form.n // 2 if (group, form.m) == (2, 128) else form.n
        self.column, self.lane = column, lane
        self.group, self.m, self.n = group, form.m, form.n
        self.half = rows == 64 and group == 1  # Layout F
        self.lanes: Any = slice(lane // 16, 8, 2) if self.half else slice(0, 8)
        self.kept: np.ndarray | None = None  # which lanes, in the order of shaped(), are written
        if off:
            bits = np.array(off, dtype=np.uint32)[:, None] >> np.arange(32, dtype=np.uint32) & 1
            on = bits.reshape(-1) == 0
            numbers = self.numbers()
            self.kept = on[numbers]
            self.lanes = np.unique(numbers[self.kept] // 16)

    def numbers(self) -> np.ndarray:
        """The lane of each row of :meth:`flat`."""
        if self.half:
            return (32 * np.arange(4)[:, None] + self.lane + np.arange(16)).reshape(-1)
        return np.arange(128)

    def box(self) -> tuple[Any, slice]:
        return self.lanes, slice(self.column, self.column + self.columns)

    def target(self, data: np.ndarray) -> np.ndarray:
        """The part of tensor memory, in the shape that :meth:`shaped` gives a product."""
        if self.half:  # Layout F: rows 16i..16i+15 lie in lanes 32i..32i+15, or 16 further on
            apart = data.reshape(4, 32, COLUMNS)
            return apart[:, self.lane : self.lane + 16, self.column : self.column + self.n]
        return data[:, self.column : self.column + self.columns]

    def shaped(self, product: np.ndarray) -> np.ndarray:
        """A CTA's rows of the product, arranged as :meth:`target` is."""
        if self.half:
            return product.reshape(4, 16, self.n)
        if self.group == 2 and self.m == 128:
            # Layout B: the left half of the columns in lanes 0-63, the right half in 64-127
            return np.concatenate([product[:, : self.columns], product[:, self.columns :]])
        return product

    def put(self, data: np.ndarray, part: np.ndarray) -> None:
        """Write a part that is shaped, but for the lanes that are off."""
        target = self.target(data)
        if self.kept is not None:
            kept = self.kept.reshape(part.shape[:-1])
            target[kept] = part[kept]
        else:
            target[...] = part


@dataclass
class TmemOperand:
    """Operand A in tensor memory: two 16-bit elements a column, the even k in the low half.

    A row of A lies in the lane in which its row of D lies (PTX ISA, "Data Path Layout
    Organization"); with M = 128 over a pair of CTAs each CTA's 64 rows lie twice, in lanes 0-63 for
    the left half of D's columns and in lanes 64-127 for the right half.
    """

    columns: np.ndarray  # of successive k16 steps, 8 each
    lane: int
    half: bool  # Layout F: 16 lanes of each 32
    twice: bool

    def lanes(self) -> slice:
        return slice(self.lane // 16, 8, 2) if self.half else slice(0, 8)

    def bits(self, tmem: Tmem) -> np.ndarray:
        """The bit patterns ``[rows, k]`` (uint16); 128 rows where the 64 lie twice."""
        words = tmem.data[:, self.columns]
        if self.half:
            words = words.reshape(4, 32, -1)[:, self.lane : self.lane + 16].reshape(64, -1)
        return np.ascontiguousarray(words).view(np.uint16)


def _lane_of(w: Warp, address: int, half: bool, what: str, site: int) -> int:
    """The first lane that an operand's address names: 0, in layouts of 64 lanes also 16."""
    lane = address >> 16
    if lane == 0 or (half and lane == 16):
        return lane
    w.machine.report(
        "misaligned",
        w,
        f"{what} starts at lane {lane} of tensor memory; it takes "
        + ("lane 0 or 16" if half else "all lanes from 0 on"),
        memory=f"tensor memory, lane {lane}",
        fix="pass the address that tcgen05.alloc gave plus a column offset",
        site=site,
    )
    raise Stop


#: An operand's 16-byte rows in shared memory, whether it is MN-major, and the same rows in the
#: order of their addresses: a slice where they leave no gap.
SharedRows = tuple[np.ndarray, bool, slice | np.ndarray]

_NO_ROWS = np.empty(0, dtype=np.int64)


@lru_cache(maxsize=256)
def _decoded(
    idesc: int, group: int, a: tuple[int, ...] | None, b: tuple[int, ...]
) -> tuple[descriptors.Instruction, SharedRows, SharedRows]:
    """The form of a batch of k16 steps and where its operands lie, from their descriptors.

    ``a`` is None where A lies in tensor memory. A loop over K uses the same few stages again.
    """
    form = descriptors.instruction(idesc)
    _shape_rule(form, group)
    left = [] if a is None else [descriptors.tcgen05_matrix(bits) for bits in a]
    right = [descriptors.tcgen05_matrix(bits) for bits in b]
    if a is None and form.transpose_a:
        raise descriptors.DescriptorError(
            "the instruction descriptor asks for a transposed A, which lies in tensor memory: "
            "there A is K-major"
        )
    rows_a: SharedRows = (_NO_ROWS, False, _NO_ROWS)
    if left:
        rows_a = _rows_of(left, form.m // group, form.transpose_a)
    return form, rows_a, _rows_of(right, form.n // group, form.transpose_b)


def _rows_of(matrices: list[descriptors.Matrix], rows: int, transposed: bool) -> SharedRows:
    index, major = descriptors.operand_rows(matrices, rows, transposed)
    block = descriptors.operand_block(matrices, rows, transposed)
    return index, major, index if block is None else block


def _product(w: Warp, batch: list[Step]) -> Callable[[], None]:
    """Check a batch of k16 steps, ``D (+)= A @ B.T`` in tensor memory; returns what computes it.

    With ``cta_group::2`` each CTA of the pair holds half of A's rows, half of B's, and half of D's.
    """
    head = batch[0]
    site, group, accumulate, seen = head.site, head.group, head.accumulate, head.seen
    try:
        form, left, right = _decoded(
            head.idesc,
            group,
            None if head.a_in_tmem else tuple([step.a for step in batch]),
            tuple([step.b for step in batch]),
        )
    except descriptors.DescriptorError as error:
        raise bad_descriptor(w, error, site) from None
    ctas = [w.cta] if group == 1 else sorted((w.cta, _peer(w, w.rank)), key=lambda c: c.rank)
    rows_b, tb, block_b = right
    what = f"tcgen05.mma ({form.m}x{form.n}x{16 * len(batch)})"
    half = group == 1 and form.m == 64
    lane = _lane_of(w, head.d, half, f"D of {what}", site)
    column = head.d & 0xFFFF
    places = [
        Place(form, group, column, lane, head.off[4 * i : 4 * i + 4]) for i in range(len(ctas))
    ]
    columns = places[0].columns
    in_tmem: TmemOperand | None = None
    rows_a, ta, block_a = left
    if head.a_in_tmem:
        if _lane_of(w, head.a, half, f"A of {what}", site) != lane:
            raise bad_descriptor(w, descriptors.DescriptorError(LANE_RULE), site)
        starts = np.array([step.a & 0xFFFF for step in batch])
        in_tmem = TmemOperand(
            (starts[:, None] + np.arange(8)).reshape(-1), lane, half, (group, form.m) == (2, 128)
        )
        count_product(w, form.m, form.n, len(batch), registers=True)
    else:
        count_product(w, form.m, form.n, len(batch))
    agent = w.unit["tcgen05"]
    for cta, place in zip(ctas, places, strict=True):
        if in_tmem is None:
            out_of_shared(w, cta, block_a, f"operand A of {what}", site)
        out_of_shared(w, cta, block_b, f"operand B of {what}", site)
        known = w.clock[0] if seen is None else seen[0]
        tmem = _tmem_columns(w, cta, column, columns, what, site, agent, known)
        for step in batch if in_tmem is not None else ():
            _tmem_columns(w, cta, step.a & 0xFFFF, 8, f"A of {what}", site, agent, known)
        if not w.checks:
            continue
        assert seen is not None  # checks are on
        clock = seen.copy()
        clock[:, agent] = head.clock  # one pipe's MMAs are done in order
        now = stamp(agent, head.clock)
        if cta is not w.cta:  # the peer must not have exited
            cta.remote[agent] = now | site
        if in_tmem is None:
            access.async_read(w, cta, block_a, clock, agent, now, site, f"operand A of {what}")
        else:
            for step in batch:
                _check_tmem_operand(w, cta, step, in_tmem.lanes(), what)
        access.async_read(w, cta, block_b, clock, agent, now, site, f"operand B of {what}")
        if place.kept is not None and not place.kept.any():
            continue
        box = place.box()
        if accumulate and not tmem.shadow.writer[box].all():
            w.machine.report(
                "uninitialised-read",
                w,
                f"{what} adds to tensor-memory columns {column} to {column + columns - 1}, which "
                "hold nothing yet",
                memory=f"tensor memory, columns {column}-{column + columns - 1}",
                fix="let the first product of a tile overwrite: accum=False (enable-input-d false)",
                site=site,
            )
        writes = _product_access(w, head, "write", what, adds=accumulate)
        _tmem_check(w, cta, place.lanes, column, columns, writes)
        unread = tmem.unread[box]
        if not accumulate and unread.any():
            discarded(w, int(tmem.shadow.writer[box][unread].flat[0]) & SITE_MASK, what, site)
        tmem.shadow.write(box, now | site)
        tmem.added[box] = accumulate
        tmem.unread[box] = True

    def compute() -> None:
        if w.machine.trace is not None:
            where = (ctas[0].index, column, lane)
            first: Any = (rows_a, ta, form.a)
            if in_tmem is not None:
                bits = [in_tmem.bits(tmem_of(cta)) for cta in ctas]
                first = (np.concatenate(bits), None, form.a)
            note(w, site, what, where, accumulate, ctas, first, (rows_b, tb, form.b))
        if in_tmem is None:
            a = [decode(cta, rows_a, ta, form.a) for cta in ctas]
        else:
            a = [to_f32(_typed(in_tmem.bits(tmem_of(cta)), form.a), form.a) for cta in ctas]
        b = np.concatenate([decode(cta, rows_b, tb, form.b) for cta in ctas])
        if form.negate_a != form.negate_b:
            b = -b
        for part, cta, place in zip(a, ctas, places, strict=True):
            _multiply(tmem_of(cta), place, part, b, accumulate, form.d)

    return compute


LANE_RULE = (
    "A and D start at different lanes of tensor memory: layouts that use 64 lanes take the same "
    "lanes for both"
)


def _typed(bits: np.ndarray, dtype: str) -> np.ndarray:
    return bits if dtype == "bfloat16" else bits.view(np.float16)


def _multiply(tmem: Tmem, place: Place, a, b, accumulate: bool, dtype: str) -> None:
    """Write ``(D +) a @ b.T`` of one CTA; ``a`` float32 ``[rows, k]``, ``b`` ``[n, k]``.

    Sums are accumulated in float32; a float16 D is rounded after each step of 16.
    """
    if dtype == "float32":
        product = _rows_by_columns(place, a, b)
        if accumulate:
            np.add(place.target(tmem.floats), product, out=product)
        place.put(tmem.floats, product)
        return
    held = place.target(tmem.data).astype(np.uint16).view(np.float16)
    for k in range(0, a.shape[1], 16):
        product = _rows_by_columns(place, a[:, k : k + 16], b[:, k : k + 16])
        if accumulate or k:
            product = held.astype(np.float32) + product
        held = f32_to_f16(product)
    place.put(tmem.data, held.view(np.uint16).astype(np.uint32) | UPPER_HALF)


def _rows_by_columns(place: Place, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A CTA's part of a product, shaped as its place is."""
    if a.shape[0] == 2 * (
        place.m // place.group
    ):  # a row's copies serve a half of the columns each
        rows, n = a.shape[0] // 2, b.shape[0] // 2
        return np.concatenate([a[:rows] @ b[:n].T, a[rows:] @ b[n:].T])
    return place.shaped(a @ b.T)


def _product_access(w: Warp, step: Step, kind: str, what: str, **more) -> Access:
    assert step.known is not None  # checks are on
    own = {name: int(step.known.clock[w.unit[name]]) for name in ("tmem_load", "tmem_store")}
    own["tcgen05"] = step.clock  # one pipe's MMAs are done in order
    return _access(w, step.known, own, kind, what, "tcgen05", step.site, **more)


def _check_tmem_operand(w: Warp, cta: Cta, step: Step, lanes, what: str) -> None:
    """Check and record that a step reads its 8 columns of A."""
    tmem, agent, column = tmem_of(cta), w.unit["tcgen05"], step.a & 0xFFFF
    box = (lanes, slice(column, column + 8))
    shadow, site = tmem.shadow, step.site
    bad = shadow.writer[box] == 0
    if bad.any():
        w.machine.report(
            "uninitialised-read",
            w,
            f"operand A of {what} is read from tensor-memory columns {column} to {column + 7}, in "
            "which nothing has been written",
            memory=f"tensor memory, columns {column}-{column + 7}",
            fix="write A first (tcgen05.st, tcgen05.wait::st), and order that before the MMA",
            site=site,
            unless=lambda: site in w.machine.raced and bool(shadow.writer[box][bad].all()),
        )
    access = _product_access(w, step, "read", f"operand A of {what}")
    _tmem_check(w, cta, lanes, column, 8, access)
    shadow.reader(agent)[box] = stamp(agent, step.clock, site)
    tmem.unread[box] = False


def _own(w: Warp, others: list[tuple[int, int, int]]) -> None:
    """Report MMAs of other lanes behind which a commit stands: it tracks its own thread's."""
    if not others:
        return
    _, site, lane = others[0]
    place = w.machine.program.location(site)
    w.machine.report(
        "missing-commit",
        w,
        f"tcgen05.commit by lane {w.one} does not cover the tcgen05.mma of lane {lane} ({place}): "
        "a commit tracks what its own thread has issued",
        memory="tensor memory",
        fix="let the thread that issued the MMAs commit them, in one branch with them",
        related=[("the MMA", place)],
    )


@op
def tcgen05_commit(w: Warp, address, group: int = 1, ranks=None, mask=None) -> None:
    """``tcgen05.commit``: one arrival at an mbarrier when this thread's MMAs so far are done.

    ``ranks`` is a multicast mask: the barrier at the same offset in each of these CTAs. A commit
    covers the MMAs of its own ``cta_group`` (PTX ISA, "mbarrier based completion mechanism").
    """
    threads = threads_in(w, mask)
    if threads == 0:
        return
    pipe = _tensor_pipe(w)
    pipe.flush()
    missed = [entry for entry in pipe.open if entry[0] != group]
    if missed:
        place = w.machine.program.location(missed[0][1])
        w.machine.report(
            "cta-group",
            w,
            f"tcgen05.commit is cta_group::{group} and does not cover the tcgen05.mma "
            f"({place}), which is cta_group::{missed[0][0]}",
            memory="tensor memory",
            fix="give the commit the cta_group of the MMAs that it stands behind",
            related=[("the MMA", place)],
            fault=("mixed", w.s),
        )
    else:
        _one_group(w, group, "tcgen05.commit")
    _own(w, [entry for entry in pipe.open if w.one >= 0 <= entry[2] != w.one])
    pipe.open.clear()
    if ranks is None:
        barriers = [barrier_at(w, address)]
    else:
        bits = int(uniform(w, ranks, "a multicast mask"))
        offset = int(uniform(w, address, "an mbarrier's address")) & memory.SHARED_OFFSET
        barriers = [
            barrier_at(w, rank << memory.RANK_BITS | offset)
            for rank in range(bits.bit_length())
            if bits >> rank & 1
        ]
    published = w.clock
    if w.checks:
        published = np.zeros_like(w.clock)
        if pipe.seen is not None:
            published = pipe.seen.copy()
            published[:, w.unit["tcgen05"]] = pipe.clock
            pipe.clock += 1
        came_after(published, w.clock)
        w.tick()
    for barrier in barriers:
        barrier.arrivers.add(w.unit["tcgen05"])
    site, who = w.s, f"tcgen05.commit of {w.name()}"

    def arrive() -> None:
        for barrier in barriers:
            barrier.arrive(published, threads, w, who, site, w.unit["tcgen05"])

    pipe.pipe.submit(arrive)


# ------------------------------------------------------------------ tcgen05.ld, st, wait, fence


@dataclass(slots=True)
class Transfer:
    """A load or store that nothing has waited for: when and where it was issued, and its registers
    (of a load)."""

    clock: int
    site: int
    targets: list[np.ndarray]
    used: bool = False  # something has read the registers, and so waited for this load
    #: The arrays that hold the registers, and which bytes of their rows they are.
    places: list[tuple[np.ndarray, int, int]] | None = None

    def fills(self, registers: np.ndarray, low: int, high: int) -> bool:
        """Whether it fills some of the bytes ``low`` to ``high`` of the rows of an array."""
        if self.places is None:
            self.places = []
            for target in self.targets:
                array = target if target.base is None else target.base
                start = target.ctypes.data - array.ctypes.data
                self.places.append((array, start, start + target.itemsize * target.shape[1]))
        return any(
            array is registers and start < high and low < end for array, start, end in self.places
        )


class _Transfers:
    """Loads or stores between tensor memory and a warp's registers, complete at the wait."""

    def __init__(self, w: Warp, unit: str):
        self.warp, self.unit = w, w.unit[unit]
        self.pipe = Pipe(w.cluster, f"{unit} of {w.name()}")
        self.clock = 1  # of the next one
        self.pending: list[Transfer] = []
        self.issued: dict[int, int] = {}  # the warp's own clock at each one, of late

    def issue(self, targets: list[np.ndarray]) -> None:
        w = self.warp
        self.pending.append(Transfer(self.clock, w.s, targets))
        if w.checks:
            _keep(self.issued, self.clock, int(w.clock[0, w.agent]))
        self.clock += 1

    def used(self) -> int:
        """The clock of the last one before which all are done or in use."""
        return min([t.clock for t in self.pending if not t.used], default=self.clock) - 1

    def settle(self) -> None:
        """What is no longer pending is done, as far as this warp's order goes."""
        done = self.pending[0].clock - 1 if self.pending else self.clock - 1
        self.warp.clock[:TCGEN05_ROW, self.unit] = done

    def wait(self) -> None:
        self.pipe.drain()
        self.pending.clear()
        self.settle()


def _transfers(w: Warp, unit: str) -> _Transfers:
    found = w.state.get(unit)
    if found is None:
        found = w.state[unit] = _Transfers(w, unit)
    return found


@dataclass(frozen=True)
class Fragment:
    """Which word of tensor memory each register of each thread is, for one shape of tcgen05.ld/st.

    ``rows`` and ``columns`` ``[32, R]`` count from the address's lane and column; ``spans`` are the
    columns that are touched, each the first one and how many. With packing a register is the low
    halves of two columns, of which ``columns`` is the first.
    """

    lanes: int
    rows: np.ndarray
    columns: np.ndarray
    spans: tuple[tuple[int, int], ...]
    packed: bool
    straight: bool  # register r of thread t is lane t, column r

    def read(self, data: np.ndarray, lane: int, column: int) -> np.ndarray:
        """The registers ``[32, R]`` (uint32) that tensor memory gives."""
        if self.straight:
            return data[lane : lane + 32, column : column + self.rows.shape[1]]
        rows, columns = self.rows + lane, self.columns + column
        if not self.packed:
            return data[rows, columns]
        return data[rows, columns] & LOW_HALF | data[rows, columns + 1] << np.uint32(16)

    def write(self, data: np.ndarray, lane: int, column: int, words: np.ndarray) -> None:
        """Put registers ``[32, R]`` (uint32) into tensor memory."""
        if self.straight:
            data[lane : lane + 32, column : column + self.rows.shape[1]] = words
            return
        rows, columns = self.rows + lane, self.columns + column
        if not self.packed:
            data[rows, columns] = words
            return
        data[rows, columns] = words & LOW_HALF | UPPER_HALF
        data[rows, columns + 1] = words >> np.uint32(16) | UPPER_HALF


LOW_HALF = np.uint32(0xFFFF)
#: What stands above a 16-bit element that has a column of its own: the ISA leaves it open; as part
#: of a float32 it makes a NaN.
UPPER_HALF = np.uint32(0x7FC00000)


@lru_cache(maxsize=256)
def fragment(shape: str, num: int, packed: bool = False, split: int = 0) -> Fragment:
    """The registers of ``tcgen05.{ld,st}.shape.xnum`` (PTX ISA, "tcgen05 data movement shape",
    matrix fragments); ``split`` is the immHalfSplitoff of ``.16x32bx2``."""
    per_num = {"16x128b": 2, "16x256b": 4}.get(shape, 1)
    thread = np.arange(32, dtype=np.int64)[:, None]
    register = np.arange(num * per_num, dtype=np.int64)[None, :]
    wide = 2 if packed else 1
    if shape == "32x32b":
        row, word, words = thread, register, num
    elif shape == "16x64b":
        row, word, words = thread // 4 + 8 * (thread % 2), thread // 2 % 2 + 2 * register, 2 * num
    elif shape == "16x128b":
        row = thread // 4 + 8 * (register % 2)
        word, words = thread % 4 + 4 * (register // 2), 4 * num
    elif shape == "16x256b":
        row = thread // 4 + 8 * (register // 2 % 2)
        word, words = register % 2 + 2 * (thread % 4) + 8 * (register // 4), 8 * num
    else:  # 16x32bx2: the upper 16 threads have a base of their own
        row, word, words = thread % 16, register, num
    row, word = np.broadcast_arrays(row, word)
    column = word * wide
    spans: tuple[tuple[int, int], ...] = ((0, words * wide),)
    if shape == "16x32bx2":
        column = column + thread // 16 * split
        spans = (*spans, (split, words * wide))
    lanes = 32 if shape == "32x32b" else 16
    return Fragment(lanes, row, column, spans, packed, shape == "32x32b" and not packed)


def _quarter(w: Warp, address: int, what: str, lanes: int) -> tuple[int, int]:
    """First lane and column of a warp's access; a warp reaches the lanes of its quarter only."""
    lane, column = address >> 16, address & 0xFFFF
    own = 32 * (w.id % 4)
    starts = range(0, 32, lanes)
    routed = w.machine.reading("tmem-lane-0") != "strict"
    if lane - own in starts:
        return lane, column
    if routed and lane in starts:
        return own + lane, column
    if own <= lane < own + 32:
        wrong = f"starts at lane {lane}, which is no multiple of the {lanes} lanes that it accesses"
    else:
        wrong = (
            f"names lanes {lane} to {lane + lanes - 1}; it can reach lanes {own} to {own + 31} "
            "only (warp index modulo 4)"
        )
    w.machine.report(
        "tmem-lane-quarter",
        w,
        f"{what} of warp {w.id} {wrong}",
        memory=f"tensor memory, lanes {lane}-{lane + lanes - 1}",
        fix=(
            "let warp w of a warpgroup read the 32 lanes from 32 * (w % 4) on, and write those "
            "rows of D"
        ),
    )
    raise Stop


@op
def tcgen05_ld(
    w: Warp, registers, address, shape: str, num: int, mask=None, packed=False, split: int = 0
) -> None:
    """``tcgen05.ld.shape.xnum``: words of the warp's lanes into registers of each thread.

    ``registers`` is the warp's ``[32, R]`` view (any 32-bit type), or a list of views that have R
    registers together; they are filled by the wait. ``packed`` is ``.pack::16b``.
    """
    whole_warp(w, mask, "tcgen05.ld")
    if w.open is not None:
        w.open.flush()
    form = fragment(shape, num, packed, split)
    address = int(uniform(w, address, "a tensor-memory address"))
    lane, column = _quarter(w, address, "tcgen05.ld", form.lanes)
    site = w.s
    w.machine.count("tmem_load_bytes", form.rows.size * 4)
    transfers = _transfers(w, "tmem_load")
    views = registers if isinstance(registers, list) else [registers]
    targets = [view.view(np.uint32) for view in views]
    for target in targets:
        target[...] = POISON
    cta, agent = w.cta, w.unit["tmem_load"]
    tmem = tmem_of(cta)
    for offset, count in form.spans:
        first = column + offset
        _tmem_columns(w, cta, first, count, "tcgen05.ld", site, agent, w.clock[0])
        if w.checks:
            _check_load(w, transfers, slice(lane // 16, (lane + form.lanes) // 16), first, count)

    def land() -> None:
        words = form.read(tmem.data, lane, column)
        if len(targets) == 1:
            targets[0][...] = words
            return
        first = 0
        for target in targets:
            target[...] = words[:, first : first + target.shape[1]]
            first += target.shape[1]

    transfers.issue(targets)
    transfers.pipe.submit(land)


def _transfer_access(w: Warp, kind: str, what: str, unit: str) -> Access:
    """Stores of a thread are in order, and a store comes after the loads whose registers have been
    read; a load must wait for the stores before it (PTX ISA, "Non-pipelined instructions, same
    thread")."""
    known = _known(w)
    own = {name: int(known.clock[w.unit[name]]) for name in ("tmem_load", "tmem_store")}
    if unit == "tmem_store":
        own[unit] = _transfers(w, unit).clock
        own["tmem_load"] = max(own["tmem_load"], _transfers(w, "tmem_load").used())
    return _access(w, known, own, kind, what, unit, w.s)


def _check_load(w: Warp, transfers: _Transfers, lanes: slice, column: int, count: int) -> None:
    """Check and record a load of columns (lanes by 16) by the warp, at the current site."""
    cta, agent, site = w.cta, w.unit["tmem_load"], w.s
    shadow = tmem_of(cta).shadow
    box = (lanes, slice(column, column + count))
    bad = shadow.writer[box] == 0
    if bad.any():
        w.machine.report(
            "uninitialised-read",
            w,
            f"tcgen05.ld reads tensor-memory columns {column} to {column + count - 1}, in "
            "which nothing has been written",
            memory=f"tensor memory, lanes {16 * lanes.start}-{16 * lanes.stop - 1}",
            fix="wait for the MMA that writes them",
            unless=lambda: site in w.machine.raced and bool(shadow.writer[box][bad].all()),
        )
    access = _transfer_access(w, "read", "tcgen05.ld", "tmem_load")
    _tmem_check(w, cta, lanes, column, count, access)
    shadow.reader(agent)[box] = stamp(agent, transfers.clock, site)
    tmem_of(cta).unread[box] = False


@lru_cache(maxsize=64)
def _waits_for_loads(source: str) -> bool:
    """Whether a kernel is one that waits for its loads: it says so somewhere."""
    return "tcgen05_wait_ld" in source or "tcgen05_fence_before" in source


def filling(w: Warp, registers: np.ndarray) -> list[int]:
    """Sites of the tcgen05.ld that nothing has waited for, and that fill these registers."""
    loads = w.state.get("tmem_load")
    return [
        load.site
        for load in (loads.pending if loads is not None else ())
        if any(np.may_share_memory(target, registers) for target in load.targets)
    ]


@op
def tcgen05_touch(
    w: Warp, registers: np.ndarray, write: bool, first: int = 0, last: int = 0, size: int = 0
) -> None:
    """Threads read or write registers that a tcgen05.ld may still be filling: those of an array
    ``[32, R]`` from ``first`` up to ``last`` in units of ``size`` bytes, or all of them.

    A true dependency on the registers waits for them (PTX ISA, "Register dependencies, same
    thread"); that tensor memory has been read is another matter (see the reading "tcgen05-ld").
    """
    transfers = w.state.get("tmem_load")
    if transfers is None or not transfers.pending:
        return
    low, high = (first * size, last * size) if size else (0, registers.strides[0])
    met = [load for load in transfers.pending if load.fills(registers, low, high)]
    if not met:
        return
    transfers.pipe.drain()
    if w.machine.reading("tcgen05-ld") == "dependency":
        for load in met:
            load.used = load.used or not write
        if not _waits_for_loads(w.machine.program.source):
            transfers.pending = [load for load in transfers.pending if not load.used]
            transfers.settle()
        return
    place = w.machine.program.location(met[0].site)
    w.machine.report(
        "tcgen05-in-flight",
        w,
        f"{w.name()} {'writes' if write else 'reads'} registers that the tcgen05.ld at {place} may "
        "not have filled yet",
        memory="registers",
        fix="execute tcgen05.wait::ld between the load and the first use of its registers",
        related=[("the load", place)],
    )
    transfers.wait()  # once is enough


@op
def tcgen05_st(
    w: Warp, address, values, shape: str, num: int, mask=None, unpacked=False, split: int = 0
) -> None:
    """``tcgen05.st.shape.xnum``: registers of each thread into words of the warp's lanes.

    ``values`` are 32-bit registers, broadcast to ``[32, R]``. ``unpacked`` is ``.unpack::16b``.
    """
    whole_warp(w, mask, "tcgen05.st")
    if w.open is not None:
        w.open.flush()
    form = fragment(shape, num, unpacked, split)
    address = int(uniform(w, address, "a tensor-memory address"))
    lane, column = _quarter(w, address, "tcgen05.st", form.lanes)
    site = w.s
    w.machine.count("tmem_store_bytes", form.rows.size * 4)
    transfers = _transfers(w, "tmem_store")
    cta, agent = w.cta, w.unit["tmem_store"]
    tmem = tmem_of(cta)
    lanes = slice(lane // 16, (lane + form.lanes) // 16)
    for offset, count in form.spans:
        first = column + offset
        _tmem_columns(w, cta, first, count, "tcgen05.st", site, agent, w.clock[0])
        if w.checks:
            access = _transfer_access(w, "write", "tcgen05.st", "tmem_store")
            _tmem_check(w, cta, lanes, first, count, access)
            box = (lanes, slice(first, first + count))
            tmem.shadow.write(box, stamp(agent, transfers.clock, site))
            tmem.added[box] = False
    values = np.asarray(values)
    if values.dtype.itemsize != 4:  # a Python integer, the same for all lanes
        values = values.astype(np.uint32)
    data = np.broadcast_to(values, form.rows.shape).copy().view(np.uint32)
    transfers.issue([])
    transfers.pipe.submit(lambda: form.write(tmem.data, lane, column, data))


@op
def tcgen05_wait_ld(w: Warp, mask=None) -> None:
    """``tcgen05.wait::ld``: this thread's tensor-memory loads so far are done."""
    whole_warp(w, mask, "tcgen05.wait::ld")
    _transfers(w, "tmem_load").wait()


@op
def tcgen05_wait_st(w: Warp, mask=None) -> None:
    """``tcgen05.wait::st``: this thread's tensor-memory stores so far are done."""
    whole_warp(w, mask, "tcgen05.wait::st")
    _transfers(w, "tmem_store").wait()


def _tcgen05_exit(w: Warp) -> None:
    """A thread that exits must have waited for its transfers."""
    pipe = w.state.get("tcgen05")
    if pipe is not None:
        pipe.flush()
    for unit, name in (("tmem_load", "tcgen05.ld"), ("tmem_store", "tcgen05.st")):
        transfers = w.state.get(unit)
        if transfers is not None and transfers.pending:
            w.machine.report(
                "missing-tcgen05-wait",
                w,
                f"{w.name()} exits without having waited for this {name}",
                memory="tensor memory",
                fix=f"execute tcgen05.wait::{name[-2:]} behind it",
                site=transfers.pending[0].site,
                fault=("wait", transfers.pending[0].site),
            )


def _tmem_end(cta: Cta) -> None:
    """Tensor memory must have been given back when the CTA has ended."""
    tmem = cta.state.get("tmem")
    if tmem is None:
        return
    for start, (columns, made, _) in tmem.allocations.items():
        cta.machine.report(
            "tmem-lifetime",
            None,
            f"the CTA ended with {columns} columns of tensor memory (from {start}) still allocated",
            memory=f"tensor memory, columns {start}-{start + columns - 1}",
            threads=f"CTA {cta.label()}",
            fix=(
                "let the warp that allocated execute tcgen05.relinquish_alloc_permit and "
                "tcgen05.dealloc, after a barrier behind the last use; the next CTA on this SM "
                "would wait for ever"
            ),
            site=made & SITE_MASK,
        )


EXIT_HOOKS.append(_tcgen05_exit)
END_HOOKS.append(_tmem_end)
