"""Barriers: mbarriers, CTA and named barriers, cluster barriers, and fences.

An operation that blocks returns a :class:`~.core.Waiting` for the generated code to yield, or None
where the warp may go on. Whoever completes the barrier wakes the warps that it parked, and gives
each of them the clocks of all that arrived.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from mlsys_gpu.sim.machine import access, loose, memory
from mlsys_gpu.sim.machine.clocks import AGENT_SHIFT, CLOCK_MASK, CLOCK_SHIFT, TCGEN05_ROW, stamp
from mlsys_gpu.sim.machine.core import (
    LANES,
    Cta,
    MoreBarriers,
    Stop,
    Waiting,
    Warp,
    op,
)
from mlsys_gpu.sim.report import Location


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

    ``came`` holds what the current phase is made of, as agents and their clocks; ``history`` the
    same of the latest phases that are complete. Who has seen all of that knows the phase to be
    over.
    """

    number = -1  # in the recording of a timed run

    def __init__(self, cta: Cta, offset: int, count: int, w: Warp, index: int, epoch: int = 0):
        self.cta = cta
        self.offset = offset
        self.index = index
        self.agent = cta.cluster.agents.barrier(cta.rank, index)
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
        self.came: dict[int, int] = {}
        self.history: deque[dict[int, int]] = deque(maxlen=2)
        #: Waits that held nothing back: before which phase, the warp's clock then, where, parity.
        self.early: dict[Warp, tuple[int, int, int, int]] = {}
        self.data = False  # whether it has ever expected bytes
        # Of the current phase: who has arrived, and where bytes were expected and copies issued.
        self.parts: dict[tuple[str, int], int] = {}
        self.expected: dict[int, int] = {}
        self.copies: dict[int, dict[int, int]] = {}  # by the phase that they are charged to
        #: Who issued a phase's latest copy, and when: what comes after that cannot be waited for.
        self.issues: dict[int, tuple[int, int]] = {}

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

    def arrive(
        self, clock: np.ndarray, count: int, w: Warp, who: str, site: int, agent: int | None = None
    ) -> None:
        """``count`` arrivals that publish ``clock``, of a warp or of an ``agent`` of its."""
        key = (who, site)
        self.arrivals[key] = self.arrivals.get(key, 0) + count
        self.parts[key] = self.parts.get(key, 0) + count
        if w.checks and self.cta is not w.cta:
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
        if w.checks:
            np.maximum(self.arrived, clock, out=self.arrived)
            agent = w.agent if agent is None else agent
            self.came[agent] = int(clock[0:3, agent].max())
        self.pending -= count
        self.last = (site, who)
        self.check()

    def expect(self, count: int, site: int) -> None:
        """Raise the phase's pending bytes."""
        self.tx += count
        self.expected[site] = self.expected.get(site, 0) + count
        self.data = True

    def balance(self) -> str:
        """The bytes that the phase expects, against those that its copies bring."""
        wanted, brought = self.bytes_of_phase()
        what = f"expects {wanted} bytes" if self.expected else "expects no bytes"
        verb = "bring" if brought else "have brought"
        return f"phase {self.phase} of {self.name()} {what}, its copies {verb} {brought}"

    def bytes_of_phase(self) -> tuple[int, int]:
        """The bytes that the current phase expects, and those that its copies bring."""
        return sum(self.expected.values()), self.landed + self.flying.get(self.phase + 1, 0)

    def where_expected(self) -> list[tuple[str, Location | None]]:
        """The lines that expect bytes in the current phase."""
        locate = self.cta.machine.program.location
        return [(f"expects {n} bytes", locate(site)) for site, n in self.expected.items()]

    def charge(self, phase: int, nbytes: int, w: Warp, to: int) -> None:
        """A warp has issued a copy of ``nbytes`` that completes in ``phase``.

        ``to``: the rank of the CTA whose memory they come to. A copy of ``.cta_group::2`` may
        complete on a barrier of the other CTA.
        """
        self.flying[phase] = self.flying.get(phase, 0) + nbytes
        sites = self.copies.setdefault(phase, {})
        sites[w.s] = sites.get(w.s, 0) + nbytes
        if w.checks:
            self.issues[self.epoch + phase] = w.agent, int(w.clock[0, w.agent])
            came_after(self.arrived, w.clock)
            if not self.is_over(w, self.phase - 1):
                self.unexpected(
                    w,
                    f"a copy of {nbytes} bytes completes on {self.name()}, and nothing orders it "
                    f"after phase {self.phase - 1} is over: fewer bytes were expected than that "
                    "phase's copies bring, the copy did not wait for the phase, or it names "
                    "another barrier than the one that expects its bytes",
                    "let each copy name the barrier on which its bytes are expected "
                    "(arrive.expect_tx), expect the bytes of all copies of a phase, and wait for "
                    "the phase before (in a ring, for the stage to be empty) before the copy",
                )
            elif not self.pending and self.flying[phase] > self.tx:
                self.unexpected(
                    w,
                    f"{self.balance()}: {self.flying[phase] - self.tx} bytes more than expected "
                    "complete on it",
                    f"expect {self.bytes_of_phase()[1]} bytes for this phase (arrive.expect_tx): "
                    "the sum of all its copies, elements times their size in bytes",
                )

    def unexpected(self, w: Warp, message: str, fix: str) -> None:
        w.machine.report(
            "tx-count",
            w,
            message,
            memory=self.name(),
            fix=fix,
            related=[
                *self.where_expected(),
                ("initialised", w.machine.program.location(self.init_site)),
            ],
            fault=(self.cta.region(self.offset).split("[")[0], w.s),
            unless=lambda: w.machine.found("barrier-parity", "barrier-overarrival"),
        )
        w.machine.unexpected = True

    def is_over(self, w: Warp, phase: int) -> bool:
        """Whether a warp knows that a phase (one of the latest) is complete."""
        back = self.phase - phase
        if phase < 0:
            return True
        if not 0 < back <= len(self.history):
            return False
        clock = w.clock
        return all(
            max(clock[0, agent], clock[2, agent]) >= moment
            for agent, moment in self.history[-back].items()
        )

    def in_turn(self, w: Warp, parity: int) -> None:
        """Check a wait: it must be for the phase that comes next, as far as the warp knows.

        Else it is for a phase that is over, and holds nothing back; then the phase behind that must
        not be complete before the wait, in no order of events: the wait would be for a third one.
        """
        turn = self.waited.get(w, 0)
        if parity == turn & 1:
            return
        for phase in (self.phase, self.phase - 1):
            if phase > turn and self.is_over(w, phase - 1):
                turn = phase
        if parity == turn & 1:
            return
        if turn < self.phase:
            self.out_of_turn(w, turn, parity, w.s, self.completions[turn])
        else:
            self.early[w] = turn, int(w.clock[0, w.agent]), w.s, parity

    def out_of_turn(self, w: Warp, turn: int, parity: int, site: int, by: tuple[int, str]) -> None:
        """Report a wait for a phase other than the next one (``turn``), which ``by`` completes."""
        machine = w.machine
        over = f"phase {turn - 1}, which is over" if turn else "the phase before the first"
        machine.report(
            "barrier-parity",
            w,
            f"{w.name()} waits for parity {parity} of {self.name()}, which stands for {over}: the "
            f"wait holds nothing back. Phase {turn}, with parity {turn & 1}, may be complete "
            f"before it too (by {by[1]}, {machine.program.location(by[0])}): then it waits for "
            f"phase {turn + 1}",
            memory=f"{self.name()}, initialised with {self.count}",
            fix=(
                "wait for the phase that comes next: for parity 0 first, flipped behind every "
                "wait, and carried on from one tile to the next"
            ),
            site=site,
            related=[(f"what completes phase {turn}", machine.program.location(by[0]))],
            fault=(self.cta.region(self.offset).split("[")[0], site),
            # Who waits wrongly for bytes upsets the barrier by which it gives their place back.
            unless=None if self.data else lambda: machine.misled,
        )
        machine.misled |= self.data

    def complete(self, nbytes: int, phase: int, w: Warp, site: int) -> None:
        """``complete_tx``: a copy has landed."""
        self.flying[phase] -= nbytes
        if not self.flying[phase]:
            del self.flying[phase]
        if w.checks:
            moment = self.epoch + phase
            column = self.arrived[:, self.agent]
            np.maximum(column, moment, out=column)
            self.came[self.agent] = moment
        self.landed += nbytes
        self.tx -= nbytes
        self.check()

    def check(self) -> None:
        """Complete the phase where nothing is pending, and wake who waited for it."""
        if self.pending or self.tx:
            return
        flying = self.flying.get(self.phase + 1, 0)
        machine = self.cta.machine
        if flying:
            machine.report(
                "tx-count",
                None,
                f"{self.name()} completes its phase {self.phase} while copies of {flying} bytes "
                "that belong to it are still under way: fewer bytes were expected than they bring",
                memory=self.name(),
                threads=f"CTA {self.cta.label()}",
                fix="expect (arrive.expect_tx) the bytes of all copies that complete on it",
                site=self.init_site,
                unless=lambda: machine.unexpected,
            )
        self.landed = 0
        self.parts, self.expected = {}, {}
        self.copies.pop(self.phase + 1, None)
        if machine.checks:
            self._lapped()
            self._overtaken()
            self.history.append(self.came)
            self.came = {}
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
        if machine.watch is not None:
            machine.watch.phase(self)

    def pass_by(self, w: Warp, relaxed: bool = False) -> None:
        """A warp's wait is over: it has seen what the completed phases published.

        Of a relaxed wait that holds once a fence has followed it.
        """
        loose.waited(w, w.wait_mask)
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
        if w.checks:
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

    def _overtaken(self) -> None:
        """Check that a phase completes only after the waits that took it for one to come."""
        for warp, (turn, clock, site, parity) in self.early.items():
            seen = int(max(self.arrived[0, warp.agent], self.arrived[2, warp.agent]))
            if turn == self.phase and seen < clock:
                self.out_of_turn(warp, turn, parity, site, self.last)
        self.early.clear()

    def report_lapped(self, warp: Warp, phase: int, by: tuple[int, str], site: int) -> None:
        """Report that the phase after ``phase`` completes before a warp has surely seen it."""
        machine = warp.machine
        machine.report(
            "barrier-lapped",
            warp,
            f"{by[1]} runs ahead: it completes phase {phase + 1} of {self.name()} without waiting "
            f"for {warp.name()} to be past its wait for phase {phase} "
            f"({machine.program.location(site)}). A wait knows a phase by its parity alone: once "
            f"phase {phase + 1} is complete too, it takes phase {phase} for one that is still to "
            "come, and waits for ever or misses a round",
            memory=f"{self.name()}, initialised with {self.count}",
            fix=(
                "let whoever completes the next phase wait first, through another barrier, for all "
                "who wait for this one: in a ring, who fills a stage again waits for its empty "
                "barrier, at which the readers arrive behind their reads; and let one phase have "
                "exactly its own arrivals"
            ),
            site=by[0],
            related=[("the wait", machine.program.location(site))],
            fault=self.offset,
            # Waits for wrong phases lead to this, and arrivals out of their turn.
            unless=lambda: (
                self.offset in machine.blamed
                or machine.found("barrier-parity", "barrier-overarrival")
            ),
        )

    def describe(self, parity: int) -> str:
        """What a warp that waits here waits for, and who could bring it."""
        text = (
            f"waits for phase parity {parity} of {self.name()}, which is in phase {self.phase} "
            f"with {self.pending} of {self.count} arrivals still to come"
        )
        if self.tx < 0:
            text += f"; {-self.tx} bytes have come that no expect_tx has announced"
        elif self.tx:
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
    if not isinstance(address, int):
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
    if isinstance(value, int):
        return value
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
    if w.one >= 0 and (mask is None or mask is True):
        return LANES[w.one : w.one + 1]
    if mask is None:
        return LANES[: w.active]
    return LANES[:1] if mask is True else np.flatnonzero(mask)


