"""What is measured, and the arithmetic from clocks to constants.

Each group of constants is a function of a :class:`Meter`; ``python -m
mlsys_gpu.calibration.measure GROUP`` prints one group as JSON. A group runs in its own process, so
that a kernel that hangs or faults takes no other group along.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from mlsys_gpu.calibration.gpu import Boxes, Gpu, Shares, Tiles, u32, u64
from mlsys_gpu.calibration.sources import WGMMA_N

REPEATS = 7
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
BIG = 8 * GIB
"""Bytes that are read from and written to HBM: no measurement goes through them twice."""
COLUMNS = 4096  # of the f16 tensors


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

    def put(self, name: str, samples: Iterable[float], unit: str, how: str) -> float:
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

    def timed(
        self,
        name: str,
        what: str,
        kernel: str,
        arguments: Callable[[int], Sequence[Any]],
        each: float = 1.0,
        *,
        unit: str = "cycles",
        amount: float = 0.0,
        **how: Any,
    ) -> float:
        """Measure by :meth:`slopes` and note the cycles of an operation; ``amount / cycles`` where
        an amount (bytes, lanes) is given. Its value."""
        samples = self.slopes(kernel, arguments, each, **how)
        if amount:
            samples = [amount / cycles for cycles in samples]
        return self.put(name, samples, unit, f"{what}; difference of two numbers of passes")

    def bandwidth(
        self,
        name: str,
        what: str,
        kernel: str,
        arguments: Callable[[int], Sequence[Any]],
        moved: float,
        **how: Any,
    ) -> float:
        """Measure a whole grid by :meth:`seconds`; GB/s for ``moved`` bytes in a pass."""
        samples = [moved / seconds / 1e9 for seconds in self.seconds(kernel, arguments, **how)]
        how_much = f"all SMs, {what}, by events; difference of two numbers of passes"
        return self.put(name, samples, "GB/s", how_much)

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
    operands, sink = _normal_halves(gpu), gpu.allocate(64 * KIB)
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
        meter.put(
            name,
            [gpu.milliseconds([empty] * count) * 1e3 / count for _ in range(REPEATS)],
            "us",
            f"{count} empty kernels of {grid} CTAs of 128 threads and {shared // KIB} KiB of "
            "shared memory, queued back to back, between two events",
        )
    few, many = 64, 1024
    for block, shared in (
        *((n, 0) for n in (32, 128, 256, 384, 1024)),
        *((n, 100 * KIB) for n in (128, 256)),
        *((n, 200 * KIB) for n in (128, 256, 384)),
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
    # gaps between work on one SM, by its clock
    for tail, shared, what in (
        ("", 200 * KIB, "200 KiB of shared memory"),
        (".0kb", 0, "no shared memory"),
    ):
        between, within = [], []
        for _ in range(REPEATS):
            second = gpu.times + 256 * KIB
            pair = [
                gpu.prepare(
                    "launch/stamps",
                    [u64(at), u32(20_000)],
                    grid=gpu.sms,
                    block=128,
                    shared=shared,
                )
                for at in (gpu.times, second)
            ]
            gpu.milliseconds(pair)
            stamps = [gpu.download(at, 3 * gpu.sms).reshape(-1, 3) for at in (gpu.times, second)]
            between += following(*stamps)
            double = gpu.prepare(
                "launch/stamps",
                [u64(gpu.times), u32(20_000)],
                grid=2 * gpu.sms,
                block=128,
                shared=200 * KIB,
            )
            gpu.milliseconds([double])
            within += gaps(gpu.download(gpu.times, 6 * gpu.sms).reshape(-1, 3))
        meter.put(
            f"kernel_gap_cycles{tail}",
            between,
            "cycles",
            "last clock of a kernel to first of the next on the same SM, two kernels of a CTA an "
            f"SM with {what}, queued back to back",
        )
        if not tail:
            meter.put(
                "cta_gap_cycles",
                within,
                "cycles",
                f"last clock of a CTA to first of the next on the same SM, where one fits ({what})",
            )


def following(first: np.ndarray, second: np.ndarray) -> list[int]:
    """Cycles from a kernel's last end to the next's first begin, for each SM that ran both.

    Rows are (SM, began, ended).
    """
    found = []
    for sm in np.intersect1d(first[:, 0], second[:, 0]):
        ended = first[first[:, 0] == sm][:, 2].max()
        began = second[second[:, 0] == sm][:, 1].min()
        found.append(int(began) - int(ended))
    return found


def gaps(stamps: np.ndarray) -> list[int]:
    """Cycles between consecutive CTAs of the same SM; rows are (SM, began, ended)."""
    found = []
    for sm in np.unique(stamps[:, 0]):
        rows = stamps[stamps[:, 0] == sm]
        rows = rows[np.argsort(rows[:, 1])]
        found += [int(after[1]) - int(before[2]) for before, after in itertools.pairwise(rows)]
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
    "f2i": (1, "cvt.rzi.s32.f32"), "shfl": (1, "shfl.sync.bfly.b32"),
    "redux": (1, "redux.sync.add.u32 and the move back"),
    "ballot": (1, "setp and vote.sync.ballot.b32, both"),
    "div_rn": (1, "div.rn.f32, IEEE, all its instructions"),
    "div_approx": (1, "div.approx.ftz.f32, all its instructions"),
    "sqrt_rn": (1, "sqrt.rn.f32, IEEE, all its instructions"),
    "rcp_rn": (1, "rcp.rn.f32, IEEE, all its instructions"),
    "expf": (1, "expf(-x) at full precision, all its instructions"),
    "exp2f": (1, "exp2f(-x) at full precision, all its instructions"),
}  # fmt: skip
_LONG = ("div_rn", "div_approx", "sqrt_rn", "rcp_rn", "expf", "exp2f")  # 32 steps a pass, not 128


def arithmetic(meter: Meter) -> None:
    """Latency and throughput of instructions that the warp schedulers issue."""
    data = meter.data()

    def arguments(n: int) -> list[Any]:
        return [u64(data), u32(n)]

    add = 0.0
    for name, (count, what) in _STEPS.items():
        steps = count * (32 if name in _LONG else 128)
        chain = meter.slopes(f"arithmetic/{name}_latency", arguments, steps)
        if name == "fadd":
            add = statistics.median(chain)
        if name == "rcp":
            chain = [cycles - add for cycles in chain]
        meter.put(
            f"{name}.latency",
            chain,
            "cycles",
            f"{what}, a chain in one warp; difference of two numbers of passes",
        )
        meter.timed(
            f"{name}.rate",
            f"{what}, eight chains in each of 16 warps",
            f"arithmetic/{name}_rate",
            arguments,
            steps * 16,
            unit="lanes/clk/SM",
            amount=32,
            block=512,
        )


def shared(meter: Meter) -> None:
    """Shared memory, its bank conflicts, matrices in it and atomics on it."""
    data = meter.data()
    held: dict[str, Any] = {"shared": 32 * KIB}
    per_warp = "cycles/warp instruction/SM"
    add = statistics.median(
        meter.slopes("arithmetic/iadd_latency", lambda n: [u64(data), u32(n)], 256)
    )

    def plain(n: int) -> list[Any]:
        return [u64(data), u32(n)]

    def apart(step: int) -> Callable[[int], list[Any]]:
        return lambda n: [u64(data), u32(n), u32(step)]

    for kind, in_pass, steps in (
        ("ld_shared", 16, (0, 1, 2, 4, 8, 16, 32)),
        ("ld_shared_v4", 8, (0, 1, 2, 4, 8)),
        ("st_shared", 16, (1, 2, 4, 8, 16, 32)),
        ("st_shared_v4", 8, (1, 2, 4, 8)),
    ):
        for step in steps:
            what = f"{kind.replace('_', '.')}, lanes {step} accesses apart"
            if kind.startswith("ld"):
                meter.timed(
                    f"{kind}.latency.x{step}",
                    f"{what}, a chain in one warp",
                    f"shared/{kind}_latency",
                    apart(step),
                    32,
                    **held,
                )
            meter.timed(
                f"{kind}.cycles.x{step}",
                f"{what}, 16 warps",
                f"shared/{kind}_rate",
                apart(step),
                in_pass * 16,
                unit=per_warp,
                block=512,
                **held,
            )
    meter.timed(
        "st_ld_shared.latency",
        "st.shared then ld.shared of the same word, one warp",
        "shared/st_ld_shared_latency",
        plain,
        16,
        **held,
    )
    for kind in ("ldmatrix", "ldmatrix_trans"):
        chain = meter.slopes(f"shared/{kind}_latency", plain, 16, **held)
        meter.put(
            f"{kind}_x4.latency",
            [cycles - add for cycles in chain],
            "cycles",
            "x4, a chain in one warp through an addition, less an addition's latency; difference "
            "of two numbers of passes",
        )
    for kind in ("ldmatrix", "ldmatrix_trans", "stmatrix"):
        meter.timed(
            f"{kind}_x4.cycles",
            "x4 of rows that lie one after another, 16 warps",
            f"shared/{kind}_rate",
            plain,
            8 * 16,
            unit=per_warp,
            block=512,
            **held,
        )
    meter.timed(
        "stmatrix_ld.latency",
        "stmatrix.x4 then ld.shared of what it wrote, one warp",
        "shared/stmatrix_ld_latency",
        plain,
        16,
        **held,
    )
    for step, where in ((0, "one address for all lanes"), (1, "neighbouring addresses")):
        for warps, name, unit in ((1, "latency", "cycles"), (16, "cycles", per_warp)):
            meter.timed(
                f"atom_shared.{name}.x{step}",
                f"atom.shared.add.u32, {where}, a chain in each of {warps} warp(s)",
                "shared/atom_shared_latency",
                apart(step),
                16 * warps,
                unit=unit,
                block=32 * warps,
                **held,
            )


def wgmma(meter: Meter) -> None:
    """Warpgroup matrix products."""
    gpu = meter.gpu
    operands, sink = _normal_halves(gpu), gpu.allocate(64 * KIB)

    def arguments(n: int) -> list[Any]:
        return [u64(sink), u64(operands), u32(n)]

    for form, where in (("ss", "A in shared memory"), ("rs", "A in registers")):
        for n in WGMMA_N:
            for groups in (1, 2):
                meter.timed(
                    f"wgmma.{form}.wg{groups}.n{n}",
                    f"m64n{n}k16 f16, f32 accumulators, {where}, {groups} warpgroup(s) on the SM, "
                    "16 in a group, one group in flight",
                    f"wgmma/wgmma_{form}_{n}",
                    arguments,
                    16 * groups,
                    unit="cycles/instruction/SM",
                    block=128 * groups,
                    shared=64 * KIB,
                )
    for n in (8, 64, 128, 256):
        for form, steps in (("ss", 1), ("ss", 4), ("rs", 1)):
            meter.timed(
                f"wgmma_latency.{form}.k{steps}.n{n}",
                f"wgmma.fence, {steps} of m64n{n}k16 ({form}), commit, wait_group 0",
                f"wgmma/wgmma_{form}_{n}_wait{steps}",
                arguments,
                block=128,
                shared=64 * KIB,
            )
    for name, what in (("wait_done", "wgmma.wait_group 0"), ("fence", "wgmma.fence")):
        meter.timed(
            f"wgmma.{name}",
            f"{what} with nothing in flight, one warpgroup",
            f"wgmma/wgmma_{name}",
            lambda n: [u32(n)],
            16,
            block=128,
        )
    overhead = meter.clock_overhead()
    count, less, more = 64, [], []
    for _ in range(REPEATS):
        gpu.launch("wgmma/setmaxnreg", [u64(gpu.times), u32(count)], block=384)
        given, taken = gpu.download(gpu.times, 2).astype(float) / count - overhead
        less.append(given)
        more.append(taken)
    meter.put("setmaxnreg.dec", less, "cycles", "168 to 40 registers, one warpgroup, by clock64")
    meter.put(
        "setmaxnreg.inc",
        more,
        "cycles",
        "40 to 168 registers that are free, one warpgroup, by clock64",
    )


_SKIP, _COPIES = 4, 36  # copies of a latency measurement, and how many of them come too early


def tma(meter: Meter) -> None:
    """The copy engine: latency, throughput and issue, of boxes and of consecutive bytes."""
    gpu = meter.gpu
    big = gpu.allocate(BIG)
    gpu.set(big, 0x3C003C00, BIG)
    maps = {
        rows: gpu.tensor_map(big, BIG // (2 * COLUMNS), COLUMNS, (rows, 64))
        for rows in (8, 16, 32, 64, 128)
    }
    for kind in ("tma", "bulk"):
        source = maps if kind == "tma" else {rows: u64(big) for rows in maps}
        _copy_latency(meter, kind, source)
        _copy_rate(meter, kind, source)
        _copy_issue(meter, kind, source)
    meter.timed(
        "bulk_wait_done",
        "cp.async.bulk.wait_group 0 with nothing in flight",
        "tma/bulk_wait_done",
        lambda n: [u32(n)],
        16,
    )


def _boxes(rows: int, first: int = 0) -> Boxes:
    return Boxes(rows, rows * 128, COLUMNS // 64, first)


def _copy_latency(meter: Meter, kind: str, source: dict[int, Any]) -> None:
    gpu, overhead = meter.gpu, meter.clock_overhead()

    def taken(name: str, rows: int, first: int, parts: int) -> np.ndarray:
        arguments = [u64(gpu.times), source[rows], _boxes(rows, first), u32(_COPIES)]
        gpu.launch(f"tma/{kind}_{name}_latency", arguments, shared=200 * KIB)
        return gpu.download(gpu.times, parts * _COPIES).reshape(_COPIES, parts).astype(float)

    for rows in (8, 64, 128):
        size, what = f"{rows // 8}kb", f"{kind} load of {rows // 8} KiB"
        taken("load", rows, 0, 1)  # brings it into L2
        samples = [taken("load", rows, 0, 1)[_SKIP:, 0] - overhead for _ in range(REPEATS)]
        meter.put(
            f"{kind}_load.latency.l2.{size}",
            np.concatenate(samples),
            "cycles",
            f"{what}, issue to mbarrier.try_wait's success, in L2, by clock64",
        )
        cold = []
        for number in range(REPEATS):
            gpu.flush_l2()
            first = (1 + number) * (16 * MIB // (rows * 128))
            cold.append(taken("load", rows, first, 1)[:, 0] - overhead)
        meter.put(
            f"{kind}_load.latency.hbm.{size}",
            np.concatenate([samples[_SKIP:] for samples in cold]),
            "cycles",
            f"{what}, as from L2, after 256 MiB were read elsewhere",
        )
        meter.put(
            f"{kind}_load.latency.first.{size}",
            [samples[0] for samples in cold],
            "cycles",
            f"the first {what} of a kernel, from HBM: neither its descriptor nor the address "
            "translation is in a cache",
        )
        taken("store", rows, 0, 2)
        stores = np.concatenate([taken("store", rows, 0, 2)[_SKIP:] for _ in range(REPEATS)])
        what = f"{kind} store of {rows // 8} KiB, issue and commit"
        meter.put(
            f"{kind}_store.latency.read.{size}",
            stores[:, 0] - overhead,
            "cycles",
            f"{what} to wait_group.read 0, by clock64",
        )
        meter.put(
            f"{kind}_store.latency.done.{size}",
            stores[:, 1] - 2 * overhead,
            "cycles",
            f"{what} to wait_group.read 0 and wait_group 0, by clock64",
        )


def _copy_rate(meter: Meter, kind: str, source: dict[int, Any]) -> None:
    gpu = meter.gpu
    kernel = f"tma/{kind}_load_ring"

    def ring(
        rows: int, stages: int, stride: int, period: int, share: int = 1
    ) -> Callable[[int], list[Any]]:
        return lambda n: [source[rows], _boxes(rows), *map(u32, (n, stages, stride, period, share))]

    # one SM: rings of one to four warps
    for rows, warps, stages in (
        (8, 1, 8), (8, 4, 8), (64, 1, 4), (64, 4, 4), (128, 1, 1), (128, 1, 2), (128, 1, 4),
        (128, 1, 8), (128, 1, 12), (128, 2, 4), (128, 4, 3),
    ):  # fmt: skip
        period = MIB // (rows * 128)
        meter.timed(
            f"{kind}_load.rate.sm.{rows // 8}kb.w{warps}.x{stages}",
            f"one SM, {warps} warp(s) with {stages} {kind} loads of {rows // 8} KiB in flight "
            "each, in L2",
            kernel,
            ring(rows, stages, period, period),
            unit="B/clk/SM",
            amount=rows * 128 * warps,
            few=512,
            many=2048,
            block=32 * warps,
            shared=200 * KIB,
        )
    meter.timed(
        f"{kind}_load.rate.pair",
        f"two SMs of a cluster, each with 2 warps with 4 {kind} loads of 16 KiB in flight each, "
        "in L2; for each SM",
        kernel,
        ring(128, 4, 64, 64),
        unit="B/clk/SM",
        amount=16 * KIB * 2,
        few=512,
        many=2048,
        block=64,
        grid=2,
        cluster=2,
        shared=200 * KIB,
    )
    # all SMs: own tiles that are in L2, tiles that several read, own tiles from HBM
    for where, stages, stride, period, share, few, many, what in (
        ("l2", 4, 8, 8, 1, 512, 4096, "from L2, each its own 128 KiB"),
        ("l2", 8, 8, 8, 1, 512, 4096, "from L2, each its own 128 KiB"),
        ("l2_shared12", 4, 64, 64, 12, 512, 4096, "from L2, 12 CTAs the same 1 MiB"),
        ("l2_shared_all", 4, 64, 64, gpu.sms, 512, 4096, "from L2, all the same 1 MiB"),
        *(
            ("hbm", stages, 3968, 3968, 1, 992, 3968, "from HBM, each its own")
            for stages in (1, 2, 3, 4, 8, 12)
        ),
    ):
        meter.bandwidth(
            f"{kind}_load.rate.all.{where}.x{stages}",
            f"{stages} {kind} loads of 16 KiB in flight on each, {what}",
            kernel,
            ring(128, stages, stride, period, share),
            16 * KIB * gpu.sms,
            few=few,
            many=many,
            grid=gpu.sms,
            block=32,
            shared=200 * KIB,
        )

    def stores(stride: int, period: int) -> Callable[[int], list[Any]]:
        return lambda n: [source[128], _boxes(128), u32(n), u32(stride), u32(period)]

    meter.timed(
        f"{kind}_store.rate.sm",
        f"one SM, {kind} stores of 16 KiB of which four may be reading, to 4 MiB",
        f"tma/{kind}_store_ring",
        stores(256, 256),
        unit="B/clk/SM",
        amount=16 * KIB,
        few=512,
        many=2048,
        shared=200 * KIB,
    )
    for where, part, few, many in (("l2", 8, 512, 4096), ("hbm", 3968, 992, 3968)):
        meter.bandwidth(
            f"{kind}_store.rate.all.{where}",
            f"{kind} stores of 16 KiB of which four may be reading, to {where.upper()}",
            f"tma/{kind}_store_ring",
            stores(part, part),
            16 * KIB * gpu.sms,
            few=few,
            many=many,
            grid=gpu.sms,
            block=32,
            shared=200 * KIB,
        )


def _copy_issue(meter: Meter, kind: str, source: dict[int, Any]) -> None:
    gpu = meter.gpu
    forms = [("", "thread 0")]
    if kind == "tma":
        forms.append(("_elected", "the thread that elect.sync chose"))
    for form, who in forms:
        for rows in (8, 16, 32, 64):
            issue, done = [], []
            for _ in range(REPEATS):
                few, many = [], []
                for n, taken in ((8, few), (40, many)):
                    arguments = [u64(gpu.times), source[rows], _boxes(rows), u32(n)]
                    gpu.launch(f"tma/{kind}_load_issue{form}", arguments, shared=200 * KIB)
                    taken += [float(cycles) for cycles in gpu.download(gpu.times, 2)]
                issue.append(slope(8, few[0], 40, many[0]))
                done.append(slope(8, few[1], 40, many[1]))
            each = f"for each {kind} load of {rows // 8} KiB of one address, 8 to 40 back to back"
            meter.put(
                f"{kind}_load.issue{form}.{rows // 8}kb",
                issue,
                "cycles",
                f"what {who} takes {each}",
            )
            meter.put(
                f"{kind}_load.box{form}.{rows // 8}kb",
                done,
                "cycles",
                f"until all have come, {each}, by {who}",
            )


def multicast(meter: Meter) -> None:
    """TMA loads to both CTAs of a pair."""
    gpu = meter.gpu
    small = gpu.allocate(64 * MIB)
    gpu.set(small, 0x3C003C00, 64 * MIB)
    overhead = meter.clock_overhead()
    maps = {rows: gpu.tensor_map(small, 8192, COLUMNS, (rows, 64)) for rows in (64, 128)}

    def taken() -> np.ndarray:
        gpu.launch(
            "tma/tma_multicast_latency",
            [u64(gpu.times), maps[128], _boxes(128), u32(_COPIES)],
            grid=2,
            cluster=2,
            shared=200 * KIB,
        )
        clocks = gpu.download(gpu.times, 2 * _COPIES).reshape(-1, 2).astype(float)
        return clocks[_SKIP:] - overhead

    taken()  # brings it into L2
    samples = np.concatenate([taken() for _ in range(REPEATS)])
    meter.put(
        "tma_multicast.latency.16kb",
        samples[:, 0],
        "cycles",
        "TMA load of 16 KiB to both CTAs of a pair, issue to the own barrier's success, in L2, by "
        "clock64",
    )
    meter.put(
        "tma_multicast.latency_and_back.16kb",
        samples[:, 1],
        "cycles",
        "as latency, until the peer has arrived back after its own copy came",
    )

    def ring(n: int) -> list[Any]:
        return [maps[64], _boxes(64), u32(n), u32(6), u32(16), u32(16)]

    what = (
        "bytes that CTAs receive, each of a pair loading half of every 16 KiB stage to both, 6 "
        "stages, in L2"
    )
    meter.timed(
        "tma_multicast.rate.pair",
        f"one pair, {what}",
        "tma/tma_multicast_ring",
        ring,
        unit="B/clk/SM",
        amount=16 * KIB,
        few=512,
        many=2048,
        block=64,
        grid=2,
        cluster=2,
        shared=200 * KIB,
    )
    meter.bandwidth(
        "tma_multicast.rate.all",
        what,
        "tma/tma_multicast_ring",
        ring,
        16 * KIB * (gpu.sms // 2 * 2),
        few=512,
        many=4096,
        block=64,
        grid=gpu.sms // 2 * 2,
        cluster=2,
        shared=200 * KIB,
    )


def memory(meter: Meter) -> None:
    """Loads, stores and cp.async of global memory; bandwidths of L2 and HBM."""
    gpu = meter.gpu
    a, b = gpu.allocate(BIG), gpu.allocate(BIG)
    gpu.set(a, 1, BIG)
    gpu.set(b, 2, BIG)
    _load_latency(meter, a, b)
    _streams(meter, a, b)
    _strided(meter, a)
    meter.slopes("memory/cp_async_latency", lambda n: [u64(a), u64(MIB - 1), u32(n)], 1,
                 few=64, many=1024, shared=160 * KIB)  # fmt: skip
    meter.timed(
        "cp_async.latency.l2",
        "cp.async.cg of 16 bytes by each lane of a warp, commit and wait_group 0, in L2",
        "memory/cp_async_latency",
        lambda n: [u64(a), u64(MIB - 1), u32(n)],
        few=64,
        many=1024,
        shared=160 * KIB,
    )
    for threads in (128, 256, 512, 1024):
        meter.timed(
            f"cp_async.rate.sm.t{threads}",
            f"one SM, {threads} threads with two groups of four 16-byte cp.async.cg in flight, "
            "in L2",
            "memory/cp_async_rate",
            lambda n: [u64(a), u64(4 * MIB - 1), u32(n)],
            unit="B/clk/SM",
            amount=threads * 16 * 4,
            block=threads,
            few=64,
            many=512,
            shared=160 * KIB,
        )
    meter.timed(
        "cp_async.wait_done",
        "cp.async.wait_group 0 with nothing in flight",
        "memory/cp_async_wait_done",
        lambda n: [u32(n)],
        16,
    )


def _load_latency(meter: Meter, a: int, b: int) -> None:
    gpu = meter.gpu
    data = meter.data()
    rng = np.random.default_rng(2)

    def chain(count: int) -> np.ndarray:
        """Addresses of a cycle through ``count`` bytes of ``b`` in random order, written there."""
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
    done = data + 12 * KIB
    for where, mask in (("l2", 16 * MIB - 1), ("hbm", BIG - 1)):
        for ctas in (16, 33, 66, gpu.sms - 1):
            latencies, rates = [], []
            for i in range(REPEATS + 1):
                gpu.set(done, 0, 4)
                start = int(order[(i * 4096) % len(order)])
                gpu.launch(
                    "memory/chase_loaded",
                    [u64(gpu.times), u64(start), u32(1024), u64(a), u64(mask), u64(done)],
                    grid=ctas + 1,
                    block=1024,
                )
                taken = gpu.download(gpu.times, 2 * (ctas + 1)).astype(float)
                if i:  # the first brings what is read into L2
                    latencies.append(taken[0] / 1024)
                    rates.append(float((taken[2::2] / taken[3::2]).sum()) * 64 * KIB)
            meter.put(
                f"ld_global.latency.loaded_{where}.{ctas}sms",
                latencies,
                "cycles",
                f"random chain through 4 MiB while {ctas} SMs read from {where.upper()}",
            )
            meter.put(
                f"ld_global.loaded_{where}.{ctas}sms",
                rates,
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
            f"ld.global.cg, random chain through {size // MIB} MiB of which nothing is in L2, one "
            "thread",
        )


def _streams(meter: Meter, a: int, b: int) -> None:
    gpu, data = meter.gpu, meter.data()

    def reading(mask: int) -> Callable[[int], list[Any]]:
        return lambda n: [u64(data), u64(a), u64(mask), u32(n)]

    def writing(mask: int) -> Callable[[int], list[Any]]:
        return lambda n: [u64(data), u64(b), u64(mask), u32(n)]

    for threads in (128, 256, 512, 1024):
        for name, form, mask, what in (
            ("l1", "ca", 64 * KIB - 1, "64 KiB in L1"),
            ("l2", "cg", 4 * MIB - 1, "4 MiB in L2"),
            ("hbm", "cg", BIG - 1, "HBM"),
        ):
            meter.timed(
                f"ld_global.rate.sm.{name}.t{threads}",
                f"one SM, {threads} threads with eight 16-byte loads in flight, {what}",
                f"memory/read_{form}",
                reading(mask),
                unit="B/clk/SM",
                amount=threads * 16 * 8,
                block=threads,
                few=64,
                many=512,
            )
    meter.timed(
        "st_global.rate.sm",
        "one SM, 1024 threads, 16-byte stores to 4 MiB",
        "memory/write_global",
        writing(4 * MIB - 1),
        unit="B/clk/SM",
        amount=1024 * 16 * 8,
        block=1024,
        few=64,
        many=512,
    )
    moved = 2 * gpu.sms * 1024 * 16
    both = "to another 8 GiB; bytes read plus bytes written"
    for name, kernel, arguments, factor, few, many, what in (
        ("l2_read_gbps", "read_cg", reading(16 * MIB - 1), 8, 256, 2048,
         "16-byte loads of 16 MiB that are in L2, eight in flight in a thread"),
        ("l2_write_gbps", "write_global", writing(16 * MIB - 1), 8, 256, 2048,
         "16-byte stores to 16 MiB"),
        ("hbm_read_gbps", "read_cg", reading(BIG - 1), 8, 16, 240,
         "16-byte loads of 8 GiB, eight in flight in a thread"),
        ("hbm_write_gbps", "write_global", writing(BIG - 1), 8, 16, 240, "16-byte stores to 8 GiB"),
        ("hbm_copy_gbps", "copy_global_4", lambda n: [u64(a), u64(b), u64(BIG - 1), u32(n)],
         8, 32, 480, f"four 16-byte loads of a thread, then stores {both}"),
        ("hbm_copy_gbps.x1", "copy_global_1", lambda n: [u64(a), u64(b), u64(BIG - 1), u32(n)],
         2, 128, 1920, f"one 16-byte load of a thread, then a store {both}"),
    ):  # fmt: skip
        meter.bandwidth(
            name,
            what,
            f"memory/{kernel}",
            arguments,
            moved * factor,
            few=few,
            many=many,
            grid=2 * gpu.sms,
            block=1024,
        )
    samples = [2 * BIG / gpu.copy_seconds(b, a, BIG) / 1e9 for _ in range(REPEATS)]
    meter.put(
        "hbm_copy_gbps.driver",
        samples,
        "GB/s",
        "the driver's copy of 8 GiB on the device, bytes read plus bytes written, by events",
    )


def _strided(meter: Meter, a: int) -> None:
    data = meter.data()
    # loads of fewer lines than these are bound by the kernel's address arithmetic
    for name, kernel, region, where, steps in (
        ("ld_global.cycles.l1", "read_strided_ca", 32 * KIB, "32 KiB in L1", (16, 32, 128)),
        ("ld_global.cycles.l2", "read_strided_cg", 4 * MIB, "4 MiB in L2", (32, 128)),
        ("st_global.cycles", "write_strided", 4 * MIB, "to 4 MiB", (4, 8, 16, 32, 128)),
    ):
        for step in steps:

            def arguments(n: int, region: int = region, step: int = step) -> list[Any]:
                return [u64(data), u64(a), u64(region - 1), u32(n), u32(step)]

            meter.timed(
                f"{name}.b{step}",
                f"4 bytes of each lane, lanes {step} bytes apart, one SM, 16 warps, {where}",
                f"memory/{kernel}",
                arguments,
                8 * 16,
                unit="cycles/warp instruction/SM",
                block=512,
                few=64,
                many=512,
            )


def atomics(meter: Meter) -> None:
    """Atomics on global memory."""
    gpu = meter.gpu
    mhz = statistics.median(meter.megahertz())
    a, sink = gpu.allocate(32 * MIB), gpu.allocate(64 * KIB)
    gpu.set(a, 0, 32 * MIB)
    meter.timed(
        "atom_global.latency",
        "atom.global.add.u32, a chain of one thread",
        "memory/atom_global_latency",
        lambda n: [u64(sink), u64(a), u32(n)],
        few=64,
        many=512,
        block=1,
    )
    grid, block = 2 * gpu.sms, 256
    for step, where in (
        (0, "one address"),
        (4, "neighbouring addresses"),
        (32, "addresses 32 bytes apart"),
    ):
        few, many = (2, 10) if step == 0 else (16, 80)

        def red(n: int, step: int = step) -> list[Any]:
            return [u64(a), u32(n), u32(step)]

        def atom(n: int, step: int = step) -> list[Any]:
            return [u64(sink), u64(a), u32(n), u32(step)]

        for name, operation, arguments in (
            ("red_global", "red.global.add.f32", red),
            ("atom_global", "atom.global.add.u32", atom),
        ):
            seconds = meter.seconds(
                f"memory/{name}_rate", arguments, few=few, many=many, grid=grid, block=block
            )
            meter.put(
                f"{name}.rate.all.b{step}",
                [grid * block * 8 / (s * mhz * 1e6) for s in seconds],
                "lanes/clk",
                f"{operation} of all SMs' threads to {where}, by events and clock_mhz; difference "
                "of two numbers of passes",
            )
            meter.timed(
                f"{name}.rate.sm.b{step}",
                f"{operation} of 256 threads of one SM to {where}",
                f"memory/{name}_rate",
                arguments,
                8,
                unit="lanes/clk/SM",
                amount=block,
                block=block,
                few=few,
                many=many,
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
            meter.timed(
                f"mbarrier.{name}.lanes{lanes}",
                f"{what}, one after another in a warp of {lanes} thread(s)",
                f"sync/mbarrier_{name}",
                plain,
                16,
                block=lanes,
            )
    turn: dict[str, Any] = {"few": 64, "many": 512, "block": 64}
    for name, kernel, what in (
        ("mbarrier.arrive_to_wait", "mbarrier_ping_pong",
         "thread of one warp arrives, thread of another returns from its try_wait loop"),
        ("mbarrier.arrive_to_wait.warp", "mbarrier_ping_pong_warp",
         "as arrive_to_wait, with all 32 lanes waiting, then one of them arriving"),
        ("bar.arrive_to_sync", "bar_ping_pong",
         "bar.arrive of one warp, the other returns from bar.sync"),
    ):  # fmt: skip
        meter.timed(name, f"{what}; half of a round trip", f"sync/{kernel}", plain, 2, **turn)
    for warps in (1, 2, 4, 8, 12, 16, 32):
        meter.timed(
            f"bar_sync.{warps}warps",
            f"bar.sync, {warps} warp(s) that arrive together",
            "sync/bar_sync",
            plain,
            16,
            block=32 * warps,
        )
    for name, what in (
        ("proxy_async", "fence.proxy.async"),
        ("proxy_async_shared", "fence.proxy.async.shared::cta"),
        ("proxy_async_shared_after_st_shared",
         "fence.proxy.async.shared::cta and the st.shared before it"),
        ("acq_rel_cta", "fence.acq_rel.cta"),
        ("acq_rel_cluster", "fence.acq_rel.cluster"),
        ("acq_rel_cluster_after_st_shared", "fence.acq_rel.cluster and the st.shared before it"),
        ("sc_gpu", "fence.sc.gpu"),
        ("sc_gpu_after_st_global", "fence.sc.gpu and the st.global before it"),
        ("acq_rel_gpu", "fence.acq_rel.gpu"),
        ("acq_rel_gpu_after_st_global", "fence.acq_rel.gpu and the st.global before it"),
    ):  # fmt: skip
        for block in (32, 128):
            meter.timed(
                f"fence.{name}.t{block}",
                f"{what}, {block // 32} warp(s)",
                f"sync/fence_{name}",
                lambda n: [u64(data), u32(n)],
                8,
                block=block,
                shared=KIB,
            )


def clusters(meter: Meter) -> None:
    """Barriers and shared memory of clusters."""
    data = meter.data()

    def plain(n: int) -> list[Any]:
        return [u32(n)]

    def with_data(n: int) -> list[Any]:
        return [u64(data), u32(n)]

    for size in (2, 4, 8):
        cluster: dict[str, Any] = {"grid": size, "cluster": size}
        for form in ("", "_relaxed"):
            meter.timed(
                f"cluster_barrier{form}.x{size}",
                f"barrier.cluster.arrive{form.replace('_', '.')} and wait, {size} CTAs of 4 warps",
                f"sync/cluster_barrier{form}",
                plain,
                4,
                block=128,
                **cluster,
            )
        meter.timed(
            f"dsmem_ld.latency.x{size}",
            "ld.shared::cluster of the next CTA's shared memory, a chain in one warp, cluster of "
            f"{size}",
            "sync/dsmem_ld_latency",
            with_data,
            8,
            shared=KIB,
            **cluster,
        )
        for kind in ("ld", "st"):
            meter.timed(
                f"dsmem_{kind}.rate.x{size}",
                f"{kind}.shared::cluster.v4 of the next CTA's shared memory, all CTAs of a "
                f"cluster of {size}, 16 warps each",
                f"sync/dsmem_{kind}_rate",
                with_data,
                8 * 16,
                unit="B/clk/SM",
                amount=512,
                block=512,
                shared=8 * KIB,
                **cluster,
            )
    to = meter.gpu.allocate(4 * MIB)
    for form, what in (
        ("stores_1", "st.global of 4 bytes of each lane"),
        ("stores_4", "four st.global of 4 bytes of each lane"),
        ("stores_16", "16 st.global of 4 bytes of each lane"),
        ("relaxed_stores_16", "16 st.global of 4 bytes of each lane (relaxed arrival)"),
    ):
        meter.timed(
            f"cluster_barrier.after_{form}.x2",
            f"{what}, then barrier.cluster.arrive and wait, all together, 2 CTAs of 4 warps",
            f"sync/cluster_barrier_{form}",
            lambda n: [u64(data), u64(to), u32(n)],
            block=128,
            grid=2,
            cluster=2,
        )
    pair: dict[str, Any] = {"grid": 2, "cluster": 2}
    turn: dict[str, Any] = {"few": 64, "many": 512, "shared": 32 * KIB, **pair}
    for name, kernel, what in (
        ("mbarrier_remote.arrive_to_wait", "mbarrier_remote_ping_pong",
         "mbarrier.arrive on the peer's barrier, to the return of the peer's try_wait loop"),
        ("mbarrier_remote.arrive_to_wait.cluster_scope", "mbarrier_remote_ping_pong_cluster",
         "as arrive_to_wait, with .release.cluster and .acquire.cluster"),
        ("st_async.to_wait", "st_async_ping_pong",
         "st.async of 4 bytes to the peer, the peer's thread returns from its try_wait loop and "
         "expects the next"),
    ):  # fmt: skip
        meter.timed(name, f"{what}; half of a round trip", f"sync/{kernel}", plain, 2, **turn)
    for lanes in (1, 32):
        meter.timed(
            f"mbarrier_remote.arrive.lanes{lanes}",
            f"mbarrier.arrive on the peer's barrier, one after another in a warp of {lanes} "
            "thread(s)",
            "sync/mbarrier_remote_arrive",
            plain,
            16,
            block=lanes,
            **pair,
        )
    for size in (16, 1024, 4 * KIB, 16 * KIB):
        meter.timed(
            f"bulk_dsmem.to_wait.{size}b",
            f"cp.async.bulk of {size} bytes from shared memory to the peer's, until the peer's "
            "wait returns and it expects the next; half of a round trip",
            "sync/bulk_dsmem_ping_pong",
            lambda n, size=size: [u32(n), u32(size)],
            2,
            **turn,
        )


def start(meter: Meter) -> None:
    """What kernels take to start, and what the first accesses to memory take."""
    gpu = meter.gpu
    big = gpu.allocate(BIG)
    gpu.set(big, 0, BIG)
    boxes = gpu.tensor_map(big, BIG // 128, 64, (64, 64))  # of 8 KiB, one behind the other
    count, tries = 400, itertools.count()
    for tail, grid in (("", 1), (".full_grid", gpu.sms)):

        def load(at: int) -> tuple[str, list[Any]]:
            return "start/start_load", [u64(gpu.times), u64(big + at)]

        def box(at: int) -> tuple[str, list[Any]]:
            return "start/start_tma", [boxes, u32(at // 128)]

        read, boxed = grid * 2 * KIB, grid * 8 * KIB
        for name, form, each, size, what in (
            ("nothing", lambda at: ("start/start_nothing", load(0)[1]), 0, 0,
             "that have two parameters and load nothing"),
            ("load_l2", load, 0, 0, "each thread of which loads 16 bytes that are in L2"),
            ("load_hbm_near", load, read, read * count,
             "each thread of which loads 16 bytes that are in no cache, next to the kernel before"),
            ("load_hbm", load, MIB, count * MIB,
             "each thread of which loads 16 bytes that are in no cache, 1 MiB from the kernel "
             "before"),
            ("tma_l2", box, 0, 0, "a thread of which loads 8 KiB with TMA that are in L2"),
            ("tma_hbm", box, boxed, boxed * count,
             "a thread of which loads 8 KiB with TMA that are in no cache"),
        ):  # fmt: skip
            samples = []
            for number in range(REPEATS + 1):
                region = next(tries) * size % (BIG - 512 * MIB) if size else 0
                queue = []
                for k in range(count):
                    kernel, arguments = form(region + k * each)
                    queue.append(
                        gpu.prepare(kernel, arguments, grid=grid, block=128, shared=9 * KIB)
                    )
                gpu.flush_l2()
                if not size:
                    queue[0]()
                taken = gpu.milliseconds(queue) * 1e3 / count
                if number:
                    samples.append(taken)
            meter.put(
                f"start.{name}{tail}",
                samples,
                "us",
                f"{count} kernels of {grid} CTA(s) of 128 threads {what}, queued back to back, "
                "between two events",
            )
    overhead = meter.clock_overhead()
    parameter = []
    for where in ("l2", "hbm"):
        for page, step in (("same_page", KIB), ("other_page", 64 * MIB)):
            taken = []
            for number in range(REPEATS + 1):
                arguments = [u64(big + number * 512 * MIB), u64(step), u64(gpu.times)]
                gpu.flush_l2()
                for _ in range(1 + (where == "l2")):
                    gpu.launch("start/start_first", arguments, block=1)
                stamps = gpu.download(gpu.times, 6).astype(np.int64)
                if number:
                    taken.append(np.diff(stamps) - overhead)
            parameter += [each[0] for each in taken]
            for k in range(1, 5):
                meter.put(
                    f"start.load{k}.{where}.{page}",
                    [each[k] for each in taken],
                    "cycles",
                    f"load {k} of a kernel of one thread, {where.upper()}, "
                    f"{'1 KiB' if step == KIB else '64 MiB'} from the load before, which has come; "
                    "by clock64",
                )
    meter.put(
        "start.parameter",
        parameter,
        "cycles",
        "first instruction of a kernel to the use of a parameter, by clock64",
    )


def code(meter: Meter) -> None:
    """Straight-line code that is in no cache of instructions."""
    gpu, data = meter.gpu, meter.data()
    for count in (512, 2048):
        for warps in (1, 4):

            def cycles(pass_: int, count: int = count, warps: int = warps) -> float:
                gpu.launch(f"code/code_{count}", [u64(gpu.times), u64(data)], block=32 * warps)
                clocks = gpu.download(gpu.times, 4 * warps).reshape(2, warps, 2)
                return span(clocks[pass_]) / count

            found: dict[str, list[float]] = {"hbm": [], "l2": [], "again": [], "warm": []}
            for _ in range(REPEATS):
                for where in found:
                    if where in ("hbm", "l2"):
                        cycles(0)
                        gpu.launch("code/code_16384", [u64(gpu.times), u64(data)], grid=gpu.sms)
                    if where == "hbm":
                        gpu.flush_l2()
                    found[where].append(cycles(int(where == "warm")))
            for where, what in (
                ("hbm", "after 256 KiB of other code and 256 MiB of reads"),
                ("l2", "after 256 KiB of other code on all SMs"),
                ("again", "as the kernel before did"),
                ("warm", "a second time"),
            ):
                meter.put(
                    f"code.{where}.{count}.w{warps}",
                    found[where],
                    "cycles/instruction",
                    f"{count} fma.rn.f32 in a row in eight chains, {warps} warp(s) go through them "
                    f"{what}; by clock64",
                )


def rings(meter: Meter) -> None:
    """Copies of stages as products of matrices make them, while all SMs do."""
    gpu = meter.gpu
    memory = gpu.allocate(320 * MIB), gpu.allocate(320 * MIB)
    for address in memory:
        gpu.set(address, 0x3C003C00, 320 * MIB)
    rows = gpu.sms // 11  # of a grid that is 11 tiles wide
    for name, grid, tiles, boxes, what in (
        ("one", 1, Tiles(1, 1, 1, 0), 64, "one SM"),
        ("own", gpu.sms, Tiles(1, 1, gpu.sms, 0), 8, "all SMs, each its own tiles"),
        ("skewed", 12 * 11, Tiles(12, 12, 11, 6), 64,
         "all SMs, 12 read the same tiles and begin 6 boxes apart"),
        ("gemm", rows * 11, Tiles(11, 1, 11, 0), 64,
         "all SMs, 11 read the same tiles of the first matrix and 12 those of the second, as a "
         "product does"),
        ("own.ctas2", 2 * gpu.sms, Tiles(1, 1, 2 * gpu.sms, 0), 4,
         "two CTAs on all SMs, each its own tiles"),
        ("gemm.ctas2", 2 * rows * 11, Tiles(11, 1, 11, 0), 32,
         "two CTAs on all SMs, 11 read the same tiles of the first matrix and 24 those of the "
         "second, as a product does"),
    ):  # fmt: skip
        maps = [
            gpu.tensor_map(address, 2 * gpu.sms * height, boxes * 64, (height, 64))
            for address, height in zip(memory, (128, 64), strict=True)
        ]
        for stages in (1, 2, 3, 4):
            how = (
                f"{stages} stages of 16 KiB and 8 KiB by TMA in flight, refilled by the thread "
                f"that waits for them, from L2, {what}; difference of two numbers of passes, mean "
                "of the CTAs"
            )
            passes = _ring_passes(meter, grid, [*maps, tiles], stages, boxes)
            ctas = -(-grid // gpu.sms)  # of an SM
            meter.put(
                f"tma_ring.{name}.x{stages}", [ctas * 24 * KIB / n for n in passes], "B/clk/SM", how
            )
            meter.put(
                f"tma_ring.{name}.x{stages}.turnaround",
                [stages * n for n in passes],
                "cycles",
                f"from a stage's issue to the issue of its next copy: {how}",
            )


def _ring_passes(
    meter: Meter, grid: int, source: list[Any], stages: int, boxes: int
) -> list[float]:
    """Cycles of a stage's share of a ring, several times."""
    return _per_stage(
        meter,
        "ring/ring_stages",
        lambda count: [*source, u32(count), u32(stages), u32(boxes)],
        grid=grid,
        shared=(100 if grid > meter.gpu.sms else 200) * KIB,
    )


