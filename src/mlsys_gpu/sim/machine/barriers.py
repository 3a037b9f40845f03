"""Barriers: mbarriers, CTA and named barriers, cluster barriers, and fences.

An operation that blocks returns a :class:`~.core.Waiting` for the generated code to yield, or None
where the warp may go on. Whoever completes the barrier wakes the warps that it parked, and gives
each of them the clocks of all that arrived.
"""

from __future__ import annotations

import numpy as np

from mlsys_gpu.sim.machine import memory
from mlsys_gpu.sim.machine.clocks import AGENT_SHIFT, CLOCK_MASK, CLOCK_SHIFT, MAX_BARRIERS
from mlsys_gpu.sim.machine.core import EXIT_HOOKS, Cta, Stop, Waiting, Warp, op, whole_warp
from mlsys_gpu.sim.program import Unsupported


def came_after(clock: np.ndarray, other: np.ndarray) -> None:
    """``clock`` comes after ``other`` in time, and nothing becomes visible by that (row 2)."""
    np.maximum(clock[2], np.maximum(other[0], other[2]), out=clock[2])


# ---------------------------------------------------------------------------------- mbarriers


class MBarrier:
    """An mbarrier object (PTX ISA, "mbarrier"): phase, pending arrivals, pending bytes.

    ``arrived`` joins the clocks of the current phase's arrivals, ``done`` those of all completed
    phases: who has waited for a phase has seen what its arrivals published.
    """

    def __init__(self, cta: Cta, offset: int, count: int, w: Warp, index: int):
        self.cta = cta
        self.offset = offset
        self.index = index
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
        self.arrived[:, agent] = np.maximum(self.arrived[:, agent], phase)
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

    def pass_by(self, w: Warp) -> None:
        """A warp's wait is over: it has seen what the completed phases published."""
        w.acquire(self.done)
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
    stamp = barrier.init_stamp
    if barrier.public or not w.checks:
        return barrier
    if (stamp >> CLOCK_SHIFT) & CLOCK_MASK > int(w.clock[0, stamp >> AGENT_SHIFT]):
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


@op
def mbarrier_init(w: Warp, address, count, mask=None) -> None:
    """``mbarrier.init``: one thread makes the barrier ready for its first phase."""
    cta, offset = _locate(w, address)
    count = int(uniform(w, count, "an arrival count"))
    if offset % 8 or not 1 <= count < 1 << 20:
        w.machine.report(
            "barrier-init",
            w,
            f"mbarrier.init with count {count} at byte {offset - memory.RESERVED_SHARED}",
            memory=cta.region(offset),
            fix="an mbarrier is 8-byte aligned, and counts 1 to 2^20 - 1 arrivals",
        )
        raise Stop
    known = cta.barriers.get(offset)
    if known is not None and (known.waiters or known.pending != known.count):
        w.machine.report(
            "barrier-init",
            w,
            f"{w.name()} initialises {known.name()} again while it is in use",
            memory=known.name(),
            fix="initialise each barrier once, before the first use (mbarrier.inval ends its life)",
            related=[("first initialised", w.machine.program.location(known.init_site))],
        )
    index = known.index if known else len(cta.barriers)
    if index >= MAX_BARRIERS:
        raise Unsupported(f"more than {MAX_BARRIERS} mbarriers in one CTA")
    cta.barriers[offset] = MBarrier(cta, offset, count, w, index)


@op
def mbarrier_inval(w: Warp, address, mask=None) -> None:
    """``mbarrier.inval``: the barrier's 8 bytes are ordinary memory again."""
    cta, offset = _locate(w, address)
    barrier_at(w, address)
    del cta.barriers[offset]


@op
def mbarrier_arrive(w: Warp, address, count=1, tx=None, mask=None) -> None:
    """``mbarrier.arrive`` of the active threads, each ``count``; ``tx`` expects bytes first."""
    threads = w.active if mask is None else int(np.sum(mask))
    if threads == 0:
        return
    count = int(uniform(w, count, "an arrival count"))
    published = w.release()
    for place, lanes in _places(address, mask, threads):
        barrier = barrier_at(w, place)
        if tx is not None:
            barrier.expect(int(uniform(w, tx, "a byte count")) * lanes)
        who = w.name() + (f" ({lanes} threads)" if lanes > 1 else "")
        barrier.arrivers.add(w.agent)
        barrier.arrive(published, count * lanes, w, who, w.s)


def _places(address, mask, threads: int) -> list[tuple[int, int]]:
    """The addresses that the active lanes name, and how many lanes name each."""
    if not isinstance(address, np.ndarray):
        return [(address, threads)]
    lanes = address if mask is None or mask is True else address[mask]
    places, counts = np.unique(lanes, return_counts=True)
    return list(zip(places.tolist(), counts.tolist(), strict=True))


@op
def mbarrier_expect_tx(w: Warp, address, tx, mask=None) -> None:
    """``mbarrier.expect_tx``: bytes that copies will bring in this phase."""
    barrier = barrier_at(w, address)
    threads = w.active if mask is None else int(np.sum(mask))
    barrier.expect(int(uniform(w, tx, "a byte count")) * threads)


