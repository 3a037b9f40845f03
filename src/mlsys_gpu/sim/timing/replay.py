"""Recorded operations replayed in time: a discrete-event model of streaming multiprocessors.

Every warp walks through its log. An operation starts when its warp comes to it and what it needs is
free (the issue slot and pipes of the warp's quarter of the SM, the shared-memory pipe, the tensor
core, the copy engine, the SM's share of the L2 cache and of device memory), and takes what the
constants of the GPU say. Warps wait for *tokens*: phases of barriers, complete when the last of
their contributions has come. Times are cycles of the SM clock.

What is left out: instruction caches, the L1 cache, the L2 cache's slices, and the order in which
the hardware arbitrates between warps that want one pipe in the same cycle (here: who comes first).
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from typing import Any

from mlsys_gpu.sim.timing import events as E
from mlsys_gpu.sim.timing.constants import Gpu

#: Pipes of a quarter of an SM, in the order of a WORK entry's cycles (see :func:`work_cycles`).
PIPES = ("fma", "alu", "xu", "half", "f64")


@dataclass
class Share:
    """What one SM gets of the chip, in bytes a cycle, and where its requests go.

    ``cold``: for each tensor (by its address space) the part of its requests that wait for device
    memory; ``traffic``: bytes of device memory for each byte requested of it.
    """

    port: float  # the SM's own, in and out
    port_out: float
    l2: float  # to threads
    copies: dict[int, float]  # to the copy engine, by tensor: what several SMs read comes faster
    out: float
    hbm_read: float
    hbm_write: float
    cold: dict[int, float] = field(default_factory=dict)
    traffic: dict[int, float] = field(default_factory=dict)
    #: What the traffic of others adds to the latency of L2 and of memory for threads' loads, and to
    #: that of copies.
    waits: tuple[float, float, float] = (0.0, 0.0, 0.0)
    contended: dict[int, float] = field(default_factory=dict)  # addresses: SMs that want them


@dataclass(frozen=True)
class Compiled:
    """What the compiler has decided about a kernel, as far as the model takes it over.

    ``registers`` of a thread; ``loads`` and ``shared_loads``: how many loads from global and from
    shared memory stand together before one's value is used, where a typical load stands; None where
    it is not known. ``serialised``: it has put a wait behind every wgmma.
    """

    registers: int | None = None
    loads: int | None = None
    shared_loads: int | None = None
    serialised: bool = False


class Sm:
    """The resources of one SM: when each is free."""

    __slots__ = ("atomics", "copies", "hbm", "inward", "issue", "l2", "outward", "pipes", "shared",
                 "tensor", "tmem", "written")  # fmt: skip

    def __init__(self) -> None:
        self.issue = [0.0] * 4
        self.pipes = [[0.0] * len(PIPES) for _ in range(4)]
        self.shared = 0.0
        self.tensor = [0.0] * 4
        self.copies = 0.0  # the copy engine's next issue
        self.inward = 0.0  # the port for data from L2
        self.outward = 0.0
        self.l2 = 0.0  # its shares of the chip: until when what it asked for uses them up
        self.written = 0.0
        self.hbm = 0.0
        self.tmem = [0.0] * 4
        self.atomics = 0.0


class Phase:
    """A token: contributions still to come, when the last of them came, and who waits."""

    __slots__ = ("missing", "time", "total", "waiters")

    def __init__(self, missing: int):
        self.missing = self.total = missing
        self.time = 0.0
        self.waiters: list[tuple[Lane, float, int, str]] = []


class Lane:
    """One warp on its way through its log."""

    __slots__ = (
        "asynchronous",
        "at",
        "bulk",
        "commits",
        "copy",
        "events",
        "groups",
        "index",
        "loaded",
        "mma",
        "rank",
        "rounds",
        "slot",
        "sm",
        "stored",
        "t",
        "tmem",
        "waited",
    )  # fmt: skip

    def __init__(self, copy: Copy, rank: int, index: int, events: list[tuple], sm: Sm, t: float):
        self.copy, self.rank, self.index, self.events, self.sm = copy, rank, index, events, sm
        self.slot = index % 4
        self.t = t
        self.at = 0
        self.rounds = 0  # batches of the current load that have come
        self.stored = 0.0  # when its stores so far are performed
        self.loaded = 0.0  # when the loads under way have come
        self.mma = 0.0  # when its wgmmas issued so far are done
        self.groups: list[float] = []  # wgmma groups: when each is done
        self.bulk: dict[int, list[Any]] = {}  # by lane: open copies, then groups (read, done)
        self.asynchronous: list[Any] = [0.0, []]  # cp.async: the open group, and those committed
        self.commits = 0.0  # when its tcgen05.mma so far are done
        self.tmem = 0.0  # when its transfers from and to tensor memory are done
        #: Cycles that it has waited, by a barrier's number or by what it was (``memory``, …).
        self.waited: dict[Any, float] = {}


class Copy:
    """One run of a cluster: its SMs, its tokens, and when it ended."""

    def __init__(self, counts: dict[tuple[int, int], int], sms: list[Sm], begin: float):
        self.sms = sms
        self.phases = {token: Phase(n) for token, n in counts.items()}
        self.end = begin
        self.left = 0


@dataclass
class Trace:
    """What one run of a cluster did: spans of its warps, engines, phases and memory."""

    warps: dict[tuple[int, int], list[tuple]] = field(default_factory=dict)
    tensor: list[tuple] = field(default_factory=list)  # rank, t0, t1, event
    copies: list[tuple] = field(default_factory=list)  # rank, t0, t1, event, out
    phases: list[tuple] = field(default_factory=list)  # token, time
    arrivals: list[tuple] = field(default_factory=list)  # token, time, rank, warp, event
    regions: list[tuple] = field(default_factory=list)  # rank, byte, t0, t1, state, event
    tmem: list[tuple] = field(default_factory=list)  # rank, column, columns, t0, t1, state, event
    waited: dict[tuple[int, int], dict[Any, float]] = field(default_factory=dict)

    def shift(self, by: float) -> None:
        """Count times from ``by``, when the cluster began."""
        if not by:
            return
        self.warps = {
            key: [(t0 - by, t1 - by, at) for t0, t1, at in spans]
            for key, spans in self.warps.items()
        }
        self.tensor = [(r, t0 - by, t1 - by, e) for r, t0, t1, e in self.tensor]
        self.copies = [(r, t0 - by, t1 - by, e, out) for r, t0, t1, e, out in self.copies]
        self.phases = [(token, t - by) for token, t in self.phases]
        self.arrivals = [(token, t - by, *rest) for token, t, *rest in self.arrivals]
        self.regions = [(r, byte, a - by, b - by, *rest) for r, byte, a, b, *rest in self.regions]
        self.tmem = [(r, c, n, a - by, b - by, *rest) for r, c, n, a, b, *rest in self.tmem]


def counts_of(logs: list[list[list[tuple]]]) -> dict[tuple[int, int], int]:
    """How many contributions each token gets from a cluster's logs."""
    counts: dict[tuple[int, int], int] = {}
    for event in (event for cta in logs for log in cta for event in log):
        kind = event[0]
        if kind in (E.SIGNAL, E.TC_COMMIT, E.ASYNC_ARRIVE):
            tokens: Any = event[2]
        elif kind == E.COPY_IN:
            tokens = [token for token, *_ in event[3]]
        elif kind == E.PEER:
            tokens = event[3]
        else:
            continue
        for token in tokens:
            counts[token] = counts.get(token, 0) + 1
    return counts


