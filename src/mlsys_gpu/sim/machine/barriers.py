"""Barriers: mbarriers, CTA and named barriers, cluster barriers, and fences.

An operation that blocks returns a :class:`~.core.Waiting` for the generated code to yield, or None
where the warp may go on. Whoever completes the barrier wakes the warps that it parked, and gives
each of them the clocks of all that arrived.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mlsys_gpu.sim.machine import access, memory
from mlsys_gpu.sim.machine.clocks import AGENT_SHIFT, CLOCK_MASK, CLOCK_SHIFT, TCGEN05_ROW, stamp
from mlsys_gpu.sim.machine.core import (
    EXIT_HOOKS,
    LANES,
    Cta,
    MoreBarriers,
    Stop,
    Waiting,
    Warp,
    op,
    whole_warp,
)


def came_after(clock: np.ndarray, other: np.ndarray) -> None:
    """``clock`` comes after ``other`` in time, and nothing becomes visible by that (row 2)."""
    np.maximum(clock[2], np.maximum(other[0], other[2]), out=clock[2])


# ---------------------------------------------------------------------------------- mbarriers


class MBarrier:
    """An mbarrier object (PTX ISA, "mbarrier"): phase, pending arrivals, pending bytes.

    ``arrived`` joins the clocks of the current phase's arrivals, ``done`` those of all completed
    phases: who has waited for a phase has seen what its arrivals published. ``epoch`` is what
    earlier barriers at this place have counted: copies that complete in phase p carry the clock
    ``epoch + p + 1`` of the barrier's agent.
    """

    def __init__(self, cta: Cta, offset: int, count: int, w: Warp, index: int, epoch: int = 0):
        self.cta = cta
        self.offset = offset
        self.index = index
        self.epoch = epoch
        self.count = count
        self.pending = count
        self.tx = 0
        self.phase = 0
        self.init_stamp = w.now
        self.init_site = w.s
        self.fenced = False  # fence.mbarrier_init came behind the initialisation
        self.public = False  # and then a cluster barrier: everyone in the cluster may use it
        clock = w.cluster.agents.clock()
        self.arrived = np.zeros_like(clock)
        self.done = clock
        self.waiters: list[tuple[Warp, int]] = []
        self.arrivals: dict[tuple[str, int], int] = {}  # who has ever arrived, and where
        self.flying: dict[int, int] = {}  # bytes of copies under way, by the phase they belong to
        self.landed = 0  # bytes that have come in this phase
        self.last = (w.s, "")  # the latest arrival: where, and who
        self.arrivers: set[int] = set()  # agents that arrive here
        self.waited: dict[Warp, int] = {}  # completed phases that a warp has waited for
        #: Who has waited for which phase: its clock then, and where.
        self.consumed: dict[Warp, tuple[int, int, int]] = {}
        self.completions: list[tuple[int, str]] = []  # the arrival that completed each phase

    def name(self) -> str:
        """The barrier as the author named it."""
        at = self.offset - memory.RESERVED_SHARED
        for name, start, nbytes, shape, _ in self.cta.machine.program.regions:
            if name and start <= at < start + nbytes:
                count = max(1, int(np.prod(shape)))
                label = f"{name}[{(at - start) // (nbytes // count)}]" if count > 1 else name
                break
        else:
            label = f"the mbarrier at shared memory byte {at}"
        if self.cta.cluster.size > 1:
            label += f" of CTA rank {self.cta.rank}"
        return label

    def arrive(self, clock: np.ndarray, count: int, w: Warp, who: str, site: int) -> None:
        """``count`` arrivals that publish ``clock``."""
        key = (who, site)
        self.arrivals[key] = self.arrivals.get(key, 0) + count
        if self.cta is not w.cta:
            self.cta.remote[w.agent] = stamp(w.agent, int(clock[0:3, w.agent].max()), site)
        if count > self.pending:
            machine = w.machine
            machine.report(
                "barrier-overarrival",
                w,
                f"{who} arrives {count} time{'s' * (count != 1)} at {self.name()}, which expects "
                f"{self.pending} more of {self.count} in phase {self.phase}",
                memory=f"{self.name()}, initialised with {self.count}",
                fix=(
                    "initialise the barrier with the number of arrivals that really come in one "
                    "phase, or let fewer threads arrive (one elected thread, where one suffices)"
                ),
                site=site,
                related=[("initialised", machine.program.location(self.init_site))],
            )
            raise Stop
        np.maximum(self.arrived, clock, out=self.arrived)
        self.pending -= count
        self.last = (site, who)
        self.check()

    def expect(self, count: int) -> None:
        """Raise the phase's pending bytes."""
        self.tx += count

    def charge(self, phase: int, nbytes: int, clock: np.ndarray) -> None:
        """A copy of ``nbytes`` has been issued, at ``clock``, that completes in ``phase``."""
        self.flying[phase] = self.flying.get(phase, 0) + nbytes
        came_after(self.arrived, clock)

    def complete(self, nbytes: int, phase: int, w: Warp, site: int) -> None:
        """``complete_tx``: a copy has landed."""
        self.flying[phase] -= nbytes
        if not self.flying[phase]:
            del self.flying[phase]
        agent = w.cluster.agents.barrier(self.cta.rank, self.index)
        self.arrived[:, agent] = np.maximum(self.arrived[:, agent], self.epoch + phase)
        self.landed += nbytes
        self.tx -= nbytes
        self.check()

    def check(self) -> None:
        """Complete the phase where nothing is pending, and wake who waited for it."""
        if self.pending or self.tx:
            return
        flying = self.flying.get(self.phase + 1, 0)
        if flying:
            self.cta.machine.report(
                "tx-count",
                None,
                f"{self.name()} completes its phase {self.phase} while copies of {flying} bytes "
                "that belong to it are still under way: fewer bytes were expected than they bring",
                memory=self.name(),
                threads=f"CTA {self.cta.label()}",
                fix="expect (arrive.expect_tx) the bytes of all copies that complete on it",
                site=self.init_site,
            )
        self.landed = 0
        if self.cta.machine.checks:
            self._lapped()
        np.maximum(self.done, self.arrived, out=self.done)
        self.arrived[:] = 0
        self.completions.append(self.last)
        self.phase += 1
        self.pending = self.count
        waiters, self.waiters = self.waiters, []
        for warp, parity in waiters:
            if (self.phase & 1) != parity:
                self.pass_by(warp)
                warp.cluster.wake(warp)
            else:
                self.waiters.append((warp, parity))
        if self.cta.machine.watch is not None:
            self.cta.machine.watch.phase(self)

    def pass_by(self, w: Warp, relaxed: bool = False) -> None:
        """A warp's wait is over: it has seen what the completed phases published.

        Of a relaxed wait that holds once a fence has followed it.
        """
        if relaxed:
            came_after(w.clock, self.done)
            held = w.state.get("unacquired")
            w.state["unacquired"] = (
                self.done.copy() if held is None else np.maximum(held, self.done)
            )
        else:
            w.acquire(self.done)
        w.synced = ("mbarrier", w.s)
        self.waited[w] = self.phase
        self.consumed[w] = (self.phase - 1, int(w.clock[0, w.agent]), w.s)

    def _lapped(self) -> None:
        """Check that a phase completes only after all who waited for the last one have seen it.

        A wait names a phase by its parity: once the next phase is complete too, it looks as if the
        one waited for were still to come.
        """
        for warp, (phase, clock, site) in self.consumed.items():
            seen = int(max(self.arrived[0, warp.agent], self.arrived[2, warp.agent]))
            if phase == self.phase - 1 and seen < clock:
                self.report_lapped(warp, phase, self.last, site)

    def report_lapped(self, warp: Warp, phase: int, by: tuple[int, str], site: int) -> None:
        """Report that the phase after ``phase`` completes before a warp has surely seen it."""
        machine = warp.machine
        machine.report(
            "barrier-lapped",
            warp,
            f"{by[1]} completes phase {phase + 1} of {self.name()} without waiting for "
            f"{warp.name()}, which waits for phase {phase} ({machine.program.location(site)}); "
            f"once phase {phase + 1} is complete as well, that wait no longer sees that phase "
            f"{phase} ever was",
            memory=f"{self.name()}, initialised with {self.count}",
            fix=(
                "let one phase have exactly its own arrivals, and let whoever completes the next "
                "phase wait first (through another barrier) for all who wait for this one"
            ),
            site=by[0],
            related=[("the wait", machine.program.location(site))],
            fault=self.offset,
            unless=lambda: self.offset in machine.blamed,  # waits for wrong phases lead to this
        )

    def describe(self, parity: int) -> str:
        """What a warp that waits here waits for, and who could bring it."""
        text = (
            f"waits for phase parity {parity} of {self.name()}, which is in phase {self.phase} "
            f"with {self.pending} of {self.count} arrivals still to come"
        )
        if self.tx:
            text += f" and {self.tx} bytes outstanding ({self.landed} have come)"
        if not self.arrivals:
            return text + "; nobody has ever arrived at it"
        program = self.cta.machine.program
        seen = [
            f"{who} at {program.location(site)} ({n} in all)"
            for (who, site), n in list(self.arrivals.items())[:4]
        ]
        return text + "; so far arrived: " + ", ".join(seen)


