"""From a recording to a modelled duration: CTAs on SMs, waves, and shares of the chip's memory.

The sampled clusters stand for all of them. Each different one is replayed on its SMs together with
as many copies of itself as an SM holds, with the SM's share of the bandwidth of L2 and of device
memory; then the grid's clusters are laid out over the chip, wave by wave.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from typing import Any

from mlsys_gpu.sim.timing import events as E
from mlsys_gpu.sim.timing.constants import Gpu, interpolated
from mlsys_gpu.sim.timing.replay import (
    PIPES,
    Compiled,
    Replay,
    Share,
    Sm,
    Trace,
    counts_of,
    hoisted,
    work_cycles,
)

#: The part of L2 that a kernel's data can count on: the rest goes to hashing and to other data.
L2_USABLE = 0.8

#: A part that is busy for so much of the time bounds a launch.
BOUND = 0.6

#: Cycles that are too few to replay a launch again for.
NO_WAIT = 20.0

#: Registers are given to warps in units of 256; an SM has 65,536 of them, 2,048 threads, 32 CTAs
#: and 228 KiB of shared memory, of which each CTA takes 1 KiB more than it asks for (CUDA C++
#: Programming Guide, "Technical Specifications per Compute Capability").
REGISTERS, THREADS, CTAS, SHARED = 65536, 2048, 32, 228 * 1024


@dataclass
class Occupancy:
    """CTAs that an SM holds at a time, and what limits their number."""

    ctas: int
    limit: str
    threads: int
    shared_bytes: int
    registers: int | None
    tmem_columns: int = 0


def occupancy(
    threads: int, shared_bytes: int, registers: int | None, tmem_columns: int = 0
) -> Occupancy:
    """CTAs an SM holds: ``registers`` a thread (None: not known), ``shared_bytes`` a CTA,
    ``tmem_columns`` of the 512 (0: none)."""
    warps = (threads + 31) // 32
    limits = {
        "threads": THREADS // (32 * warps),
        "CTAs": CTAS,
        "shared memory": SHARED // (shared_bytes + 1024),
    }
    if registers:
        of_warp = (32 * registers + 255) // 256 * 256
        limits["registers"] = 4 * (REGISTERS // 4 // of_warp) // warps  # each quarter has its own
    if tmem_columns:
        limits["tensor memory"] = 512 // tmem_columns
    limit = min(limits, key=lambda name: limits[name])
    return Occupancy(max(1, limits[limit]), limit, threads, shared_bytes, registers, tmem_columns)


@dataclass
class Traffic:
    """Bytes that a launch asks of one tensor, and how far they come.

    ``shared`` is the part of the bytes asked for in a wave that are different ones; ``cold`` the
    part of the requests that wait for device memory; ``memory`` the bytes that it moves.
    """

    name: str
    requested: float
    unique: float
    shared: float
    cold: float
    memory: float
    write: bool


@dataclass
class Timing:
    """A modelled duration, and what it is made of. All of it is a model's, not a measurement.

    Attributes:
        cycles: of the kernel, from its first instruction's issue to its end; ``start_cycles`` of
            them pass before its warps begin.
        clock_mhz: the SM clock, where the power limit leaves it.
        launch_us: from one launch to the next in a queue of empty ones.
        occupancy: CTAs that an SM holds, and what limits them.
        clusters, slots: clusters that are launched, and how many the GPU holds at a time;
            ``waves`` is their quotient.
        executed, replayed: clusters that ran in the simulator, and different ones among those
            recorded.
        traffic: bytes by tensor, of the launch.
        tensor_flops: operations of the tensor cores, of the launch, padding included.
        tensor_busy, memory_busy, l2_busy, pipes: parts of the time that the units are in use.
        shown: cycles of the cluster that :meth:`timeline` and :meth:`statistics` show, which runs
            beside as many copies of itself as an SM holds.
    """

    gpu: str
    cycles: float  # of the kernel alone
    clock_mhz: float
    launch_us: float
    occupancy: Occupancy
    clusters: int
    slots: int
    waves: float
    traffic: list[Traffic]
    tensor_flops: float
    tensor_busy: float
    memory_busy: float
    l2_busy: float
    pipes: dict[str, float]
    replayed: int
    executed: int
    note: str
    start_cycles: float = 0.0
    trace: Trace = field(repr=False, default_factory=Trace)
    shown: float = 0.0  # cycles of the traced run
    logs: Any = field(repr=False, default=None)
    recording: Any = field(repr=False, default=None)
    program: Any = field(repr=False, default=None)

    @property
    def microseconds(self) -> float:
        """Modelled duration of a launch in a queue of launches, microseconds."""
        return self.launch_us + self.cycles / self.clock_mhz

    def tflops(self, flops: float | None = None) -> float:
        """Modelled TFLOP/s for ``flops`` (default: what the tensor cores execute)."""
        return (self.tensor_flops if flops is None else flops) / self.microseconds / 1e6

    def statistics(self) -> dict[str, Any]:
        """Who was busy and who waited, bank conflicts, bytes, occupancy: :mod:`.statistics`."""
        from mlsys_gpu.sim.timing.statistics import statistics

        return statistics(self)

    def timeline(self, flops: float | None = None) -> dict[str, Any]:
        """The modelled run of one cluster as plain data: :mod:`.timeline`."""
        from mlsys_gpu.sim.timing.timeline import timeline

        return timeline(self, flops)

    def text(self, flops: float | None = None) -> str:
        """In a terminal's words; ``flops`` of the whole launch, for TFLOP/s."""
        from mlsys_gpu.sim.timing.statistics import text

        return text(self, flops)

    def __str__(self) -> str:
        return self.text()

    def summary(self, flops: float | None = None) -> dict[str, Any]:
        """The figures of :meth:`text` as plain values: :func:`.statistics.summary`."""
        from mlsys_gpu.sim.timing.statistics import summary

        return summary(self, flops)

    def save(self, path: Any, flops: float | None = None) -> Any:
        """Write the timeline as ``.json`` for Perfetto, or as ``.html``: :func:`.files.save`."""
        from mlsys_gpu.sim.timing.files import save

        return save(self, path, flops)

    def figure(self, flops: float | None = None, **options: Any) -> Any:
        """The timeline as a figure that scrubs (:func:`mlsys_gpu.viz.timeline`)."""
        from mlsys_gpu import viz

        return viz.timeline(self.timeline(flops), **options)

    @property
    def bound(self) -> str:
        """What the duration comes nearest to: the tensor cores, device memory, L2, a pipe of the
        SMs; or latency, where none of them is busy most of the time."""
        parts = {
            "the tensor cores": self.tensor_busy,
            "device memory": self.memory_busy,
            "L2": self.l2_busy,
            **self.pipes,
        }
        name = max(parts, key=lambda k: parts[k])
        busy = f"{name} {100 * min(1.0, parts[name]):.0f} % busy"
        if parts[name] >= BOUND:
            return f"{name} ({busy.removeprefix(name).strip()})"
        return f"latency (at most {busy})"

    @property
    def memory_bytes(self) -> float:
        """Bytes that device memory moves."""
        return sum(t.memory for t in self.traffic)


