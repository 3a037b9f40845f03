"""The time model's constants from what ``mlsys-gpu calibrate`` measured.

::

    python -m mlsys_gpu.calibration.constants book/results/h200/calibration.json

writes ``src/mlsys_gpu/sim/timing/gpus/h200.json``. Each constant of the model follows from one or
two measurements by the arithmetic below, and names them as its source. No kernel that judges the
model has a part in it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

GPUS = Path(__file__).resolve().parents[1] / "sim" / "timing" / "gpus"

_N = (8, 16, 32, 64, 96, 128, 192, 256)


class _Maker:
    """Collects constants, and remembers which measurements each was made of."""

    def __init__(self, measured: dict[str, dict[str, Any]]):
        self.measured = measured
        self.used: list[str] = []
        self.constants: dict[str, dict[str, Any]] = {}

    def m(self, name: str) -> float:
        """A measured value."""
        if name not in self.measured:
            raise ValueError(f"the calibration lacks {name!r}; run mlsys-gpu calibrate again")
        self.used.append(name)
        entry = self.measured[name]
        value = entry.get("value") if isinstance(entry, dict) else entry
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e15:
            raise ValueError(f"the calibration's {name} is no measurement: {value!r}")
        return float(value)

    def put(self, name: str, value: Any, unit: str, how: str = "") -> None:
        """A constant made of the measurements asked for since the last one."""
        source = "mlsys-gpu calibrate: " + ", ".join(dict.fromkeys(self.used))
        self.used = []
        self.constants[name] = {
            "value": _rounded(value),
            "unit": unit,
            "source": source + (f" ({how})" if how else ""),
        }

    def say(self, name: str, value: Any, unit: str, source: str) -> None:
        """A constant that is not measured here."""
        self.constants[name] = {"value": value, "unit": unit, "source": source}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    return float(f"{value:.5g}")


def hopper(calibration: dict[str, Any]) -> dict[str, Any]:
    """The constants of a Hopper GPU, as a file of :mod:`mlsys_gpu.sim.timing.gpus` holds them.

    ``calibration`` is a result file of ``mlsys-gpu calibrate``. Raises ``ValueError`` naming a
    measurement that it lacks.
    """
    gpu = (calibration.get("provenance") or {}).get("gpu") or {}
    for name in ("name", "arch", "multiprocessors", "l2_bytes"):
        if name not in gpu:
            raise ValueError(f"the calibration's provenance does not say the GPU's {name}")
    maker = _Maker(calibration["constants"])
    m, put, say = maker.m, maker.put, maker.say
    device = "CUDA device attributes, in the calibration's provenance"
    say("sms", gpu["multiprocessors"], "1", device)
    say("l2_bytes", gpu["l2_bytes"], "bytes", device)
    put("clock", m("clock_mhz"), "MHz")
    put("clock_tensor", m("clock_mhz_tensor"), "MHz")

    # Power: what draws it, at the boost clock. It grows with the cube of the clock.
    put("power_limit", m("power.limit"), "W")
    put("power_idle", m("power.idle"), "W")
    put(
        "power_tensor",
        (m("power.wgmma") - m("power.idle")) * (m("clock_mhz") / m("power.wgmma.clock")) ** 3,
        "W", "tensor cores always busy, at the boost clock",
    )  # fmt: skip
    l2 = (m("power.l2_read") - m("power.idle")) * (m("clock_mhz") / m("power.l2_read.clock")) ** 3
    put("power_l2", l2, "W", "all of L2's read bandwidth")
    through = m("hbm_copy_gbps") / 2 / m("l2_read_gbps")
    put(
        "power_hbm", m("power.hbm_copy") - m("power.idle") - through * l2, "W",
        "all of device memory's bandwidth, less L2's part",
    )  # fmt: skip

    # A launch in a queue of launches, and CTAs that follow each other.
    put("launch", m("kernel_gap_cycles") / m("clock_mhz"), "us")
    put(
        "start",
        m("start.load_hbm.full_grid") * m("clock_mhz") - m("kernel_gap_cycles")
        - m("start.load1.hbm.same_page") - m("start.parameter"),
        "cycles", "a kernel of one load, less the gap before it, the load and the parameter",
    )  # fmt: skip
    put("cta_start", m("cta_gap_cycles"), "cycles")
    put("cta_stagger", m("launch_cta_cycles.t128"), "cycles")

    # The chip's bandwidths, and an SM's ports.
    put("l2_read", m("l2_read_gbps"), "GB/s", "threads' loads")
    # Of copies: of bytes that no other SM reads, and of bytes that 12 SMs read in step. Where SMs
    # read the same as a GEMM does, in groups of 8 block rows and at a tensor core's pace, most of
    # them still do so together; fewer where the ring runs as fast as it goes.
    clock, sms = m("clock_mhz") * 1e6, gpu["multiprocessors"]
    own, step = m("tma_ring.own.x4"), m("tma_load.rate.all.l2_shared12.x4") * 1e9 / (clock * sms)
    mixed, different = m("tma_share.groups.single.x6.paced"), (8 + -(-sms // 8)) / 2 / sms
    apart = (1 / mixed - 1 / step) / (1 / own - 1 / step)
    put(
        "together", 1 - (apart - different) / (1 - different), "1",
        "which part of the SMs that read the same bytes does so at the same time; at least: the "
        "copies kept up with a consumer as fast as a tensor core, and might have been faster",
    )  # fmt: skip
    scale = clock * sms / 1e9
    put("l2_copy", m("tma_ring.own.x4") * m("clock_mhz") / m("clock_mhz") * scale, "GB/s")
    put("l2_copy_shared", m("tma_load.rate.all.l2_shared12.x4"), "GB/s")
    most = m("tma_ring.gemm.x4")
    put(
        "l2_copy_loaded",
        {
            "0": 0.0,
            f"{m('tma_ring.gemm.x1') / most:.3f}":
                m("tma_ring.gemm.x1.turnaround") - m("tma_ring.one.x1.turnaround"),
            f"{m('tma_ring.gemm.x2') / most:.3f}":
                m("tma_ring.gemm.x2.turnaround") - 2 * 24 * 1024 / most,
        },
        "cycles", "what a copy waits longer, by the part of the bandwidth that is used",
    )  # fmt: skip
    put("l2_write", m("l2_write_gbps"), "GB/s")
    put("sm_bytes", 8192 / m("tma_load.box_elected.8kb"), "bytes/cycle/SM")
    put("sm_store_bytes", m("tma_store.rate.sm"), "bytes/cycle/SM")
    put("sm_hbm_bytes", m("ld_global.rate.sm.hbm.t1024"), "bytes/cycle/SM")
    put("hbm_read", m("hbm_read_gbps"), "GB/s")
    put("hbm_write", m("hbm_write_gbps"), "GB/s")
    put("hbm_copy", m("hbm_copy_gbps"), "GB/s")
    # What a load waits longer for where others use a part of the bandwidth.
    most = m("ld_global.loaded_l2.131sms")
    put(
        "l2_loaded",
        {"0": 0.0, **{
            f"{m(f'ld_global.loaded_l2.{n}sms') / most:.3f}":
            m(f"ld_global.latency.loaded_l2.{n}sms") - m("ld_global.latency.l2")
            for n in (16, 33, 66, 131)
        }},
        "cycles", "by the part of the bandwidth that is used",
    )  # fmt: skip
    most = m("ld_global.loaded_hbm.131sms")
    put(
        "hbm_loaded",
        {"0": 0.0, **{
            f"{m(f'ld_global.loaded_hbm.{n}sms') / most:.3f}":
            m(f"ld_global.latency.loaded_hbm.{n}sms") - m("ld_global.latency.hbm.512mb")
            for n in (16, 33, 66)
        }},
        "cycles", "by the part of the bandwidth that is used; beyond, requests queue",
    )  # fmt: skip

    # Latencies of global memory.
    put("load_latency_l2", m("ld_global.latency.l2"), "cycles")
    put("load_latency_hbm", m("ld_global.latency.hbm.512mb"), "cycles")
    say(
        "load_batch", 4, "1",
        "SASS of copies through registers (NVRTC 13.0); where the compiler is, its code is read",
    )  # fmt: skip
    say("burst", 1000, "cycles", "none: how long an SM may use the others' share of L2 and memory")
    put(
        "store_acknowledged",
        m("cluster_barrier.after_stores_1.x2") - m("cluster_barrier.x2"), "cycles",
        "what a store before a release adds to it",
    )  # fmt: skip
    put("store_drain", m("fence.sc_gpu_after_st_global.t128"), "cycles")
    say("store_buffer", 2000, "cycles", "none: how far a warp's stores may be behind it")

    # The copy engine. What was measured ends with a wait that succeeds: its cost is taken off.
    waited = m("mbarrier.wait_done.lanes1")
    rate = 8192 / m("tma_load.box_elected.8kb")
    put(
        "tma_latency_l2", m("tma_load.latency.l2.1kb") - 1024 / rate - waited, "cycles",
        "less the bytes' time at the port's rate, and the wait",
    )  # fmt: skip
    put(
        "tma_latency_hbm",
        m("tma_load.latency.hbm.1kb") - 1024 / rate
        - m("mbarrier.wait_done.lanes1") - 3 * (m("bulk_load.latency.hbm.16kb")
        - m("bulk_load.latency.hbm.1kb")) / 4,
        "cycles", "as from L2, and of one line: less three doublings",
    )  # fmt: skip
    # Of many lines that come from device memory one waits for the slowest: what their number adds.
    put(
        "cold_doubling",
        (m("bulk_load.latency.hbm.16kb") - m("bulk_load.latency.hbm.1kb")
         - 15 * 1024 / rate) / 4,
        "cycles", "each doubling of the lines of 128 bytes that come together, side by side",
    )  # fmt: skip
    put(
        "cold_doubling_rows",
        (m("tma_load.latency.hbm.16kb") - m("tma_load.latency.hbm.1kb")
         - 15 * 1024 / rate) / 4,
        "cycles", "the same, of lines that lie a row of a matrix apart",
    )  # fmt: skip
    put("tma_issue", m("tma_load.box_elected.1kb"), "cycles", "beside the bytes' time at the port")
    put("tma_instruction", m("tma_load.issue_elected.1kb"), "cycles", "by an elected thread")
    put(
        "multicast_latency",
        m("tma_multicast.latency.16kb") - m("tma_load.latency.l2.16kb"),
        "cycles",
    )
    put(
        "tma_store_read_latency",
        m("tma_store.latency.read.1kb") - 1024 / m("tma_store.rate.sm"),
        "cycles", "less the bytes' time at the port's rate",
    )  # fmt: skip
    put(
        "tma_store_latency",
        m("tma_store.latency.done.1kb") - 1024 / m("tma_store.rate.sm"),
        "cycles", "less the bytes' time at the port's rate",
    )  # fmt: skip
    put(
        "cp_async_latency",
        m("cp_async.latency.l2") - m("ld_global.latency.l2"), "cycles", "beyond a load's",
    )  # fmt: skip

    # Shared memory.
    put("shared_load_latency", m("ld_shared.latency.x1") - 1, "cycles", "less one wavefront")
    put("ldmatrix_latency", m("ldmatrix_x4.latency") - 4, "cycles", "less four wavefronts")
    say("shared_store_buffer", 32, "cycles", "none: how far a warp's stores may be behind it")
    put("atomic_shared", m("atom_shared.cycles.x0") / 32, "cycles", "a lane on one address")

    # Barriers.
    put(
        "mbarrier_arrive",
        {"issue": m("mbarrier.arrive.lanes1"), "latency": m("mbarrier.arrive.lanes1")},
        "cycles",
    )
    put("mbarrier_pass", m("mbarrier.wait_done.lanes32"), "cycles")
    put(
        "mbarrier_latency",
        m("mbarrier.arrive_to_wait.warp")
        - m("mbarrier.wait_done.lanes32")
        - m("mbarrier.arrive.lanes32"),
        "cycles", "less the arrival and a wait that succeeds",
    )  # fmt: skip
    put(
        "lane_wake",
        m("mbarrier.arrive_to_wait") - m("mbarrier.arrive_to_wait.warp"),
        "cycles", "a thread alone against a warp",
    )  # fmt: skip
    put("remote_arrive", m("mbarrier_remote.arrive.lanes1"), "cycles")
    put(
        "remote_latency",
        m("mbarrier_remote.arrive_to_wait")
        - m("mbarrier.wait_done.lanes1")
        - m("mbarrier_remote.arrive.lanes1"),
        "cycles", "less the arrival and a wait that succeeds",
    )  # fmt: skip
    slope = (m("bar_sync.12warps") - m("bar_sync.4warps")) / 8
    put("barrier_warp", slope, "cycles", "for each warp")
    put(
        "barrier_pass",
        m("bar_sync.4warps") - (m("bar_sync.12warps") - m("bar_sync.4warps")) / 2,
        "cycles", "without what each warp adds",
    )  # fmt: skip
    put("cluster_latency", m("cluster_barrier.x2") - 20, "cycles", "less arrival and wait")
    say("cluster_arrive", 4, "cycles", "part of cluster_latency")
    say("cluster_pass", 16, "cycles", "part of cluster_latency")

    # Tensor cores.
    put("wgmma_ss", {str(n): m(f"wgmma.ss.wg2.n{n}") for n in _N}, "cycles")
    put("wgmma_rs", {str(n): m(f"wgmma.rs.wg2.n{n}") for n in _N}, "cycles")
    put(
        "wgmma_latency",
        m("wgmma_latency.ss.k1.n128") - m("wgmma.ss.wg1.n128") - m("wgmma.fence"),
        "cycles", "less the product itself and the fence",
    )  # fmt: skip
    say("wgmma_queue", 256, "cycles", "none: how far an issuer may be ahead of the tensor core")
    put("mma_m16n8k16", 4 * m("mma_m16n8k16.cycles"), "cycles", "of a quarter of the SM")
    put("mma_latency", m("mma_m16n8k16.latency"), "cycles")

    # Instructions, in warp instructions a cycle.
    for name, of in (
        ("fma", "ffma"), ("alu", "fmnmx"), ("imad", "imad"), ("pack", "cvt_f16x2_f32"),
        ("mufu", "ex2"), ("cvt", "f2i"), ("half", "hfma2"),
    ):  # fmt: skip
        put(name, m(f"{of}.rate") / 32, "instructions/cycle/SM")
    put("fma2", m("ffma.rate") / 64, "instructions/cycle/SM", "two float32 operations each")
    say("f64", 2, "instructions/cycle/SM", "CUDA C++ Programming Guide, arithmetic throughput")
    put("alu_latency", m("ffma.latency"), "cycles")
    say(
        "independent", 2, "1",
        "none: how many of a warp's instructions, on average, do not wait for each other",
    )  # fmt: skip
    put("mufu_latency", m("ex2.latency"), "cycles")

    # Atomics and the other CTAs of a cluster.
    put("atomic_global", 32 / m("red_global.rate.sm.b4"), "cycles", "of a warp")
    put(
        "atomic_same", 1 / m("red_global.rate.all.b0"), "cycles", "of the chip, each on one address"
    )
    put("atomic_latency", m("atom_global.latency"), "cycles")
    put("dsmem_load_latency", m("dsmem_ld.latency.x2"), "cycles")
    put("dsmem_store_latency", m("dsmem_ld.latency.x2"), "cycles", "as a load")
    put("dsmem_bytes", m("dsmem_st.rate.x2"), "bytes/cycle/SM")
    put("st_async_latency", m("st_async.to_wait") - m("mbarrier.wait_done.lanes1"), "cycles")
    put(
        "dsmem_bulk_latency", m("bulk_dsmem.to_wait.16b") - m("mbarrier.wait_done.lanes1"), "cycles"
    )
    put("clc_latency", m("atom_global.latency"), "cycles", "as an atomic: Hopper has none")

    def delay(name: str, issue: float, latency: float, how: str = "") -> None:
        put(name, {"issue": issue, "latency": latency}, "cycles", how)

    delay("fence_proxy_async", 2, m("fence.proxy_async_shared_after_st_shared.t128"))
    delay("wgmma_fence", 1, m("wgmma.fence"))
    delay("setmaxnreg", 1, m("setmaxnreg.dec"))
    delay("vote", 1, m("ballot.latency"))
    delay("shuffle", 1, m("shfl.latency"))
    delay("redux", 2, m("redux.latency"))
    delay("fence_cta", 1, m("fence.acq_rel_cta.t128"))
    delay("fence_cluster", 1, m("fence.acq_rel_cluster.t128"))
    delay("fence_gpu", 1, m("fence.acq_rel_gpu.t128"))
    delay("fence_sys", 1, m("fence.acq_rel_gpu.t128"), "as for the GPU's scope")
    delay("movmatrix", 1, m("shfl.latency"), "as a shuffle")
    delay("mapa", 1, m("iadd.latency"), "as an addition")
    delay("warp_sync", 1, m("iadd.latency"), "as an addition")
    delay("fence_mbarrier_init", 1, m("fence.acq_rel_cta.t128"), "as a fence of the CTA")
    delay("grid_sync", 1, 2 * m("atom_global.latency"), "an atomic and a read of its result")
    return {"name": gpu["name"].replace("NVIDIA ", ""), "arch": gpu["arch"],
            "constants": dict(sorted(maker.constants.items()))}  # fmt: skip


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m mlsys_gpu.calibration.constants CALIBRATION.json", file=sys.stderr)
        return 2
    calibration = json.loads(Path(arguments[0]).read_text())
    constants = hopper(calibration)
    path = GPUS / f"{constants['name'].lower()}.json"
    path.write_text(json.dumps(constants, indent=1) + "\n")
    print(f"{len(constants['constants'])} constants in {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