def groups_of(w: Warp, mask, *operands) -> list[tuple[list[int], np.ndarray]]:
    """The values that the active lanes give for operands, each with the lanes that give them."""
    lanes = lanes_in(w, mask)
    for operand in operands:
        if isinstance(operand, np.ndarray) and operand.size > 1:
            break
    else:
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
    for (place, arrivals), lanes in groups_of(w, True if mask is None else mask, address, count):
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
    for (place,), _ in groups_of(w, True if mask is None else mask, address):
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
    for (place, each, *bytes_each), lanes in groups_of(
        w, mask, address, count, *(() if tx is None else (tx,))
    ):
        if clock is None:
            loose.part(w, lanes_in(w, mask))
            clock = w.release()
        barrier = barrier_at(w, place)
        threads, total = lanes.size, each * lanes.size
        if bytes_each:
            barrier.expect(bytes_each[0] * threads, w.s)
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
        if w.checks and not barrier.is_over(w, barrier.phase - 1):
            _ahead(w, barrier, who)
        barrier.arrive(_published(w, barrier, clock, sem, scope), total, w, who, w.s)


def _ahead(w: Warp, barrier: MBarrier, who: str) -> None:
    """Report an arrival that may come before the phase before its own is over."""
    phase = barrier.phase - 1
    site, by = barrier.completions[phase]
    w.machine.report(
        "barrier-overarrival",
        w,
        f"{who} arrives at {barrier.name()} in phase {phase + 1}, and nothing orders that after "
        f"phase {phase} is over ({by} completes it, {w.machine.program.location(site)}): in "
        f"another order of events it is one arrival too many in phase {phase}",
        memory=f"{barrier.name()}, initialised with {barrier.count}",
        fix=(
            "wait, directly or through another barrier, for the phase before an arrival is over; "
            "and let the barrier count all arrivals of a phase"
        ),
        related=[("initialised", w.machine.program.location(barrier.init_site))],
        fault=(barrier.cta.region(barrier.offset).split("[")[0], w.s),
        unless=lambda: w.machine.found("barrier-parity"),
    )


