"""What is measured, and the arithmetic from clocks to constants.

Each group of constants is a function of a :class:`Meter`; ``python -m
mlsys_gpu.calibration.measure GROUP`` prints one group as JSON. A group runs in its own process, so
that a kernel that hangs or faults takes no other group along.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mlsys_gpu.calibration.gpu import Boxes, Gpu, u32, u64

REPEATS = 7
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
BIG = 2 * GIB
"""Bytes that are read from and written to HBM."""
HALF_BIG_COLUMNS, BIG_ROWS = 4096, 1 << 18  # the f16 tensor of BIG bytes


def spread(samples: Sequence[float]) -> tuple[float, float, float]:
    """Median, 20th and 80th percentile."""
    if len(samples) == 1:
        return samples[0], samples[0], samples[0]
    twentieths = statistics.quantiles(samples, n=20, method="inclusive")
    return statistics.median(samples), twentieths[3], twentieths[15]


def rounded(value: float) -> float:
    """Five significant digits."""
    return float(f"{value:.5g}")


def span(clocks: np.ndarray) -> int:
    """Cycles from the first warp's begin to the last warp's end; ``clocks`` are (warps, 2)."""
    return int(clocks[:, 1].max()) - int(clocks[:, 0].min())


def slope(few: int, cycles_few: float, many: int, cycles_many: float, each: float = 1.0) -> float:
    """Cycles of one operation from two numbers of passes with ``each`` operations in a pass."""
    return (cycles_many - cycles_few) / ((many - few) * each)


class Meter:
    """Collects constants that are measured on one GPU."""

    def __init__(self, gpu: Any):
        self.gpu = gpu
        self.found: dict[str, dict[str, Any]] = {}

    def put(self, name: str, samples: Sequence[float], unit: str, how: str) -> float:
        """Note a constant from its samples; its value."""
        value, low, high = spread([float(sample) for sample in samples])
        self.found[name] = {
            "value": rounded(value),
            "unit": unit,
            "spread": [rounded(low), rounded(high)],
            "how": how,
        }
        return value

    # ------------------------------------------------------------------------ measurements

    def once(
        self, kernel: str, arguments: Sequence[Any], *, block: int = 32, **how: Any
    ) -> np.ndarray:
        """Launch a timed kernel; (CTAs, warps, 2) clocks."""
        gpu, grid, warps = self.gpu, how.get("grid", 1), -(-block // 32)
        gpu.launch(kernel, [u64(gpu.times), *arguments], block=block, **how)
        return gpu.download(gpu.times, 2 * grid * warps).reshape(grid, warps, 2)

    def slopes(
        self,
        kernel: str,
        arguments: Callable[[int], Sequence[Any]],
        each: float,
        *,
        few: int = 16,
        many: int = 80,
        repeats: int = REPEATS,
        **how: Any,
    ) -> list[float]:
        """Cycles of one of ``each`` operations in a pass, from CTA 0, several times."""
        found = []
        for _ in range(repeats):
            spans = [span(self.once(kernel, arguments(n), **how)[0]) for n in (few, many)]
            found.append(slope(few, spans[0], many, spans[1], each))
        return found

    def seconds(
        self,
        kernel: str,
        arguments: Callable[[int], Sequence[Any]],
        *,
        few: int,
        many: int,
        repeats: int = REPEATS,
        **how: Any,
    ) -> list[float]:
        """Seconds of one pass of a whole grid, between events, several times."""
        gpu = self.gpu
        launches = [
            gpu.prepare(kernel, [u64(gpu.times), *arguments(n)], **how) for n in (few, many)
        ]
        gpu.milliseconds(launches[:1])
        found = []
        for _ in range(repeats):
            times = [gpu.milliseconds([launch]) / 1e3 for launch in launches]
            found.append(slope(few, times[0], many, times[1]))
        return found

    def megahertz(self, repeats: int = 3) -> list[float]:
        """SM clock while little happens."""
        found = []
        for _ in range(repeats):
            clocks = self.once("launch/clock_light", [u64(4_000_000)])[0, 0]
            found.append(float(clocks[0]) / float(clocks[1]) * 1e3)
        return found

    def clock_overhead(self) -> float:
        """Cycles between two readings of the clock with nothing between."""
        self.gpu.launch("launch/clock_overhead", [u64(self.gpu.times), u32(64)])
        return float(np.median(self.gpu.download(self.gpu.times, 64)))

    def data(self) -> int:
        """Address of 4096 numbers from 0.5 to 1, as f32."""
        rng = np.random.default_rng(0)
        return self.gpu.upload(rng.uniform(0.5, 1.0, 4096).astype(np.float32))


PER_PASS = "; difference of two numbers of passes"

# -------------------------------------------------------------------------------------- groups


def clocks(meter: Meter) -> None:
    """The SM's clock, idle and under full tensor load."""
    gpu = meter.gpu
    meter.put(
        "clock_mhz",
        meter.megahertz(REPEATS),
        "MHz",
        "clock64 against globaltimer over 4 million cycles of one idle warp",
    )
    operands = _normal_halves(gpu)
    sink = gpu.allocate(64 * KIB)
    iters, megahertz, tflops = 60_000, [], []
    flop = 2 * 64 * 256 * 16 * 16 * (iters + 4) * 2 * gpu.sms
    for number in range(8):
        gpu.launch(
            "wgmma/wgmma_clock",
            [u64(gpu.times), u64(sink), u64(operands), u32(iters)],
            grid=gpu.sms,
            block=256,
            shared=64 * KIB,
        )
        taken = gpu.download(gpu.times, 2 * gpu.sms).reshape(-1, 2).astype(float)
        if number >= 3:  # until power and clock have settled
            megahertz.append(float(np.median(taken[:, 0] / taken[:, 1])) * 1e3)
            tflops.append(flop / taken[:, 1].max() / 1e3)
    how = (
        "all SMs run m64n256k16 from two warpgroups on standard normal f16 in shared memory, "
        "0.15 s at a time, after three of them"
    )
    meter.put("clock_mhz_tensor", megahertz, "MHz", f"clock64 against globaltimer while {how}")
    meter.put("tensor_tflops", tflops, "TFLOP/s", how)


