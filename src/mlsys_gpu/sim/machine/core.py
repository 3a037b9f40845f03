"""The machine: clusters of CTAs of warps, run as coroutines, with asynchronous engines beside them.

A warp is a generator made from the Program's source. It runs until it must wait, and then yields a
:class:`Waiting`; whoever fulfils the condition puts it back among the runnable warps. Engines are
FIFO :class:`Pipe` objects whose entries take effect after their issue, when the schedule says:

* ``eager``: at once, when they are issued;
* ``lazy``: not before every warp of the cluster waits (or a warp waits for just this effect);
* ``seeded``: at any moment between, drawn from the seed, as is which warp runs next. In clusters
  most seeds hold one CTA back, as hardware may: seed s the one of rank ``s % (size + 1) - 1``.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from mlsys_gpu.sim.machine import memory
from mlsys_gpu.sim.machine.clocks import BARRIERS, CLOCK_SHIFT, SITE_MASK, UNIT, agents_for, stamp
from mlsys_gpu.sim.program import Program
from mlsys_gpu.sim.report import Finding, Location, Report, coverage_map

LANES = np.arange(32, dtype=np.int64)
NOBODY, EVERYBODY = np.zeros(32, dtype=bool), np.ones(32, dtype=bool)

#: Times that polls of mbarriers may find nothing while nothing else runs: a loop that gives up
#: after as many rounds gets to its end.
MAX_MBARRIER_SPINS = 3000

#: Runtime functions that generated code calls, by name.
OPS: dict[str, Callable[..., Any]] = {}


def op(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register a runtime function under its name."""
    OPS[function.__name__] = function
    return function


@op
def at(w: Warp, stop: int) -> None:
    """A place where a debugger can stop; only Programs for debugging have them."""
    w.at = stop
    if w.machine.watch is not None:
        w.machine.watch.line(w)


#: Each byte of shared memory that nothing has written: NaN for floats, and a number.
UNWRITTEN = (0xFF, 0x3C)


class Stop(Exception):
    """The simulation cannot go on; the finding that says why has been reported."""


class MoreBarriers(Exception):
    """A CTA has more mbarriers than the clocks have room for: run again with twice as many."""


class Waiting:
    """What a warp waits for: the reader's words, and the object (a barrier, …) it waits on."""

    __slots__ = ("describe", "kind", "missed", "target")

    def __init__(
        self,
        kind: str,
        target: Any,
        describe: Callable[[], str],
        missed: Callable[[], None] | None = None,
    ):
        self.kind = kind
        self.target = target
        self.describe = describe
        self.missed = missed  # reports that what the warp waits for has come and gone


class Pipe:
    """Work that an engine has accepted and not yet done, in the order in which it will be done."""

    __slots__ = ("cluster", "entries", "name")

    def __init__(self, cluster: Cluster, name: str):
        self.cluster = cluster
        self.name = name
        self.entries: deque[Callable[[], None]] = deque()

    def submit(self, effect: Callable[[], None]) -> None:
        """Accept work; under the eager schedule it is done now."""
        if self.cluster.eager:
            effect()
            return
        if not self.entries:
            self.cluster.busy[self] = None
        self.entries.append(effect)

    def deliver(self) -> None:
        """Let the oldest entry take effect."""
        effect = self.entries.popleft()
        if not self.entries:
            del self.cluster.busy[self]
        effect()

    def drain(self) -> None:
        """Let all entries take effect."""
        while self.entries:
            self.deliver()


class Warp:
    """32 threads: identity, clock, the current site, and what is still under way for them."""

    at = -1  # the last place where a debugger could stop, in a Program for debugging
    # Of a timed run (see recording): its log, who keeps it, and what barriers have told.
    log: Any = None
    recorder: Any = None
    arrived: Any = None
    charged: Any = None

    def __init__(self, cta: Cta, index: int, threads: int):
        self.cta = cta
        self.cluster = cta.cluster
        self._name = f"warp {index}"
        if self.cluster.size > 1:
            self._name += f" of CTA rank {cta.rank}"
        self.machine = cta.cluster.machine
        self.checks = self.machine.checks
        self.id = index
        self.block = cta.block
        self.rank = cta.rank
        self.base = cta.rank << memory.RANK_BITS
        self.tid0 = 32 * index
        self.lanes = LANES
        self.nobody, self.everybody = NOBODY, EVERYBODY  # masks
        self.tid = LANES + 32 * index
        self.active = min(32, threads - 32 * index)
        self.present = self.active > LANES  # lanes that the launch has filled
        self.s = 0  # the current site
        #: Operations that wait for lanes which have not come: those lanes, and who has come where.
        self.absent: list[tuple[np.ndarray, int, str, np.ndarray]] = []
        agents = self.cluster.agents
        self.agent = agents.of(cta.rank, index)
        self.unit = {unit: self.agent + i for unit, i in UNIT.items()}
        self.clock = agents.clock()
        self.clock[0, self.agent] = 1  # row 1, the async proxy's, moves by fence.proxy.async alone
        self.now = stamp(self.agent, 1)  # the stamp of an access made now, but for its site
        self.waiting: Waiting | None = None
        #: The last wait that is over: at a barrier or an mbarrier, and where.
        self.synced: tuple[str, int] = ("", 0)
        self.polls: Waiting | None = None  # the mbarrier that it has just looked at in vain
        self.exited = False
        self.code: Any = None
        #: Work gathered for an engine that must be handed over before anyone else runs.
        self.open: Any = None
        self.state: dict[str, Any] = {}  # per-family state, by family
        self.lessons: list[dict[int, np.ndarray]] = []  # what it knows of other clusters (order)
        self.plans: dict[tuple, Any] = {}  # shared-memory accesses worked out (access)
        #: Its lanes' accesses to shared memory that they have not released since its last barrier;
        #: from which moment it goes on, and which of the moments between the async proxy has seen;
        #: the lanes that a wait of others left behind, what those have seen, and where that was
        #: (see :mod:`.loose`).
        self.loose: dict[tuple[str, int, bool, int], tuple[Any, Any, Any, Any]] = {}
        self.later = self.fenced = 0
        self.behind: tuple[np.ndarray, np.ndarray, int] | None = None
        self.one = -1  # the lane that runs alone, in a branch that exactly one can take
        self.wait_mask: Any = None  # the lanes of the wait that it is in; None for all
        self.heard = False  # whether it has read what other CTAs may have written, by strong reads

    def tick(self) -> None:
        """Start a new moment: what comes now is not covered by what was released before.

        Without checks clocks stand still; nothing asks them.
        """
        if not self.checks:
            return
        value = int(self.clock[0, self.agent]) + 1
        if self.later:
            value, self.later = self.later, 0
            self.clock[1, self.agent] = max(self.fenced, int(self.clock[1, self.agent]))
        self.clock[0, self.agent] = value
        self.now = stamp(self.agent, value)

    def release(self) -> np.ndarray:
        """The clock to publish with a release operation; later accesses are not covered by it."""
        if not self.checks:
            return self.clock
        published = self.clock.copy()
        self.tick()
        return published

    def acquire(self, clock: np.ndarray) -> None:
        if self.checks:
            np.maximum(self.clock, clock, out=self.clock)

    def name(self) -> str:
        """The warp in a reader's words."""
        return self._name

    def threads(self, mask: Any = None) -> str:
        """The threads in a reader's words, for findings."""
        place = f" of CTA {self.cta.label()}"
        if mask is None or (hasattr(mask, "all") and mask.all()):
            return f"warp {self.id} (threads {self.tid0}-{self.tid0 + 31}){place}"
        if isinstance(mask, (int, np.integer)):
            return f"thread {self.tid0 + int(mask)} (warp {self.id}, lane {int(mask)}){place}"
        lanes = [int(i) for i in np.flatnonzero(mask)]
        return f"warp {self.id}, lane{'s' * (len(lanes) != 1)} {ranges(lanes)}{place}"