#: The opaque state that an arrival returns: pending arrivals before it, the barrier, the phase.
_PENDING_BITS, _PLACE_BITS = 20, 15


@op
def mbarrier_arrive_state(w: Warp, address, count=1, tx=None, mask=None, **how):
    """:func:`mbarrier_arrive`, returning each thread's opaque state of the phase it arrived in."""
    states = np.zeros(32, dtype=np.int64)
    for (place, each), lanes in groups_of(w, mask, address, count):
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
    for (place, nbytes), lanes in groups_of(w, mask, address, tx):
        barrier_at(w, place).expect(nbytes * lanes.size, w.s)


@op
def mbarrier_complete_tx(w: Warp, address, tx, mask=None) -> None:
    """``mbarrier.complete_tx``: counts bytes as come, without a copy. It publishes nothing."""
    for (place, nbytes), lanes in groups_of(w, mask, address, tx):
        barrier = barrier_at(w, place)
        came_after(barrier.arrived, w.clock)
        barrier.came[w.agent] = int(w.clock[0, w.agent])
        barrier.last = (w.s, w.name())
        barrier.landed += nbytes * lanes.size
        barrier.tx -= nbytes * lanes.size
        barrier.check()


def _each_lane(w: Warp, mask, operands, ask: Callable[..., bool]):
    """Ask for each lane, and give one answer where all lanes ask the same."""
    groups = groups_of(w, mask, *operands)
    if len(groups) == 1 and not any(isinstance(o, np.ndarray) for o in operands):
        return ask(*groups[0][0])
    answers = np.zeros(32, dtype=bool)
    for values, lanes in groups:
        answers[lanes] = ask(*values)
    return answers


