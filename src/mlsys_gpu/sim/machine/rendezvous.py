"""CTA, named and cluster barriers: threads that meet.

An operation that blocks returns a :class:`~.core.Waiting` for the generated code to yield, or None
where the warp may go on. Whoever completes the barrier wakes the warps that it parked, and gives
each of them the clocks of all that arrived.
"""

from __future__ import annotations

import numpy as np

from mlsys_gpu.sim.machine import loose
from mlsys_gpu.sim.machine.barriers import came_after, lanes_in, uniform
from mlsys_gpu.sim.machine.clocks import TCGEN05_ROW
from mlsys_gpu.sim.machine.core import EXIT_HOOKS, Cta, Stop, Waiting, Warp, op, whole_warp


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
        if not w.checks:
            self.clock = w.clock
            return
        if self.clock is None:
            self.clock = w.clock.copy()
        else:
            np.maximum(self.clock, w.clock, out=self.clock)
        w.tick()
        if threads >= w.active:
            loose.together(w)

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
        _join(w, rendezvous, None, "", True)
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
    number = int(uniform(w, barrier, "a barrier's number"))
    rendezvous = _named(w, number, threads, waits=False)
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


def _named(w: Warp, barrier: int, threads, how: str = "", waits: bool = True) -> Rendezvous:
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
    _join(w, rendezvous, count, how, waits)
    return rendezvous


def _join(w: Warp, rendezvous: Rendezvous, count: int | None, how: str, waits: bool = True) -> None:
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
        _apart(w, rendezvous, waits)
        rendezvous.turn.append((w, int(w.clock[0, w.agent]), w.s))


def _apart(w: Warp, rendezvous: Rendezvous, waits: bool) -> None:
    """Check that a warp comes to a named barrier's turn after the last one is surely over.

    Otherwise it might as well have come to that turn, in the place of one of its threads. A warp
    may come twice to one turn where the second time it waits: once for something that it has
    issued, say, and once for itself.
    """
    times = [site for warp, _, site in rendezvous.turn if warp is w]
    again = times[0] if len(times) >= (2 if waits else 1) else None
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
        fault=rendezvous.label,
    )


@op
def warp_sync(w: Warp, mask=None) -> None:
    """``bar.warp.sync``: orders lanes of a warp; what each does from now on is a new moment."""
    lanes = lanes_in(w, mask)
    if lanes.size >= w.active:
        loose.together(w)
    elif lanes.size > 1:
        loose.some_together(w, lanes)
    else:  # a lane alone
        return
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
        loose.together(w)
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
    live = w.cluster.live
    return len(rendezvous.members) >= live and sum(not x.exited for x in rendezvous.members) >= live


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
