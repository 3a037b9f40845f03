"""The micro-benchmarks compile to what they time, and their arithmetic gives known answers."""

import ctypes
import itertools
import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from mlsys_gpu import artifacts, calibration, cli, device
from mlsys_gpu.calibration import constants, measure, sources
from mlsys_gpu.calibration.gpu import TensorMap

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "book/results/h200/calibration.json"

pytest.importorskip("cuda.bindings.nvrtc", reason="compiling needs NVRTC")


# ------------------------------------------------------------------------------------- kernels


@pytest.fixture(scope="module")
def machine_code():
    """Kernel to its machine instructions, ``file/kernel``."""
    found = {}
    for name in sources.names():
        text = artifacts.disassemble(sources.compiled(name).cubin)
        for section in re.split(r"(?m)^\.text\.", text)[1:]:
            kernel = section.partition(":")[0]
            found[f"{name}/{kernel}"] = re.findall(
                r"/\*[0-9a-f]{4,5}\*/\s+(?:@!?U?P\d+ )?([A-Z][A-Z0-9_.]*)", section
            )
    return found


# How many instructions a timed pass must still hold, after the assembler has been over it.
STEPS = 128
WANTED = {
    **{
        f"arithmetic/{name}_{what}": (opcode, count)
        for what in ("latency", "rate")
        for name, opcode, count in (
            ("ffma", "FFMA", STEPS), ("fadd", "FADD", STEPS), ("fmul", "FMUL", STEPS),
            ("fmnmx", "FMNMX", 2 * STEPS), ("hfma2", r"HFMA2(\.MMA)?", STEPS),
            ("iadd", r"IADD3|IMAD\.IADD", 2 * STEPS), ("lop", r"LOP3\.LUT", 2 * STEPS),
            ("imad", "IMAD", STEPS), ("prmt", "PRMT", STEPS), ("shf", r"SHF\..*", STEPS),
            ("setp_sel", "SEL", STEPS), ("ex2", r"MUFU\.EX2", STEPS),
            ("lg2", r"MUFU\.LG2", STEPS), ("rcp", r"MUFU\.RCP", STEPS),
            ("rsqrt", r"MUFU\.RSQ", STEPS), ("tanh", r"MUFU\.TANH", STEPS),
            ("cvt_f16x2_f32", r"F2FP\.F16\.F32\.PACK_AB", STEPS),
            ("cvt_bf16x2_f32", r"F2FP\.BF16\.F32\.PACK_AB", STEPS),
            ("cvt_f32_f16", r"HADD2\.F32", STEPS), ("i2f", r"I2FP\..*", STEPS),
            ("f2i", r"F2I\..*", STEPS), ("shfl", r"SHFL\.BFLY", STEPS),
            ("redux", r"REDUX\..*", STEPS), ("ballot", r"VOTE\..*", STEPS),
            ("div_rn", "FCHK", 32), ("div_approx", r"MUFU\.RCP", 32),
            ("sqrt_rn", r"MUFU\.RSQ", 32), ("rcp_rn", r"MUFU\.RCP", 32),
            ("expf", r"MUFU\.EX2", 32), ("exp2f", r"MUFU\.EX2", 32),
        )
    },
    "shared/ld_shared_latency": ("LDS", 32),
    "shared/ld_shared_v4_latency": (r"LDS\.128", 32),
    "shared/ld_shared_rate": ("LDS", 16),
    "shared/ld_shared_v4_rate": (r"LDS\.128", 8),
    "shared/st_shared_rate": ("STS", 16),
    "shared/st_shared_v4_rate": (r"STS\.128", 8),
    "shared/st_ld_shared_latency": ("STS", 16),
    "shared/ldmatrix_latency": (r"LDSM\.16\.M88\.4", 16),
    "shared/ldmatrix_rate": (r"LDSM\.16\.M88\.4", 8),
    "shared/ldmatrix_trans_latency": (r"LDSM\.16\.MT88\.4", 16),
    "shared/ldmatrix_trans_rate": (r"LDSM\.16\.MT88\.4", 8),
    "shared/stmatrix_rate": (r"STSM\..*", 8),
    "shared/stmatrix_ld_latency": (r"STSM\..*", 16),
    "shared/atom_shared_latency": (r"ATOMS\..*", 16),
    **{
        f"wgmma/wgmma_{form}_{n}": (r"HGMMA\..*", 16)
        for form in ("ss", "rs") for n in sources.WGMMA_N
    },
    **{
        f"wgmma/wgmma_ss_{n}_wait{k}": (r"HGMMA\..*", k) for n in (8, 64, 128, 256) for k in (1, 4)
    },
    **{f"wgmma/wgmma_rs_{n}_wait1": (r"HGMMA\..*", 1) for n in (8, 64, 128, 256)},
    "wgmma/wgmma_clock": (r"HGMMA\..*", 16),
    "wgmma/wgmma_wait_done": (r"WARPGROUP\.DEPBAR\.LE", 16),
    "wgmma/wgmma_fence": (r"WARPGROUP\.ARRIVE", 16),
    "wgmma/setmaxnreg": (r"USETMAXREG.*", 2),
    **{f"tma/tma_load_{k}": (r"UTMALDG\.2D", 1) for k in ("latency", "ring")},
    **{f"tma/bulk_load_{k}": (r"UBLKCP\.S\.G", 1) for k in ("latency", "ring")},
    "tma/tma_load_issue": (r"UTMALDG\.2D", 4),
    "tma/tma_load_issue_elected": (r"UTMALDG\.2D", 4),
    "tma/bulk_load_issue": (r"UBLKCP\.S\.G", 4),
    **{f"tma/tma_store_{k}": (r"UTMASTG\.2D", 1) for k in ("latency", "ring")},
    **{f"tma/bulk_store_{k}": (r"UBLKCP\.G\.S", 1) for k in ("latency", "ring")},
    "tma/bulk_wait_done": (r"DEPBAR\.LE", 16),
    "tma/tma_multicast_latency": (r"UTMALDG\.2D\.MULTICAST", 1),
    "tma/tma_multicast_ring": (r"UTMALDG\.2D\.MULTICAST", 1),
    "memory/chase_ca": (r"LDG\.E\.64\.STRONG\.SM", 1),
    "memory/chase_cg": (r"LDG\.E\.64\.STRONG\.GPU", 1),
    "memory/chase_loaded": (r"LDG\.E\.128\.STRONG\.GPU", 4),
    "memory/read_ca": (r"LDG\.E\.128\.STRONG\.SM", 8),
    "memory/read_cg": (r"LDG\.E\.128\.STRONG\.GPU", 8),
    "memory/write_global": (r"STG\.E\.128", 8),
    "memory/copy_global_1": (r"STG\.E\.128", 1),
    "memory/copy_global_4": (r"STG\.E\.128", 4),
    "memory/read_strided_ca": (r"LDG\.E\.STRONG\.SM", 8),
    "memory/read_strided_cg": (r"LDG\.E\.STRONG\.GPU", 8),
    "memory/write_strided": (r"STG\.E", 8),
    "memory/cp_async_latency": (r"LDGSTS\..*", 1),
    "memory/cp_async_rate": (r"LDGSTS\..*", 4),
    "memory/cp_async_wait_done": (r"DEPBAR\.LE", 16),
    "memory/red_global_rate": (r"REDG\..*", 8),
    "memory/atom_global_rate": (r"ATOMG\..*", 8),
    "memory/atom_global_latency": (r"ATOMG\..*", 1),
    "sync/mbarrier_wait_done": (r"SYNCS\.PHASECHK\..*", 16),
    "sync/mbarrier_arrive": (r"SYNCS\.ARRIVE\..*", 16),
    "sync/mbarrier_expect": (r"SYNCS\.ARRIVE\..*", 16),
    "sync/mbarrier_ping_pong": (r"SYNCS\.ARRIVE\..*", 2),
    "sync/mbarrier_ping_pong_warp": (r"SYNCS\.ARRIVE\..*", 2),
    "sync/bar_sync": (r"BAR\.SYNC\..*", 16),
    "sync/bar_ping_pong": (r"BAR\.ARV", 2),
    "sync/cluster_barrier": (r"UCGABAR_WAIT", 4),
    "sync/cluster_barrier_relaxed": (r"UCGABAR_WAIT", 4),
    "sync/mbarrier_remote_ping_pong": (r"SYNCS\.ARRIVE\.TRANS64\.RED\..*", 2),
    "sync/mbarrier_remote_ping_pong_cluster": (r"SYNCS\.ARRIVE\.TRANS64\.RED\..*", 2),
    "sync/mbarrier_remote_arrive": (r"SYNCS\.ARRIVE\.TRANS64\.RED\..*", 16),
    "sync/st_async_ping_pong": (r"STAS.*", 2),
    "sync/bulk_dsmem_ping_pong": (r"UBLKCP\.S\.S|UBLKCP.*", 2),
    "sync/dsmem_ld_latency": (r"LD\.E\..*", 8),
    "sync/dsmem_ld_rate": (r"LD\.E\.128\..*", 8),
    "sync/dsmem_st_rate": (r"ST\.E\.128\..*", 8),
    **{
        f"sync/fence_{name}": (opcode, 8)
        for name, opcode in (
            ("proxy_async", r"FENCE\.VIEW\.ASYNC\..*"),
            ("proxy_async_shared", r"FENCE\.VIEW\.ASYNC\.S"),
            ("proxy_async_shared_after_st_shared", "STS"),
            ("acq_rel_cta", r"MEMBAR\.ALL\.CTA"), ("acq_rel_cluster", r"MEMBAR\.ALL\.GPU"),
            ("acq_rel_cluster_after_st_shared", "STS"), ("sc_gpu", r"MEMBAR\.SC\.GPU"),
            ("sc_gpu_after_st_global", r"STG\..*"), ("acq_rel_gpu", r"MEMBAR\.ALL\.GPU"),
            ("acq_rel_gpu_after_st_global", r"STG\..*"),
        )
    },
    "sync/cluster_barrier_stores_1": (r"STG\.E", 1),
    "sync/cluster_barrier_stores_4": (r"STG\.E", 4),
    "sync/cluster_barrier_stores_16": (r"STG\.E", 16),
    "sync/cluster_barrier_relaxed_stores_16": (r"STG\.E", 16),
    "start/start_nothing": ("EXIT", 1), "start/start_load": (r"LDG\.E\.128\.STRONG\.GPU", 1),
    "start/start_tma": (r"UTMALDG\.2D", 1), "start/start_first": (r"LDG\.E\.STRONG\.GPU", 4),
    **{f"code/code_{n}": ("FFMA", n) for n in (512, 2048, 16384)},
    "ring/ring_stages": (r"UTMALDG\.2D", 2),
    "shares/shares_stages": (r"UTMALDG\.2D", 3),  # and a multicast: a test of its own
    **{f"loads/tile_load_{n}": (r"LDG\.E\.128\.STRONG\.GPU", n) for n in (4, 8, 16)},
    "loads/lsu_loads": (r"LDG\.E\.128\.STRONG\.GPU", 8), "loads/lsu_stores": ("STS", 1),
    "loads/lsu_both": (r"LDG\.E\.128\.STRONG\.GPU", 8), "loads/lsu_both2": ("STS", 2),
    "loads/lsu_loads_l1": (r"LDG\.E\.128\.STRONG\.SM", 8),
    "loads/lsu_both_l1": (r"LDG\.E\.128\.STRONG\.SM", 8),
    "mma/mma_latency": (r"HMMA\.16816\.F32", 32), "mma/mma_rate": (r"HMMA\.16816\.F32", 32),
    "launch/hold": ("CS2R", 2), "launch/stamps": ("CS2R", 3), "launch/clock_light": ("CS2R", 2),
    "launch/clock_overhead": ("CS2R", 2), "launch/empty": ("EXIT", 1),
}  # fmt: skip