def _per_stage(
    meter: Meter,
    kernel: str,
    arguments: Callable[[int], Sequence[Any]],
    *,
    warp: int = 0,
    **how: Any,
) -> list[float]:
    """Cycles of a stage, several times: by the clocks of one warp, in the mean of the CTAs."""

    def cycles(count: int) -> float:
        clocks = meter.once(kernel, arguments(count), **how)[:, warp].astype(np.int64)
        return float((clocks[:, 1] - clocks[:, 0]).mean())

    few, many = 128, 640
    cycles(few)  # brings the tiles into L2
    return [slope(few, cycles(few), many, cycles(many)) for _ in range(REPEATS)]


_PACED = 330
"""Cycles that a paced consumer of ``shares.cu`` works on a stage at the least. With waiting and
releasing an H200's takes 508, nearly the 512 of its tensor cores for 128 x 128 x 64."""


def shares(meter: Meter) -> None:
    """Copies of stages whose rows several CTAs read: in which order, in pairs, and how paced."""
    gpu = meter.gpu
    memory = gpu.allocate(320 * MIB), gpu.allocate(320 * MIB)
    for address in memory:
        gpu.set(address, 0x3C003C00, 320 * MIB)
    pair = "in pairs (clusters of two) that read the same rows of B, each loading"
    for kind, size, by, who in (
        ("single", 1, 0, "without clusters"),
        ("alone", 2, 0, f"{pair} all of them for itself"),
        ("joint", 2, 1, f"{pair} all of them for itself once both have released the stage"),
        ("multicast", 2, 2, f"{pair} half of them for both once both have released the stage"),
    ):
        clusters = gpu.sms // size
        high = clusters // 11  # of a grid that is 11 tiles wide
        for name, count, tiles, boxes, row, column in (
            ("own", clusters, Shares(1, clusters, 1, clusters), 8, "c", "c"),
            ("rows", 11 * high, Shares(11, high, 1, 11), 64, "c // 11", "c % 11"),
            ("groups", clusters, Shares(1, 8, 8, -(-clusters // 8)), 64, "c % 8", "c // 8"),
        ):
            maps = [
                gpu.tensor_map(address, gpu.sms * 128, boxes * 64, (height, 64))
                for address, height in zip(memory, (128, 64), strict=True)
            ]
            cases = [(f"{kind}.x4", 4, 16 * KIB, 0), (f"{kind}.x6", 6, 16 * KIB, 0)]
            if name != "own":
                cases.append((f"{kind}.x6.paced", 6, 16 * KIB, _PACED))
            if (name, kind) == ("groups", "multicast"):
                cases.append((f"{kind}_only.x6", 6, 0, 0))
            for tail, stages, own, hold in cases:
                stage = own + 16 * KIB
                passes = _per_stage(
                    meter,
                    "shares/shares_stages",
                    lambda n, fixed=(stages, boxes, own, by, hold), operands=(*maps, tiles): [
                        *operands,
                        *(u32(value) for value in (n, *fixed)),
                    ],
                    warp=1,
                    grid=count * size,
                    block=64,
                    cluster=size,
                    shared=212 * KIB,
                )
                of_a = (
                    f"block row {row} of A" if size == 1 else f"block rows 2 ({row}) and next of A"
                )
                read = f"{of_a} and block row {column} of B" if own else f"block row {column} of B"
                does = "works about 508 cycles on each and" if hold else "at once"
                meter.put(
                    f"tma_share.{name}.{tail}",
                    [stage / cycles for cycles in passes],
                    "B/clk/SM",
                    f"bytes that a CTA receives by TMA from L2: {stages} stages in flight, each of "
                    f"128 rows of {'A and of B' if own else 'B alone'}, 64 columns of f16 "
                    f"({stage // KIB} KiB), issued by one warp, waited for by another that {does} "
                    f"releases them; a CTA on every SM, {who}; {'CTA' if size == 1 else 'pair'} c "
                    f"reads {read}, all {64 * boxes} columns over and over; difference of two "
                    "numbers of stages, mean of the CTAs",
                )


def loads(meter: Meter) -> None:
    """Loads of tiles through registers, and loads beside conflicts in shared memory."""
    gpu, data = meter.gpu, meter.data()
    a = gpu.allocate(GIB)
    gpu.set(a, 1, GIB)
    passes = 6
    for number, pitch, (tail, grid), where in itertools.product(
        (4, 8, 16), (2 * KIB, 16 * KIB), (("sm", 1), ("all", gpu.sms)), ("l2", "hbm")
    ):
        samples = []
        for repeat in range(REPEATS + 1):
            if where == "hbm":
                gpu.flush_l2()
            gpu.launch(
                f"loads/tile_load_{number}",
                [u64(gpu.times), u64(a), u64(pitch), u32(passes)],
                grid=grid,
                block=128,
            )
            clocks = gpu.download(gpu.times, 8 * passes * grid).reshape(passes, grid, 4, 2)
            if repeat:
                samples.append(clocks[1:, :, :, 1].max(2) - clocks[1:, :, :, 0].min(2))
        meter.put(
            f"tile_load.{tail}.{where}.x{number}.pitch{pitch // KIB}kb",
            np.concatenate(samples).reshape(-1),
            "cycles",
            f"issue to last arrival of {number} 16-byte loads of each of 128 threads, eight lanes "
            f"a row, rows {pitch // KIB} KiB apart, {where.upper()}, a CTA on "
            f"{'one SM' if grid == 1 else 'all SMs'}, by clock64",
        )
    for name, mask, what in (
        ("loads", 4 * MIB, "8 coalesced 16-byte loads of each lane, in L2"),
        ("stores", 4 * MIB, "one st.shared of all lanes to one bank"),
        ("both", 4 * MIB, "8 coalesced 16-byte loads of each lane, in L2, and one st.shared of "
         "all lanes to one bank"),
        ("both2", 4 * MIB, "8 coalesced 16-byte loads of each lane, in L2, and two st.shared of "
         "all lanes to one bank"),
        ("loads_l1", 64 * KIB, "8 coalesced 16-byte loads of each lane, in L1"),
        ("both_l1", 64 * KIB, "8 coalesced 16-byte loads of each lane, in L1, and one st.shared "
         "of all lanes to one bank"),
    ):  # fmt: skip
        meter.timed(
            f"lsu.{name}",
            f"{what}, by 16 warps",
            f"loads/lsu_{name}",
            lambda n, mask=mask: [u64(data), u64(a), u64(mask - 1), u32(n)],
            unit="cycles/pass/SM",
            few=64,
            many=512,
            block=512,
            shared=4 * KIB,
        )


def mma(meter: Meter) -> None:
    """Matrix products of a warp."""
    data = meter.data()
    for name, count, block, unit, what in (
        ("latency", 32, 32, "cycles", "a chain through the accumulators of one warp"),
        ("rate", 32 * 16, 512, "cycles/instruction/SM", "eight chains in each of 16 warps"),
    ):
        meter.timed(
            f"mma_m16n8k16.{'cycles' if name == 'rate' else name}",
            f"mma.sync.m16n8k16 of f16 with f32 accumulators, {what}",
            f"mma/mma_{name}",
            lambda n: [u64(data), u32(n)],
            count,
            unit=unit,
            block=block,
        )


def power(meter: Meter) -> None:
    """Power and clock while one engine is busy."""
    gpu = meter.gpu
    a, b, data = gpu.allocate(BIG), gpu.allocate(BIG), meter.data()
    gpu.upload(np.random.default_rng(3).integers(0, 256, 16 * MIB, np.uint8), a)
    filled = 16 * MIB
    while filled < BIG:
        gpu.copy_seconds(a + filled, a, filled)
        filled *= 2
    operands, sink = _normal_halves(gpu), gpu.allocate(64 * KIB)
    meter.put("power.limit", [gpu.power_limit()], "W", "the limit that the driver enforces")

    def reading(mask: int, n: int) -> list[Any]:
        return [u64(gpu.times), u64(data), u64(a), u64(mask), u32(n)]

    grid = {"grid": 2 * gpu.sms, "block": 1024}
    for name, kernel, arguments, how, what in (
        ("idle", "", [], {}, "nothing runs"),
        ("wgmma", "wgmma/wgmma_clock", [u64(gpu.times), u64(sink), u64(operands), u32(60_000)],
         {"grid": gpu.sms, "block": 256, "shared": 64 * KIB},
         "all SMs run m64n256k16 from two warpgroups on standard normal f16 in shared memory"),
        ("l2_read", "memory/read_cg", reading(16 * MIB - 1, 20_000), grid,
         "all SMs read 16 MiB of random bytes that are in L2"),
        ("hbm_read", "memory/read_cg", reading(BIG - 1, 12_000), grid,
         "all SMs read 8 GiB of random bytes"),
        ("hbm_copy", "memory/copy_global_4",
         [u64(gpu.times), u64(a), u64(b), u64(BIG - 1), u32(6_000)], grid,
         "all SMs copy 8 GiB of random bytes"),
        ("ffma", "arithmetic/ffma_rate", [u64(gpu.times), u64(data), u32(400_000)],
         {"grid": gpu.sms, "block": 512}, "16 warps of all SMs run fma.rn.f32"),
    ):  # fmt: skip
        launch = gpu.prepare(kernel, arguments, **how) if kernel else None
        watts, megahertz = gpu.power(launch, 4)
        each = "over quarters of a second after the first half"
        meter.put(f"power.{name}", watts, "W", f"NVML's energy counter {each}, while {what}")
        meter.put(f"power.{name}.clock", megahertz, "MHz", f"NVML's SM clock {each}, while {what}")


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
    "start": start,
    "code": code,
    "rings": rings,
    "shares": shares,
    "loads": loads,
    "mma": mma,
    "power": power,
}


def main() -> None:
    meter = Meter(Gpu())
    GROUPS[sys.argv[1]](meter)
    json.dump(meter.found, sys.stdout)


if __name__ == "__main__":
    main()