def work_cycles(work: list[dict[str, float]], gpu: Gpu) -> list[tuple[float, tuple[float, ...]]]:
    """For each entry of ``Program.work``: cycles of the issue slot, and of each of the pipes."""
    table = []
    for entry in work:
        issue = 0.0
        pipes: dict[str, float] = dict.fromkeys(PIPES, 0.0)
        for name, count in entry.items():
            pipe, cycles = gpu.pipe(name)
            issue += count
            pipes[pipe] += count * cycles
        table.append((issue, tuple(pipes[p] for p in PIPES)))
    return table


def hoisted(log: list[tuple], loads: int, shared: int) -> list[tuple]:
    """A log in which loads stand before what is done with the values of earlier loads.

    Where nothing but loads, arithmetic and stores of what was loaded alternate, the compiler issues
    several loads before it uses the first one's value: ``loads`` from global memory, ``shared``
    from shared memory (which do not overtake stores there).
    """
    kinds = [event[0] for event in log]
    if E.LOAD not in kinds and E.SHARED_LOAD not in kinds:
        return log
    result: list[tuple] = []
    at, n = 0, len(log)
    while at < n:
        if kinds[at] not in _LOADS:
            result.append(log[at])
            at += 1
            continue
        end = at
        while end < n and kinds[end] in _HOISTED:
            end += 1
        ahead: list[tuple] = []
        behind: list[tuple] = []
        issued = {E.LOAD: 0, E.SHARED_LOAD: 0}
        stored = False
        for event in log[at:end]:
            kind = event[0]
            if kind in issued and not (stored and kind == E.SHARED_LOAD):
                most = loads if kind == E.LOAD else shared
                if behind and issued[kind] + event[2] > most:
                    result += ahead + behind
                    ahead, behind, stored = [], [], False
                    issued = {E.LOAD: 0, E.SHARED_LOAD: 0}
                ahead.append(event)
                issued[kind] += event[2]
            else:
                stored = stored or kind == E.SHARED_STORE
                behind.append(event)
        result += ahead + behind
        at = end
    return result