@op
def mbarrier_test(w: Warp, address, parity, mask=None) -> bool:
    """``mbarrier.test_wait.parity``: whether the phase of this parity has completed."""
    barrier = barrier_at(w, address)
    parity = int(uniform(w, parity, "a phase parity")) & 1
    if (barrier.phase & 1) == parity:
        return False
    barrier.pass_by(w)
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
    seen, site = barrier.waited.get(w, 0), w.s

    def missed() -> None:
        phase = seen + ((seen ^ parity) & 1)  # the next phase of this parity for this warp
        if phase + 1 < barrier.phase:
            barrier.report_lapped(w, phase, barrier.completions[phase + 1], site)

    w.waiting = Waiting("mbarrier", barrier, lambda: barrier.describe(parity), missed)
    return w.waiting


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
        self.clock: np.ndarray | None = None
        self.parked: list[Warp] = []
        self.members: list[Warp] = []
        self.sites: set[int] = set()

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
        assert clock is not None
        for warp in parked:
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
    rendezvous = cta.named.get(-1)
    if rendezvous is None:
        rendezvous = cta.named[-1] = Rendezvous("the CTA barrier")
    rendezvous.arrive(w, 32)
    rendezvous.parked.append(w)
    if _cta_done(cta, rendezvous):
        return _pass(w, rendezvous)
    w.waiting = Waiting("barrier", rendezvous, lambda: _describe_cta(rendezvous, cta))
    return w.waiting


def _cta_done(cta: Cta, rendezvous: Rendezvous) -> bool:
    return len(rendezvous.members) == sum(not w.exited for w in cta.warps)


def _pass(w: Warp, rendezvous: Rendezvous) -> None:
    """Complete the barrier with ``w`` as the last to arrive: it goes on at once."""
    clock = rendezvous.clock
    rendezvous.parked.remove(w)
    rendezvous.complete()
    assert clock is not None
    w.acquire(clock)


@op
def bar_sync(w: Warp, barrier, threads=None, mask=None):
    """``bar.sync a, b`` (``barrier.sync``): a named barrier for ``threads`` threads."""
    whole_warp(w, mask, "a named barrier")
    barrier = int(uniform(w, barrier, "a barrier's number"))
    if threads is None and barrier == 0:
        return cta_sync(w)
    rendezvous = _named(w, barrier, threads)
    rendezvous.arrive(w, 32)
    rendezvous.parked.append(w)
    if rendezvous.threads >= rendezvous.expected:
        return _pass(w, rendezvous)
    w.waiting = Waiting(
        "barrier",
        rendezvous,
        lambda: (
            f"waits at {rendezvous.label}: {rendezvous.threads} of {rendezvous.expected} threads "
            "have come"
        ),
    )
    return w.waiting


@op
def bar_arrive(w: Warp, barrier, threads, mask=None) -> None:
    """``bar.arrive a, b``: count towards a named barrier without waiting at it."""
    whole_warp(w, mask, "a named barrier")
    rendezvous = _named(w, int(uniform(w, barrier, "a barrier's number")), threads)
    rendezvous.arrive(w, 32)
    if rendezvous.threads >= rendezvous.expected:
        rendezvous.complete()


def _named(w: Warp, barrier: int, threads) -> Rendezvous:
    live = 32 * len(w.cta.warps)
    threads = live if threads is None else int(uniform(w, threads, "a thread count"))
    if not 0 <= barrier < 16 or threads % 32 or not 0 < threads <= live:
        w.machine.report(
            "barrier-init",
            w,
            f"named barrier {barrier} for {threads} threads (the CTA has {live})",
            memory=f"named barrier {barrier}",
            fix="barriers are numbered 0 to 15; the count is a multiple of 32, at most the CTA's",
        )
        raise Stop
    rendezvous = w.cta.named.get(barrier)
    if rendezvous is None:
        rendezvous = w.cta.named[barrier] = Rendezvous(f"named barrier {barrier}")
    if rendezvous.threads and rendezvous.expected != threads:
        w.machine.report(
            "barrier-init",
            w,
            f"named barrier {barrier} is used for {threads} threads by {w.name()} while others use "
            f"it for {rendezvous.expected}",
            memory=f"named barrier {barrier}",
            fix="give the two groups barriers of different numbers",
        )
        raise Stop
    rendezvous.expected = threads
    return rendezvous


@op
def warp_sync(w: Warp, mask=None) -> None:
    """``__syncwarp``: orders the lanes of a warp; what each does from now on is a new moment."""
    w.tick()


@op
def cluster_arrive(w: Warp, release: bool = True, mask=None) -> None:
    """``barrier.cluster.arrive``: this warp has come; ``release`` publishes what it has done."""
    whole_warp(w, mask, "the cluster barrier")
    rendezvous = _cluster_barrier(w)
    if release:
        rendezvous.arrive(w, 32)
    else:
        rendezvous.threads += 32
        rendezvous.members.append(w)
        fenced = w.state.get("fenced")
        if rendezvous.clock is None:
            rendezvous.clock = w.cluster.agents.clock()
        came_after(rendezvous.clock, w.clock)
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
    rendezvous = w.cta.named.get(-1)
    if rendezvous is not None and rendezvous.members and _cta_done(w.cta, rendezvous):
        rendezvous.complete()
    state = w.cluster.state
    rendezvous = state.get("cluster_barrier")
    if rendezvous is not None and rendezvous.members and _cluster_done(w, rendezvous):
        _complete_cluster(w, rendezvous)


EXIT_HOOKS.append(_exit)


# ------------------------------------------------------------------------------------- fences


@op
def fence_release(w: Warp) -> None:
    """``fence.acq_rel`` and stronger: a relaxed operation behind it publishes what is before it."""
    w.state["fenced"] = w.release()


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