def _normal_halves(gpu: Any) -> int:
    rng = np.random.default_rng(1)
    return gpu.upload(rng.standard_normal(32 * KIB).astype(np.float16))


def launches(meter: Meter) -> None:
    """Kernel launches and CTA launches."""
    gpu = meter.gpu
    mhz = statistics.median(meter.megahertz())
    count = 400
    for name, grid, shared in (
        ("launch_us", 1, 0),
        ("launch_us.full_grid", gpu.sms, 0),
        ("launch_us.full_grid_200kb", gpu.sms, 200 * KIB),
    ):
        empty = gpu.prepare("launch/empty", [], grid=grid, block=128, shared=shared)
        gpu.milliseconds([empty] * count)
        times = [gpu.milliseconds([empty] * count) * 1e3 / count for _ in range(REPEATS)]
        meter.put(
            name,
            times,
            "us",
            f"{count} empty kernels of {grid} CTAs of 128 threads and {shared // KIB} KiB of "
            "shared memory, queued back to back, between two events",
        )
    few, many = 64, 1024
    for block, shared in (
        (32, 0),
        (128, 0),
        (256, 0),
        (384, 0),
        (1024, 0),
        (128, 100 * KIB),
        (128, 200 * KIB),
        (384, 200 * KIB),
    ):
        made = [
            gpu.prepare("launch/empty", [], grid=gpu.sms * n, block=block, shared=shared)
            for n in (few, many)
        ]
        gpu.milliseconds(made)
        samples = []
        for _ in range(REPEATS):
            times = [gpu.milliseconds([launch]) * 1e3 * mhz for launch in made]
            samples.append(slope(few, times[0], many, times[1]))
        tail = f".{shared // KIB}kb" if shared else ""
        meter.put(
            f"launch_cta_cycles.t{block}{tail}",
            samples,
            "cycles",
            f"empty CTAs of {block} threads and {shared // KIB} KiB of shared memory, for each "
            "that an SM runs, by events; difference of two grids",
        )
    # gaps between work on one SM, by its clock: one CTA fits an SM
    held = {"block": 128, "shared": 200 * KIB}
    between, within = [], []
    for _ in range(REPEATS):
        second = gpu.times + 256 * KIB
        pair = [
            gpu.prepare("launch/stamps", [u64(at), u32(20_000)], grid=gpu.sms, **held)
            for at in (gpu.times, second)
        ]
        gpu.milliseconds(pair)
        stamps = [gpu.download(at, 3 * gpu.sms).reshape(-1, 3) for at in (gpu.times, second)]
        ended = {int(sm): int(end) for sm, _, end in stamps[0]}
        between += [int(t0) - ended[int(sm)] for sm, t0, _ in stamps[1] if int(sm) in ended]
        double = gpu.prepare(
            "launch/stamps", [u64(gpu.times), u32(20_000)], grid=2 * gpu.sms, **held
        )
        gpu.milliseconds([double])
        within += gaps(gpu.download(gpu.times, 6 * gpu.sms).reshape(-1, 3))
    meter.put(
        "kernel_gap_cycles",
        between,
        "cycles",
        "last clock of a kernel to first of the next on the same SM, two kernels of one CTA "
        "an SM (200 KiB of shared memory), queued back to back",
    )
    meter.put(
        "cta_gap_cycles",
        within,
        "cycles",
        "last clock of a CTA to first of the next on the same SM, where one fits "
        "(200 KiB of shared memory)",
    )


def gaps(stamps: np.ndarray) -> list[int]:
    """Cycles between consecutive CTAs of the same SM; rows are (SM, began, ended)."""
    found = []
    for sm in np.unique(stamps[:, 0]):
        rows = stamps[stamps[:, 0] == sm]
        rows = rows[np.argsort(rows[:, 1])]
        found += [int(rows[i + 1, 1]) - int(rows[i, 2]) for i in range(len(rows) - 1)]
    return found


# instructions of a step where it is not one, and what the step is
_STEPS: dict[str, tuple[int, str]] = {
    "ffma": (1, "fma.rn.f32"), "fadd": (1, "add.f32"), "fmul": (1, "mul.f32"),
    "fmnmx": (2, "max.f32 and min.f32"), "hfma2": (1, "fma.rn.f16x2"),
    "iadd": (2, "add.s32 (IADD3 and IMAD.IADD in turn)"), "lop": (2, "lop3.b32"),
    "imad": (1, "mad.lo.s32"), "prmt": (1, "prmt.b32"), "shf": (1, "shf.l.wrap.b32"),
    "setp_sel": (1, "setp and selp, both"), "ex2": (1, "ex2.approx.ftz.f32"),
    "lg2": (1, "lg2.approx.ftz.f32"), "rcp": (1, "rcp.approx.ftz.f32 (less an add's latency)"),
    "rsqrt": (1, "rsqrt.approx.ftz.f32"), "tanh": (1, "tanh.approx.f32"),
    "cvt_f16x2_f32": (1, "cvt.rn.f16x2.f32"), "cvt_bf16x2_f32": (1, "cvt.rn.bf16x2.f32"),
    "cvt_f32_f16": (1, "cvt.f32.f16"), "i2f": (1, "cvt.rn.f32.s32"),
    "f2i": (1, "cvt.rzi.s32.f32"), "div_rn": (1, "div.rn.f32, IEEE, all its instructions"),
    "div_approx": (1, "div.approx.ftz.f32, all its instructions"),
    "sqrt_rn": (1, "sqrt.rn.f32, IEEE, all its instructions"),
    "rcp_rn": (1, "rcp.rn.f32, IEEE, all its instructions"),
    "expf": (1, "expf(-x) at full precision, all its instructions"),
    "exp2f": (1, "exp2f(-x) at full precision, all its instructions"),
    "shfl": (1, "shfl.sync.bfly.b32"), "redux": (1, "redux.sync.add.u32 and the move back"),
    "ballot": (1, "setp and vote.sync.ballot.b32, both"),
}  # fmt: skip