#: Fences that wait until the warp's stores are performed.
_RELEASES = ("fence_cluster", "fence_gpu", "fence_sys")

#: What loads from global memory may overtake: arithmetic, and stores to shared memory, which they
#: cannot alias.
_LOADS = (E.LOAD, E.SHARED_LOAD)
_HOISTED = (*_LOADS, E.WORK, E.SHARED_STORE)


def _apart(place: tuple, nbytes: int) -> bool:
    """Whether an access's bytes lie in rows apart, not side by side."""
    return len(place) > 2 and place[2] - place[1] > 2 * nbytes


class Replay:
    """Clusters' logs on the SMs that hold them."""

    def __init__(
        self,
        gpu: Gpu,
        share: Share,
        work: list[tuple[float, tuple[float, ...]]],
        compiled: Compiled,
    ):
        self.gpu, self.share, self.work = gpu, share, work
        self.heap: list[tuple[float, int, Lane]] = []
        self.number = 0
        self.running = 0  # clusters that have not ended
        self.trace: Trace | None = None
        self.traced: Copy | None = None
        c = gpu.cycles
        self.burst = c("burst")
        self.load_batch = compiled.loads or int(gpu["load_batch"])
        #: Cycles behind each wgmma where the compiler has made them wait for each other.
        self.between = gpu.wgmma_latency if compiled.serialised else 0.0
        self.latency = (c("load_latency_l2"), c("load_latency_hbm"))
        self.copy_latency = (c("tma_latency_l2"), c("tma_latency_hbm"))
        self.handlers: list[Any] = [None] * 32
        for kind, name in E.NAMES.items():
            self.handlers[kind] = getattr(self, f"_{name}")
        self.arrive = {k: gpu.arrive(k) for k in ("mbarrier", "remote", "cluster")}
        self.arrival = {k: c(f"{k}_latency") for k in ("mbarrier", "remote", "cluster")}
        self.passing = {k: c(f"{k}_pass") for k in ("mbarrier", "barrier", "cluster")}
        self.passing["lane"] = self.passing["mbarrier"]
        self.arrive["barrier"], self.arrival["barrier"] = 1.0, 0.0

    # ------------------------------------------------------------------------------- running

    def start(
        self,
        logs: list[list[list[tuple]]],
        counts: dict[tuple[int, int], int],
        sms: list[Sm],
        begin: float,
        traced: bool = False,
    ) -> Copy:
        """Put a cluster on its SMs (one for each rank); ``traced``: its trace is kept."""
        copy = Copy(counts, sms, begin)
        self.running += 1
        for rank, warps in enumerate(logs):
            for index, events in enumerate(warps):
                lane = Lane(copy, rank, index, events, sms[rank], begin)
                copy.left += 1
                self._push(lane)
        if self.trace is not None and (traced or self.traced is None):
            self.traced = copy
        return copy

    def _push(self, lane: Lane) -> None:
        self.number += 1
        heapq.heappush(self.heap, (lane.t, self.number, lane))

    def run(self, ended: Any = None) -> float:
        """Run until all have ended; returns when. ``ended`` is told of each cluster that ends."""
        heap, handlers = self.heap, self.handlers
        trace, last = self.trace, 0.0
        while heap:
            t, _, lane = heapq.heappop(heap)
            events, at, n = lane.events, lane.at, len(lane.events)
            traced = trace is not None and lane.copy is self.traced
            while at < n:
                event = events[at]
                if lane.loaded > t and event[0] not in _LOADS:
                    # What loads bring is used now: the warp comes again when it is there.
                    if traced:
                        self._note_wait(lane, t, at)
                    lane.waited["memory"] = lane.waited.get("memory", 0.0) + lane.loaded - t
                    t = lane.loaded
                    if heap and t > heap[0][0]:
                        break
                lane.at = was = at
                begin = t
                t = handlers[event[0]](lane, t, event)
                at = lane.at + 1
                if t < 0:  # parked until a phase is complete
                    break
                if trace is not None and traced and t > begin:
                    trace.warps.setdefault((lane.rank, lane.index), []).append((begin, t, was))
                if heap and t > heap[0][0]:  # who comes first, also of those just woken
                    break
            lane.at = at
            if t < 0:
                continue
            lane.t = t
            if at < n:
                self._push(lane)
                continue
            copy = lane.copy
            copy.end = max(copy.end, t, lane.loaded)
            copy.left -= 1
            if trace is not None and traced:
                trace.waited[lane.rank, lane.index] = lane.waited
            if not copy.left:
                last = max(last, copy.end)
                self.running -= 1
                if ended is not None:
                    ended(copy)
        if self.running:
            raise ValueError("the recorded warps wait for a phase that nothing completes")
        return last

    def _contribute(self, copy: Copy, token, when: float, lane: Lane, event: tuple) -> None:
        phase = copy.phases[token]
        phase.missing -= 1
        if when > phase.time:
            phase.time = when
        if self.trace is not None and copy is self.traced:
            self.trace.arrivals.append((token, when, lane.rank, lane.index, event))
        if phase.missing:
            return
        if self.trace is not None and copy is self.traced:
            self.trace.phases.append((token, phase.time))
        waiters, phase.waiters = phase.waiters, []
        for waiter, since, at, kind in waiters:
            t = max(since, phase.time) + self._pass(kind, phase)
            if kind == "lane":
                t += self.gpu.lane_wake
            self._waited(waiter, token, since, t, at)
            waiter.t = t
            self._push(waiter)

    def _pass(self, kind: str, phase: Phase) -> float:
        """Cycles of a wait whose phase is complete."""
        if kind == "barrier":  # its arrivals are counted one after the other
            return self.passing[kind] + self.gpu.barrier_warp * phase.total
        return self.passing[kind]

    def _waited(self, lane: Lane, token, since: float, t: float, at: int) -> None:
        key = token[0] if token is not None else None
        lane.waited[key] = lane.waited.get(key, 0.0) + t - since
        if self.trace is not None and lane.copy is self.traced:
            self.trace.warps.setdefault((lane.rank, lane.index), []).append((since, t, at))

    def _note_wait(self, lane: Lane, t: float, at: int) -> None:
        assert self.trace is not None
        spans = self.trace.warps.setdefault((lane.rank, lane.index), [])
        back = at - 1
        while back > 0 and lane.events[back][0] not in _LOADS:
            back -= 1
        spans.append((t, lane.loaded, back))

    # ----------------------------------------------------------------------------- resources

    def _issue(self, lane: Lane, t: float, cycles: float) -> float:
        """Take the issue slot of the warp's quarter; returns when the last instruction is out."""
        free = lane.sm.issue
        start = free[lane.slot]
        if start < t:
            start = t
        free[lane.slot] = start = start + cycles
        return start

    def _fetch(
        self, sm: Sm, t: float, nbytes: float, wire: float, space: int, copy: bool, rows: bool
    ) -> float:
        """Bytes from global memory to an SM: when they are there.

        ``wire``: bytes that move; ``copy``: by the copy engine; ``rows``: they lie apart, in rows.
        """
        share = self.share
        start = sm.inward if sm.inward > t else t
        sm.inward = start + wire / share.port
        early = t - self.burst
        start = sm.l2 if sm.l2 > early else early
        rate = share.copies.get(space, share.l2) if copy else share.l2
        sm.l2 = start + wire / rate
        come = sm.inward if sm.inward > sm.l2 else sm.l2
        near, far = self.copy_latency if copy else self.latency
        near += share.waits[2] if copy else share.waits[0]
        far += share.waits[1] + (share.waits[2] if copy else 0.0)
        cold = share.cold.get(space, 1.0)
        if cold:  # who asks for several lines waits for the slowest of them
            far += self.gpu.doubling[rows] * math.log2(max(1.0, wire / 128))
        done = come + near + cold * (far - near)
        traffic = nbytes * share.traffic.get(space, 1.0)
        if traffic:
            start = sm.hbm if sm.hbm > early else early
            sm.hbm = start + traffic / share.hbm_read
            if cold:
                done = max(done, sm.hbm + far)
        return done

    def _push_out(self, sm: Sm, t: float, nbytes: float, wire: float, space: int) -> float:
        """Bytes from an SM to global memory: when they have left it."""
        share = self.share
        start = sm.outward if sm.outward > t else t
        sm.outward = start + wire / share.port_out
        early = t - self.burst
        start = sm.written if sm.written > early else early
        sm.written = start + wire / share.out
        start = sm.hbm if sm.hbm > early else early
        sm.hbm = start + nbytes * share.traffic.get(-space, 1.0) / share.hbm_write
        return sm.outward if sm.outward > sm.written else sm.written

    def _shared_pipe(self, sm: Sm, t: float, waves: float) -> float:
        start = sm.shared if sm.shared > t else t
        sm.shared = start + waves
        return sm.shared

    # ------------------------------------------------------------------------------ handlers

    def _work(self, lane: Lane, t: float, event: tuple) -> float:
        issue, pipes = self.work[event[2]]
        times = event[3]
        # A warp's instructions depend on each other: alone it does not use every cycle.
        end = max(self._issue(lane, t, issue * times), t + issue * times * self.gpu.apart)
        free = lane.sm.pipes[lane.slot]
        for i, cycles in enumerate(pipes):
            if cycles:
                start = free[i] if free[i] > t else t
                free[i] = start = start + cycles * times
                if start > end:
                    end = start
        return end + self.gpu.dependent

    def _load(self, lane: Lane, t: float, event: tuple) -> float:
        _, site, n, sectors, nbytes, place = event
        wire, rows = 32.0 * sectors, _apart(place, nbytes)
        self._shared_pipe(lane.sm, t, wire / 128)
        after = lane.events[lane.at + 1] if lane.at + 1 < len(lane.events) else None
        # What is copied on at once is loaded in batches: the compiler has few registers for it.
        if after is None or after[0] not in (E.SHARED_STORE, E.STORE) or after[1] != site:
            t = self._issue(lane, t, n)
            done = self._fetch(lane.sm, t, wire, wire, place[0], False, _apart(place, nbytes))
            if done > lane.loaded:
                lane.loaded = done
            return t
        rounds = max(1, round(n / self.load_batch))
        t = self._issue(lane, t, n / rounds)
        part = 1.0 / rounds
        done = self._fetch(lane.sm, t, wire * part, wire * part, place[0], False, rows)
        lane.waited["memory"] = lane.waited.get("memory", 0.0) + done - t
        lane.rounds += 1
        if lane.rounds < rounds:
            lane.at -= 1  # the next batch, when this one has come
        else:
            lane.rounds = 0
        return done

    def _store(self, lane: Lane, t: float, event: tuple) -> float:
        _, _, n, sectors, _, place = event
        t = self._issue(lane, t, n)
        wire = 32.0 * sectors
        self._shared_pipe(lane.sm, t, wire / self.share.port_out)  # through the same unit
        left = self._push_out(lane.sm, t, wire, wire, place[0])
        copy = lane.copy
        lane.stored = left + self.gpu.acknowledged
        if left + self.gpu.drain > copy.end:
            copy.end = left + self.gpu.drain
        return max(t, left - self.gpu.store_buffer)

    def _shared_load(self, lane: Lane, t: float, event: tuple) -> float:
        t = self._issue(lane, t, event[2])
        end = self._shared_pipe(lane.sm, t, event[3])
        done = end + self.gpu.shared_latency[event[6]]
        if done > lane.loaded:
            lane.loaded = done
        if lane.copy is self.traced and self.trace is not None:
            self.trace.regions.append((*event[5], t, end, "read", event))
        return t

    def _shared_store(self, lane: Lane, t: float, event: tuple) -> float:
        t = self._issue(lane, t, event[2])
        end = self._shared_pipe(lane.sm, t, event[3])
        if lane.copy is self.traced and self.trace is not None:
            self.trace.regions.append((*event[5], t, end, "written", event))
        return max(t, end - self.gpu.shared_buffer)

    def _delay(self, lane: Lane, t: float, event: tuple) -> float:
        issue, latency = self.gpu.delay(event[2])
        n = event[3]
        if event[2] in _RELEASES and lane.stored > t:
            t = lane.stored
        end = self._issue(lane, t, issue * n)
        return max(end, t + latency * n)

    def _signal(self, lane: Lane, t: float, event: tuple) -> float:
        kind = event[3]
        if kind == "cluster" and lane.stored > t:
            t = lane.stored
        t = self._issue(lane, t, self.arrive[kind])
        when = t + self.arrival[kind]
        for token in event[2]:
            self._contribute(lane.copy, token, when, lane, event)
        return t

    def _wait(self, lane: Lane, t: float, event: tuple) -> float:
        token, kind = event[2], event[3]
        phase = lane.copy.phases.get(token) if token is not None else None
        if token is None or phase is None:
            return t + self.passing[kind]
        if phase.missing:
            phase.waiters.append((lane, t, lane.at, kind))
            return -1.0
        passed = self._pass(kind, phase)
        if phase.time > t:  # complete, but not yet
            passed += phase.time - t + (self.gpu.lane_wake if kind == "lane" else 0.0)
            lane.waited[token[0]] = lane.waited.get(token[0], 0.0) + passed
        return t + passed

    def _copy_in(self, lane: Lane, t: float, event: tuple) -> float:
        _, _, nbytes, copies, place, _, targets = event
        sm = lane.sm
        t = self._issue(lane, t, self.gpu.copy_issue_slot)
        start = sm.copies if sm.copies > t else t
        sm.copies = start + self.gpu.copy_issue
        rows = len(place) > 3  # a box of a tensor, not a run of bytes
        done = self._fetch(sm, start, nbytes, nbytes, place[0], True, rows)
        cluster = lane.copy
        for token, rank, _, owner in copies:
            when = done
            if rank != lane.rank:
                other = self.sm_of(cluster, rank)
                first = max(other.inward, start)
                other.inward = first + nbytes / self.share.port
                when = max(when, other.inward + self.copy_latency[0])
                when += self.gpu.multicast
            if owner != rank:  # the barrier that counts them is the other CTA's
                when += self.arrival["remote"]
            self._contribute(cluster, token, when, lane, event)
        if self.trace is not None and cluster is self.traced:
            self.trace.copies.append((lane.rank, t, done, event, False))
            for rank, byte, _ in targets:
                self.trace.regions.append((rank, byte, t, done, "arriving", event))
        return t

    def sm_of(self, copy: Copy, rank: int) -> Sm:
        return copy.sms[rank]

    def _copy_out(self, lane: Lane, t: float, event: tuple) -> float:
        _, _, nbytes, who, place, _, region = event
        sm = lane.sm
        t = self._issue(lane, t, self.gpu.copy_issue_slot)
        start = sm.copies if sm.copies > t else t
        sm.copies = start + self.gpu.copy_issue
        left = self._push_out(sm, start, nbytes, nbytes, place[0])
        read = left + self.gpu.copy_out_read
        done = left + self.gpu.copy_out_done
        groups = lane.bulk.setdefault(who, [[], []])
        groups[0].append((read, done))
        copy = lane.copy
        if done > copy.end:
            copy.end = done
        if self.trace is not None and copy is self.traced:
            self.trace.copies.append((lane.rank, t, done, event, True))
            self.trace.regions.append((*region, t, read, "read", event))
        return t

    def _bulk_commit(self, lane: Lane, t: float, event: tuple) -> float:
        started, known = lane.bulk.setdefault(event[2], [[], []])
        known.append(
            (max((r for r, _ in started), default=0), max((d for _, d in started), default=0))
        )
        lane.bulk[event[2]][0] = []
        return self._issue(lane, t, 1)

    def _bulk_wait(self, lane: Lane, t: float, event: tuple) -> float:
        _, _, who, left, read = event
        known = lane.bulk.get(who, [[], []])[1]
        done = known[: max(0, len(known) - left)]
        end = self._issue(lane, t, 1)
        for r, d in done:
            end = max(end, r if read else d)
        if not read:
            del known[: len(done)]
        if end > t:
            lane.waited["stores"] = lane.waited.get("stores", 0.0) + end - t
        return end

    def _async_copy(self, lane: Lane, t: float, event: tuple) -> float:
        _, _, n, nbytes, sectors, place = event
        t = self._issue(lane, t, n)
        done = self._fetch(
            lane.sm, t, 32.0 * sectors, 32.0 * sectors, place[0], False, _apart(place, nbytes)
        )
        self._shared_pipe(lane.sm, t, max(1, nbytes // 128))
        lane.asynchronous[0] = max(lane.asynchronous[0], done + self.gpu.async_copy)
        return t

    def _async_commit(self, lane: Lane, t: float, event: tuple) -> float:
        lane.asynchronous[1].append(lane.asynchronous[0])
        lane.asynchronous[0] = 0.0
        return self._issue(lane, t, 1)

    def _async_wait(self, lane: Lane, t: float, event: tuple) -> float:
        known = lane.asynchronous[1]
        done = known[: max(0, len(known) - event[2])]
        end = max([self._issue(lane, t, 1), *done])
        if end > t:
            lane.waited["memory"] = lane.waited.get("memory", 0.0) + end - t
        return end

    def _async_arrive(self, lane: Lane, t: float, event: tuple) -> float:
        when = max([t, lane.asynchronous[0], *lane.asynchronous[1]]) + self.arrival["mbarrier"]
        for token in event[2]:
            self._contribute(lane.copy, token, when, lane, event)
        return self._issue(lane, t, 1)

    def _wgmma(self, lane: Lane, t: float, event: tuple) -> float:
        _, _, n, registers, steps, _, operands = event
        t = self._issue(lane, t, steps)
        cycles = (self.gpu.wgmma(n, registers) + self.between) * steps
        free = lane.sm.tensor
        start = free[lane.slot] if free[lane.slot] > t else t
        free[lane.slot] = end = start + cycles
        if self.between:  # the tensor core is free meanwhile, the warp is not
            free[lane.slot] = start + cycles - self.between * steps
            t = max(t, end)
        lane.mma = end
        if self.trace is not None and lane.copy is self.traced and lane.slot == 0:
            self.trace.tensor.append((lane.rank, start, end, event))
            for rank, byte in operands:
                self.trace.regions.append((rank, byte, start, end, "read", event))
        # the instruction queue is short: an issuer runs ahead of the tensor core by a few
        return max(t, end - self.gpu.wgmma_queue)

    def _wgmma_commit(self, lane: Lane, t: float, event: tuple) -> float:
        lane.groups.append(lane.mma)
        return self._issue(lane, t, 1)

    def _wgmma_wait(self, lane: Lane, t: float, event: tuple) -> float:
        left = event[2]
        if len(lane.groups) <= left:
            return self._issue(lane, t, 1)
        done = lane.groups[len(lane.groups) - 1 - left]
        end = self._issue(lane, t, 1)
        if done + self.gpu.wgmma_latency > end and done:
            end = done + self.gpu.wgmma_latency
            lane.waited["tensor core"] = lane.waited.get("tensor core", 0.0) + end - t
        return end

    def _mma(self, lane: Lane, t: float, event: tuple) -> float:
        _, _, k, n = event
        t = self._issue(lane, t, n)
        free = lane.sm.tensor
        start = free[lane.slot] if free[lane.slot] > t else t
        free[lane.slot] = end = start + self.gpu.mma(k) * n
        return end + self.gpu.mma_latency

    def _tc_mma(self, lane: Lane, t: float, event: tuple) -> float:
        _, _, m, n, group, in_tmem, steps, operands, column, columns = event
        t = self._issue(lane, t, steps)
        cycles = self.gpu.tcgen05_mma(m, n, group, in_tmem) * steps
        ranks = [lane.rank] if group == 1 else [lane.rank & ~1, lane.rank | 1]
        sms = [self.sm_of(lane.copy, rank) for rank in ranks]
        start = max([t + self.gpu.tcgen05_issue, *(sm.tensor[0] for sm in sms)])
        end = start + cycles
        for sm in sms:
            sm.tensor[0] = end
        lane.commits = max(lane.commits, end)
        if self.trace is not None and lane.copy is self.traced:
            for rank in ranks:
                self.trace.tensor.append((rank, start, end, event))
                self.trace.tmem.append((rank, column, columns, start, end, "accumulate", event))
                for _, byte in operands:
                    self.trace.regions.append((rank, byte, start, end, "read", event))
        return t

    def _tc_commit(self, lane: Lane, t: float, event: tuple) -> float:
        t = self._issue(lane, t, 1)
        when = max(t, lane.commits) + self.gpu.tcgen05_commit
        for token in event[2]:
            self._contribute(lane.copy, token, when, lane, event)
        return t

    def _tc_load(self, lane: Lane, t: float, event: tuple) -> float:
        return self._tensor_memory(lane, t, event, "read")

    def _tc_store(self, lane: Lane, t: float, event: tuple) -> float:
        return self._tensor_memory(lane, t, event, "written")

    def _tensor_memory(self, lane: Lane, t: float, event: tuple, state: str) -> float:
        t = self._issue(lane, t, 1)
        free = lane.sm.tmem
        start = free[lane.slot] if free[lane.slot] > t else t
        free[lane.slot] = end = start + event[2] * self.gpu.tmem_column
        lane.tmem = max(lane.tmem, end + self.gpu.tmem_latency)
        if self.trace is not None and lane.copy is self.traced:
            self.trace.tmem.append((lane.rank, event[3], event[2], start, end, state, event))
        return t

    def _tc_wait(self, lane: Lane, t: float, event: tuple) -> float:
        t = self._issue(lane, t, 1)
        if lane.tmem > t:
            lane.waited["tensor memory"] = lane.waited.get("tensor memory", 0.0) + lane.tmem - t
            return lane.tmem
        return t

    def _atomic(self, lane: Lane, t: float, event: tuple) -> float:
        _, _, space, places, most, returns, where = event
        t = self._issue(lane, t, 1)
        if space == "shared":
            end = self._shared_pipe(lane.sm, t, self.gpu.atomic_shared * most)
            return end + self.gpu.shared_latency["threads"] if returns else t
        sm = lane.sm
        start = sm.atomics if sm.atomics > t else t
        cost = self.gpu.atomic_global * places / 32
        if where in self.share.contended:  # all SMs take turns at one address
            cost = max(cost, self.gpu.atomic_same * self.share.contended[where])
        sm.atomics = start + cost
        done = sm.atomics + self.gpu.atomic_latency
        if done > lane.copy.end:
            lane.copy.end = done
        return done if returns else t

    def _peer(self, lane: Lane, t: float, event: tuple) -> float:
        _, _, nbytes, tokens, how = event
        t = self._issue(lane, t, 1)
        latency = self.gpu.peer[how]
        sm = lane.sm
        start = sm.outward if sm.outward > t else t
        sm.outward = start + nbytes / self.gpu.peer_bytes
        done = sm.outward + latency
        for token in tokens:
            self._contribute(lane.copy, token, done, lane, event)
        return done if how == "load" else t

    def _exit(self, lane: Lane, t: float, event: tuple) -> float:
        return t