def _locate(w: Warp, address) -> tuple[Cta, int]:
    """CTA and offset of an mbarrier's address (shared, 32 bits, or generic)."""
    address = uniform(w, address, "an mbarrier's address")
    if address >> memory.SPACE_BITS == memory.SHARED_SPACE:
        address -= memory.SHARED_TAG
    rank, offset = address >> memory.RANK_BITS, address & memory.SHARED_OFFSET
    if not 0 <= rank < w.cluster.size or offset + 8 > w.cluster.ctas[rank].shared.size:
        w.machine.report(
            "out-of-bounds",
            w,
            f"an mbarrier at shared address {address:#x}, outside the cluster's shared memory",
            memory="shared memory",
            fix="pass the address of a barrier in the pool",
        )
        raise Stop
    return w.cluster.ctas[rank], offset


def barrier_at(w: Warp, address) -> MBarrier:
    """The initialised mbarrier at an address, with its initialisation ordered before this use."""
    cta, offset = _locate(w, address)
    barrier = cta.barriers.get(offset)
    if barrier is None:
        w.machine.report(
            "barrier-init",
            w,
            f"{w.name()} uses the mbarrier at {cta.region(offset)}, which nothing has initialised",
            memory=cta.region(offset),
            fix=(
                "initialise it first (T.ptx.mbarrier.init), in one thread, and put a fence and a "
                "CTA barrier between that and the first use"
            ),
        )
        raise Stop
    made = barrier.init_stamp
    if barrier.public or not w.checks:
        return barrier
    if (made >> CLOCK_SHIFT) & CLOCK_MASK > int(w.clock[0, made >> AGENT_SHIFT]):
        w.machine.report(
            "barrier-init",
            w,
            f"{w.name()} uses {barrier.name()}, whose initialisation nothing orders before this",
            memory=barrier.name(),
            fix="put a CTA barrier (a cluster barrier, in a cluster) behind the initialisation",
            related=[("initialised", w.machine.program.location(barrier.init_site))],
        )
    return barrier