def arithmetic(meter: Meter) -> None:
    """Latency and throughput of instructions that the warp schedulers issue."""
    data = meter.data()

    def arguments(n: int) -> list[Any]:
        return [u64(data), u32(n)]

    latency: dict[str, list[float]] = {}
    for name, (count, what) in _STEPS.items():
        latency[name] = meter.slopes(f"arithmetic/{name}_latency", arguments, 32 * count)
        rate = meter.slopes(f"arithmetic/{name}_rate", arguments, 32 * count * 16, block=512)
        if name == "rcp":
            less = statistics.median(latency["fadd"])
            latency[name] = [cycles - less for cycles in latency[name]]
        meter.put(
            f"{name}.latency", latency[name], "cycles", f"{what}, chain of 32 in one warp{PER_PASS}"
        )
        meter.put(
            f"{name}.rate",
            [32 / cycles for cycles in rate],
            "lanes/clk/SM",
            f"{what}, eight chains in each of 16 warps{PER_PASS}",
        )


def shared(meter: Meter) -> None:
    """Shared memory, its bank conflicts, matrices in it and atomics on it."""
    data = meter.data()
    held = {"shared": 32 * KIB}
    add = statistics.median(
        meter.slopes("arithmetic/iadd_latency", lambda n: [u64(data), u32(n)], 64)
    )

    def at(step: int | None) -> Callable[[int], list[Any]]:
        rest = [] if step is None else [u32(step)]
        return lambda n: [u64(data), u32(n), *rest]

    for kind, each, steps in (
        ("ld_shared", 16, (0, 1, 2, 4, 8, 16, 32)),
        ("ld_shared_v4", 8, (0, 1, 2, 4, 8)),
    ):
        for step in steps:
            what = f"{kind}, lanes {step} accesses apart"
            meter.put(
                f"{kind}.latency.x{step}",
                meter.slopes(f"shared/{kind}_latency", at(step), 32, **held),
                "cycles",
                f"{what}, chain of loads in one warp{PER_PASS}",
            )
            meter.put(
                f"{kind}.cycles.x{step}",
                meter.slopes(f"shared/{kind}_rate", at(step), each * 16, block=512, **held),
                "cycles/warp instruction/SM",
                f"{what}, 16 warps{PER_PASS}",
            )
    for kind, each, steps in (
        ("st_shared", 16, (1, 2, 4, 8, 16, 32)),
        ("st_shared_v4", 8, (1, 2, 4, 8)),
    ):
        for step in steps:
            meter.put(
                f"{kind}.cycles.x{step}",
                meter.slopes(f"shared/{kind}_rate", at(step), each * 16, block=512, **held),
                "cycles/warp instruction/SM",
                f"{kind}, lanes {step} accesses apart, 16 warps{PER_PASS}",
            )
    meter.put(
        "st_ld_shared.latency",
        meter.slopes("shared/st_ld_shared_latency", at(None), 16, **held),
        "cycles",
        f"st.shared then ld.shared of the same word, in one warp{PER_PASS}",
    )
    for kind in ("ldmatrix", "ldmatrix_trans"):
        chain = meter.slopes(f"shared/{kind}_latency", at(None), 16, **held)
        meter.put(
            f"{kind}_x4.latency",
            [cycles - add for cycles in chain],
            "cycles",
            f"x4, chain in one warp through an addition, less an addition's latency{PER_PASS}",
        )
        meter.put(
            f"{kind}_x4.cycles",
            meter.slopes(f"shared/{kind}_rate", at(None), 8 * 16, block=512, **held),
            "cycles/warp instruction/SM",
            f"x4 of rows that lie one after another, 16 warps{PER_PASS}",
        )
    meter.put(
        "stmatrix_x4.cycles",
        meter.slopes("shared/stmatrix_rate", at(None), 8 * 16, block=512, **held),
        "cycles/warp instruction/SM",
        f"x4 of rows that lie one after another, 16 warps{PER_PASS}",
    )
    meter.put(
        "stmatrix_ld.latency",
        meter.slopes("shared/stmatrix_ld_latency", at(None), 16, **held),
        "cycles",
        f"stmatrix.x4 then ld.shared of what it wrote, in one warp{PER_PASS}",
    )
    for step, what in ((0, "one address for all lanes"), (1, "neighbouring addresses")):
        meter.put(
            f"atom_shared.latency.x{step}",
            meter.slopes("shared/atom_shared_latency", at(step), 16, **held),
            "cycles",
            f"atom.shared.add.u32, {what}, chain in one warp{PER_PASS}",
        )
        meter.put(
            f"atom_shared.cycles.x{step}",
            meter.slopes("shared/atom_shared_latency", at(step), 16 * 16, block=512, **held),
            "cycles/warp instruction/SM",
            f"atom.shared.add.u32, {what}, 16 warps{PER_PASS}",
        )