def ranges(numbers: list[int]) -> str:
    """``[0, 1, 2, 5]`` as ``0-2, 5``."""
    parts: list[str] = []
    start = previous = None
    for n in numbers:
        if previous is not None and n == previous + 1:
            previous = n
            continue
        if start is not None:
            parts.append(f"{start}-{previous}" if previous != start else str(start))
        start = previous = n
    if start is not None:
        parts.append(f"{start}-{previous}" if previous != start else str(start))
    return ", ".join(parts)


class Cta:
    """A CTA: its block index, shared memory, barriers, and (from its families) tensor memory."""

    def __init__(self, cluster: Cluster, rank: int, block: tuple[int, int, int]):
        self.cluster = cluster
        self.machine = cluster.machine
        self.rank = rank
        self.block = block
        program = self.machine.program
        grid = program.launch["grid"]
        self.index = block[0] + grid[0] * (block[1] + grid[1] * block[2])
        size = memory.RESERVED_SHARED + program.launch["shared_bytes"] + program.static_shared
        size = (size + 15) // 16 * 16
        unwritten = UNWRITTEN[self.machine.other]
        self.shared = memory.Linear(np.full(size, unwritten, dtype=np.uint8))
        self.shadow = memory.Shadow(
            (size // 16 if self.machine.checks else 0, 16 // self.machine.program.grain)
        )
        self.remote: dict[int, int] = {}  # last access by each agent of another CTA
        self.spoke = False  # whether it has made a strong write that other CTAs may have read
        self.version = 0  # counts writes to shared memory, for caches of decoded tiles
        self.barriers: dict[int, Any] = {}  # mbarriers by offset
        self.named: dict[int, Any] = {}  # named barriers by id
        self.state: dict[str, Any] = {}
        threads = program.launch["threads"]
        self.warps = [Warp(self, i, threads) for i in range((threads + 31) // 32)]

    def label(self) -> str:
        x, y, z = self.block
        return f"({x}, {y})" if z == 0 else f"({x}, {y}, {z})"

    def region(self, offset: int) -> str:
        """What the author put at a shared-memory offset, in the reader's words."""
        at = offset - memory.RESERVED_SHARED
        for name, start, nbytes, shape, dtype in self.machine.program.regions:
            if name and start <= at < start + nbytes:
                item = nbytes // max(1, int(np.prod(shape)))
                inner = (at - start) // max(1, item)
                if len(shape) <= 1:
                    return f"{name}[{inner}] ({dtype}, shared memory byte {at})"
                return f"{name} + {at - start} bytes (shared memory byte {at})"
        return f"shared memory byte {at}"


class Cluster:
    """The CTAs that run together, their agents, engines and scheduler."""

    def __init__(self, machine: Machine, origin: tuple[int, int, int]):
        self.machine = machine
        launch = machine.program.launch
        cx, cy, cz = launch["cluster"]
        self.shape = (cx, cy, cz)
        self.size = cx * cy * cz
        self.eager = machine.schedule == "eager"
        warps = (launch["threads"] + 31) // 32
        self.agents = agents_for(self.size, warps, machine.barriers, 5 if machine.fences else 4)
        self.busy: dict[Pipe, None] = {}
        self.runnable: deque[Warp] = deque()
        self.state: dict[str, Any] = {}
        self.live = 0  # warps that have not exited
        self.idle = 0  # rounds of polling loops since anything has happened
        self.spins = 0  # times that there was nothing left but polling loops
        self.seen_writes = -1  # writes to global memory when that was
        #: Rank of a CTA whose warps run only now and then, while others can.
        self.late = -1 if machine.rng is None else machine.seed % (self.size + 1) - 1
        self.number = len(machine.origins)  # of the clusters, in the order in which they start
        machine.origins.append(origin)
        self.learners: list[Warp] = []  # warps that know something of other clusters
        ox, oy, oz = origin
        self.ctas = []
        for rank in range(self.size):
            x, rest = rank % cx, rank // cx
            block = (ox + x, oy + rest % cy, oz + rest // cy)
            self.ctas.append(Cta(self, rank, block))

    def wake(self, warp: Warp) -> None:
        warp.waiting = None
        self.runnable.append(warp)

    def early_waits(self, waiter: int, other: int) -> list[tuple[str, Location | None]]:
        """Waits of an agent's warp that held nothing back, at barriers where ``other`` arrives.

        They explain why an access came too early: the wait is there, and asks for a phase that had
        been over for long.
        """
        place = self.agents.warp_of(waiter)
        if place is None:
            return []
        warp = self.ctas[place[0]].warps[place[1]]
        for (site, why), barrier in warp.state.get("early_waits", {}).items():
            if other in barrier.arrivers:
                self.machine.blamed.add(barrier.offset)
                what = f"the wait that returned at once, {why}"
                return [(what, self.machine.program.location(site))]
        return []

    def start(self) -> None:
        """Make all warps ready to run."""
        kernel, rng = self.machine.kernel, self.machine.rng
        order = [w for cta in self.ctas for w in cta.warps]
        recorder = self.machine.recorder
        if recorder is not None and recorder.take(self):
            kernel = recorder.kernel
        for warp in order:
            warp.code = kernel(warp)
        self.live = len(order)
        if rng is not None:
            rng.shuffle(order)
        self.runnable.extend(order)

    def proceed(self, turns: int | None = None) -> str:
        """Run the warps, delivering engines' effects as the schedule says.

        Returns why it stops: ``ended``; ``idle``, where only polling loops are left that find
        nothing new (another cluster may bring it); or ``paused``, after ``turns`` turns.
        """
        rng = self.machine.rng
        runnable, busy = self.runnable, self.busy
        self.idle = 0
        while self.live:
            if rng is not None and busy and (not runnable or rng.random() < 0.4):
                pipes = list(busy)
                pipes[rng.randrange(len(pipes))].deliver()
                self.idle = 0
                continue
            if runnable:
                if rng is not None and len(runnable) > 1:
                    runnable.rotate(-rng.randrange(len(runnable)))
                    if self.late >= 0 and self.size > 1:
                        self._hold_back(rng)
                warp = runnable.popleft()
            elif busy:
                next(iter(busy)).deliver()
                continue
            else:
                self._deadlock([w for cta in self.ctas for w in cta.warps if not w.exited])
            warp.polls = None
            try:
                waiting = self._advance(warp)
                if warp.open is not None:
                    warp.open.flush()
            except StopIteration:
                self.idle = 0
                warp.exited = True
                self.live -= 1
                for hook in EXIT_HOOKS:
                    hook(warp)
                if self.machine.watch is not None:
                    self.machine.watch.exited(warp)
                continue
            if waiting is None:  # a voluntary pause: a polling loop went round
                runnable.append(warp)
                if self._idles(warp):
                    return "idle"
            else:
                self.idle = self.spins = 0
                if warp.waiting is None and waiting is not DONE:
                    warp.waiting = waiting
            if turns is not None:
                turns -= 1
                if turns <= 0:
                    return "paused"
        for pipe in list(busy):
            pipe.drain()
        for cta in self.ctas:
            for hook in END_HOOKS:
                hook(cta)
        return "ended"

    def _hold_back(self, rng: random.Random) -> None:
        """Where the warp whose turn it is belongs to the late CTA, let another one go first."""
        if self.runnable[0].rank != self.late or rng.random() < 1 / 16:
            return
        for i, warp in enumerate(self.runnable):
            if warp.rank != self.late:
                self.runnable.rotate(-i)
                return

    def _advance(self, warp: Warp):
        """Run a warp until it waits or pauses."""
        try:
            return warp.code.send(None)
        except ZeroDivisionError:
            wrong = "divides by zero"
        except OverflowError:
            wrong = "computes an integer beyond 64 bits"
        except ValueError as error:
            if "negative shift count" not in str(error):
                raise
            wrong = "shifts by a negative number of bits"
        raise ArithmeticError(
            f"the kernel {wrong} at {self.machine.program.location(warp.s)}: CUDA C++ leaves that "
            "undefined"
        )

    def _idles(self, warp: Warp) -> bool:
        """Count a round of a polling loop that may have found nothing; True where all that still
        run only poll, and no engine of this cluster can change that."""
        if self.seen_writes != self.machine.writes:
            self.seen_writes = self.machine.writes
            self.idle = self.spins = 0
        self.idle += 1
        if self.idle <= 2 * len(self.runnable):
            return False
        self.idle = 0
        if self.busy:
            next(iter(self.busy)).deliver()
            return False
        self.spins += 1
        if all(w.polls is not None for w in self.runnable):  # mbarriers: no other cluster helps
            if self.spins > MAX_MBARRIER_SPINS:
                for polling in self.runnable:
                    polling.waiting = polling.polls
                self._deadlock([w for cta in self.ctas for w in cta.warps if not w.exited])
        elif self.spins * max(1, len(self.machine.resident)) > self.machine.max_spins:
            raise _livelock(self, warp)
        return True

    def _deadlock(self, warps: list[Warp]) -> None:
        machine = self.machine
        machine.deadlock = _waiting([self])
        for warp in warps:
            if warp.waiting is not None and warp.waiting.missed is not None:
                warp.waiting.missed()
        from mlsys_gpu.sim.machine import deadlocks

        first, cause = deadlocks.first(machine.deadlock, warps)
        described = first.waiting.describe() if first.waiting else ""
        because = f": {cause.message}" if cause.message else ""
        machine.report(
            deadlocks.code(first),
            first,
            f"{len(warps)} warp{'s wait' if len(warps) != 1 else ' waits'} for ever{because}; "
            f"{first.name()} {described}",
            memory="",
            fix=cause.fix,
            related=[*cause.related, *deadlocks.initialised(first), *_elsewhere(first, warps)],
        )
        raise Stop


#: Where the ISA's text is read in more than one way: each rule's name, and its readings with what
#: they mean. The first is the one that holds unless :func:`mlsys_gpu.sim.simulate` is told another.
READINGS = {
    "wgmma-wait": {
        "warpgroup": (
            "a warp's wgmma.wait_group covers the products of its whole warpgroup, as kernels that "
            "release a stage with one arrival per warpgroup rely on, and as an H200 behaves: its "
            "four warps issue together (scripts/h200/wgmma_wait.cu)"
        ),
        "warp": (
            "a warp's wgmma.wait_group covers that warp's share of the products alone: the other "
            "three warps may still read the operands"
        ),
    },
    "tmem-lane-0": {
        "own": (
            "a tensor-memory address with lane 0 names the executing warp's own quarter (hardware "
            "routes it); an address with other lanes must name that quarter"
        ),
        "strict": "a tensor-memory address must name the executing warp's own quarter of the lanes",
    },
    "remote-arrive": {
        "cluster": (
            "an arrival at an mbarrier of another CTA that names no scope releases to that CTA, as "
            "kernels that free a stage in every CTA of a cluster rely on"
        ),
        "cta": (
            "an arrival that names no scope has .cta (PTX ISA): at an mbarrier of another CTA it "
            "publishes nothing there"
        ),
    },
    "tcgen05-dealloc": {
        "pair": (
            "a dealloc of cta_group::2 gives back the columns of both CTAs of the pair: the peer's "
            "accesses to its own part must be over, too"
        ),
        "own": "a dealloc of cta_group::2 gives back the executing CTA's columns alone",
    },
    "tcgen05-ld": {
        "dependency": (
            "a use of its registers waits for a tcgen05.ld (PTX ISA, register dependencies), but "
            "only tcgen05.wait::ld shows that tensor memory has been read; in a kernel that has "
            "neither that nor a before_thread_sync, the use shows it"
        ),
        "wait": "registers of a tcgen05.ld may be used only after tcgen05.wait::ld",
    },
    "tcgen05-fence": {
        "kernel": (
            "a wait with acquire semantics orders tcgen05 operations too, as kernels that have no "
            "tcgen05.fence rely on; in a kernel that has them, a path without one is a warning. "
            "Behind a relaxed wait it is an error"
        ),
        "isa": (
            "only tcgen05.fence orders the tcgen05 operations of different threads (PTX ISA): a "
            "path without one is a warning in every kernel, and an error behind a relaxed wait"
        ),
        "acquire": "a wait with acquire semantics always orders tcgen05 operations",
    },
    "proxy-war": {
        "barrier": (
            "threads' reads of shared memory need no proxy fence before an engine overwrites it: a "
            "barrier between them is enough, as kernels rely on that give a stage back after loads"
        ),
        "fence": (
            "a read by threads and a later write by an engine are of different proxies: a "
            "fence.proxy.async must stand between them (PTX ISA, proxies)"
        ),
    },
    "accumulation": {
        "float32": (
            "tensor cores add products in float32, each sum rounded to nearest, in no given order: "
            "the last bits of sums that are not exact differ from a GPU's (the ISA leaves it open)"
        ),
        "aligned": (
            "mma.sync and wgmma add a step's products and the accumulator as an H200 does, bit for "
            "bit: aligned to the largest exponent, cut off 25 bits below it (about 60 times slower)"
        ),
    },
    "lane-release": {
        "lanes": (
            "a lane's release (an arrival, or a copy that it issues) covers what its warp's other "
            "lanes did, and its wait holds for them, only with a barrier of the warp between (PTX "
            "ISA, memory consistency model)"
        ),
        "warp": "they hold for the whole warp, as lanes that run in step would have it",
    },
}

#: Returned by an operation that has parked the warp itself and found it done at once.
DONE = object()

#: Called with each warp that exits, and with each CTA when all of its work has ended.
EXIT_HOOKS: list[Callable[[Warp], None]] = []
END_HOOKS: list[Callable[[Cta], None]] = []


def _elsewhere(first: Warp, warps: list[Warp]) -> list[tuple[str, Location | None]]:
    """The other lines at which warps wait, each with who waits there."""
    lines: dict[int, list[str]] = {}
    for warp in warps:
        if warp.s != first.s:
            lines.setdefault(warp.s, []).append(warp.name())
    return [
        (
            f"{', '.join(names[:4])}{', …' * (len(names) > 4)} wait{'s' * (len(names) == 1)} here",
            first.machine.program.location(site),
        )
        for site, names in list(lines.items())[:4]
    ]


def _waiting(clusters: list[Cluster]) -> dict[str, Any]:
    """Which warps wait for what, and the graph of who would have to act (see :mod:`.waitgraph`)."""
    from mlsys_gpu.sim.machine import waitgraph

    waiting = []
    for warp in (w for cluster in clusters for cta in cluster.ctas for w in cta.warps):
        if warp.exited:
            continue
        what = warp.waiting.describe() if warp.waiting else "polls"
        location = warp.machine.program.location(warp.s)
        waiting.append(
            {
                "cta": list(warp.block),
                "warp": warp.id,
                "kind": warp.waiting.kind if warp.waiting else "",
                "waits_for": what,
                "location": location.to_dict() if location else None,
                "text": f"{warp.name()} of CTA {warp.cta.label()}, at {location}: {what}",
            }
        )
    return {"waiting": waiting, **waitgraph.graph(clusters)}


def _livelock(cluster: Cluster, warp: Warp) -> Stop:
    machine = cluster.machine
    machine.deadlock = _waiting(machine.resident or [cluster])
    others = len(machine.queue)
    beside = ""
    if others:
        beside = (
            f"; {others} cluster{'s' * (others != 1)} of the grid cannot start before one of the "
            f"{len(machine.resident)} that the GPU holds at a time ends"
        )
    machine.report(
        "deadlock",
        warp,
        f"{warp.name()} polls, and nothing that still runs can change what it finds{beside}",
        memory="",
        fix=(
            "make sure that whoever the loop waits for can still act"
            + (": wait for no CTA that may not have started" if others else "")
        ),
    )
    return Stop()


#: Streaming multiprocessors of the GPUs that we model, by compute capability: H100 and H200 (SXM)
#: have 132, B200 has 148 (NVIDIA Hopper and Blackwell architecture white papers).
SM_COUNT = {"sm_90": 132, "sm_100": 148}


def resident_clusters(program: Program) -> int:
    """Clusters that the GPU holds at a time.

    By shared memory (228 KiB of an SM, 1 KiB of it the system's for each CTA), threads (2048) and
    CTAs (32); source: CUDA C++ Programming Guide, "Technical Specifications per Compute
    Capability". Registers are not known here.
    """
    launch = program.launch
    shared = launch["shared_bytes"] + program.static_shared + 1024
    threads = (launch["threads"] + 31) // 32 * 32
    ctas = max(1, min(228 * 1024 // shared, 2048 // threads, 32))
    cx, cy, cz = launch["cluster"]
    sms = SM_COUNT.get(program.arch.rstrip("af"), 132)
    return max(1, sms * ctas // (cx * cy * cz))


def threads_in(w: Warp, mask) -> int:
    """How many threads of a warp a mask names: None names all, True the one that runs alone."""
    if mask is None:
        return w.active
    return 1 if mask is True else int(np.count_nonzero(mask))


@op
def whole_warp(w: Warp, mask, what: str) -> None:
    """Report a collective that only some of the warp's lanes (a mask) reach, and stop."""
    if mask is None or (np.asarray(mask) | ~w.present).all():
        return
    w.machine.report(
        "divergent-collective",
        w,
        f"{what} is reached by {int(np.sum(mask))} of the warp's 32 threads",
        memory="",
        threads=w.threads(mask),
        fix="move it out of the branch that only some of the lanes take",
    )
    raise Stop


@op
def partial(w: Warp, mask, what: str) -> None:
    """A ``.sync`` operation that only some of the warp's lanes reach.

    It waits for the lanes that its member mask names and that have not exited (PTX ISA, shfl.sync):
    that is in order where the others exit, and a fault where they reach another such operation
    first, or a barrier (:func:`rejoin`).
    """
    rejoin(w, mask)
    absent = w.present & ~np.asarray(mask)
    if absent.any():
        w.absent.append((absent, w.s, what, np.asarray(mask)))


@op
def rejoin(w: Warp, mask=None) -> None:
    """An operation that lanes reach together: none of them may be waited for elsewhere."""
    for absent, site, what, reached in w.absent:
        if not (absent & (w.present if mask is None else mask & w.present)).any():
            continue
        place = w.machine.program.location(w.s)
        w.machine.report(
            "divergent-collective",
            w,
            f"{what} is reached by {int(np.sum(reached))} of the warp's 32 threads; it waits for "
            "the others, which go on to another operation that lanes reach together",
            memory="",
            threads=w.threads(reached),
            fix="move it out of the branch that only some of the lanes take",
            site=site,
            related=[("the others reach", place)] if w.s != site else None,
        )
        raise Stop


class Machine:
    """One launch of a Program on a set of tensors."""

    def __init__(
        self,
        program: Program,
        tensors,
        schedule: str,
        seed: int,
        checks: bool,
        readings: dict[str, str] | None = None,
        barriers: int = BARRIERS,
        other: bool = False,
    ):
        self.other = other  # what is read unwritten is filled with other values
        self.program = program
        self.barriers = barriers  # mbarriers of one CTA that clocks have room for
        self._readings = {name: next(iter(known)) for name, known in READINGS.items()}
        self._readings.update(readings or {})
        self.aligned_sums = self._readings["accumulation"] == "aligned"
        #: Whether the order that tcgen05.fence gives is followed (row 4 of the clocks).
        self.fences = checks and (
            "tcgen05_fence" in program.source
            or ("tcgen05" in program.source and "relaxed" in program.source)
            or self._readings["tcgen05-fence"] == "isa"
        )
        self.tensors = tensors
        for index, tensor in enumerate(tensors):
            tensor.mixed = program.written is None or index in program.written
        self.schedule = schedule
        self.seed = seed
        self.checks = checks
        self.rng = random.Random(seed) if schedule == "seeded" else None
        self.max_spins = 100_000
        self.queue: deque[tuple[int, int, int]] = deque()  # clusters that have not started
        self.origins: list[tuple[int, int, int]] = []  # first CTAs of the clusters, as they start
        self.grid_turns: list[dict[str, Any]] = []  # grid-wide barriers (atomics.grid_sync)
        self.resident: list[Cluster] = []
        self.writes = 0  # writes to global memory so far, by which polling loops tell a change
        self.findings: dict[tuple, Finding] = {}
        self.undefined: set[tuple] = set()  # findings that are undefined values
        self.completed = True
        self.raced: set[int] = set()  # sites of reads that raced with a write
        self.trace: list[Any] | None = None  # where products are noted, see provenance
        self.watch: Any = None  # a debugger, which is told of lines, phases, findings and exits
        self.recorder: Any = None  # of a timed run, see recording
        self._hints: dict[tuple, Callable[[], list[tuple[str, Location | None]]]] = {}
        self._unless: dict[tuple, list[Callable[[], bool]]] = {}
        self.misled = False  # a warp waits for a wrong phase of a barrier that brings bytes
        self.unexpected = False  # a copy brings bytes that its barrier does not expect
        self.blamed: set[int] = set()  # offsets of barriers that are waited for wrongly
        self.uncommitted: set[int] = set()  # sites of products that were read too early
        self.deadlock: dict[str, Any] | None = None
        #: Accesses, by agent and site, that a release of other lanes left behind, and where it is.
        self.left: dict[tuple[int, int], tuple[int, str]] = {}
        self.counters: dict[str, int] = {}
        self.ticks = 0  # readings of the clock
        self.printed: list[str] = []  # what the kernel prints
        self.readings: dict[str, str] = {}
        namespace: dict[str, Any] = dict(OPS)
        namespace["np"] = np
        if other:
            namespace.update(poison=OPS["other_poison"], fresh=OPS["other_fresh"])
        exec(_compiled(program), namespace)
        self.kernel = namespace["kernel"]
        self.pointers = [self._argument(*argument) for argument in program.arguments]
        self.maps = [tensor_map(record, tensors) for record in program.maps]

    def _argument(self, kind: str, what: Any = 0, offset: int = 0) -> Any:
        """An argument of the device function: a number, or a pointer to a tensor or, behind the
        tensors' spaces, to a tensor map."""
        if kind == "scalar":
            return what
        if kind == "null":
            return 0
        space = memory.FIRST_TENSOR + (what if kind == "tensor" else len(self.tensors) + what)
        return (space << memory.SPACE_BITS) + offset

    def launch_number(self, block: tuple[int, int, int]) -> int:
        """A cluster's number in launch order (x fastest), by its first CTA's block index."""
        gx, gy, _ = self.program.launch["grid"]
        cx, cy, cz = self.program.launch["cluster"]
        x, y, z = block
        return x // cx + gx // cx * (y // cy + gy // cy * (z // cz))

    def block_of(self, number: int, rank: int) -> tuple[int, int, int]:
        """Block index of the CTA of a rank in a cluster (by its number)."""
        x, y, z = self.origins[number]
        cx, cy, _ = self.program.launch["cluster"]
        return x + rank % cx, y + rank // cx % cy, z + rank // (cx * cy)

    def reading(self, rule: str) -> str:
        """Which reading of a disputed rule holds; the report says that it was used."""
        choice = self._readings[rule]
        self.readings[rule] = f"{choice}: {READINGS[rule][choice]}"
        return choice

    def count(self, name: str, by: int = 1) -> None:
        self.counters[name] = self.counters.get(name, 0) + by

    def run(self, clusters: int | None = None) -> None:
        """Run all clusters, or the first few."""
        launch = self.program.launch
        gx, gy, gz = launch["grid"]
        cx, cy, cz = launch["cluster"]
        origins = [
            (x, y, z) for z in range(0, gz, cz) for y in range(0, gy, cy) for x in range(0, gx, cx)
        ]
        if self.rng is not None:
            self.rng.shuffle(origins)
        self.queue = deque(origins[:clusters])
        if self.recorder is not None:
            self.recorder.choose(self)
        try:
            self._run_clusters()
        except Stop:
            self.completed = False
        if self.recorder is not None:
            self.recorder.probe(self)
        for identity, hints in self._hints.items():
            known = self.findings.get(identity)
            if known is not None:
                extra = tuple((what, place) for what, place in hints() if place is not None)
                self.findings[identity] = replace(known, related=(*known.related, *extra))
        for identity, tests in self._unless.items():
            if all(test() for test in tests):
                del self.findings[identity]

    def _run_clusters(self) -> None:
        """Run the clusters, as few at a time as get on.

        One cluster runs to its end before the next one starts, which keeps its memory in the
        processor's caches; where nothing but polling loops is left in it, others join, up to what
        the GPU holds at a time. The seeded schedule has several under way from the start.
        """
        limit = resident_clusters(self.program)
        together = 1 if self.rng is None else min(limit, self.rng.choice((1, 1, 2, 3)))
        resident: deque[Cluster] = deque()
        idle = 0  # clusters in a row that had nothing to do
        while self.queue or resident:
            while self.queue and len(resident) < together:
                resident.append(self._start())
            self.resident = list(resident)
            turns = None
            if self.rng is not None and len(resident) > 1:
                turns = self.rng.randrange(1, 200)
            why = resident[0].proceed(turns)
            idle = idle + 1 if why == "idle" else 0
            if why == "ended":
                resident.popleft()
                continue
            resident.rotate(-1)
            if idle >= len(resident) and self.queue and len(resident) < limit:
                resident.appendleft(self._start())

    def _start(self) -> Cluster:
        cluster = Cluster(self, self.queue.popleft())
        cluster.start()
        return cluster

    def cancel(self, cluster: Cluster) -> tuple[int, int, int] | None:
        """Take the next cluster that has not started (cluster launch control), if there is one.

        In a timed run a cluster gets no more than its share, as when all run side by side.
        """
        if self.recorder is not None and not self.recorder.may_cancel(cluster):
            return None
        queue = self.queue if self.recorder is None else self.recorder.stealable(self)
        return queue.popleft() if queue else None

    def found(self, *codes: str) -> bool:
        """Whether there is a finding of one of these codes."""
        return any(finding.code in codes for finding in self.findings.values())

    def report(
        self,
        code: str,
        warp: Warp | None,
        message: str,
        *,
        memory: str,
        fix: str,
        site: int | None = None,
        threads: str | None = None,
        related: list[tuple[str, Location | None]] | None = None,
        severity: str = "error",
        key: Any = None,
        fault: Any = None,
        hints: Callable[[], list[tuple[str, Location | None]]] | None = None,
        unless: Callable[[], bool] | None = None,
        undefined: bool = False,
    ) -> None:
        """Record a finding; the same fault at the same places is counted, not repeated.

        ``fault``: what tells one fault from another where the places do not: the two sites of a
        race, say, which is one fault whichever of them is found out first.
        ``hints``: asked at the end of the run for further related places. ``unless``: asked then
        too; where it holds each time that the fault was seen, another finding says it better.
        ``undefined``: the fault is an undefined value, which may be one that nobody uses.
        """
        where = site if site is not None else (warp.s if warp else 0)
        places = self.program.locations(where)
        extra = [("in it", p) for p in places[1:]]
        places_related = tuple(
            (what, place) for what, place in (*(related or ()), *extra) if place is not None
        )
        identity: tuple = (code, where, key, tuple(str(p) for _, p in places_related))
        if fault is not None:
            identity = (code, fault)
        if undefined or code == "uninitialised-read":
            self.undefined.add(identity)
        known = self.findings.get(identity)
        tests = self._unless.get(identity)
        if unless is not None and (known is None or tests is not None):
            tests = self._unless.setdefault(identity, [])
            if len(tests) < 64:
                tests.append(unless)
        elif tests is not None:
            del self._unless[identity]
        if known is not None:
            self.findings[identity] = replace(known, count=known.count + 1)
            return
        if hints is not None:
            self._hints[identity] = hints
        self.findings[identity] = Finding(
            code=code,
            message=message,
            location=places[0] if places else None,
            threads=threads if threads is not None else (warp.threads() if warp else ""),
            memory=memory,
            fix=fix,
            severity=severity,
            related=places_related,
        )
        if self.watch is not None:
            self.watch.finding(self.findings[identity], warp)


def tensor_map(record: dict[str, Any], tensors: Any) -> Any:
    """A tensor map of the host, on the launch's tensors."""
    from mlsys_gpu.sim.machine.bulk import TensorMap
    from mlsys_gpu.sim.machine.numerics import STORAGE

    return TensorMap(record, tensors[record["tensor"]], np.dtype(STORAGE[record["dtype"]]).itemsize)


_CODE: dict[str, Any] = {}


def _compiled(program: Program) -> Any:
    """The Program's source as a code object, kept for later runs of the same Program."""
    code = _CODE.get(program.source)
    if code is None:
        code = compile(program.source, f"<{program.name}>", "exec")
        if len(_CODE) > 256:
            _CODE.clear()
        _CODE[program.source] = code
    return code


_LIBRARIES: Any = None


def one_blas_thread() -> contextlib.AbstractContextManager[Any]:
    """Hold BLAS to one thread: the tiles are small, and threads that spin for them cost more.

    Where threadpoolctl is not installed, BLAS is left as it is. Looking for the libraries of the
    process takes milliseconds; NumPy's is there from the first time on.
    """
    global _LIBRARIES
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return contextlib.nullcontext()
    if _LIBRARIES is None:
        _LIBRARIES = ThreadpoolController()
    return _LIBRARIES.limit(limits=1, user_api="blas")


def execute(
    program: Program,
    tensors,
    schedule: str,
    seed: int,
    checks: bool,
    readings: dict[str, str] | None = None,
    watch: Any = None,
    barriers: int = BARRIERS,
    timing: Any = None,
) -> Report:
    """Run a Program on :class:`memory.Tensor` arguments (in the order of its params).

    ``watch``: a debugger (see :mod:`mlsys_gpu.sim.debugger`). ``timing``: makes a recorder for the
    machine (see :mod:`.recording`). Raises :class:`MoreBarriers` where a CTA initialises more than
    ``barriers`` mbarriers.
    """
    from mlsys_gpu.sim.machine import provenance

    machine = Machine(program, tensors, schedule, seed, checks, readings, barriers)
    if watch is not None:
        machine.watch = watch
        watch.began(machine)
    if timing is not None:
        machine.recorder = timing(machine)
    # a debugger limits BLAS itself, while the machine runs
    limit = one_blas_thread() if watch is None else contextlib.nullcontext()
    with limit, np.errstate(all="ignore"):
        start = time.perf_counter()
        machine.run()
        if machine.printed:
            print("".join(machine.printed), end="")
        if checks and not machine.findings and "mma_instructions" in machine.counters:
            provenance.examine(machine, program, tensors)
        if _without_effect(machine):
            machine.findings.clear()
        if checks and machine.completed and not machine.findings:
            for tensor in machine.tensors:
                _unwritten(machine, tensor)
        seconds = time.perf_counter() - start
    return Report(
        kernel=program.name,
        arch=program.arch,
        schedule=schedule,
        schedule_seed=seed,
        checks=checks,
        launch=program.launch,
        findings=sorted(machine.findings.values(), key=_rank),
        counters=machine.counters,
        coverage={t.name: coverage(t) for t in tensors if t.written},
        deadlock=machine.deadlock,
        readings=machine.readings,
        seconds=seconds,
        completed=machine.completed,
        _recording=machine.recorder.recording if machine.recorder is not None else None,
    )


def _without_effect(machine: Machine) -> bool:
    """Whether all that was found are undefined values, and they changed none of the results.

    Kernels compute on what they discard: rows past an edge, the other half of a pair. So where a
    run has read unwritten memory, another run finds other values there; a fault is what shows.
    """
    found = set(machine.findings)
    written = any(t.written for t in machine.tensors)
    if not found or not found <= machine.undefined or not machine.completed or not written:
        return False
    again = Machine(
        machine.program,
        [t.afresh() for t in machine.tensors],
        machine.schedule,
        machine.seed,
        True,
        dict(machine._readings),
        machine.barriers,
        other=True,
    )
    try:
        again.run()
    except Exception:  # an address or a loop that depends on such a value
        return False
    return again.completed and all(
        np.array_equal(t.data, u.data) for t, u in zip(machine.tensors, again.tensors, strict=True)
    )


def _unwritten(machine: Machine, tensor) -> None:
    """Report an output of which whole tiles are missing, or a few elements.

    Only a warning: a kernel may mean to write a part. So the output must have been written for the
    most part, by several CTAs, and what is missing must be whole tiles of those CTAs, or bands as
    wide as the tiles beside them; or at most one element in 32 is missing. A tensor that the kernel
    reads as well, or updates by atomics, is no plain output.
    """
    order = tensor.order
    if order is None or order.reader is not None or order.strong is not None:
        return
    seen = coverage(tensor)
    written, elements = seen["written"], seen["elements"]
    if written is None or written == elements or 2 * written < elements:
        return
    few = 32 * (elements - written) <= elements
    several = len(np.unique(tensor.writer)) >= 3
    tiles = several and (_cells_missing(tensor, seen) or _tiles_missing(tensor, order.writer))
    if not few and not tiles:
        return
    machine.report(
        "unwritten-output",
        None,
        f"{elements - written} of {elements} elements of {tensor.name} are never written"
        + (f": {seen['missing']}" if seen["missing"] else ""),
        memory=f"global memory, tensor {tensor.name}",
        threads="all CTAs",
        fix=(
            "let the tiles cover the whole output: divide rounding up, and let all roles and CTAs "
            "walk through the same tiles; where the rest is meant to stay as it was, this is right"
            if tiles
            else "see which threads would write these elements, and what keeps them from it (a "
            "condition, a bound); where they are meant to stay as they were, this is right"
        ),
        site=int((order.writer[order.writer != 0] & SITE_MASK).min()),
        severity="warning",
    )


def _cells_missing(tensor, seen: dict[str, Any]) -> bool:
    """Whether what nobody has written of a matrix are whole cells of its map of tiles.

    The cells are no finer than 8 x 8, as a tensor core's tiles are: what single threads leave out
    makes smaller ones.
    """
    rows, cols = seen["tile"]
    return len(tensor.shape) == 2 and min(rows, cols) >= 8 and "-" not in "".join(seen["map"])


def _tiles_missing(tensor, stamps: np.ndarray) -> bool:
    """Whether what nobody has written of a tensor are bands of rows or columns between the edges of
    tiles: places where one write ends and another begins."""
    columns = tensor.shape[-1] * tensor.itemsize if tensor.shape else 0
    if columns % tensor.grain or not columns:
        return False
    columns //= tensor.grain
    words = stamps.reshape(-1)
    table = words[: tensor.nbytes // tensor.grain // columns * columns].reshape(-1, columns)
    missing = table == 0
    bands = [missing.all(axis=1), missing.all(axis=0)]
    if (missing != (bands[0][:, None] | bands[1][None, :])).any():
        return False
    who = table >> CLOCK_SHIFT
    for axis, band in enumerate(bands):
        if not band.any():
            continue
        kept = np.flatnonzero(~band)
        lines = (who if axis == 0 else who.T)[kept][:, ~bands[1 - axis]]
        apart = (lines[1:] != lines[:-1]).any(axis=1) & (kept[1:] == kept[:-1] + 1)
        edges = kept[1:][apart]
        if not edges.size:
            return False
        tile = int(np.gcd.reduce(edges))
        ends = np.flatnonzero(np.diff(np.concatenate([[0], band.astype(np.int8), [0]])))
        if tile < 8 or any(int(end) % tile and end != band.size for end in ends):
            return False
    return True


#: Codes whose findings come before others: faults that bring others along.
CAUSES = {
    "barrier-init": 0,
    "setmaxnreg-budget": 0,
    "barrier-parity": 1,
    "barrier-mixed": 1,
    "barrier-overarrival": 2,
    "tx-count": 2,
    "deadlock": 5,
}


def _rank(finding: Finding) -> tuple[int, int]:
    """The order of findings: causes first, as they stand in the source; others in time's order."""
    rank = CAUSES.get(finding.code, 3)
    return rank, finding.location.line if rank < 3 and finding.location else 0


def coverage(tensor) -> dict[str, Any]:
    """Which elements of a written tensor were written, and by how many CTAs."""
    elements = int(np.prod(tensor.shape))
    if tensor.writer is None:
        return {"elements": elements, "written": None, "twice": 0, "missing": ""}
    words = tensor.writer.reshape(-1)
    per = max(1, tensor.grain // tensor.itemsize)
    wide = max(1, tensor.itemsize // tensor.grain)
    owner = np.repeat(words, per)[::wide][:elements]
    missing = owner == 0
    text = ""
    if missing.any() and missing.sum() <= 4:
        where = [np.unravel_index(int(i), tensor.shape or (1,)) for i in np.flatnonzero(missing)]
        text = ", ".join(f"{tensor.name}[{', '.join(str(int(i)) for i in at)}]" for at in where)
    elif missing.any() and len(tensor.shape) == 2:
        text = _tiles(missing.reshape(tensor.shape))
    elif missing.any() and len(tensor.shape) == 1:
        parts = ranges(np.flatnonzero(missing).tolist()).split(", ")
        text = ", ".join(f"{tensor.name}[{part}]" for part in parts[:8])
        text += ", …" * (len(parts) > 8)
    tile, cells = coverage_map(owner.reshape(-1, tensor.shape[-1] if tensor.shape else 1))
    return {
        "elements": elements,
        "written": int(elements - missing.sum()),
        "twice": int((owner == -1).sum()),
        "missing": text,
        "tile": tile,
        "map": cells,
    }


def _tiles(missing: np.ndarray) -> str:
    """The smallest box around the unwritten elements of a matrix, in the reader's words."""
    rows = np.flatnonzero(missing.any(axis=1))
    cols = np.flatnonzero(missing.any(axis=0))
    box = (rows[-1] - rows[0] + 1) * (cols[-1] - cols[0] + 1)
    kind = "all of" if int(missing.sum()) == int(box) else f"{int(missing.sum())} elements of"
    return f"{kind} rows {rows[0]}-{rows[-1]}, columns {cols[0]}-{cols[-1]}"