def uniform(w: Warp, value, what: str):
    """The one value of all lanes, or a finding."""
    if isinstance(value, np.ndarray):
        first = value.flat[0]
        if value.size > 1 and (value != first).any():
            w.machine.report(
                "divergent-collective",
                w,
                f"{what} differs between the lanes of a warp",
                memory="",
                fix="compute it from values that all lanes share",
            )
            raise Stop
        return first.item()
    return value


def lanes_in(w: Warp, mask) -> np.ndarray:
    """Numbers of the lanes that execute an operation (one of them, where its mask is True)."""
    if mask is None:
        return LANES[: w.active]
    return LANES[:1] if mask is True else np.flatnonzero(mask)


def _groups(w: Warp, mask, *operands) -> list[tuple[list[int], np.ndarray]]:
    """The values that the active lanes give for operands, each with the lanes that give them."""
    lanes = lanes_in(w, mask)
    if not any(isinstance(o, np.ndarray) and o.size > 1 for o in operands):
        values = [int(o.flat[0]) if isinstance(o, np.ndarray) else int(o) for o in operands]
        return [(values, lanes)] if lanes.size else []
    table = np.stack(
        [np.broadcast_to(np.asarray(o, dtype=np.int64).reshape(-1), (32,)) for o in operands]
    )[:, lanes]
    found: dict[tuple[int, ...], list[int]] = {}
    for lane, values in zip(lanes.tolist(), table.T.tolist(), strict=True):
        found.setdefault(tuple(values), []).append(lane)
    return [(list(values), np.array(members)) for values, members in found.items()]