def wgmma(meter: Meter) -> None:
    """Warpgroup matrix products."""
    gpu = meter.gpu
    operands, sink = _normal_halves(gpu), gpu.allocate(64 * KIB)

    def arguments(n: int) -> list[Any]:
        return [u64(sink), u64(operands), u32(n)]

    for form, where in (("ss", "A in shared memory"), ("rs", "A in registers")):
        for n in (8, 16, 32, 64, 96, 128, 192, 256):
            for groups in (1, 2):
                samples = meter.slopes(
                    f"wgmma/wgmma_{form}_{n}",
                    arguments,
                    16 * groups,
                    block=128 * groups,
                    shared=64 * KIB,
                )
                meter.put(
                    f"wgmma.{form}.wg{groups}.n{n}",
                    samples,
                    "cycles/instruction/SM",
                    f"m64n{n}k16 f16, f32 accumulators, {where}, {groups} warpgroup(s) on "
                    f"the SM, 16 in a group, one group in flight{PER_PASS}",
                )
    for n in (8, 64, 128, 256):
        for form, steps in (("ss", 1), ("ss", 4), ("rs", 1)):
            samples = meter.slopes(
                f"wgmma/wgmma_{form}_{n}_wait{steps}", arguments, 1, block=128, shared=64 * KIB
            )
            meter.put(
                f"wgmma_latency.{form}.k{steps}.n{n}",
                samples,
                "cycles",
                f"wgmma.fence, {steps} of m64n{n}k16 ({form}), commit, wait_group 0{PER_PASS}",
            )
    for name in ("wait_done", "fence"):
        meter.put(
            f"wgmma.{name}",
            meter.slopes(f"wgmma/wgmma_{name}", lambda n: [u32(n)], 16, block=128),
            "cycles",
            f"{'wgmma.wait_group 0' if name == 'wait_done' else 'wgmma.fence'} with nothing "
            f"in flight, one warpgroup{PER_PASS}",
        )
    overhead = meter.clock_overhead()
    count, dec, inc = 64, [], []
    for _ in range(REPEATS):
        gpu.launch("wgmma/setmaxnreg", [u64(gpu.times), u32(count)], block=384)
        given, taken = gpu.download(gpu.times, 2).astype(float) / count - overhead
        dec.append(given)
        inc.append(taken)
    meter.put("setmaxnreg.dec", dec, "cycles", "168 to 40 registers, one warpgroup, by clock64")
    meter.put(
        "setmaxnreg.inc",
        inc,
        "cycles",
        "40 to 168 registers that are free, one warpgroup, by clock64",
    )