def test_each_kernel_holds_what_it_times(machine_code):
    assert machine_code.keys() == WANTED.keys()
    lost = []
    for kernel, (opcode, count) in WANTED.items():
        found = sum(re.fullmatch(opcode, op) is not None for op in machine_code[kernel])
        if found < count:
            lost.append(f"{kernel}: {found} of {count} {opcode}")
    assert not lost


def test_a_pair_shares_by_multicast(machine_code):
    """In place of its two loads of the second matrix, beside the one of the first."""
    count = machine_code["shares/shares_stages"].count
    assert count("UTMALDG.2D") == 3 * count("UTMALDG.2D.MULTICAST") > 0


def test_nothing_spills_and_no_wgmma_is_serialised():
    for name in sources.names():
        log = sources.compiled(name).log
        assert "ptxas" in log
        assert not re.search(r"[1-9]\d* bytes spill", log), name
        assert not re.search(r"ptxas.*warning", log), name


# ----------------------------------------------------------------------------------- arithmetic


def test_slope_leaves_out_what_surrounds_the_loop():
    assert measure.slope(16, 700 + 16 * 32 * 4.25, 80, 700 + 80 * 32 * 4.25, 32) == 4.25


def test_span_is_from_the_first_begin_to_the_last_end():
    clocks = np.array([[105, 900], [100, 880], [110, 910]], np.uint64)
    assert measure.span(clocks) == 810