def _words(w: Warp, offset: int) -> np.ndarray:
    """The shadow's words of the 8 bytes of an mbarrier."""
    grain = w.machine.program.grain
    return np.arange(offset // grain, (offset + 8) // grain)


@op
def mbarrier_init(w: Warp, address, count, mask=None) -> None:
    """``mbarrier.init``: a thread makes the barrier ready for its first phase.

    ``mask``: the lanes that do; None for one. Source: PTX ISA, "mbarrier.init".
    """
    for (place, arrivals), lanes in _groups(w, True if mask is None else mask, address, count):
        _init(w, place, arrivals)
        if lanes.size > 1:
            barrier = barrier_at(w, place)
            w.machine.report(
                "barrier-init",
                w,
                f"{lanes.size} threads of {w.name()} initialise {barrier.name()}, each again",
                memory=barrier.name(),
                threads=w.threads(mask),
                fix="let one thread initialise each barrier (if tid == 0)",
            )


def _init(w: Warp, address: int, count: int) -> None:
    cta, offset = _locate(w, address)
    if offset % 8 or not 1 <= count < 1 << 20:
        w.machine.report(
            "barrier-init",
            w,
            f"mbarrier.init with count {count} at byte {offset - memory.RESERVED_SHARED}",
            memory=cta.region(offset),
            fix="an mbarrier is 8-byte aligned, and counts 1 to 2^20 - 1 arrivals",
        )
        raise Stop
    if cta is not w.cta:
        w.machine.report(
            "barrier-init",
            w,
            f"{w.name()} initialises an mbarrier of CTA rank {cta.rank}",
            memory=cta.region(offset),
            fix="let a thread of each CTA initialise that CTA's own barriers",
        )
        raise Stop
    known = cta.barriers.get(offset)
    if known is not None:
        used = known.waiters or known.pending != known.count or known.flying
        state = "while it is in use" if used else "without mbarrier.inval before"
        w.machine.report(
            "barrier-init",
            w,
            f"{w.name()} initialises {known.name()} again {state}",
            memory=known.name(),
            fix="initialise each barrier once, before the first use (mbarrier.inval ends its life)",
            related=[("first initialised", w.machine.program.location(known.init_site))],
        )
        _end(known)
    slots: dict[int, list[int]] = cta.state.setdefault("mbarriers", {})
    slot = slots.setdefault(offset, [len(slots), 0])
    if slot[0] >= w.cluster.agents.barriers:
        raise MoreBarriers
    if w.checks:
        words = _words(w, offset)
        if known is None:
            access.generic_write(w, cta, words, False, np.int8(access.ALL_LANES))
        agent = w.cluster.agents.barrier(cta.rank, slot[0])
        cta.shadow.flat().write(words, stamp(agent, CLOCK_MASK, w.s))
    cta.barriers[offset] = MBarrier(cta, offset, count, w, *slot)


def _end(barrier: MBarrier) -> None:
    """A barrier's life ends; the next one at its place counts on from here."""
    latest = max([barrier.phase, *barrier.flying])
    barrier.cta.state["mbarriers"][barrier.offset][1] = barrier.epoch + latest + 1
    del barrier.cta.barriers[barrier.offset]


@op
def mbarrier_inval(w: Warp, address, mask=None) -> None:
    """``mbarrier.inval``: the barrier's 8 bytes are ordinary memory again."""
    for (place,), _ in _groups(w, True if mask is None else mask, address):
        barrier = barrier_at(w, place)
        waits = [warp.name() for warp, _ in barrier.waiters]
        if w.checks:  # waits that are over, but that nothing orders before this
            waits += [
                warp.name()
                for warp, (_, clock, _) in barrier.consumed.items()
                if max(w.clock[0, warp.agent], w.clock[2, warp.agent]) < clock
            ]
        if waits or barrier.flying:
            who = f"{', '.join(waits)} may still wait for it" if waits else "copies complete on it"
            w.machine.report(
                "barrier-init",
                w,
                f"{w.name()} invalidates {barrier.name()} while {who}",
                memory=barrier.name(),
                fix="put a CTA barrier between the last use of the barrier and mbarrier.inval",
                related=[("initialised", w.machine.program.location(barrier.init_site))],
            )
        _end(barrier)
        if w.checks:
            words = _words(w, barrier.offset)
            barrier.cta.shadow.flat().write(words, w.now | w.s)
        barrier.cta.shared.view(4, 2)[barrier.offset // 8] = 0xFFFFFFFF


def _published(w: Warp, barrier: MBarrier, clock: np.ndarray, sem: str, scope: str) -> np.ndarray:
    """What an arrival publishes: all that its thread has seen, unless it is relaxed.

    A release that reaches no further than its CTA publishes nothing to another one.
    """
    near = barrier.cta is w.cta or scope == "cluster"
    if not near and not scope:
        near = w.machine.reading("remote-arrive") == "cluster"
    if sem != "relaxed" and near:
        return clock
    quiet = np.zeros_like(clock)
    came_after(quiet, clock)
    quiet[TCGEN05_ROW:] = clock[TCGEN05_ROW:]  # what tcgen05.fence has put ahead of it
    fenced = w.state.get("fenced")
    if fenced is not None:
        np.maximum(quiet, fenced, out=quiet)
    return quiet


@op
def mbarrier_arrive(
    w: Warp,
    address,
    count=1,
    tx=None,
    mask=None,
    sem: str = "release",
    scope: str = "",
    drop: bool = False,
    complete: bool = True,
) -> None:
    """``mbarrier.arrive`` of the active threads, each ``count``; ``tx`` expects bytes first.

    ``drop`` (``arrive_drop``): later phases expect as many arrivals fewer. Without ``complete``
    (``.noComplete``) it must not be the phase's last arrival. ``sem``: ``release`` or ``relaxed``;
    ``scope``: ``cta``, ``cluster``, or empty where none is written. Source: PTX ISA,
    "mbarrier.arrive" and "mbarrier.arrive_drop".
    """
    clock = None
    for (place, each, *bytes_each), lanes in _groups(
        w, mask, address, count, *(() if tx is None else (tx,))
    ):
        clock = w.release() if clock is None else clock
        barrier = barrier_at(w, place)
        threads, total = lanes.size, each * lanes.size
        if bytes_each:
            barrier.expect(bytes_each[0] * threads)
        who = w.name() + (f" ({threads} threads)" if threads > 1 else "")
        if drop:
            barrier.count -= total
        if not complete and total >= barrier.pending and not barrier.tx:
            w.machine.report(
                "barrier-overarrival",
                w,
                f"{who} arrives at {barrier.name()} with .noComplete, and would complete phase "
                f"{barrier.phase}, which expects {barrier.pending} more of {barrier.count}",
                memory=f"{barrier.name()}, initialised with {barrier.count}",
                fix="leave out .noComplete where the arrival may be the phase's last",
                related=[("initialised", w.machine.program.location(barrier.init_site))],
            )
            raise Stop
        barrier.arrivers.add(w.agent)
        barrier.arrive(_published(w, barrier, clock, sem, scope), total, w, who, w.s)


#: The opaque state that an arrival returns: pending arrivals before it, the barrier, the phase.
_PENDING_BITS, _PLACE_BITS = 20, 15


@op
def mbarrier_arrive_state(w: Warp, address, count=1, tx=None, mask=None, **how):
    """:func:`mbarrier_arrive`, returning each thread's opaque state of the phase it arrived in."""
    states = np.zeros(32, dtype=np.int64)
    for (place, each), lanes in _groups(w, mask, address, count):
        barrier = barrier_at(w, place)
        pending = np.maximum(barrier.pending - each * np.arange(lanes.size), 0)
        where = barrier.offset >> 3 | barrier.phase << _PLACE_BITS
        states[lanes] = pending | where << _PENDING_BITS
    mbarrier_arrive(w, address, count, tx, mask, **how)
    return int(states[0]) if mask is True else states


@op
def mbarrier_pending_count(state):
    """``mbarrier.pending_count``: arrivals that were pending before the one that gave the state."""
    return state & ((1 << _PENDING_BITS) - 1)


@op
def mbarrier_expect_tx(w: Warp, address, tx, mask=None) -> None:
    """``mbarrier.expect_tx``: bytes that copies will bring in this phase."""
    for (place, nbytes), lanes in _groups(w, mask, address, tx):
        barrier_at(w, place).expect(nbytes * lanes.size)


@op
def mbarrier_complete_tx(w: Warp, address, tx, mask=None) -> None:
    """``mbarrier.complete_tx``: counts bytes as come, without a copy. It publishes nothing."""
    for (place, nbytes), lanes in _groups(w, mask, address, tx):
        barrier = barrier_at(w, place)
        came_after(barrier.arrived, w.clock)
        barrier.last = (w.s, w.name())
        barrier.landed += nbytes * lanes.size
        barrier.tx -= nbytes * lanes.size
        barrier.check()


def _each_lane(w: Warp, mask, operands, ask: Callable[..., bool]):
    """Ask for each lane, and give one answer where all lanes ask the same."""
    groups = _groups(w, mask, *operands)
    if len(groups) == 1 and not any(isinstance(o, np.ndarray) for o in operands):
        return ask(*groups[0][0])
    answers = np.zeros(32, dtype=bool)
    for values, lanes in groups:
        answers[lanes] = ask(*values)
    return answers


@op
def mbarrier_test(w: Warp, address, parity, mask=None, relaxed: bool = False):
    """``mbarrier.test_wait.parity``: whether the phase of this parity has completed."""
    if not (isinstance(address, np.ndarray) or isinstance(parity, np.ndarray)):
        return _test(w, int(address), int(parity), relaxed)
    return _each_lane(w, mask, (address, parity), lambda a, p: _test(w, a, p, relaxed))


def _test(w: Warp, address: int, parity: int, relaxed: bool) -> bool:
    barrier, parity = barrier_at(w, address), parity & 1
    if (barrier.phase & 1) == parity:
        w.polls = _waiting(w, barrier, parity)
        return False
    barrier.pass_by(w, relaxed)
    return True


@op
def mbarrier_test_state(w: Warp, address, state, mask=None, relaxed: bool = False):
    """``mbarrier.test_wait``: whether the phase that an arrival's state names has completed.

    A state names a phase of its own barrier, the current one or the one before; with any other
    the instruction is undefined (PTX ISA, "mbarrier.test_wait").
    """
    return _each_lane(w, mask, (address, state), lambda a, s: _test_state(w, a, s, relaxed))


def _test_state(w: Warp, address: int, state: int, relaxed: bool) -> bool:
    barrier, where = barrier_at(w, address), state >> _PENDING_BITS
    phase = where >> _PLACE_BITS
    if state < 0 or where & ((1 << _PLACE_BITS) - 1) != barrier.offset >> 3:
        w.machine.report(
            "barrier-init",
            w,
            f"{w.name()} asks {barrier.name()} with a state that no arrival at it returned",
            memory=barrier.name(),
            fix="pass the state that mbarrier.arrive at the same barrier returned",
        )
        raise Stop
    if phase == barrier.phase:
        w.polls = _waiting(w, barrier, phase & 1)
        return False
    if phase + 1 < barrier.phase:
        barrier.report_lapped(w, phase, barrier.completions[phase + 1], w.s)
    barrier.pass_by(w, relaxed)
    return True


@op
def mbarrier_wait(w: Warp, address, parity, mask=None):
    """Wait until the phase of this parity has completed (a ``try_wait.parity`` loop)."""
    barrier = barrier_at(w, address)
    parity = int(uniform(w, parity, "a phase parity")) & 1
    if (barrier.phase & 1) != parity:
        if w.checks and _early(w, barrier, parity):
            w.acquire(barrier.done)
        else:
            barrier.pass_by(w)
        return None
    barrier.waiters.append((w, parity))
    w.waiting = _waiting(w, barrier, parity)
    return w.waiting


@op
def mbarrier_waits(w: Warp, address, parity, mask=None) -> list[tuple[int, int]]:
    """The different barriers and parities that the lanes of a warp wait for."""
    return [(a, p) for (a, p), _ in _groups(w, mask, address, parity)]


def _waiting(w: Warp, barrier: MBarrier, parity: int) -> Waiting:
    """What a warp that waits for a phase of this parity waits for."""
    seen, site = barrier.waited.get(w, 0), w.s

    def missed() -> None:
        phase = seen + ((seen ^ parity) & 1)  # the next phase of this parity for this warp
        if phase + 1 < barrier.phase:
            barrier.report_lapped(w, phase, barrier.completions[phase + 1], site)

    return Waiting("mbarrier", barrier, lambda: barrier.describe(parity), missed)


def _early(w: Warp, barrier: MBarrier, parity: int) -> bool:
    """Whether a wait holds nothing back because its phase has been waited for before; noted."""
    if barrier.waited.get(w, 0) < barrier.phase:
        return False
    if barrier.phase:
        why = f"because phase {barrier.phase - 1} of {barrier.name()} was over and waited for"
    else:
        why = f"because parity {parity} stands for the phase before the first of {barrier.name()}"
    w.state.setdefault("early_waits", {})[w.s, why] = barrier
    return True


# --------------------------------------------------------------- CTA, named and cluster barriers


class Rendezvous:
    """A barrier that a fixed number of threads (or all warps that still live) must reach."""

    def __init__(self, label: str):
        self.label = label
        self.phase = 0  # how often it has been complete
        self.threads = 0
        self.expected = 0
        self.everyone = False  # the CTA's threads that still live, however many
        self.clock: np.ndarray | None = None
        self.parked: list[Warp] = []
        self.members: list[Warp] = []
        self.sites: set[int] = set()
        #: The reduction that the threads at the barrier take part in, and what it has come to.
        self.reduction = ""
        self.value = 0
        #: Who came to the last completed turn of a named barrier, when, and where.
        self.turn: list[tuple[Warp, int, int]] = []
        self.before: list[tuple[Warp, int, int]] = []

    def arrive(self, w: Warp, threads: int) -> None:
        self.threads += threads
        self.members.append(w)
        self.sites.add(w.s)
        if self.clock is None:
            self.clock = w.clock.copy()
        else:
            np.maximum(self.clock, w.clock, out=self.clock)
        w.tick()

    def complete(self) -> None:
        """Release everyone who is parked, with the clocks of all that arrived."""
        clock, parked, machine = self.clock, self.parked, self.members[0].machine
        self.threads, self.clock, self.parked, self.members = 0, None, [], []
        self.sites = set()
        self.phase += 1
        self.before, self.turn = self.turn, []
        value, self.value, self.reduction = self.value, 0, ""
        assert clock is not None
        for warp in parked:
            warp.state["barrier_result"] = value
            warp.synced = ("barrier", warp.s)
            warp.acquire(clock)
            warp.cluster.wake(warp)
        if machine.watch is not None:
            machine.watch.phase(self)


def _describe_cta(rendezvous: Rendezvous, cta: Cta) -> str:
    missing = [w for w in cta.warps if not w.exited and w not in rendezvous.members]
    names = ", ".join(w.name() for w in missing) or "nobody"
    return f"waits at {rendezvous.label}, which has not been reached by {names}"


@op
def cta_sync(w: Warp, mask=None):
    """``bar.sync 0`` by all warps of the CTA."""
    whole_warp(w, mask, "the CTA barrier")
    cta = w.cta
    rendezvous = cta.named.get(0)
    if rendezvous is None:
        rendezvous = cta.named[0] = Rendezvous("the CTA barrier")
        rendezvous.everyone = True
    elif rendezvous.reduction or not rendezvous.everyone:
        _join(w, rendezvous, None, "")
    rendezvous.arrive(w, 32)
    rendezvous.parked.append(w)
    if _cta_done(cta, rendezvous):
        return _pass(w, rendezvous)
    w.waiting = Waiting("barrier", rendezvous, lambda: _describe_cta(rendezvous, cta))
    return w.waiting


def _cta_done(cta: Cta, rendezvous: Rendezvous) -> bool:
    return len(rendezvous.members) == sum(not w.exited for w in cta.warps)


def _complete(cta: Cta, rendezvous: Rendezvous) -> bool:
    """Whether all have come for whom a named barrier waits."""
    if rendezvous.everyone:
        return _cta_done(cta, rendezvous)
    return rendezvous.threads >= rendezvous.expected


def _pass(w: Warp, rendezvous: Rendezvous) -> None:
    """Complete the barrier with ``w`` as the last to arrive: it goes on at once."""
    clock, value = rendezvous.clock, rendezvous.value
    rendezvous.parked.remove(w)
    rendezvous.complete()
    assert clock is not None
    w.state["barrier_result"] = value
    w.synced = ("barrier", w.s)
    w.acquire(clock)


@op
def bar_sync(w: Warp, barrier, threads=None, mask=None):
    """``bar.sync a, b`` (``barrier.sync``): a named barrier for ``threads`` threads.

    Source: PTX ISA, "bar, barrier".
    """
    whole_warp(w, mask, "a named barrier")
    barrier = int(uniform(w, barrier, "a barrier's number"))
    if threads is None and barrier == 0:
        return cta_sync(w)
    return _wait_at(w, _named(w, barrier, threads))


def _wait_at(w: Warp, rendezvous: Rendezvous):
    rendezvous.arrive(w, 32)
    rendezvous.parked.append(w)
    if _complete(w.cta, rendezvous):
        return _pass(w, rendezvous)

    def describe() -> str:
        if rendezvous.everyone:
            return _describe_cta(rendezvous, w.cta)
        return (
            f"waits at {rendezvous.label}: {rendezvous.threads} of {rendezvous.expected} threads "
            "have come"
        )

    w.waiting = Waiting("barrier", rendezvous, describe)
    return w.waiting


@op
def bar_arrive(w: Warp, barrier, threads, mask=None) -> None:
    """``bar.arrive a, b``: count towards a named barrier without waiting at it."""
    whole_warp(w, mask, "a named barrier")
    rendezvous = _named(w, int(uniform(w, barrier, "a barrier's number")), threads)
    rendezvous.arrive(w, 32)
    if _complete(w.cta, rendezvous):
        rendezvous.complete()


@op
def bar_red(w: Warp, how: str, barrier, threads, predicate, mask=None):
    """``bar.red``: a named barrier that combines the threads' predicates.

    ``how``: ``popc`` (in how many threads it is true), ``and``, ``or``; :func:`bar_result` gives
    the result once the barrier is complete.
    """
    whole_warp(w, mask, "a named barrier")
    rendezvous = _named(w, int(uniform(w, barrier, "a barrier's number")), threads, how)
    true = np.broadcast_to(np.asarray(predicate) != 0, (32,))[w.present]
    if how == "popc":
        rendezvous.value += int(true.sum())
    elif how == "and":
        first = not rendezvous.members
        rendezvous.value = int(bool(true.all()) and (first or bool(rendezvous.value)))
    else:
        rendezvous.value = int(bool(true.any()) or bool(rendezvous.value))
    return _wait_at(w, rendezvous)


@op
def bar_result(w: Warp) -> int:
    """What the last ``bar.red`` of a warp came to."""
    return w.state["barrier_result"]


def _named(w: Warp, barrier: int, threads, how: str = "") -> Rendezvous:
    live = 32 * len(w.cta.warps)
    count = None if threads is None else int(uniform(w, threads, "a thread count"))
    if not 0 <= barrier < 16 or (count is not None and (count % 32 or not 0 < count <= live)):
        w.machine.report(
            "barrier-init",
            w,
            f"named barrier {barrier} for {count or live} threads (the CTA has {live})",
            memory=f"named barrier {barrier}",
            fix="barriers are numbered 0 to 15; the count is a multiple of 32, at most the CTA's",
        )
        raise Stop
    rendezvous = w.cta.named.get(barrier)
    if rendezvous is None:
        label = f"named barrier {barrier}" if barrier else "the CTA barrier"
        rendezvous = w.cta.named[barrier] = Rendezvous(label)
    _join(w, rendezvous, count, how)
    return rendezvous


def _join(w: Warp, rendezvous: Rendezvous, count: int | None, how: str) -> None:
    """Check that a warp may join a named barrier's turn in this way, and say so to the barrier."""
    live = 32 * len(w.cta.warps)
    if rendezvous.members:
        wrong = ""
        expected = live if rendezvous.everyone else rendezvous.expected
        if expected != (live if count is None else count):
            wrong = (
                f"for {live if count is None else count} threads by {w.name()} while others use "
                f"it for {expected}"
            )
        elif rendezvous.reduction != how:
            forms = [f"bar.red.{h}" if h else "bar.sync" for h in (how, rendezvous.reduction)]
            wrong = f"with {forms[0]} by {w.name()} while others use it with {forms[1]}"
        if wrong:
            w.machine.report(
                "barrier-init",
                w,
                f"{rendezvous.label} is used {wrong}",
                memory=rendezvous.label,
                fix="give the two groups barriers of different numbers",
            )
            raise Stop
    rendezvous.everyone, rendezvous.reduction = count is None, how
    rendezvous.expected = live if count is None else count
    if w.checks and count is not None:
        _apart(w, rendezvous)
        rendezvous.turn.append((w, int(w.clock[0, w.agent]), w.s))


def _apart(w: Warp, rendezvous: Rendezvous) -> None:
    """Check that a warp comes to a named barrier's turn after the last one is surely over.

    Otherwise it might as well have come to that turn, in the place of one of its threads.
    """
    again = next((site for warp, _, site in rendezvous.turn if warp is w), None)
    early = [
        (warp, site)
        for warp, clock, site in rendezvous.before
        if max(w.clock[0, warp.agent], w.clock[2, warp.agent]) < clock
    ]
    if again is None and not early:
        return
    locations = w.machine.program.location
    if again is not None:
        message = f"{w.name()} comes to {rendezvous.label} again before the turn that it counts for"
        related = [("the first time", locations(again))]
    else:
        warp, site = early[0]
        message = (
            f"{w.name()} comes to {rendezvous.label}, and nothing orders that after {warp.name()}, "
            f"which came to the barrier's last turn ({locations(site)}): in another order of "
            f"events {w.name()} counts for that turn, and whoever waits for it goes on too early"
        )
        related = [("the other arrival", locations(site))]
    w.machine.report(
        "barrier-mixed",
        w,
        message,
        memory=f"{rendezvous.label}, for {rendezvous.expected} threads",
        fix=(
            "give each group of threads a barrier number of its own, and let a warp that only "
            "arrives wait, at another barrier, for those that waited at this one"
        ),
        related=related,
    )


@op
def warp_sync(w: Warp, mask=None) -> None:
    """``bar.warp.sync``: orders lanes of a warp; what each does from now on is a new moment."""
    w.tick()


@op
def cluster_arrive(w: Warp, release: bool = True, mask=None) -> None:
    """``barrier.cluster.arrive``: this warp has come; ``release`` publishes what it has done."""
    whole_warp(w, mask, "the cluster barrier")
    rendezvous = _cluster_barrier(w)
    if w.state.get("cluster_token") is not None:
        w.machine.report(
            "barrier-init",
            w,
            f"{w.name()} arrives at the cluster barrier again without having waited at it",
            memory="the cluster barrier",
            fix="pair every barrier.cluster.arrive with a barrier.cluster.wait behind it",
        )
        raise Stop
    if release:
        rendezvous.arrive(w, 32)
    else:
        rendezvous.threads += 32
        rendezvous.members.append(w)
        fenced = w.state.get("fenced")
        if rendezvous.clock is None:
            rendezvous.clock = w.cluster.agents.clock()
        came_after(rendezvous.clock, w.clock)
        np.maximum(
            rendezvous.clock[TCGEN05_ROW:],
            w.clock[TCGEN05_ROW:],
            out=rendezvous.clock[TCGEN05_ROW:],
        )
        w.tick()
        if fenced is not None:
            np.maximum(rendezvous.clock, fenced, out=rendezvous.clock)
    w.state["cluster_token"] = w.cluster.state["cluster_generation"]
    if _cluster_done(w, rendezvous):
        _complete_cluster(w, rendezvous)


@op
def cluster_wait(w: Warp, mask=None):
    """``barrier.cluster.wait``: until all warps of the cluster have arrived."""
    whole_warp(w, mask, "the cluster barrier")
    rendezvous = _cluster_barrier(w)
    token = w.state.get("cluster_token")
    if token is None:
        w.machine.report(
            "barrier-init",
            w,
            f"{w.name()} waits at the cluster barrier without having arrived at it",
            memory="the cluster barrier",
            fix="pair every barrier.cluster.wait with a barrier.cluster.arrive before it",
        )
        raise Stop
    w.state["cluster_token"] = None
    if w.cluster.state["cluster_generation"] > token:
        w.synced = ("barrier", w.s)
        w.acquire(w.cluster.state["cluster_clock"])
        return None
    rendezvous.parked.append(w)
    cluster = w.cluster

    def describe() -> str:
        everyone = [x for cta in cluster.ctas for x in cta.warps if not x.exited]
        missing = [x.name() for x in everyone if x not in rendezvous.members]
        return f"waits at the cluster barrier, not reached by {', '.join(missing) or 'nobody'}"

    w.waiting = Waiting("barrier", rendezvous, describe)
    return w.waiting


@op
def cluster_sync(w: Warp, mask=None):
    """``barrier.cluster.arrive`` and ``wait``."""
    cluster_arrive(w, True, mask)
    return cluster_wait(w, mask)


def _complete_cluster(w: Warp, rendezvous: Rendezvous) -> None:
    for cta in w.cluster.ctas:
        for barrier in cta.barriers.values():
            barrier.public = barrier.public or barrier.fenced
    w.cluster.state["cluster_clock"] = rendezvous.clock
    w.cluster.state["cluster_generation"] += 1
    rendezvous.complete()


def _cluster_barrier(w: Warp) -> Rendezvous:
    state = w.cluster.state
    if "cluster_barrier" not in state:
        state["cluster_barrier"] = Rendezvous("the cluster barrier")
        state["cluster_generation"] = 0
    return state["cluster_barrier"]


def _cluster_done(w: Warp, rendezvous: Rendezvous) -> bool:
    """Exited warps count as arrived (PTX ISA, barrier.cluster)."""
    live = sum(not x.exited for cta in w.cluster.ctas for x in cta.warps)
    return sum(not x.exited for x in rendezvous.members) >= live


def _exit(w: Warp) -> None:
    """An exiting warp no longer counts: a CTA or cluster barrier may now be complete."""
    for rendezvous in w.cta.named.values():
        if rendezvous.everyone and rendezvous.members and _cta_done(w.cta, rendezvous):
            rendezvous.complete()
    state = w.cluster.state
    rendezvous = state.get("cluster_barrier")
    if rendezvous is not None and rendezvous.members and _cluster_done(w, rendezvous):
        _complete_cluster(w, rendezvous)


EXIT_HOOKS.append(_exit)


# ------------------------------------------------------------------------------------- fences


@op
def fence_mbarrier_init(w: Warp) -> None:
    """``fence.mbarrier_init.release.cluster``: this warp's initialisations, made public by the next
    cluster barrier, even where that is relaxed."""
    for barrier in w.cta.barriers.values():
        if barrier.init_stamp >> AGENT_SHIFT == w.agent:
            barrier.fenced = True


@op
def fence_proxy_async(w: Warp, mask=None) -> None:
    """``fence.proxy.async``: what this warp has seen is now visible to the async proxy too."""
    np.maximum(w.clock[1], w.clock[0], out=w.clock[1])
    w.tick()  # what this warp writes from here on needs a fence of its own