def _signature(logs: list[list[list[tuple]]]) -> int:
    """Equal for clusters whose warps did the same, apart from where their data lies."""
    numbers = []
    for cta in logs:
        for log in cta:
            numbers.append(len(log))
            numbers.append(hash(tuple([event[:3] for event in log if event[0] not in _BY_TOKEN])))
    return hash(tuple(numbers))


_BY_TOKEN = (E.SIGNAL, E.WAIT, E.TC_COMMIT, E.ASYNC_ARRIVE)


def _queue(busy: float) -> float:
    """The mean wait in a queue of equal requests that come at random, in times of one's service
    (M/D/1: Pollaczek-Khinchine)."""
    part = min(busy, 0.9)
    return part / (2 * (1 - part))


#: The pipes of an SM in a reader's words.
_PIPE_NAMES = {
    "shared": "shared memory's pipe",
    "issue": "instruction issue",
    "fma": "the FMA pipe",
    "alu": "the integer and logic pipe",
    "xu": "special functions",
    "half": "the half-precision pipe",
    "f64": "the float64 pipe",
}


class Model:
    """The chip with one launch on it."""

    def __init__(
        self,
        recording: Any,
        program: Any,
        gpu: Gpu,
        compiled: Compiled | None = None,
    ):
        self.recording, self.program, self.gpu = recording, program, gpu
        self.compiled = compiled or Compiled()
        launch = program.launch
        cx, cy, cz = launch["cluster"]
        self.size = cx * cy * cz
        gx, gy, gz = launch["grid"]
        self.clusters = gx * gy * gz // self.size
        shared = launch["shared_bytes"] + program.static_shared
        columns = self._tmem_columns()
        self.occupancy = occupancy(launch["threads"], shared, self.compiled.registers, columns)
        # clusters of many CTAs do not fit each GPC to the last SM
        self.slots = max(1, gpu.sms // self.size * self.occupancy.ctas)
        self.work = work_cycles(program.work, gpu)
        self.groups = self._groups()
        self.started = recording.started or self.clusters
        #: A cluster's average part of what a sampled one has done: launch control deals the grid's
        #: clusters out, and the sampled ones get as many as anyone.
        self.part = min(1.0, self.clusters / self.started / recording.share)
        self._contended = self._common_atomics()
        self._copies = any(
            event[0] == E.COPY_IN
            for _, logs in self.groups
            for cta in logs
            for log in cta
            for event in log
        )

    def _common_atomics(self) -> set[int]:
        """Addresses that atomics of several clusters meet at."""
        seen: dict[int, set[int]] = {}
        for number, logs in self.recording.sampled.items():
            for log in (log for cta in logs for log in cta):
                for event in log:
                    if event[0] == E.ATOMIC and event[2] == "global":
                        seen.setdefault(event[6], set()).add(number)
        return {where for where, clusters in seen.items() if len(clusters) > 1}

    def _tmem_columns(self) -> int:
        return int(self.recording.tmem_columns)

    def _groups(self) -> list[tuple[list[int], Any]]:
        """Sampled clusters that did the same: their numbers, and the logs of one."""
        groups: dict[int, tuple[list[int], Any]] = {}
        for number, logs in sorted(self.recording.sampled.items()):
            groups.setdefault(_signature(logs), ([], logs))[0].append(number)
        usual = int(self.gpu["load_batch"])
        loads, shared = self.compiled.loads or usual, self.compiled.shared_loads or usual
        return [
            (numbers, [[hoisted(log, loads, shared) for log in cta] for cta in logs])
            for numbers, logs in groups.values()
        ]

    # ------------------------------------------------------------------------------- memory

    def traffic(self, count: int) -> list[Traffic]:
        """What ``count`` clusters ask of each tensor."""
        sampled = self.recording.sampled
        found = []
        active = min(count, self.slots)
        asked: dict[tuple[int, bool], float] = {}
        first: dict[tuple[int, bool], dict[int, Any]] = {}
        for number, logs in sampled.items():
            for cta in logs:
                for log in cta:
                    for event in log:
                        kind = event[0]
                        if kind == E.LOAD or kind == E.STORE:
                            place, nbytes = event[5], 32 * event[3]  # whole sectors move
                        elif kind == E.COPY_IN or kind == E.COPY_OUT:
                            place, nbytes = event[4], event[2]
                        elif kind == E.ASYNC_COPY:
                            place, nbytes = event[5], 32 * event[4]
                        else:
                            continue
                        key = place[0], kind in (E.STORE, E.COPY_OUT)
                        asked[key] = asked.get(key, 0.0) + nbytes
                        first.setdefault(key, {}).setdefault(number, place)
        total_unique = 0.0
        rows = []
        for key, nbytes in asked.items():
            space, write = key
            name, size = self.recording.tensors.get(space, ("?", nbytes))
            requested = nbytes / len(sampled) * count * self.part
            shared, different = self._different(space, first[key], active, count)
            each = nbytes / len(sampled)
            unique = min(float(size), requested, max(1.0, different) * each)
            rows.append((key, name, requested, unique, shared))
            total_unique += unique
        wave = sum(r * s for _, _, r, _, s in rows) / max(1, count) * active
        fits = total_unique <= L2_USABLE * float(self.gpu["l2_bytes"])
        again = fits or wave <= L2_USABLE * float(self.gpu["l2_bytes"])
        for (_, write), name, requested, unique, shared in rows:
            shared = max(shared, unique / requested) if requested else 1.0
            in_wave = shared * requested / count * active
            if write or again or in_wave < 0.99 * unique:
                memory = unique
            else:  # each wave reads all of it, and L2 has lost it by then
                memory = max(unique, shared * requested)
            cold = min(1.0, memory / max(1.0, shared * requested))
            found.append(Traffic(name, requested, unique, shared, cold, memory, write))
        self._spaces = [key for key, *_ in rows]
        return found

    def _different(
        self, space: int, places: dict[int, Any], active: int, count: int
    ) -> tuple[float, float]:
        """How many of ``active`` clusters ask for different bytes of a tensor, as a part of them,
        and how many of all ``count``: by the axes of the grid that its addresses depend on."""
        gx, gy, gz = self.program.launch["grid"]
        cx, cy, cz = self.program.launch["cluster"]
        nx, ny, nz = gx // cx, gy // cy, gz // cz
        if sum(n > 1 for n in (nx, ny, nz)) < 2:
            part = self._probed(space, active)
            return part, part * active if active < count and part < 0.5 else part * count
        steps = {0: 1, 1: nx, 2: nx * ny}
        depends = []
        for axis, n in enumerate((nx, ny, nz)):
            neighbour = places.get(steps[axis])
            if n == 1:
                depends.append(False)
            elif neighbour is None or 0 not in places:
                depends.append(True)
            else:
                depends.append(neighbour != places[0])
        seen = set()
        for number in range(active):
            at = (number % nx, number // nx % ny, number // (nx * ny))
            seen.add(tuple([v for v, d in zip(at, depends, strict=True) if d]))
        everywhere = math.prod(n for n, d in zip((nx, ny, nz), depends, strict=True) if d)
        return len(seen) / active, float(everywhere)

    def _probed(self, space: int, active: int) -> float:
        """The same on a grid of one dimension, by where the first wave's clusters begin to read."""
        firsts = self.recording.firsts
        begun = [firsts[n][space] for n in range(active) if n in firsts and space in firsts[n]]
        different = len(set(begun))
        if not begun:  # nobody reads it
            return 1.0
        if 2 * different <= len(begun):  # few tiles: clusters that were not looked at have the same
            return different / active
        return different / len(begun)

    def share(self, traffic: list[Traffic], active: int, part: float, cycles: float = 0.0) -> Share:
        """What one of ``active`` SMs gets of the chip: the ``part`` of the CTAs that it holds.
        ``cycles``: how long the launch takes, from which follows how much of the bandwidth is in
        use, and how long requests wait therefore."""
        gpu = self.gpu
        each = 1e9 / gpu.clock_hz * part
        mixed = self._mixed(traffic)
        share = Share(
            port=float(gpu["sm_bytes"]),
            port_out=float(gpu["sm_store_bytes"]),
            l2=float(gpu["l2_read"]) * each,
            copies={},
            out=float(gpu["l2_write"]) * each,
            hbm_read=min(float(gpu["sm_hbm_bytes"]), float(gpu["hbm_read"]) * each * mixed),
            hbm_write=float(gpu["hbm_write"]) * each * mixed,
        )
        share.contended = {where: float(active) for where in self._contended}
        for (space, write), row in zip(self._spaces, traffic, strict=True):
            part = row.memory / row.requested if row.requested else 0.0
            if write:
                share.traffic[-space] = part
            else:
                share.traffic[space] = part
                share.cold[space] = row.cold
                alone, together = float(gpu["l2_copy"]), float(gpu["l2_copy_shared"])
                # of the SMs that read the same, a part does so at the same time
                apart = row.shared + (1 - row.shared) * (1 - float(gpu["together"]))
                cost = 1 / together + apart * (1 / alone - 1 / together)
                share.copies[space] = each / cost
        if cycles:
            share.waits = (
                interpolated(gpu["l2_loaded"], self._l2_busy(traffic, cycles)),
                interpolated(gpu["hbm_loaded"], self._memory_busy(traffic, cycles)),
                interpolated(
                    gpu["l2_copy_loaded"], self._copies_busy(traffic, share, active, cycles)
                ),
            )
        return share

    def _mixed(self, traffic: list[Traffic]) -> float:
        """How much of its bandwidth device memory keeps where reads and writes alternate."""
        gpu = self.gpu
        reads = sum(t.memory for t in traffic if not t.write)
        writes = sum(t.memory for t in traffic if t.write)
        if not reads or not writes:
            return 1.0
        apart = 2 / (1 / float(gpu["hbm_read"]) + 1 / float(gpu["hbm_write"]))
        lost = 1 - float(gpu["hbm_copy"]) / apart
        return 1 - lost * 4 * reads * writes / (reads + writes) ** 2

    # ------------------------------------------------------------------------------- replay

    def replay(self, logs: Any, share: Share, residents: int, rounds: int, trace: bool):
        """Run ``residents`` copies of a cluster on its SMs, ``rounds`` one after the other in each
        slot; returns the cycles until all have ended, and the trace of the first."""
        run = Replay(self.gpu, share, self.work, self.compiled)
        if trace:
            run.trace = Trace()
        sms = [Sm() for _ in range(self.size)]
        counts = counts_of(logs)
        left, begin = residents * (rounds - 1), 0.0
        start = self.gpu.cycles("cta_start")
        first: Any = None

        def ended(copy: Any) -> None:
            nonlocal left
            if left:
                left -= 1
                run.start(logs, counts, sms, copy.end + start)

        for i in range(residents):  # the last of them is traced: it meets all the others
            begin = i * self.gpu.cycles("cta_stagger")
            first = run.start(logs, counts, sms, begin, traced=i == residents - 1)
        last = run.run(ended)
        # What is still to be written holds the next launch up: the queue must be empty by then.
        last = max(last, *(sm.hbm for sm in sms))
        if run.trace is not None:
            run.trace.shift(begin)
        return last, first.end - begin, run.trace

    def timing(self) -> Timing:
        """Replay the sampled clusters and lay the grid out over the chip."""
        gpu, count = self.gpu, self.started
        traffic = self.traffic(count)
        active = min(gpu.sms, count * self.size)
        residents = min(self.occupancy.ctas, -(-count * self.size // active))
        cycles, part = 0.0, residents / (min(count, self.slots) * self.size)
        for again in (False, True):  # once more, with what others' traffic makes requests wait
            share = self.share(traffic, active, part, cycles)
            if again and max(share.waits) < NO_WAIT:
                break
            longest, traced, shown, logs_shown = -1.0, Trace(), 0.0, None
            durations: list[tuple[list[int], float, float]] = []
            for numbers, logs in self.groups:
                one, end, trace = self.replay(logs, share, residents, 1, True)
                steady = one
                if count > self.slots:
                    steady = self.replay(logs, share, residents, 2, False)[0] - one
                durations.append((numbers, one, steady))
                if one > longest:
                    longest, shown, logs_shown = one, end, logs
                    traced = trace or traced
            cycles = self._grid(durations, traffic, count) + gpu.cycles("start")
        sampled = sum(len(numbers) for numbers, _ in self.groups)
        flops = tensor = 0.0
        for numbers, logs in self.groups:
            done, cycles_busy = self._tensor(logs)
            flops += done * len(numbers) / sampled
            tensor += cycles_busy * len(numbers) / sampled
        busy = 0.0
        if cycles:
            busy = min(1.0, tensor * self.part * count * self.size / active / cycles)
        memory_busy, l2_busy = self._memory_busy(traffic, cycles), self._l2_busy(traffic, cycles)
        # The limit is the chip's: SMs without a CTA draw nothing for their tensor cores.
        clock = gpu.clock_at(busy * active / gpu.sms, l2_busy, memory_busy)
        # What waits for memory alone takes the same time at any clock.
        note = f"modelled for {gpu.name}, not measured"
        if self.compiled.registers is None:
            note += "; without what the compiler decides (registers, loads under way together)"
        if len(self.recording.sampled) < count:
            note += f": {len(self.recording.sampled)} of {count} clusters stand for all"
        return Timing(
            gpu=gpu.name,
            cycles=cycles,
            clock_mhz=clock / 1e6,
            launch_us=float(gpu["launch"]),
            occupancy=self.occupancy,
            clusters=count,
            slots=self.slots,
            waves=count / self.slots,
            traffic=traffic,
            tensor_flops=flops * count * self.part,
            tensor_busy=busy,
            memory_busy=memory_busy,
            l2_busy=self._l2_shown(traffic, share, active, cycles),
            pipes=self._pipes(cycles, active, count),
            replayed=len(self.groups),
            executed=self.recording.clusters,
            note=note,
            start_cycles=gpu.cycles("start"),
            trace=traced,
            shown=shown,
            logs=logs_shown,
            recording=self.recording,
            program=self.program,
        )

    def _copies_busy(
        self, traffic: list[Traffic], share: Share, active: int, cycles: float
    ) -> float:
        """The part of L2's bandwidth that reads use, at the rates that copies have."""
        used = 0.0
        for (space, write), row in zip(self._spaces, traffic, strict=True):
            if not write:
                used += row.requested / active / share.copies[space]
        return used / max(1.0, cycles)

    def _l2_busy(self, traffic: list[Traffic], cycles: float) -> float:
        """The part of L2's bandwidth that reads use: of threads' loads, which is the least."""
        reads = sum(t.requested for t in traffic if not t.write)
        return reads / (max(1.0, cycles) / self.gpu.clock_hz * float(self.gpu["l2_read"]) * 1e9)

    def _l2_shown(self, traffic: list[Traffic], share: Share, active: int, cycles: float) -> float:
        """The same, at the rate that the kernel's own kind of reads has."""
        if self._copies:
            return min(1.0, self._copies_busy(traffic, share, active, cycles))
        return min(1.0, self._l2_busy(traffic, cycles))

    def _memory_busy(self, traffic: list[Traffic], cycles: float) -> float:
        seconds = sum(
            t.memory / (float(self.gpu["hbm_write" if t.write else "hbm_read"]) * 1e9)
            for t in traffic
        )
        return seconds / (max(1.0, cycles) / self.gpu.clock_hz)

    def _tensor(self, logs: Any) -> tuple[float, float]:
        """Tensor-core operations of a cluster, and the cycles that one of its SMs is busy."""
        flops, cycles = 0.0, 0.0
        for rank, cta in enumerate(logs):
            for index, log in enumerate(cta):
                for event in log:
                    if event[0] == E.WGMMA:
                        _, _, n, registers, steps, *_ = event
                        flops += 2.0 * 16 * n * 16 * steps
                        if rank == 0 and index % 4 == 0:
                            cycles += self.gpu.wgmma(n, registers) * steps
                    elif event[0] == E.MMA:
                        flops += 2.0 * 16 * 8 * event[2] * event[3]
                        if rank == 0:
                            cycles += self.gpu.mma(event[2]) * event[3] / 4
                    elif event[0] == E.TC_MMA:
                        _, _, m, n, group, in_tmem, steps, *_ = event
                        flops += 2.0 * m * n * 16 * steps
                        cycles += self.gpu.tcgen05_mma(m, n, group, in_tmem) * steps * group
        if logs and any(e[0] == E.TC_MMA for cta in logs for log in cta for e in log):
            cycles /= self.size
        return flops, cycles

    def _pipes(self, cycles: float, active: int, count: int) -> dict[str, float]:
        """For which part of the time the pipes of an SM are busy, by their names."""
        spent = dict.fromkeys(_PIPE_NAMES.values(), 0.0)
        sampled = sum(len(numbers) for numbers, _ in self.groups)
        for numbers, logs in self.groups:
            weight = len(numbers) / sampled / self.size
            for event in (e for cta in logs for log in cta for e in log):
                kind, unit = event[0], 0.0
                if kind == E.WORK:
                    issue, pipes = self.work[event[2]]
                    spent[_PIPE_NAMES["issue"]] += weight * issue * event[3] / 4
                    for name, taken in zip(PIPES, pipes, strict=True):
                        if taken:
                            spent[_PIPE_NAMES[name]] += weight * taken * event[3] / 4
                elif kind in (E.SHARED_LOAD, E.SHARED_STORE):
                    unit = event[3]
                elif kind == E.LOAD:
                    unit = event[3] / 4  # sectors of 32 bytes, 128 bytes a cycle
                elif kind == E.STORE:
                    unit = 32 * event[3] / float(self.gpu["sm_store_bytes"])
                elif kind == E.ASYNC_COPY:
                    unit = event[3] / 128
                spent[_PIPE_NAMES["shared"]] += weight * unit
        each = self.part * count * self.size / active / max(1.0, cycles)
        return {name: min(1.0, n * each) for name, n in spent.items()}

    def _grid(self, durations, traffic, count: int) -> float:
        """Cycles until the last of ``count`` clusters has ended."""
        if count <= self.slots:
            return max(one for _, one, _ in durations)
        spread = max(one for _, one, _ in durations) / min(one for _, one, _ in durations)
        if spread < 1.05:
            _, one, steady = max(durations, key=lambda d: d[1])
            full, rest = divmod(count, self.slots)
            total = one + (full - 1) * steady
            if rest:
                total += min(self._tail(traffic, rest, self.groups[0][1]), steady)
            return total
        # Clusters differ: each goes to the slot that is free first, as the hardware does. Those of
        # the last, partial wave have the SMs to fewer of them.
        nearest = sorted((n, one, steady) for numbers, one, steady in durations for n in numbers)
        slots = [0.0] * self.slots
        full = count // self.slots * self.slots
        at = 0
        for number in range(full):
            while at + 1 < len(nearest) and abs(nearest[at + 1][0] - number) <= abs(
                nearest[at][0] - number
            ):
                at += 1
            begin = heapq.heappop(slots)
            _, one, steady = nearest[at]
            heapq.heappush(slots, begin + (one if not begin else steady))
        if count == full:
            return max(slots)
        tail = self._tail(traffic, count - full, self.groups[-1][1])
        return max(max(slots), sum(slots) / len(slots) + tail)

    def _tail(self, traffic: list[Traffic], rest: int, logs: Any) -> float:
        """Cycles of the clusters of a last, partial wave."""
        active = min(self.gpu.sms, rest * self.size)
        residents = min(self.occupancy.ctas, -(-rest * self.size // active))
        share = self.share(traffic, active, residents / (rest * self.size))
        tail, _, _ = self.replay(logs, share, residents, 1, False)
        return tail + self.gpu.cycles("cta_start")