def _parity(w: Warp, barrier: MBarrier, parity: int) -> int:
    """The parity that a wait asks for, which must be 0 or 1 (PTX ISA, "mbarrier.test_wait")."""
    if w.checks and parity & ~1:
        w.machine.report(
            "barrier-parity",
            w,
            f"{w.name()} waits for phase parity {parity} of {barrier.name()}: a parity is 0 or 1",
            memory=barrier.name(),
            fix="pass the last bit of a phase counter (phase & 1), or flip a bit (phase ^ 1)",
        )
    return parity & 1


@op
def mbarrier_test(w: Warp, address, parity, mask=None, relaxed: bool = False):
    """``mbarrier.test_wait.parity``: whether the phase of this parity has completed."""
    w.wait_mask = mask
    if not (isinstance(address, np.ndarray) or isinstance(parity, np.ndarray)):
        return _test(w, int(address), int(parity), relaxed)
    return _each_lane(w, mask, (address, parity), lambda a, p: _test(w, a, p, relaxed))


def _test(w: Warp, address: int, parity: int, relaxed: bool) -> bool:
    barrier = barrier_at(w, address)
    parity = _parity(w, barrier, parity)
    if w.checks:
        barrier.in_turn(w, parity)
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
    w.wait_mask = mask
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
    """Wait until the phase of this parity has completed (a ``try_wait.parity`` loop).

    ``mask``: the lanes that wait (True: one of them); None for all.
    """
    w.wait_mask = mask
    barrier = barrier_at(w, address)
    parity = parity if isinstance(parity, int) else int(uniform(w, parity, "a phase parity"))
    parity = _parity(w, barrier, parity)
    if w.checks:
        barrier.in_turn(w, parity)
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
    return [(a, p) for (a, p), _ in groups_of(w, mask, address, parity)]


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
    if not w.checks:
        return
    loose.part(w, lanes_in(w, mask), fence=True)
    np.maximum(w.clock[1], w.clock[0], out=w.clock[1])
    w.tick()  # what this warp writes from here on needs a fence of its own