def tma(meter: Meter) -> None:
    """The copy engine: latency, throughput and issue, of boxes and of consecutive bytes."""
    gpu = meter.gpu
    big = gpu.allocate(BIG)
    gpu.set(big, 0x3C003C00, BIG)
    overhead = meter.clock_overhead()
    columns = HALF_BIG_COLUMNS // 64
    maps = {
        rows: gpu.tensor_map(big, BIG_ROWS, HALF_BIG_COLUMNS, (rows, 64))
        for rows in (8, 16, 32, 64, 128)
    }

    def boxes(rows: int, first: int = 0) -> Boxes:
        return Boxes(rows, rows * 128, columns, first)

    def source(kind: str, rows: int) -> Any:
        return maps[rows] if kind == "tma" else u64(big)

    largest = {"shared": 200 * KIB}
    skip, count = 4, 36
    for kind in ("tma", "bulk"):
        for rows in (8, 64, 128):
            size = f"{rows * 128 // KIB}kb"
            what = f"{kind} load of {rows * 128 // KIB} KiB"
            # in L2: a launch before has read the same
            samples: list[float] = []
            for number in range(REPEATS + 1):
                arguments = [source(kind, rows), boxes(rows), u32(count)]
                gpu.launch(f"tma/{kind}_load_latency", [u64(gpu.times), *arguments], **largest)
                if number:
                    taken = gpu.download(gpu.times, count).astype(float) - overhead
                    samples += list(taken[skip:])
            meter.put(
                f"{kind}_load.latency.l2.{size}",
                samples,
                "cycles",
                f"{what}, issue to mbarrier.try_wait's success, in L2, by clock64",
            )
            samples, cold = [], []
            for number in range(REPEATS):
                gpu.flush_l2()
                first = (1 + number) * (16 * MIB // (rows * 128))
                arguments = [source(kind, rows), boxes(rows, first), u32(count)]
                gpu.launch(f"tma/{kind}_load_latency", [u64(gpu.times), *arguments], **largest)
                taken = gpu.download(gpu.times, count).astype(float) - overhead
                samples += list(taken[skip:])
                cold.append(taken[0])
            meter.put(
                f"{kind}_load.latency.hbm.{size}",
                samples,
                "cycles",
                f"{what}, as from L2, after 256 MiB were written elsewhere",
            )
            meter.put(
                f"{kind}_load.latency.first.{size}",
                cold,
                "cycles",
                f"the first {what} of a kernel, from HBM: instructions, descriptor and "
                "translations are in no cache",
            )
        for rows in (8, 64, 128):
            size = f"{rows * 128 // KIB}kb"
            reading, done = [], []
            for number in range(REPEATS + 1):
                arguments = [source(kind, rows), boxes(rows), u32(count)]
                gpu.launch(f"tma/{kind}_store_latency", [u64(gpu.times), *arguments], **largest)
                if number:
                    pairs = gpu.download(gpu.times, 2 * count).reshape(-1, 2).astype(float)
                    reading += list(pairs[skip:, 0] - overhead)
                    done += list(pairs[skip:, 1] - 2 * overhead)
            what = f"{kind} store of {rows * 128 // KIB} KiB, issue and commit to"
            meter.put(
                f"{kind}_store.latency.read.{size}",
                reading,
                "cycles",
                f"{what} wait_group.read 0, by clock64",
            )
            meter.put(
                f"{kind}_store.latency.done.{size}",
                done,
                "cycles",
                f"{what} wait_group 0 (after wait_group.read 0), by clock64",
            )

        # throughput of one SM and of all, boxes in L2 and in HBM
        for rows, stages in ((64, 4), (64, 8), (128, 2), (128, 4), (128, 8), (128, 12)):
            period = 4 * MIB // (rows * 128)

            def ring(
                n: int,
                rows: int = rows,
                stages: int = stages,
                stride: int = 4,
                period: int = period,
                kind: str = kind,
            ) -> list[Any]:
                return [
                    source(kind, rows),
                    boxes(rows),
                    u32(n),
                    u32(stages),
                    u32(stride),
                    u32(period),
                ]

            cycles = meter.slopes(f"tma/{kind}_load_ring", ring, 1, few=512, many=2048, **largest)
            meter.put(
                f"{kind}_load.rate.sm.{rows * 128 // KIB}kb.x{stages}",
                [rows * 128 / c for c in cycles],
                "B/clk/SM",
                f"one SM, {stages} {kind} loads of {rows * 128 // KIB} KiB in flight, in L2"
                f"{PER_PASS}",
            )
        for stages in (2, 4, 8, 12):
            for where, stride, period, few, many in (
                ("l2", 4, 256, 512, 4096),
                ("hbm", 992, 992, 496, 1984),
            ):

                def wide(
                    n: int,
                    stages: int = stages,
                    stride: int = stride,
                    period: int = period,
                    kind: str = kind,
                ) -> list[Any]:
                    return [
                        source(kind, 128),
                        boxes(128),
                        u32(n),
                        u32(stages),
                        u32(stride),
                        u32(period),
                    ]

                how = {"grid": gpu.sms, **largest}
                seconds = meter.seconds(
                    f"tma/{kind}_load_ring", wide, few=few, many=many, block=32, **how
                )
                meter.put(
                    f"{kind}_load.rate.all.{where}.x{stages}",
                    [16 * KIB * gpu.sms / s / 1e9 for s in seconds],
                    "GB/s",
                    f"all SMs, {stages} {kind} loads of 16 KiB in flight on each, from "
                    f"{where.upper()}, by events{PER_PASS}",
                )

        def stores(n: int, stride: int = 4, period: int = 256, kind: str = kind) -> list[Any]:
            return [source(kind, 128), boxes(128), u32(n), u32(stride), u32(period)]

        cycles = meter.slopes(f"tma/{kind}_store_ring", stores, 1, few=512, many=2048, **largest)
        meter.put(
            f"{kind}_store.rate.sm",
            [16 * KIB / c for c in cycles],
            "B/clk/SM",
            f"one SM, {kind} stores of 16 KiB, four reading, to 4 MiB{PER_PASS}",
        )
        for where, stride, period, few, many in (
            ("l2", 4, 256, 512, 4096),
            ("hbm", 992, 992, 496, 1984),
        ):

            def spread_stores(
                n: int, stride: int = stride, period: int = period, stores: Any = stores
            ) -> list[Any]:
                return stores(n, stride, period)

            seconds = meter.seconds(
                f"tma/{kind}_store_ring",
                spread_stores,
                few=few,
                many=many,
                grid=gpu.sms,
                block=32,
                **largest,
            )
            meter.put(
                f"{kind}_store.rate.all.{where}",
                [16 * KIB * gpu.sms / s / 1e9 for s in seconds],
                "GB/s",
                f"all SMs, {kind} stores of 16 KiB, to {where.upper()}, by events{PER_PASS}",
            )

        for rows in (8, 16, 32, 64):
            issue, done = [], []
            for _ in range(REPEATS):
                taken = []
                for n in (8, 40):
                    arguments = [source(kind, rows), boxes(rows), u32(n)]
                    gpu.launch(f"tma/{kind}_load_issue", [u64(gpu.times), *arguments], **largest)
                    taken.append(gpu.download(gpu.times, 2).astype(float))
                issue.append(slope(8, taken[0][0], 40, taken[1][0]))
                done.append(slope(8, taken[0][1], 40, taken[1][1]))
            size = f"{rows * 128 // KIB}kb"
            meter.put(
                f"{kind}_load.issue.{size}",
                issue,
                "cycles",
                f"a thread's time for each {kind} load of {rows * 128 // KIB} KiB that it "
                "issues, 8 to 40 back to back",
            )
            meter.put(
                f"{kind}_load.box.{size}",
                done,
                "cycles",
                f"the engine's time for each {kind} load of {rows * 128 // KIB} KiB of the "
                "same address, 8 to 40 back to back",
            )
    meter.put(
        "bulk_wait_done",
        meter.slopes("tma/bulk_wait_done", lambda n: [u32(n)], 16),
        "cycles",
        f"cp.async.bulk.wait_group 0 with nothing in flight{PER_PASS}",
    )


def multicast(meter: Meter) -> None:
    """TMA loads to both CTAs of a pair."""
    gpu = meter.gpu
    small = gpu.allocate(64 * MIB)
    gpu.set(small, 0x3C003C00, 64 * MIB)
    overhead = meter.clock_overhead()
    maps = {rows: gpu.tensor_map(small, 8192, HALF_BIG_COLUMNS, (rows, 64)) for rows in (64, 128)}
    pair = {"grid": 2, "cluster": 2, "shared": 200 * KIB}
    skip, count = 4, 36
    own, other = [], []
    for number in range(REPEATS + 1):
        arguments = [maps[128], Boxes(128, 16 * KIB, 64, 0), u32(count)]
        gpu.launch("tma/tma_multicast_latency", [u64(gpu.times), *arguments], **pair)
        if number:
            taken = gpu.download(gpu.times, 2 * count).reshape(-1, 2).astype(float)
            own += list(taken[skip:, 0] - overhead)
            other += list(taken[skip:, 1] - overhead)
    meter.put(
        "tma_multicast.latency.16kb",
        own,
        "cycles",
        "TMA load of 16 KiB to both CTAs of a pair, issue to the own barrier's success, "
        "in L2, by clock64",
    )
    meter.put(
        "tma_multicast.latency_and_back.16kb",
        other,
        "cycles",
        "as latency, until the peer has arrived back after its own copy came",
    )

    def ring(n: int, stride: int = 8) -> list[Any]:
        return [maps[64], Boxes(64, 8 * KIB, 64, 0), u32(n), u32(6), u32(stride), u32(512)]

    cycles = meter.slopes("tma/tma_multicast_ring", ring, 1, few=512, many=2048, block=64, **pair)
    meter.put(
        "tma_multicast.rate.pair",
        [16 * KIB / c for c in cycles],
        "B/clk/SM",
        "bytes that each CTA of one pair receives, each loading half of every 16 KiB stage "
        f"to both, 6 stages, in L2{PER_PASS}",
    )
    seconds = meter.seconds(
        "tma/tma_multicast_ring",
        ring,
        few=512,
        many=4096,
        block=64,
        grid=gpu.sms // 2 * 2,
        cluster=2,
        shared=200 * KIB,
    )
    meter.put(
        "tma_multicast.rate.all",
        [16 * KIB * (gpu.sms // 2 * 2) / s / 1e9 for s in seconds],
        "GB/s",
        f"bytes that all SMs receive, as rate.pair, by events{PER_PASS}",
    )


def memory(meter: Meter) -> None:
    """Loads, stores and cp.async of global memory; bandwidths of L2 and HBM."""
    gpu = meter.gpu
    data = meter.data()
    a, b = gpu.allocate(BIG), gpu.allocate(BIG)
    gpu.set(a, 1, BIG)
    gpu.set(b, 2, BIG)
    rng = np.random.default_rng(2)

    # chains: each line holds the address of the next
    def chain(count: int) -> np.ndarray:
        """Addresses of a cycle through `count` bytes of `b` in random order, after writing it."""
        order = rng.permutation(count // 128)
        lines = np.zeros((count // 128, 16), np.uint64)
        lines[order, 0] = b + 128 * np.roll(order, -1).astype(np.uint64)
        gpu.upload(lines, b)
        return b + 128 * order.astype(np.uint64)

    def chase(form: str, start: int, loads: int) -> float:
        clocks = meter.once(f"memory/chase_{form}", [u64(int(start)), u32(loads)], block=1)
        return span(clocks[0]) / loads

    order = chain(8 * KIB)
    chase("ca", order[0], 4096)
    meter.put(
        "ld_global.latency.l1",
        [chase("ca", order[0], 4096) for _ in range(REPEATS)],
        "cycles",
        "ld.global.ca, random chain through 8 KiB, one thread",
    )
    order = chain(4 * MIB)
    chase("cg", order[0], len(order))
    meter.put(
        "ld_global.latency.l2",
        [chase("cg", order[i * 4096], 4096) for i in range(REPEATS)],
        "cycles",
        "ld.global.cg, random chain through 4 MiB that are in L2, one thread",
    )
    for where, mask in (("l2", 16 * MIB - 1), ("hbm", BIG - 1)):
        for ctas in (33, 66, gpu.sms - 1):
            rows = []
            for i in range(3):
                gpu.set(data + 12 * KIB, 0, 4)
                start = order[(i * 4096) % len(order)]
                gpu.launch(
                    "memory/chase_loaded",
                    [
                        u64(gpu.times),
                        u64(int(start)),
                        u32(1024),
                        u64(a),
                        u64(mask),
                        u64(data + 12 * KIB),
                    ],
                    grid=ctas + 1,
                    block=1024,
                )
                taken = gpu.download(gpu.times, 2 * (ctas + 1)).astype(float)
                passes, cycles = taken[2::2], taken[3::2]
                rows.append((taken[0] / 1024, float((passes / cycles).sum()) * 64 * KIB))
            meter.put(
                f"ld_global.latency.loaded_{where}.{ctas}sms",
                [r[0] for r in rows],
                "cycles",
                f"random chain through 4 MiB while {ctas} SMs read from {where.upper()}",
            )
            meter.put(
                f"ld_global.loaded_{where}.{ctas}sms",
                [r[1] for r in rows],
                "B/clk",
                f"what {ctas} SMs read from {where.upper()} meanwhile, in sum",
            )
    for size in (32 * MIB, 512 * MIB):
        order = chain(size)
        samples = []
        for i in range(REPEATS):
            gpu.flush_l2()
            samples.append(chase("cg", order[i * 8192], 2048))
        meter.put(
            f"ld_global.latency.hbm.{size // MIB}mb",
            samples,
            "cycles",
            f"ld.global.cg, random chain through {size // MIB} MiB of which nothing is in "
            "L2, one thread",
        )

    # streams
    def reading(mask: int) -> Callable[[int], list[Any]]:
        return lambda n: [u64(data), u64(a), u64(mask), u32(n)]

    def writing(mask: int) -> Callable[[int], list[Any]]:
        return lambda n: [u64(data), u64(b), u64(mask), u32(n)]

    one = {"block": 1024, "few": 64, "many": 512}
    each = 1024 * 16 * 8
    for name, form, mask, what in (
        ("l1", "ca", 64 * KIB - 1, "64 KiB in L1"),
        ("l2", "cg", 4 * MIB - 1, "4 MiB in L2"),
        ("hbm", "cg", BIG - 1, "HBM"),
    ):
        cycles = meter.slopes(f"memory/read_{form}", reading(mask), each, **one)
        meter.put(
            f"ld_global.rate.sm.{name}",
            [1 / c for c in cycles],
            "B/clk/SM",
            f"one SM, 1024 threads with eight 16-byte loads in flight, {what}{PER_PASS}",
        )
    cycles = meter.slopes("memory/write_global", writing(4 * MIB - 1), each, **one)
    meter.put(
        "st_global.rate.sm",
        [1 / c for c in cycles],
        "B/clk/SM",
        f"one SM, 1024 threads, 16-byte stores to 4 MiB{PER_PASS}",
    )
    full = {"grid": 2 * gpu.sms, "block": 1024}
    moved = 2 * gpu.sms * each
    for name, kernel, arguments, factor, few, many, what in (
        (
            "l2_read_gbps",
            "read_cg",
            reading(16 * MIB - 1),
            1,
            256,
            2048,
            "16-byte loads of 16 MiB that are in L2",
        ),
        (
            "l2_write_gbps",
            "write_global",
            writing(16 * MIB - 1),
            1,
            256,
            2048,
            "16-byte stores to 16 MiB",
        ),
        ("hbm_read_gbps", "read_cg", reading(BIG - 1), 1, 64, 320, "16-byte loads of 2 GiB"),
        ("hbm_write_gbps", "write_global", writing(BIG - 1), 1, 64, 320, "16-byte stores to 2 GiB"),
        (
            "hbm_copy_gbps",
            "copy_global",
            lambda n: [u64(a), u64(b), u64(BIG - 1), u32(n)],
            1,
            128,
            640,
            "16-byte loads of 2 GiB and stores to another 2 GiB, bytes read plus bytes written",
        ),
    ):
        seconds = meter.seconds(f"memory/{kernel}", arguments, few=few, many=many, **full)
        meter.put(
            name,
            [moved * factor / s / 1e9 for s in seconds],
            "GB/s",
            f"all SMs, {what}, by events{PER_PASS}",
        )

    # cp.async
    def asynchronous(mask: int) -> Callable[[int], list[Any]]:
        return lambda n: [u64(a), u64(mask), u32(n)]

    for _ in range(2):  # the first brings it into L2
        samples = meter.slopes(
            "memory/cp_async_latency", asynchronous(MIB - 1), 1, few=64, many=1024, shared=160 * KIB
        )
    meter.put(
        "cp_async.latency.l2",
        samples,
        "cycles",
        f"cp.async.cg of 16 bytes by each lane of a warp, commit and wait_group 0, in L2{PER_PASS}",
    )
    cycles = meter.slopes(
        "memory/cp_async_rate",
        asynchronous(4 * MIB - 1),
        1024 * 16 * 4,
        block=1024,
        few=64,
        many=512,
        shared=160 * KIB,
    )
    meter.put(
        "cp_async.rate.sm",
        [1 / c for c in cycles],
        "B/clk/SM",
        f"one SM, 1024 threads, two groups of four 16-byte cp.async.cg in flight, in L2{PER_PASS}",
    )
    meter.put(
        "cp_async.wait_done",
        meter.slopes("memory/cp_async_wait_done", lambda n: [u32(n)], 16),
        "cycles",
        f"cp.async.wait_group 0 with nothing in flight{PER_PASS}",
    )


def atomics(meter: Meter) -> None:
    """Atomics on global memory."""
    gpu = meter.gpu
    mhz = statistics.median(meter.megahertz())
    memory_size = 32 * MIB
    a, sink = gpu.allocate(memory_size), gpu.allocate(64 * KIB)
    gpu.set(a, 0, memory_size)
    meter.put(
        "atom_global.latency",
        meter.slopes(
            "memory/atom_global_latency",
            lambda n: [u64(sink), u64(a), u32(n)],
            1,
            few=64,
            many=512,
            block=1,
        ),
        "cycles",
        f"atom.global.add.u32, chain of one thread{PER_PASS}",
    )
    grid, block = 2 * gpu.sms, 256
    for step, what in (
        (0, "one address"),
        (4, "neighbouring addresses"),
        (32, "addresses 32 bytes apart"),
    ):
        few, many = (2, 10) if step == 0 else (16, 80)
        for name, arguments in (
            ("red_global", lambda n, step=step: [u64(a), u32(n), u32(step)]),
            ("atom_global", lambda n, step=step: [u64(sink), u64(a), u32(n), u32(step)]),
        ):
            operation = "red.global.add.f32" if name == "red_global" else "atom.global.add.u32"
            seconds = meter.seconds(
                f"memory/{name}_rate", arguments, few=few, many=many, grid=grid, block=block
            )
            meter.put(
                f"{name}.rate.all.b{step}",
                [grid * block * 8 / (s * mhz * 1e6) for s in seconds],
                "lanes/clk",
                f"{operation} of all SMs' threads to {what}, by events and clock_mhz{PER_PASS}",
            )
            cycles = meter.slopes(
                f"memory/{name}_rate", arguments, 8 * block, block=block, few=few, many=many
            )
            meter.put(
                f"{name}.rate.sm.b{step}",
                [1 / c for c in cycles],
                "lanes/clk/SM",
                f"{operation} of 256 threads of one SM to {what}{PER_PASS}",
            )


def synchronisation(meter: Meter) -> None:
    """Barriers and fences within a CTA."""
    data = meter.data()

    def plain(n: int) -> list[Any]:
        return [u32(n)]

    for lanes in (1, 32):
        for name, what in (
            ("wait_done", "mbarrier.try_wait loop of a phase that is complete"),
            ("arrive", "mbarrier.arrive"),
            ("expect", "mbarrier.arrive.expect_tx"),
        ):
            meter.put(
                f"mbarrier.{name}.lanes{lanes}",
                meter.slopes(f"sync/mbarrier_{name}", plain, 16, block=lanes),
                "cycles",
                f"{what}, one after another, a warp of {lanes} threads{PER_PASS}",
            )
    meter.put(
        "mbarrier.arrive_to_wait",
        meter.slopes("sync/mbarrier_ping_pong", plain, 2, few=64, many=512, block=64),
        "cycles",
        "thread of one warp arrives, thread of another returns from its try_wait "
        f"loop; half of a round trip{PER_PASS}",
    )
    meter.put(
        "mbarrier.arrive_to_wait.warp",
        meter.slopes("sync/mbarrier_ping_pong_warp", plain, 2, few=64, many=512, block=64),
        "cycles",
        "as arrive_to_wait, with all 32 lanes waiting, and __syncwarp",
    )
    for warps in (1, 2, 4, 8, 12, 16, 32):
        meter.put(
            f"bar_sync.{warps}warps",
            meter.slopes("sync/bar_sync", plain, 16, block=32 * warps),
            "cycles",
            f"bar.sync, {warps} warps that arrive together{PER_PASS}",
        )
    meter.put(
        "bar.arrive_to_sync",
        meter.slopes("sync/bar_ping_pong", plain, 2, few=64, many=512, block=64),
        "cycles",
        f"bar.arrive of one warp, the other returns from bar.sync; half of a round trip{PER_PASS}",
    )
    for name, what in (
        ("proxy_async", "fence.proxy.async"),
        ("proxy_async_shared", "fence.proxy.async.shared::cta"),
        (
            "proxy_async_shared_after_st_shared",
            "fence.proxy.async.shared::cta and the st.shared before it",
        ),
        ("acq_rel_cta", "fence.acq_rel.cta"),
        ("acq_rel_cluster", "fence.acq_rel.cluster"),
        ("acq_rel_cluster_after_st_shared", "fence.acq_rel.cluster and the st.shared before it"),
        ("sc_gpu", "fence.sc.gpu"),
        ("sc_gpu_after_st_global", "fence.sc.gpu and the st.global before it"),
        ("acq_rel_gpu", "fence.acq_rel.gpu"),
        ("acq_rel_gpu_after_st_global", "fence.acq_rel.gpu and the st.global before it"),
    ):
        for block in (32, 128):
            meter.put(
                f"fence.{name}.t{block}",
                meter.slopes(
                    f"sync/fence_{name}", lambda n: [u64(data), u32(n)], 8, block=block, shared=KIB
                ),
                "cycles",
                f"{what}, {block // 32} warp(s){PER_PASS}",
            )


def clusters(meter: Meter) -> None:
    """Barriers and shared memory of clusters."""
    data = meter.data()

    def plain(n: int) -> list[Any]:
        return [u32(n)]

    for size in (2, 4, 8):
        pair = {"grid": size, "cluster": size}
        for name, what in (("", ""), ("_relaxed", ".relaxed")):
            meter.put(
                f"cluster_barrier{name}.x{size}",
                meter.slopes(f"sync/cluster_barrier{name}", plain, 4, block=128, **pair),
                "cycles",
                f"barrier.cluster.arrive{what} and wait, {size} CTAs of 4 warps{PER_PASS}",
            )
        meter.put(
            f"dsmem_ld.latency.x{size}",
            meter.slopes(
                "sync/dsmem_ld_latency", lambda n: [u64(data), u32(n)], 8, shared=KIB, **pair
            ),
            "cycles",
            "ld.shared::cluster of the next CTA's shared memory, chain in one warp, cluster "
            f"of {size}{PER_PASS}",
        )
        for kind in ("ld", "st"):
            cycles = meter.slopes(
                f"sync/dsmem_{kind}_rate",
                lambda n: [u64(data), u32(n)],
                8 * 16,
                block=512,
                shared=8 * KIB,
                **pair,
            )
            meter.put(
                f"dsmem_{kind}.rate.x{size}",
                [512 / c for c in cycles],
                "B/clk/SM",
                f"{kind}.shared::cluster.v4 of the next CTA's shared memory, all CTAs of a "
                f"cluster of {size}, 16 warps{PER_PASS}",
            )
    pair = {"grid": 2, "cluster": 2}
    for name, kernel, what in (
        (
            "mbarrier_remote.arrive_to_wait",
            "mbarrier_remote_ping_pong",
            "mbarrier.arrive on the peer's barrier, to the return of the peer's try_wait loop",
        ),
        (
            "mbarrier_remote.arrive_to_wait.cluster_scope",
            "mbarrier_remote_ping_pong_cluster",
            "as arrive_to_wait, with .release.cluster and .acquire.cluster",
        ),
    ):
        meter.put(
            name,
            meter.slopes(f"sync/{kernel}", plain, 2, few=64, many=512, block=32, **pair),
            "cycles",
            f"{what}; half of a round trip{PER_PASS}",
        )
    for lanes in (1, 32):
        meter.put(
            f"mbarrier_remote.arrive.lanes{lanes}",
            meter.slopes("sync/mbarrier_remote_arrive", plain, 16, block=lanes, **pair),
            "cycles",
            f"mbarrier.arrive on the peer's barrier, one after another in one warp "
            f"of {lanes} threads{PER_PASS}",
        )
    meter.put(
        "st_async.to_wait",
        meter.slopes("sync/st_async_ping_pong", plain, 2, few=64, many=512, shared=KIB, **pair),
        "cycles",
        "st.async of 4 bytes to the peer, the peer's thread returns from its try_wait loop "
        f"and expects the next; half of a round trip{PER_PASS}",
    )
    for size in (16, 1024, 16 * KIB):
        meter.put(
            f"bulk_dsmem.to_wait.{size}b",
            meter.slopes(
                "sync/bulk_dsmem_ping_pong",
                lambda n, b=size: [u32(n), u32(b)],
                2,
                few=64,
                many=512,
                shared=32 * KIB,
                **pair,
            ),
            "cycles",
            f"cp.async.bulk of {size} bytes from shared memory to the peer's, until the "
            "peer's wait returns and it expects the next; half of a round trip"
            f"{PER_PASS}",
        )


GROUPS: dict[str, Callable[[Meter], None]] = {
    "clocks": clocks,
    "launches": launches,
    "arithmetic": arithmetic,
    "shared": shared,
    "wgmma": wgmma,
    "memory": memory,
    "tma": tma,
    "synchronisation": synchronisation,
    "clusters": clusters,
    "atomics": atomics,
    "multicast": multicast,
}


def main() -> None:
    meter = Meter(Gpu())
    GROUPS[sys.argv[1]](meter)
    json.dump(meter.found, sys.stdout)


if __name__ == "__main__":
    main()