def test_spread_is_median_and_percentiles():
    assert measure.spread([5.0]) == (5.0, 5.0, 5.0)
    assert measure.spread([float(n) for n in range(101)]) == (50.0, 20.0, 80.0)


def test_gaps_are_between_neighbours_on_one_sm():
    stamps = np.array([[1, 500, 900], [0, 90, 200], [1, 1000, 1500], [0, 260, 300]], np.uint64)
    assert measure.gaps(stamps) == [60, 100]
    second = np.array([[0, 450, 460], [2, 7, 8]], np.uint64)
    assert measure.following(stamps, second) == [150]


class Driver:
    """A GPU whose kernels take ``cost`` cycles for each of their passes, and 1000 besides.

    Every launch is held against the kernel's parameters, as the PTX declares them.
    """

    sms, times = 132, 1 << 20

    def __init__(self, cost: float):
        self.cost, self.passes, self.next = cost, 0, 1 << 30
        self.launched: set[str] = set()
        self.kernel = ""

    def allocate(self, count):
        self.next += count
        return self.next - count

    def upload(self, array, address=None):
        return self.allocate(array.nbytes) if address is None else address

    def set(self, address, value, count):
        pass

    def flush_l2(self):
        pass

    def tensor_map(self, address, rows, columns, box):
        assert rows % box[0] == columns % box[1] == 0
        return TensorMap()

    def prepare(self, kernel, arguments, *, grid=1, block=32, cluster=1, shared=0):
        self.launched.add(kernel)
        assert [ctypes.sizeof(a) for a in arguments] == parameters()[kernel], kernel
        assert shared <= 227 * 1024
        assert block <= 1024
        assert grid % cluster == 0
        numbers = [a.value for a in arguments if isinstance(a, ctypes.c_uint)]
        passes = numbers[0] if numbers else grid

        def launch():
            self.passes, self.kernel = passes, kernel

        return launch

    def launch(self, kernel, arguments, **how):
        self.prepare(kernel, arguments, **how)()

    def milliseconds(self, launches):
        total = 0.0
        for launch in launches:
            launch()
            total += (1000 + self.cost * self.passes) / 1e6
        return total

    def power_limit(self):
        return 700.0

    def power(self, launch, count):
        if launch is not None:
            launch()
        return [400.0] * count, [1500.0] * count

    def copy_seconds(self, to, address, count):
        return count / 1e12

    def download(self, address, count):
        clocks = np.zeros(count, np.uint64)
        clocks[1::2] = round(1000 + self.cost * self.passes)
        if "clock" in self.kernel:  # cycles and nanoseconds: two gigahertz
            clocks[0::2], clocks[1::2] = 2000, 1000
        if (
            self.kernel == "launch/stamps" and count == 6 * self.sms
        ):  # of twice as many CTAs as SMs: (SM, began, ended)
            clocks = np.array([(k // 2, k % 2 * 300, 250) for k in range(count // 3)], np.uint64)
        return clocks.reshape(-1)


_parameters: dict[str, list[int]] = {}


def parameters():
    """Bytes of each kernel's parameters."""
    if not _parameters:
        size = {"u64": 8, "b64": 8, "u32": 4, "b32": 4}
        for name in sources.names():
            entries = re.finditer(r"\.entry (\w+)\((.*?)\)", sources.compiled(name).ptx, re.DOTALL)
            for entry in entries:
                _parameters[f"{name}/{entry[1]}"] = [
                    int(array[1]) if (array := re.search(r"\[(\d+)\]", declared)) else
                    size[re.search(r"\.([ub]\d\d) ", declared)[1]]
                    for declared in re.findall(r"\.param ([^\n,]+)", entry[2])
                ]  # fmt: skip
    return _parameters


def test_a_timed_loop_gives_its_known_cost():
    meter = measure.Meter(Driver(cost=512))
    found = meter.timed("x", "a copy", "sync/bar_sync", lambda n: [measure.u32(n)], 16)
    assert found == 32
    assert meter.found["x"]["value"] == 32
    assert meter.found["x"]["spread"] == [32, 32]
    rate = meter.timed(
        "y", "bytes", "sync/bar_sync", lambda n: [measure.u32(n)], 16, unit="B/clk", amount=128
    )
    assert rate == 4


def test_a_bandwidth_is_bytes_over_the_slope():
    meter = measure.Meter(Driver(cost=1e6))  # a millisecond for each 1000 passes: 1e6 cycles = 1 ms
    given = meter.bandwidth(
        "z", "bytes", "sync/bar_sync", lambda n: [measure.u32(n)], 4e9, few=10, many=30
    )
    assert given == pytest.approx(4e9 / 1e-3 / 1e9)


def test_every_group_launches_kernels_that_exist_with_the_arguments_they_take():
    driver, found = Driver(cost=4096), {}
    for group in measure.GROUPS.values():
        meter = measure.Meter(driver)
        group(meter)
        assert not meter.found.keys() & found.keys()
        found |= meter.found
    assert driver.launched == parameters().keys() - {"launch/hold"}
    # 4096 cycles a pass of 16 instructions of one warpgroup
    assert found["wgmma.ss.wg1.n256"]["value"] == 256
    assert found["wgmma.ss.wg2.n256"]["value"] == 128
    assert found["ffma.rate"]["value"] == 16
    assert found["ld_shared.cycles.x1"]["value"] == 16
    assert found["st_global.rate.sm"]["value"] == 32
    assert found["cta_gap_cycles"]["value"] == 50
    assert found["clock_mhz"]["value"] == 2000
    assert found["mma_m16n8k16.cycles"]["value"] == 8
    assert found["lsu.both"]["value"] == 4096
    assert found["tma_ring.own.x2"]["value"] == 6  # 24 KiB in 4096 cycles
    assert found["tma_ring.own.x2.turnaround"]["value"] == 8192
    assert found["tma_ring.own.ctas2.x2"]["value"] == 12
    assert found["tma_share.rows.joint.x6.paced"]["value"] == 8  # 32 KiB in 4096 cycles
    assert found["tma_share.groups.multicast_only.x6"]["value"] == 4  # 16 KiB
    assert all(c.keys() == {"value", "unit", "spread", "how"} for c in found.values())


class Launches(Driver):
    """Which block rows the CTAs of ``shares.cu`` read, launch by launch."""

    def __init__(self):
        super().__init__(cost=512)
        self.read = []

    def tensor_map(self, address, rows, columns, box):
        self.rows, self.columns = rows, columns
        return super().tensor_map(address, rows, columns, box)

    def prepare(self, kernel, arguments, *, grid=1, block=32, cluster=1, shared=0):
        tiles = arguments[3]
        _, stages, period, own, how, hold = (a.value for a in arguments[4:])
        assert stages * (own + 16 * 1024) <= shared
        assert period * 64 == self.columns
        rows = []
        for cta in range(grid):
            c, rank = divmod(cta, cluster)
            rows.append(
                (
                    c // tiles.rows_over % tiles.rows_of * cluster + rank,
                    c // tiles.columns_over % tiles.columns_of,
                )
            )
        assert all(128 * (row + 1) <= self.rows for pair in rows for row in pair)
        launched = (cluster, stages, own, how, hold > 0, rows)
        if not self.read or self.read[-1] != launched:
            self.read.append(launched)
        return super().prepare(
            kernel, arguments, grid=grid, block=block, cluster=cluster, shared=shared
        )


def test_shares_reads_the_rows_that_its_names_say():
    driver = Launches()
    meter = measure.Meter(driver)
    measure.shares(meter)
    launched = dict(zip(meter.found, driver.read, strict=True))
    free = itertools.product(
        ("own", "rows", "groups"), ("single", "alone", "joint", "multicast"), ("x4", "x6")
    )
    paced = itertools.product(("rows", "groups"), ("single", "alone", "joint", "multicast"))
    names = {f"tma_share.{'.'.join(parts)}" for parts in free}
    names |= {f"tma_share.{'.'.join(parts)}.x6.paced" for parts in paced}
    assert launched.keys() == names | {"tma_share.groups.multicast_only.x6"}
    # different block rows of A and of B: of 132 CTAs, and of 66 pairs
    different = {
        "own": {1: (132, 132), 2: (132, 66)},
        "rows": {1: (12, 11), 2: (12, 11)},
        "groups": {1: (8, 17), 2: (16, 9)},
    }
    for name, (cluster, stages, own, how, hold, rows) in launched.items():
        _, order, kind, depth, *paced = name.split(".")
        assert cluster == (1 if kind == "single" else 2), name
        assert how == {"joint": 1, "multicast": 2, "multicast_only": 2}.get(kind, 0), name
        assert own == (0 if kind.endswith("_only") else 16 * 1024), name
        assert depth == f"x{stages}"
        assert hold == bool(paced) == ("508 cycles" in meter.found[name]["how"])
        assert len(rows) == 132
        assert (
            tuple(len(set(each)) for each in zip(*rows, strict=True)) == (different[order][cluster])
        ), name
        if cluster == 2:  # both CTAs of a pair need the same of B, and each its own of A
            for (a, b), (peer_a, peer_b) in zip(rows[::2], rows[1::2], strict=True):
                assert (peer_a, peer_b) == (a + 1, b), name
    assert launched["tma_share.groups.single.x6"][-1][8:10] == [(0, 1), (1, 1)]


# -------------------------------------------------------------------------------------- calibrate


@pytest.fixture
def groups(monkeypatch, h200):
    """An H200 for whose groups the test says what their processes answer."""
    answers = {"asked": []}

    def run(command, **_):
        if command[-1] in measure.GROUPS:  # and not nvidia-smi
            answers["asked"].append(command[-1])
        status, out, err = answers.get(command[-1], (0, "{}", ""))
        return subprocess.CompletedProcess(command, status, out, err)

    monkeypatch.setattr(device, "current", lambda: h200)
    monkeypatch.setattr(calibration.subprocess, "run", run)
    return answers


ONE = {"clock_mhz": {"value": 1980.0, "unit": "MHz", "spread": [1979.0, 1981.0], "how": "so"}}


def test_calibrate_writes_what_it_prints(groups, tmp_path, capsys):
    groups["clocks"] = (0, json.dumps(ONE), "")
    path = tmp_path / "constants.json"
    assert cli.main(["calibrate", "-o", str(path), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["constants"] == ONE
    assert printed["missing"] == {}
    assert printed["provenance"]["gpu"]["name"] == "NVIDIA H200"
    assert printed["provenance"]["sources"] == calibration.source_hashes()
    assert calibration.load(path).to_dict() == printed == json.loads(path.read_text())
    assert cli.main(["calibrate"]) == 0
    assert "clock_mhz" in capsys.readouterr().out


def test_a_group_that_faults_is_said_and_is_status_1(groups, capsys):
    groups["clocks"] = (0, json.dumps(ONE), "")
    groups["tma"] = (1, "", "Traceback\nDriverError: cuCtxSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS")
    assert cli.main(["calibrate", "--json"]) == 1
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert found["constants"] == ONE
    assert found["missing"] == {"tma": "DriverError: cuCtxSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS"}
    assert "tma: DriverError" in said.err


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(calibration, "calibrate", lambda **_: pytest.fail("measured"))
    for path, words in ((tmp_path, "is a folder"), (tmp_path / "no" / "x.json", "cannot be")):
        assert cli.main(["calibrate", "-o", str(path)]) == 2
        assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def constant(value):
    return {"value": value, "unit": "cycles", "spread": [value - 1, value + 1], "how": "so"}


def put(groups, group, **constants):
    groups[group] = (0, json.dumps({n: constant(v) for n, v in constants.items()}), "")


@pytest.fixture
def earlier(tmp_path):
    """A file of constants of an H200, whose kernels' sources were others than now."""
    path = tmp_path / "constants.json"
    calibration.Calibration(
        {"a": constant(10), "b": constant(20)},
        {
            "gpu": {"name": "NVIDIA H200"}, "driver": "1.2", "command": "mlsys-gpu calibrate",
            "date": "2026-01-02T03:04:05Z", "libraries": {"numpy": "1"},
            "sources": {"calibration/ring": "old", "calibration/gone": "gone"}, "method": "so",
        },
        {"code": "took too long", "mma": "too"},
    ).save(path)  # fmt: skip
    return path


def test_groups_that_are_asked_for_are_measured_alone(groups, tmp_path, capsys):
    put(groups, "rings", a=1)
    path = tmp_path / "new.json"
    assert cli.main(["calibrate", "--groups", "rings, mma,rings", "-o", str(path), "--json"]) == 0
    assert groups["asked"] == ["rings", "mma"]
    printed = json.loads(capsys.readouterr().out)
    assert printed["constants"] == {"a": constant(1)}
    assert json.loads(path.read_text()) == printed
    assert "later" not in printed["provenance"]


def test_groups_are_put_into_a_file_that_is_there(groups, earlier, capsys):
    before = json.loads(earlier.read_text())
    put(groups, "rings", b=21, c=30)
    put(groups, "code", d=40)
    assert cli.main(["calibrate", "--groups", "rings,code", "-o", str(earlier), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["constants"].keys() == {"b", "c", "d"}  # what has been measured
    after = json.loads(earlier.read_text())
    values = {name: c["value"] for name, c in after["constants"].items()}
    assert values == {"a": 10, "b": 21, "c": 30, "d": 40}
    assert after["missing"] == {"mma": "too"}
    now, known = after["provenance"], before["provenance"]
    assert {n: v for n, v in now.items() if n not in ("sources", "later")} == {
        n: v for n, v in known.items() if n != "sources"
    }
    hashes = calibration.source_hashes()
    assert now["sources"] == hashes | known["sources"]
    assert now["sources"]["calibration/ring"] == "old" != hashes["calibration/ring"]
    (run,) = now["later"]
    assert run.keys() == {
        "date", "command", "driver", "libraries", "gpu", "sources", "constants"
    }  # fmt: skip
    assert run["constants"] == ["b", "c", "d"]
    assert run["sources"] == hashes
    assert run["gpu"]["name"] == "NVIDIA H200"
    for name in ("date", "command", "driver", "libraries"):
        assert run[name] == printed["provenance"][name]

    put(groups, "mma", c=31)  # and once more
    assert cli.main(["calibrate", "--groups", "mma", "-o", str(earlier)]) == 0
    again = json.loads(earlier.read_text())
    assert [each["constants"] for each in again["provenance"]["later"]] == [["b", "c", "d"], ["c"]]
    assert again["constants"]["c"]["value"] == 31
    assert again["missing"] == {}
    assert list(earlier.parent.iterdir()) == [earlier]


def test_without_groups_a_file_is_made_anew(groups, earlier):
    put(groups, "rings", c=30)
    assert cli.main(["calibrate", "-o", str(earlier)]) == 0
    after = calibration.load(earlier)
    assert after.constants == {"c": constant(30)}
    assert after.provenance["sources"] == calibration.source_hashes()
    assert "later" not in after.provenance
    assert groups["asked"] == list(measure.GROUPS)


def test_a_group_that_faults_leaves_the_file_what_it_had(groups, earlier, capsys):
    before = earlier.read_bytes()
    groups["rings"] = (1, "", "DriverError: broken")
    assert cli.main(["calibrate", "--groups", "rings", "-o", str(earlier), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["missing"] == {"rings": "DriverError: broken"}
    assert earlier.read_bytes() == before
    put(groups, "mma", c=30)
    assert cli.main(["calibrate", "--groups", "rings,mma", "-o", str(earlier)]) == 1
    assert "rings: DriverError: broken" in capsys.readouterr().err
    after = calibration.load(earlier)
    assert {n: c["value"] for n, c in after.constants.items()} == {"a": 10, "b": 20, "c": 30}
    assert after.missing == {"code": "took too long"}


def test_a_file_that_cannot_be_replaced_is_not_lost(groups, earlier, monkeypatch):
    before = earlier.read_bytes()
    put(groups, "rings", b=21)

    def full(*_):
        raise OSError(28, "No space left on device", str(earlier))

    monkeypatch.setattr(calibration.os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        cli.main(["calibrate", "--groups", "rings", "-o", str(earlier)])
    assert earlier.read_bytes() == before
    assert list(earlier.parent.iterdir()) == [earlier]


OTHER = {"provenance": {"gpu": {"name": "NVIDIA H100"}}, "constants": {}}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is no JSON"),
        ('{"rows": []}', "needs provenance and constants"),
        ('{"provenance": {}, "constants": {}}', "are of no named GPU, the GPU is NVIDIA H200"),
        (json.dumps(OTHER), "are of NVIDIA H100, the GPU is NVIDIA H200"),
    ],
)
def test_what_is_no_calibration_of_this_gpu_is_refused_before_anything_is_measured(
    groups, tmp_path, capsys, content, words
):
    path = tmp_path / "x.json"
    path.write_text(content)
    assert cli.main(["calibrate", "--groups", "rings", "-o", str(path)]) == 2
    said = capsys.readouterr().err
    assert str(path) in said
    assert words in said
    assert groups["asked"] == []
    assert path.read_text() == content


def test_constants_of_two_gpus_do_not_mix(earlier):
    with pytest.raises(ValueError, match="of NVIDIA H200, the GPU is NVIDIA H100"):
        calibration.load(earlier).with_later(calibration.Calibration({}, OTHER["provenance"]))


@pytest.mark.parametrize(
    ("wanted", "words"),
    [("rings,warps", r"groups are clocks, .*, power, got 'warps'"), ("", r"clocks, .*, got ''")],
)
def test_a_group_that_is_none_is_refused(groups, capsys, wanted, words):
    assert cli.main(["calibrate", "--groups", wanted]) == 2
    assert re.search(words, capsys.readouterr().err)
    with pytest.raises(ValueError, match=words):
        calibration.calibrate(wanted.split(","))
    assert groups["asked"] == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[]", "needs provenance"),
        ('{"provenance": {}, "constants": {"x": {"value": 1}}}', "lacks"),
        ('{"provenance": {}, "constants": {"x": 1}}', "x lacks"),
        ('{"provenance": {}, "constants": []}', "needs provenance"),
        ("{", "is no JSON"),
    ],
)
def test_files_that_hold_no_constants_are_refused(tmp_path, content, words):
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=words):
        calibration.load(path)


def test_without_a_gpu_the_group_process_fails_in_one_line():
    if device.devices():
        pytest.skip("this machine has a GPU")
    found, why = calibration._in_a_process("clocks")
    assert found == {}
    assert why.startswith("OSError: libcuda.so.1")


# ------------------------------------------------------------------------------ the committed file


@pytest.fixture(scope="module")
def committed():
    return calibration.load(RESULT)


def test_committed_constants_say_where_they_come_from(committed):
    given = committed.provenance
    assert given["gpu"]["arch"] == "sm_90a"
    assert given["driver"]
    assert given["libraries"]["nvidia-cuda-nvrtc"]
    assert given["command"].startswith("mlsys-gpu calibrate")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", given["date"])
    assert given["sources"] == calibration.source_hashes()
    for run in given.get("later", []):
        assert run["gpu"]["name"] == given["gpu"]["name"]
        assert re.match(r"mlsys-gpu calibrate .*--groups\b", run["command"])
        assert run["sources"].items() <= given["sources"].items()
        assert set(run["constants"]) <= committed.constants.keys()
    assert committed.missing == {}


def test_committed_constants_are_those_that_are_measured_now(committed):
    found = {}
    for group in measure.GROUPS.values():
        meter = measure.Meter(Driver(cost=4096))
        group(meter)
        found |= {name: (c["unit"], c["how"]) for name, c in meter.found.items()}
    assert {name: (c["unit"], c["how"]) for name, c in committed.constants.items()} == found
    for name, constant in committed.constants.items():
        low, high = constant["spread"]
        assert low <= constant["value"] <= high, name
        assert constant["value"] > 0, name


def test_committed_constants_agree_with_what_is_known_of_the_chip(committed):
    """Published rates: a wrong micro-benchmark must not become a constant."""
    value = committed.value
    for n in (64, 128, 256):  # 4096 16-bit FLOP per clock
        assert value(f"wgmma.ss.wg1.n{n}") == pytest.approx(n / 2, rel=0.01)
    for n in (1, 2, 4, 8, 16, 32):  # 128 bytes per clock, an n-way conflict takes n
        assert value(f"ld_shared.cycles.x{n}") == pytest.approx(n, rel=0.02)
    for name in ("ex2", "lg2", "rcp", "rsqrt", "tanh"):  # 16 per clock
        assert value(f"{name}.rate") == pytest.approx(16, rel=0.02)
    assert value("ffma.rate") == pytest.approx(128, rel=0.05)
    assert 250 <= value("ld_global.latency.l2") <= 300
    assert 480 <= value("ld_global.latency.hbm.32mb") <= 750
    assert 170 <= value("dsmem_ld.latency.x2") <= 210
    assert value("hbm_read_gbps") < 4800  # the data sheet's
    assert value("tensor_tflops") < 990
    assert 1 < value("mma_m16n8k16.cycles") < 2  # wgmma's rate and half of it
    assert value("code.warm.512.w1") == pytest.approx(1, rel=0.01)  # a warp's issue
    assert value("lsu.stores") == pytest.approx(16 * 32, rel=0.01)  # a wavefront a cycle
    assert value("power.idle") < value("power.wgmma") < 1.05 * value("power.limit")


def test_equal_requests_are_merged_where_the_page_says_so(committed):
    """chapters/reference/what-the-simulator-models.md, the table of ``tma_share`` and around it."""
    value = committed.value
    paced = {
        kind: value(f"tma_share.groups.{kind}.x6.paced")
        for kind in ("single", "alone", "joint", "multicast")
    }
    pace = 32 * 1024 / 512  # bytes a cycle that tensor cores use up at 4096 FLOP a cycle
    assert paced["single"] == pytest.approx(pace, rel=0.03)
    assert paced["single"] > 1.15 * max(value for k, value in paced.items() if k != "single")
    assert paced["multicast"] == pytest.approx(paced["joint"], rel=0.1)
    assert value("tma_share.groups.single.x6") < 0.85 * paced["single"]
    assert value("tma_share.own.single.x6") < value("tma_share.groups.single.x6")


def test_the_time_model_has_what_the_committed_calibration_gives():
    path = constants.GPUS / "h200.json"
    assert json.loads(path.read_text()) == constants.hopper(json.loads(RESULT.read_text()))


@pytest.mark.parametrize("part", [0.0, 0.6, 1.0])
def test_how_many_read_together_is_found_in_what_they_get(part):
    """Of 132 SMs, 8 read different rows of A and 17 of B; of the rest ``part`` read together."""
    content = json.loads(RESULT.read_text())
    alone, step = 40.0, 80.0  # bytes a cycle
    clock = content["constants"]["clock_mhz"]["value"] * 1e6
    cycles = 0.0  # of a byte of A and one of B
    for different in (8, 17):
        together = (132 - different) * part
        cycles += ((132 - together) / alone + together / step) / 132
    content["constants"] |= {
        "tma_ring.own.x4": constant(alone),
        "tma_load.rate.all.l2_shared12.x4": constant(step * 132 * clock / 1e9),
        "tma_share.groups.single.x6.paced": constant(2 / cycles),
    }
    found = constants.hopper(content)["constants"]["together"]
    assert found["value"] == pytest.approx(part, abs=1e-4)
    assert "at least" in found["source"]


def test_a_calibration_that_lacks_a_constant_makes_no_model():
    content = json.loads(RESULT.read_text())
    del content["constants"]["wgmma.fence"]
    with pytest.raises(ValueError, match=r"lacks 'wgmma\.fence'"):
        constants.hopper(content)
