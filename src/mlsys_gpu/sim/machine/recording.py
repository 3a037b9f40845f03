"""What warps do, recorded for the time model: wrappers round the runtime functions.

A plain run knows nothing of them. In a timed one, warps of *sampled* clusters run the Program with
wrapped functions, each of which appends an event to the warp's log and then does what it always
does. Events carry what decides about time (bytes, sectors, wavefronts, shapes, and *tokens*: the
phases of barriers that an operation completes a part of, or waits for), and no times:
:mod:`mlsys_gpu.sim.timing` works those out.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

import mlsys_gpu.sim.machine  # noqa: F401  (registers the operations)
from mlsys_gpu.sim.machine import descriptors, memory
from mlsys_gpu.sim.machine.barriers import MBarrier, barrier_at
from mlsys_gpu.sim.machine.core import (
    OPS,
    Cluster,
    Machine,
    Stop,
    Waiting,
    Warp,
    resident_clusters,
)
from mlsys_gpu.sim.machine.tcgen05 import tmem_of
from mlsys_gpu.sim.timing.events import (
    ASYNC_ARRIVE,
    ASYNC_COMMIT,
    ASYNC_COPY,
    ASYNC_WAIT,
    ATOMIC,
    BULK_COMMIT,
    BULK_WAIT,
    COPY_IN,
    COPY_OUT,
    DELAY,
    LOAD,
    MMA,
    PEER,
    SHARED_LOAD,
    SHARED_STORE,
    SIGNAL,
    STORE,
    TC_COMMIT,
    TC_LOAD,
    TC_MMA,
    TC_STORE,
    TC_WAIT,
    WAIT,
    WGMMA,
    WGMMA_COMMIT,
    WGMMA_WAIT,
    WORK,
    Token,
)


@dataclass
class Recording:
    """The logs of the sampled clusters of a run.

    ``sampled``: by a cluster's number in launch order its warps' logs, ``[rank][warp]``.
    ``barriers``: by number a barrier's name, the rank of the CTA that it lies in, and its kind.
    ``tensors``: names and bytes.
    """

    sampled: dict[int, list[list[list[tuple]]]] = field(default_factory=dict)
    barriers: list[tuple[str, int, str]] = field(default_factory=list)
    clusters: int = 0  # that have started, sampled or not
    started: int = 0  # clusters that a whole run starts; 0: all of the grid
    complete: bool = True  # whether all clusters have run, not only the sampled ones
    share: int = 1  # clusters of the grid that each of the sampled ones has done the work of
    tensors: dict[int, tuple[str, int]] = field(default_factory=dict)  # by address space
    tmem_columns: int = 0  # that a CTA allocates
    #: Where clusters of the first wave begin to read each tensor: by number, by address space.
    firsts: dict[int, dict[int, tuple]] = field(default_factory=dict)
    program: Any = None  # with the launch that was made


class TimedMBarrier(MBarrier):
    """An mbarrier that tells the recorder which phase an arrival or a copy belongs to."""

    def arrive(self, clock, count, w, who, site, agent=None) -> None:
        token = (self.number, self.epoch + self.phase)
        super().arrive(clock, count, w, who, site, agent)
        late = w.state.get("recorded_commits")
        if late and who.startswith(("tcgen05.commit", "cp.async")):
            tokens, missing = late[0]
            tokens.append(token)
            if len(tokens) == missing:
                late.popleft()
        elif w.arrived is not None:
            w.arrived.append((token, self.cta.rank))

    def charge(self, phase, nbytes, w, to) -> None:
        super().charge(phase, nbytes, w, to)
        if w.charged is not None:
            token = self.number, self.epoch + phase - 1
            w.charged.append((token, to, nbytes, self.cta.rank))


#: Clusters that a timed run records where they alone run, and where all do (recording takes its
#: time, too); and clusters of the first wave that are looked at.
SAMPLE, SAMPLE_OF_ALL, MOST_PROBED = 6, 5, 160

#: Runtime functions that read global memory, and which of their arguments says where.
_READERS = {"ld_global": 0, "cp_async": 1, "tma_load": 1, "bulk_load": 1}


class Enough(Exception):
    """A cluster that was probed has begun to read all of its tensors."""


def _first(original: Callable[..., Any]) -> Callable[..., Any]:
    """A reader that notes where its cluster begins to read a tensor."""
    argument = _READERS[original.__name__]

    def call(w, *args, **kwargs):
        found, wanted = w.cluster.state["recorded_firsts"]
        first = int(np.asarray(args[argument]).flat[0])
        space, place = first >> memory.SPACE_BITS, (first,)
        index = space - memory.FIRST_TENSOR - len(w.machine.tensors)
        if 0 <= index < len(w.machine.maps):
            space = memory.FIRST_TENSOR + w.machine.maps[index].tensor.index
            place = (index, *(_number(c) for c in args[2]))
        if space not in found and wanted.get(space) == (w.rank, w.id):
            found[space] = place
            if len(found) == len(wanted):
                raise Enough
        return original(w, *args, **kwargs)

    return call


def reader_warps(sampled: dict[int, Any]) -> dict[int, tuple[int, int]]:
    """The warp, by rank and index, whose first access of each tensor is noted."""
    found: dict[int, tuple[int, int]] = {}
    for logs in sampled.values():
        for rank, cta in enumerate(logs):
            for index, log in enumerate(cta):
                for event in log:
                    kind = event[0]
                    if kind == COPY_IN:
                        found.setdefault(event[4][0], (rank, index))
                    elif kind in (LOAD, ASYNC_COPY):
                        found.setdefault(event[5][0], (rank, index))
    return found


def first_places(logs: list[list[list[tuple]]]) -> dict[int, tuple]:
    """Where a cluster begins to read each tensor, as a probe notes it."""
    found: dict[int, tuple] = {}
    for log in (log for cta in logs for log in cta):
        for event in log:
            kind = event[0]
            if kind == COPY_IN:
                if event[4][0] not in found:
                    found[event[4][0]] = tuple(event[4][1:])
            elif kind in (LOAD, ASYNC_COPY):
                found.setdefault(event[5][0], (event[5][1],))
    return found


class Recorder:
    """Chooses the clusters to record, and keeps their logs."""

    def __init__(self, machine: Machine, sample: int = SAMPLE, alone: bool = False):
        """``sample``: how many clusters to record; ``alone``: the others do not run at all."""
        self.machine = machine
        self.sample, self.alone = sample, alone
        self.recording = Recording(complete=not alone, program=machine.program)
        self.recording.tensors = {
            memory.FIRST_TENSOR + t.index: (t.name, t.nbytes) for t in machine.tensors
        }
        launch = machine.program.launch
        self.chosen = chosen_clusters(launch, sample)
        #: Clusters that launch control may hand to one that runs, and how many each may take.
        self.spare: deque[tuple[int, int, int]] | None = None
        self.share: int | None = None
        if "clc_try_cancel" in machine.program.source:
            total = math.prod(launch["grid"]) // math.prod(launch["cluster"])
            slots = min(total, resident_clusters(machine.program))
            self.share = self.recording.share = -(-total // slots)
            self.recording.started = slots
            self.chosen = set()  # the first that start, whichever they are
        self.drawn: dict[int, int] = {}  # by cluster, how often it drew from a counter
        self.patterns: dict[tuple, Any] = {}
        namespace: dict[str, Any] = dict(OPS)
        namespace["np"] = np
        namespace["work"] = _work
        for name, wrapped in WRAPPERS.items():
            namespace[name] = wrapped
        exec(timed_code(machine.program), namespace)
        self.kernel = namespace["kernel"]

    def choose(self, machine: Machine) -> None:
        """Leave only the chosen clusters in the queue, where the others do not run."""
        if not self.alone:
            return
        everyone = list(machine.queue)
        if self.share is not None:
            machine.queue = deque(everyone[: self.sample])
            self.spare = deque(everyone[self.sample :])
            return
        machine.queue = deque(o for o in everyone if machine.launch_number(o) in self.chosen)

    def stealable(self, machine: Machine) -> deque[tuple[int, int, int]]:
        """The clusters that launch control may hand out."""
        return machine.queue if self.spare is None else self.spare

    def take(self, cluster: Cluster) -> bool:
        """Whether a cluster that starts is recorded; if so, give its warps their logs."""
        number = self.machine.launch_number(cluster.ctas[0].block)
        self.recording.clusters += 1
        if self.share is not None and len(self.recording.sampled) < self.sample:
            self.chosen.add(number)
        if number not in self.chosen:
            return False
        logs = []
        for cta in cluster.ctas:
            for warp in cta.warps:
                warp.log = []
                warp.recorder = self
            logs.append([warp.log for warp in cta.warps])
        self.recording.sampled[number] = logs
        return True

    def may_cancel(self, cluster: Cluster) -> bool:
        """Whether launch control may hand a cluster another one's work."""
        if self.share is None:
            return True
        taken = cluster.state["recorded_share"] = cluster.state.get("recorded_share", 0) + 1
        return taken < self.share

    def draws(self, address: int, how: str, lane: Any) -> bool:
        """Whether an atomic draws work from a counter that all clusters share.

        It does where one thread increments, with ``atom.inc``, the kernel's workspace.
        """
        tensor = (address >> memory.SPACE_BITS) - memory.FIRST_TENSOR
        return how == "inc" and lane is not None and tensor in self.machine.program.workspaces

    def draw(self, cluster: Cluster, limit: int) -> np.uint32:
        """What a cluster draws from a counter if all clusters do, in turn.

        A recorded run does not know the time yet: in the order in which it happens to execute,
        one cluster could draw nearly all, and where few clusters run they would draw for all.
        """
        launch = self.machine.program.launch
        number = self.machine.launch_number(cluster.ctas[0].block)
        before = self.drawn.get(number, 0)
        self.drawn[number] = before + 1
        clusters = math.prod(launch["grid"]) // math.prod(launch["cluster"])
        return np.uint32((before * clusters + number) % (int(limit) + 1))

    def probe(self, machine: Machine) -> None:
        """Run the first wave's other clusters up to their first access of each tensor.

        On a grid of one dimension, which a scheduler in the kernel gives its meaning, that tells
        how many of them read the same at a time. Only where those clusters have not run: it is
        done on the arrays of the run.
        """
        if not self.alone or not machine.completed:
            return
        launch = machine.program.launch
        sizes = [g // c for g, c in zip(launch["grid"], launch["cluster"], strict=True)]
        total = math.prod(sizes)
        firsts = self.recording.firsts
        for number, logs in self.recording.sampled.items():
            firsts[number] = first_places(logs)
        wanted = reader_warps(self.recording.sampled)
        if sorted(sizes)[-2] > 1 or not wanted:
            return
        active = min(total, resident_clusters(machine.program), MOST_PROBED)
        namespace = {**OPS, "np": np, **{name: _first(OPS[name]) for name in _READERS}}
        exec(timed_code(machine.program), {**namespace, "work": lambda *_: None}, namespace)
        machine.kernel, kept = namespace["kernel"], machine.kernel
        machine.recorder, machine.queue = None, deque()
        cx = launch["cluster"][sizes.index(max(sizes))]
        axis = sizes.index(max(sizes))
        for number in range(active):
            if number in firsts:
                continue
            origin = [0, 0, 0]
            origin[axis] = number * cx
            cluster = Cluster(machine, (origin[0], origin[1], origin[2]))
            found: dict[int, tuple] = {}
            cluster.state["recorded_firsts"] = (found, wanted)
            cluster.start()
            with contextlib.suppress(Enough, Stop):
                cluster.proceed(turns=400)
            firsts[number] = found
        machine.kernel, machine.recorder = kept, self

    def barrier(self, name: str, rank: int, kind: str) -> int:
        """A number for a barrier."""
        self.recording.barriers.append((name, rank, kind))
        return len(self.recording.barriers) - 1


def chosen_clusters(launch: dict[str, Any], sample: int) -> set[int]:
    """Which clusters, by their numbers in launch order, stand for all.

    The first and its neighbours along each axis of the grid, which show what they have in common;
    the last; and others evenly between.
    """
    nx, ny, nz = (g // c for g, c in zip(launch["grid"], launch["cluster"], strict=True))
    clusters = nx * ny * nz
    if clusters <= sample:
        return set(range(clusters))
    chosen = {0, clusters - 1}
    for step, n in ((1, nx), (nx, ny), (nx * ny, nz)):
        if n > 1:
            chosen.add(step)
    left = max(0, sample - len(chosen))
    return chosen | {round((i + 1) * (clusters - 1) / (left + 1)) for i in range(left)}


_TIMED: dict[str, Any] = {}
_WORK_LINE = re.compile(r"#work (\d+)(?: \* (.+))?$", re.MULTILINE)


def timed_code(program: Any) -> Any:
    """The Program's source with its counts of instructions as calls, compiled."""
    code = _TIMED.get(program.source)
    if code is None:
        source = _WORK_LINE.sub(
            lambda m: f"work(w, {m[1]}, {m[2]})" if m[2] else f"work(w, {m[1]})", program.source
        )
        code = compile(source, f"<{program.name}>", "exec")
        if len(_TIMED) > 64:
            _TIMED.clear()
        _TIMED[program.source] = code
    return code


def _work(w: Warp, index: int, times: int = 1) -> None:
    log = w.log
    if log and log[-1][0] == WORK and log[-1][2] == index and log[-1][1] == w.s:
        log[-1] = (WORK, w.s, index, log[-1][3] + times)
    else:
        log.append((WORK, w.s, index, times))


# ------------------------------------------------------------------------------------- wrappers

WRAPPERS: dict[str, Callable[..., Any]] = {}


def wraps(*names: str):
    """Register ``function(original, w, …)`` as the recording form of runtime functions."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            WRAPPERS[name] = partial(function, OPS[name])
        return function

    return register


def delays(**constants: str) -> None:
    """Register runtime functions that cost a constant."""
    for name, constant in constants.items():
        original = OPS[name]

        def call(w, *args, _original=original, _constant=constant, **kwargs):
            w.log.append((DELAY, w.s, _constant, 1))
            return _original(w, *args, **kwargs)

        WRAPPERS[name] = call


# ------------------------------------------------------------------------- loads and stores


def _lanes(w: Warp, mask) -> int:
    if mask is None:
        return w.active
    if mask is True or isinstance(mask, (int, np.integer)):
        return 1
    return int(np.count_nonzero(mask))


def _active(address, mask, lane=None) -> np.ndarray:
    """Addresses of the active lanes, ``[lanes, instructions]``."""
    array = np.asarray(address, dtype=np.int64)
    if array.ndim == 0:
        return array.reshape(1, 1)
    if array.ndim == 1:
        array = array[:, None]
    if lane is not None:
        return array[lane : lane + 1] if array.shape[0] == 32 else array[:1]
    if isinstance(mask, np.ndarray) and array.shape[0] == 32:
        array = array[mask]
    return array


def sectors_of(addresses: np.ndarray, width: int) -> int:
    """32-byte sectors that a warp's accesses touch: ``[lanes, instructions]`` addresses of
    ``width`` bytes, counted for each instruction on its own."""
    if addresses.size == 0:
        return 0
    if width <= 32:
        lines = np.sort(addresses >> 5, axis=0)
        return int(np.count_nonzero(lines[1:] != lines[:-1])) + lines.shape[1]
    return int(addresses.size * width // 32)


def wavefronts_of(addresses: np.ndarray, width: int) -> int:
    """Cycles of the shared-memory pipe for ``[lanes, instructions]`` addresses of ``width`` bytes.

    32 banks of 4 bytes. Accesses of 8 bytes go by half-warps, of 16 bytes by quarter-warps; lanes
    that name the same word share it (CUDA C++ Programming Guide, "Shared Memory").
    """
    if addresses.size == 0:
        return 0
    lanes, instructions = addresses.shape
    if lanes == 1:
        return instructions
    unit = max(4, width)
    group = min(32, 128 // unit)
    units = 128 // unit
    words = addresses // unit
    total = 0
    for first in range(0, lanes, group):
        part = np.sort(words[first : first + group], axis=0)
        fresh = np.ones(part.shape, dtype=bool)
        fresh[1:] = part[1:] != part[:-1]
        banks = part % units
        key = np.arange(instructions)[None, :] * units + banks
        counts = np.bincount(key[fresh], minlength=units * instructions)
        total += int(counts.reshape(instructions, units).max(axis=1).sum())
    return total


def _pattern(w: Warp, kind: str, addresses: np.ndarray, width: int, align: int, measure) -> int:
    """A measure of a set of addresses, known again by their differences and their alignment."""
    base = int(addresses.flat[0])
    key = (kind, width, base % align, addresses.shape, (addresses - base).tobytes())
    patterns = w.recorder.patterns
    known = patterns.get(key)
    if known is None:
        known = patterns[key] = measure(addresses, width)
    return known


def _global(kind: int):
    def record(original, w, address, *rest, mask=None, lane=None):
        size, lanes = rest[-2:]
        width = size * lanes
        addresses = _active(address, mask, lane)
        if addresses.size:
            if isinstance(address, np.ndarray):
                sectors = _pattern(w, "global", addresses, width, 32, sectors_of)
            else:
                sectors = max(1, width // 32)
            first = int(addresses.flat[0])
            place = (first >> memory.SPACE_BITS, first, int(addresses.flat[-1]))
            instructions = addresses.shape[1]
            w.log.append((kind, w.s, instructions, sectors, addresses.size * width, place))
        return original(w, address, *rest, mask=mask, lane=lane)

    return record


wraps("ld_global")(_global(LOAD))
wraps("st_global")(_global(STORE))


def _shared(kind: int):
    def record(original, w, address, *rest, mask=None, lane=None):
        size, lanes = rest[-2:]
        width = size * lanes
        addresses = _active(address, mask, lane)
        if addresses.size:
            first = int(addresses.flat[0])
            rank = (first & 0xFFFFFFFF) >> memory.RANK_BITS
            nbytes = addresses.size * width
            if isinstance(address, np.ndarray):
                waves = _pattern(w, "shared", addresses, width, 128, wavefronts_of)
            else:
                waves = 1
            if rank != w.rank:
                how = "load" if kind == SHARED_LOAD else "store"
                w.log.append((PEER, w.s, nbytes, (), how))
            else:
                region = (rank, int(addresses.min()) & memory.SHARED_OFFSET)
                ideal = max(1, -(-32 * width // 128)) * addresses.shape[1]
                event = (kind, w.s, addresses.shape[1], waves, nbytes, region, "threads", ideal)
                w.log.append(event)
        return original(w, address, *rest, mask=mask, lane=lane)

    return record


wraps("ld_shared")(_shared(SHARED_LOAD))
wraps("st_shared")(_shared(SHARED_STORE))


def _is_global(address) -> bool:
    first = int(np.asarray(address).flat[0])
    return first >> memory.SPACE_BITS >= memory.FIRST_TENSOR


@wraps("ld_generic")
def _ld_generic(original, w, address, *rest, **kwargs):
    name = "ld_global" if _is_global(address) else "ld_shared"
    _record_only(name, w, address, *rest, **kwargs)
    return original(w, address, *rest, **kwargs)


@wraps("st_generic")
def _st_generic(original, w, address, *rest, **kwargs):
    name = "st_global" if _is_global(address) else "st_shared"
    _record_only(name, w, address, *rest, **kwargs)
    return original(w, address, *rest, **kwargs)


_RECORDS = {
    "ld_global": _global(LOAD),
    "st_global": _global(STORE),
    "ld_shared": _shared(SHARED_LOAD),
    "st_shared": _shared(SHARED_STORE),
}


def _record_only(name: str, w: Warp, address, *rest, **kwargs) -> None:
    _RECORDS[name](lambda *_, **__: None, w, address, *rest, **kwargs)


@wraps("ld_strong")
def _ld_strong(original, w, space, address, size, vec, *rest, **kwargs):
    mask, lane = kwargs.get("mask"), kwargs.get("lane")
    if space == "shared" or (space != "global" and not _is_global(address)):
        _record_only("ld_shared", w, address, size, vec, mask=mask, lane=lane)
    elif not (w.log and w.log[-1][0] == LOAD and w.log[-1][1] == w.s):  # a poll counts once
        _record_only(
            "ld_global", w, address, size, vec, mask=kwargs.get("mask"), lane=kwargs.get("lane")
        )
    return original(w, space, address, size, vec, *rest, **kwargs)


@wraps("st_strong")
def _st_strong(original, w, space, address, value, size, vec, *rest, **kwargs):
    name = "st_global" if space == "global" or _is_global(address) else "st_shared"
    how = {"mask": kwargs.get("mask"), "lane": kwargs.get("lane")}
    _record_only(name, w, address, value, size, vec, **how)
    return original(w, space, address, value, size, vec, *rest, **kwargs)


@wraps("atom")
def _atom(original, w, space, address, value, how, dtype, *rest, **kwargs):
    addresses = np.asarray(address, dtype=np.int64).reshape(-1)
    mask = kwargs.get("mask")
    if isinstance(mask, np.ndarray) and addresses.size == 32:
        addresses = addresses[mask]
    shared = space == "shared" or (space != "global" and not _is_global(address))
    if addresses.size:
        _, counts = np.unique(addresses, return_counts=True)
        most = int(counts.max()) if addresses.size > 1 else _lanes(w, mask)
        returns = bool(kwargs.get("result", True))
        place = "shared" if shared else "global"
        first = int(addresses[0])
        w.log.append((ATOMIC, w.s, place, len(counts), most, returns, first))
        if w.machine.recorder.draws(first, how, kwargs.get("lane")):
            return w.machine.recorder.draw(w.cluster, value)
    return original(w, space, address, value, how, dtype, *rest, **kwargs)


def _matrices(kind: int):
    def record(original, w, address, *rest, **kwargs):
        count = rest[0] if kind == SHARED_LOAD else rest[1]
        loop = kwargs.get("loop")
        if loop is None and len(rest) > (3 if kind == SHARED_LOAD else 4):
            loop = rest[-1]
        array = np.asarray(address, dtype=np.int64)
        turns = array.shape[1] if array.ndim > 1 else 1
        rows = (array if array.ndim > 1 else np.broadcast_to(array, (32,))[:, None])[: 8 * count]
        waves = _pattern(w, "matrix", rows, 16, 128, wavefronts_of)
        region = (w.rank, int(rows.flat[0]) & memory.SHARED_OFFSET)
        nbytes = 128 * count * turns
        w.log.append((kind, w.s, turns, waves, nbytes, region, "matrix", count * turns))
        return original(w, address, *rest, **kwargs)

    return record


wraps("ldmatrix")(_matrices(SHARED_LOAD))
wraps("stmatrix")(_matrices(SHARED_STORE))


# ---------------------------------------------------------------------------------- mbarriers


@wraps("mbarrier_init")
def _init(original, w, address, count, mask=None):
    w.log.append((DELAY, w.s, "mbarrier_arrive", 1))
    result = original(w, address, count, mask)
    recorder = w.recorder
    for barrier in w.cta.barriers.values():
        if type(barrier) is MBarrier:
            barrier.__class__ = TimedMBarrier
            name = barrier.name().split(" of CTA rank")[0]
            name = name.replace("the mbarrier at shared memory byte", "mbarrier at byte")
            barrier.number = recorder.barrier(name, barrier.cta.rank, "mbarrier")
    return result


def _arrivals(original, w, *args, **kwargs):
    w.arrived = []
    try:
        return original(w, *args, **kwargs)
    finally:
        found, w.arrived = w.arrived, None
        near = tuple(token for token, rank in found if rank == w.rank)
        far = tuple(token for token, rank in found if rank != w.rank)
        if near:
            w.log.append((SIGNAL, w.s, near, "mbarrier"))
        if far:
            w.log.append((SIGNAL, w.s, far, "remote"))


wraps("mbarrier_arrive", "mbarrier_arrive_state")(_arrivals)
delays(mbarrier_expect_tx="mbarrier_arrive", mbarrier_complete_tx="mbarrier_arrive")


def _wait_for(w: Warp, barrier: Any, passed: bool, mask=None) -> None:
    """Record a wait for the phase that is over, or for the current one."""
    phase = barrier.phase - 1 if passed else barrier.phase
    token = (barrier.number, barrier.epoch + phase) if phase >= 0 else None
    kind = "lane" if w.one >= 0 or (mask is not None and _lanes(w, mask) == 1) else "mbarrier"
    w.log.append((WAIT, w.s, token, kind))


@wraps("mbarrier_wait")
def _wait(original, w, address, parity, mask=None):
    barrier = barrier_at(w, address)
    bit = (parity if type(parity) is int else _number(parity)) & 1
    _wait_for(w, barrier, (barrier.phase & 1) != bit, mask)
    return original(w, address, parity, mask)


@wraps("mbarrier_test", "mbarrier_test_state")
def _test(original, w, address, *rest, **kwargs):
    found = original(w, address, *rest, **kwargs)
    if np.any(found):
        first = int(np.asarray(address).flat[0])
        _wait_for(w, barrier_at(w, first), True)
    return found


# ---------------------------------------------------------- CTA, named and cluster barriers


def _turn(w: Warp, number: int) -> Token:
    """The turn of a CTA's barrier that an arrival now counts for."""
    known = w.cta.state.setdefault("recorded_barriers", {})
    if number not in known:
        name = f"named barrier {number}" if number else "CTA barrier"
        known[number] = w.recorder.barrier(name, w.rank, "barrier")
    rendezvous = w.cta.named.get(number)
    return known[number], rendezvous.phase if rendezvous is not None else 0


def _number(value) -> int:
    if type(value) is int:
        return value
    return int(np.asarray(value).flat[0])


def _meet(w: Warp, number: int, waits: bool = True) -> None:
    token = _turn(w, number)
    w.log.append((SIGNAL, w.s, (token,), "barrier"))
    if waits:
        w.log.append((WAIT, w.s, token, "barrier"))


@wraps("cta_sync")
def _cta_sync(original, w, mask=None):
    _meet(w, 0)
    return original(w, mask)


@wraps("bar_sync")
def _bar_sync(original, w, barrier, *rest, **kwargs):
    _meet(w, _number(barrier))
    return original(w, barrier, *rest, **kwargs)


@wraps("bar_red")
def _bar_red(original, w, how, barrier, *rest, **kwargs):
    _meet(w, _number(barrier))
    return original(w, how, barrier, *rest, **kwargs)


@wraps("bar_arrive")
def _bar_arrive(original, w, barrier, *rest, **kwargs):
    _meet(w, _number(barrier), waits=False)
    return original(w, barrier, *rest, **kwargs)


def _generation(w: Warp) -> Token:
    state = w.cluster.state
    if "recorded_cluster" not in state:
        state["recorded_cluster"] = w.recorder.barrier("cluster barrier", 0, "cluster")
    return state["recorded_cluster"], state.get("cluster_generation", 0)


@wraps("cluster_arrive")
def _cluster_arrive(original, w, *rest, **kwargs):
    token = _generation(w)
    w.state["recorded_generation"] = token
    w.log.append((SIGNAL, w.s, (token,), "cluster"))
    return original(w, *rest, **kwargs)


@wraps("cluster_wait")
def _cluster_wait(original, w, *rest, **kwargs):
    w.log.append((WAIT, w.s, w.state.get("recorded_generation"), "cluster"))
    return original(w, *rest, **kwargs)


@wraps("cluster_sync")
def _cluster_sync(original, w, *rest, **kwargs):
    token = _generation(w)
    w.log.append((SIGNAL, w.s, (token,), "cluster"))
    w.log.append((WAIT, w.s, token, "cluster"))
    return original(w, *rest, **kwargs)


# ---------------------------------------------------------------------------- bulk copies


def _copies(original, w, *args, **kwargs):
    """A copy into shared memory; the barriers that it completes on tell what it brings."""
    w.charged = []
    machine = w.machine
    before = machine.counters.get("global_load_bytes", 0)
    try:
        return original(w, *args, **kwargs)
    finally:
        found, w.charged = w.charged, None
        brought = machine.counters.get("global_load_bytes", 0) - before
        if found:
            _log_copies(w, args, found, brought)


def _log_copies(w: Warp, args: tuple, found: list, brought: int) -> None:
    into = _number(args[0]) & memory.SHARED_OFFSET
    first = _number(args[1])
    index = (first >> memory.SPACE_BITS) - memory.FIRST_TENSOR - len(w.machine.tensors)
    if 0 <= index < len(w.machine.maps) and isinstance(args[2], (list, tuple)):
        coords = [_number(c) for c in args[2]]
        tmap = w.machine.maps[index]
        place = (memory.FIRST_TENSOR + tmap.tensor.index, index, *coords)
        label = (tmap.tensor.name, *tmap.extent)  # said in words when it is shown
    else:
        place = (first >> memory.SPACE_BITS, first)
        label = f"{brought} bytes"
    targets = tuple((rank, into, nbytes) for _, rank, nbytes, _ in found)
    w.log.append((COPY_IN, w.s, brought, tuple(found), place, label, targets))


wraps("tma_load", "bulk_load")(_copies)


def _to_peer(how, nbytes=None):
    """Records what counts at a barrier of another CTA; bytes as charged there, or ``nbytes``."""

    def record(original, w, *args, **kwargs):
        w.charged = []
        try:
            return original(w, *args, **kwargs)
        finally:
            found, w.charged = w.charged, None
            tokens = tuple(token for token, *_ in found)
            brought = sum(n for _, _, n, _ in found) if nbytes is None else nbytes
            w.log.append((PEER, w.s, brought, tokens, how))

    return record


wraps("bulk_send")(_to_peer("bulk"))
wraps("st_async")(_to_peer("async"))
wraps("clc_try_cancel")(_to_peer("clc", 16))


def _stores(original, w, *args, **kwargs):
    machine = w.machine
    before = machine.counters.get("global_store_bytes", 0)
    result = original(w, *args, **kwargs)
    nbytes = machine.counters.get("global_store_bytes", 0) - before
    mask = kwargs.get("mask")
    lane = int(mask) if isinstance(mask, (int, np.integer)) and mask is not True else 0
    first = _number(args[0])
    index = (first >> memory.SPACE_BITS) - memory.FIRST_TENSOR - len(machine.tensors)
    if 0 <= index < len(machine.maps) and isinstance(args[1], (list, tuple)):
        coords = [_number(c) for c in args[1]]
        tmap = machine.maps[index]
        label, source = (tmap.tensor.name, *tmap.extent), args[2]
        place = (memory.FIRST_TENSOR + tmap.tensor.index, index, *coords)
    else:
        label, source = f"{nbytes} bytes", args[1]
        place = (first >> memory.SPACE_BITS, first)
    region = (w.rank, _number(source) & memory.SHARED_OFFSET)
    w.log.append((COPY_OUT, w.s, nbytes, lane, place, label, region))
    return result


wraps("tma_store", "bulk_store")(_stores)


def _lane_of(mask) -> int:
    if isinstance(mask, (int, np.integer)) and not isinstance(mask, bool):
        return int(mask)
    return 0


@wraps("bulk_commit")
def _bulk_commit(original, w, mask=None):
    w.log.append((BULK_COMMIT, w.s, _lane_of(mask)))
    return original(w, mask)


@wraps("bulk_wait")
def _bulk_wait(original, w, count, read, mask=None):
    w.log.append((BULK_WAIT, w.s, _lane_of(mask), _number(count), bool(read)))
    return original(w, count, read, mask)


# ------------------------------------------------------------------------------ cp.async


@wraps("cp_async")
def _cp_async(original, w, destination, source, size, source_size=None, ignored=None, mask=None):
    addresses = np.broadcast_to(np.asarray(source, dtype=np.int64), (32,))[:, None]
    if isinstance(mask, np.ndarray):
        addresses = addresses[mask]
    if addresses.size:
        machine = w.machine
        before = machine.counters.get("global_load_bytes", 0)
        result = original(w, destination, source, size, source_size, ignored, mask)
        nbytes = machine.counters.get("global_load_bytes", 0) - before
        sectors = _pattern(w, "global", addresses, size, 32, sectors_of)
        first = int(addresses.flat[0])
        place = (first >> memory.SPACE_BITS, first, int(addresses.flat[-1]))
        w.log.append((ASYNC_COPY, w.s, 1, nbytes, sectors, place))
        return result
    return original(w, destination, source, size, source_size, ignored, mask)


@wraps("cp_async_commit")
def _cp_commit(original, w, mask=None):
    w.log.append((ASYNC_COMMIT, w.s))
    return original(w, mask)


@wraps("cp_async_wait")
def _cp_wait(original, w, count, mask=None):
    w.log.append((ASYNC_WAIT, w.s, _number(count)))
    return original(w, count, mask)


@wraps("cp_async_wait_all")
def _cp_wait_all(original, w, mask=None):
    w.log.append((ASYNC_COMMIT, w.s))
    w.log.append((ASYNC_WAIT, w.s, 0))
    return original(w, mask)


def _late(w: Warp, count: int) -> list[Token]:
    """A list that is filled in with the tokens of ``count`` arrivals that an engine will make."""
    tokens: list[Token] = []
    if count:
        w.state.setdefault("recorded_commits", deque()).append((tokens, count))
    return tokens


@wraps("cp_async_mbarrier_arrive")
def _cp_arrive(original, w, address, counted, mask=None):
    different = len(np.unique(np.asarray(address)))
    w.log.append((ASYNC_ARRIVE, w.s, _late(w, different)))
    return original(w, address, counted, mask)


# --------------------------------------------------------------------------- tensor cores


def _operand(descriptor) -> int:
    """Where a descriptor's matrix lies in shared memory, to 1 KiB: steps along K stay in a tile."""
    return (_number(descriptor) & 0x3FFF) << 4 & ~1023


@wraps("wgmma_mma")
def _wgmma(original, w, d, steps, n, dtype, *rest, **kwargs):
    result = original(w, d, steps, n, dtype, *rest, **kwargs)
    a, b, _ = steps[0]
    registers = type(a) is tuple
    operands: tuple[Any, ...] = ()
    if not w.id % 4:  # the first warp's stand for the warpgroup's
        operands = ((w.rank, _operand(b)),)
        if not registers:
            operands = ((w.rank, _operand(a)), *operands)
    log, count = w.log, len(steps)
    last: tuple[Any, ...] = log[-1] if log else (None,)
    if last[0] == WGMMA and last[1] == w.s and last[2] == n and last[3] == registers:
        count += last[4]
        for operand in operands:
            if operand not in last[6]:
                last = (*last[:6], (*last[6], operand))
        log[-1] = (WGMMA, w.s, n, registers, count, dtype, last[6])
    else:
        log.append((WGMMA, w.s, n, registers, count, dtype, operands))
    return result


@wraps("wgmma_commit")
def _wgmma_commit(original, w, mask=None):
    w.log.append((WGMMA_COMMIT, w.s))
    return original(w, mask)


@wraps("wgmma_wait")
def _wgmma_wait(original, w, count, mask=None):
    w.log.append((WGMMA_WAIT, w.s, int(count)))
    return original(w, count, mask)


@wraps("mma_sync")
def _mma_sync(original, w, a, b, c, k, *rest, **kwargs):
    loop = kwargs.get("loop")
    w.log.append((MMA, w.s, int(k), int(loop) if loop else 1))
    return original(w, a, b, c, k, *rest, **kwargs)


@wraps("tcgen05_mma")
def _tcgen05_mma(original, w, d, a, b, idesc, accumulate, group=1, mask=None, a_in_tmem=False,
                 off=()):  # fmt: skip
    result = original(w, d, a, b, idesc, accumulate, group, mask, a_in_tmem, off)
    if not _lanes(w, mask):
        return result
    form = descriptors.instruction(_number(idesc))
    column = _number(d) & 0xFFFF
    operands = ((w.rank, _operand(b)),)
    if not a_in_tmem:
        operands = ((w.rank, _operand(a)), *operands)
    columns = form.n if form.m // group == 128 or group == 1 else form.n // 2
    log = w.log
    head = (w.s, form.m, form.n, group, bool(a_in_tmem))
    last: tuple[Any, ...] = log[-1] if log else (None,)
    if last[0] == TC_MMA and last[8] == column and last[1:6] == head:
        known = last[7]
        for operand in operands:
            if operand not in known:
                known = (*known, operand)
        log[-1] = (TC_MMA, *head, last[6] + 1, known, column, columns)
    else:
        log.append((TC_MMA, *head, 1, operands, column, columns))
    return result


@wraps("tcgen05_commit")
def _tcgen05_commit(original, w, address, group=1, ranks=None, mask=None):
    if _lanes(w, mask):
        count = 1 if ranks is None else _number(ranks).bit_count()
        w.log.append((TC_COMMIT, w.s, _late(w, count), group))
    return original(w, address, group, ranks, mask)


_SHAPE_COLUMNS = {"32x32b": 1, "16x64b": 2, "16x128b": 4, "16x256b": 8, "16x32bx2": 2}


@wraps("tcgen05_ld")
def _tcgen05_ld(original, w, registers, address, shape, num, *rest, **kwargs):
    columns = num * _SHAPE_COLUMNS.get(shape, 1)
    w.log.append((TC_LOAD, w.s, columns, _number(address) & 0xFFFF, w.id % 4))
    return original(w, registers, address, shape, num, *rest, **kwargs)


@wraps("tcgen05_st")
def _tcgen05_st(original, w, address, values, shape, num, *rest, **kwargs):
    columns = num * _SHAPE_COLUMNS.get(shape, 1)
    w.log.append((TC_STORE, w.s, columns, _number(address) & 0xFFFF, w.id % 4))
    return original(w, address, values, shape, num, *rest, **kwargs)


@wraps("tcgen05_wait_ld")
def _tcgen05_wait_ld(original, w, mask=None):
    w.log.append((TC_WAIT, w.s, "ld"))
    return original(w, mask)


@wraps("tcgen05_wait_st")
def _tcgen05_wait_st(original, w, mask=None):
    w.log.append((TC_WAIT, w.s, "st"))
    return original(w, mask)


@wraps("tcgen05_alloc")
def _alloc(original, w, *args, **kwargs):
    found: Waiting | None = original(w, *args, **kwargs)
    if found is None:
        w.log.append((DELAY, w.s, "tcgen05_alloc", 1))
        held = int(np.count_nonzero(tmem_of(w.cta).owner))
        w.recorder.recording.tmem_columns = max(w.recorder.recording.tmem_columns, held)
    return found


# ------------------------------------------------------------------- the rest: constant costs

delays(
    fence_proxy_async="fence_proxy_async",
    fence_mbarrier_init="fence_mbarrier_init",
    wgmma_fence="wgmma_fence",
    warp_sync="warp_sync",
    setmaxnreg="setmaxnreg",
    vote="vote",
    match="vote",
    shuffle="shuffle",
    shfl="shuffle",
    shfl_p="shuffle",
    redux="redux",
    movmatrix="movmatrix",
    tcgen05_dealloc="tcgen05_dealloc",
    tcgen05_relinquish="tcgen05_relinquish",
    tcgen05_fence_before="tcgen05_fence",
    tcgen05_fence_after="tcgen05_fence",
    mapa="mapa",
    mbarrier_inval="mbarrier_arrive",
)


@wraps("fence_memory")
def _fence_memory(original, w, sem, scope):
    w.log.append((DELAY, w.s, f"fence_{scope or 'sys'}", 1))
    return original(w, sem, scope)


@wraps("warp_reduce")
def _warp_reduce(original, w, value, kind, width, dtype):
    w.log.append((DELAY, w.s, "shuffle", int(width).bit_length() - 1))
    return original(w, value, kind, width, dtype)


@wraps("grid_sync")
def _grid_sync(original, w, mask=None):
    w.log.append((DELAY, w.s, "grid_sync", 1))
    return original(w, mask)
