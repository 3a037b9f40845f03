"""The model of time: replays against times worked out by hand, recordings against what must move.

The GPU of most tests is one of round numbers: what a test does not name takes no time.
"""

import itertools
import json
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mlsys_gpu as mg
from mlsys_gpu import sim
from mlsys_gpu.kernels import gemm
from mlsys_gpu.sim.machine.recording import (
    Recording,
    chosen_clusters,
    sectors_of,
    wavefronts_of,
)
from mlsys_gpu.sim.timing import Compiled, Model, constants, gpu_constants
from mlsys_gpu.sim.timing import events as E
from mlsys_gpu.sim.timing.chip import occupancy
from mlsys_gpu.sim.timing.replay import Replay, Share, Sm, Trace, counts_of, work_cycles
from mlsys_gpu.verification import compare_gemm, gemm_inputs, poisoned

from .fixtures import (
    blackwell_clc,
    blackwell_multicast,
    blackwell_persistent,
    blackwell_steal,
    hopper_cluster,
    hopper_persistent,
    hopper_rows,
    hopper_split,
)
from .planted import FIXTURES, Kernel, kernel_from

MATRIX = 7  # the address space of the tensor that synthetic kernels read


def gpu_of(arch="sm_90a", **values):
    """A GPU at 1 GHz, where a GB/s is a byte a cycle: latencies of 0, an issue slot of 1 cycle,
    pipes of one instruction a cycle and quarter, bandwidth without end; and the ``values``."""
    base = json.loads((constants._FOLDER / "h200.json").read_text())["constants"]
    base |= json.loads((constants._FOLDER / "b200.json").read_text())["constants"]
    neutral = {
        "cycles": 0.0, "bytes/cycle/SM": 1e9, "instructions/cycle/SM": 4.0, "GB/s": 1e9,
        "MHz": 1000.0, "us": 0.0, "bytes": 1e9, "W": 0.0,
        "1": 1,
    }  # fmt: skip
    made = {}
    for name, constant in base.items():
        value = neutral[constant["unit"]]
        if isinstance(constant["value"], dict):
            delay = "issue" in constant["value"]
            value = {"issue": 0.0, "latency": 0.0} if delay else {"0": 0.0}
        if name in values:
            value = values.pop(name)
        made[name] = {"value": value, "unit": constant["unit"], "source": "made up"}
    made["sms"]["value"] = values.pop("sms", 2)
    made["power_limit"]["value"] = 1.0  # that nothing comes near
    assert not values, values
    return constants.Gpu({"name": "Round", "arch": arch, "constants": made})


def share_of(port=128.0, cold=0.0, hbm=64.0):
    """An SM's share: ``port`` and ``hbm`` in bytes a cycle, ``cold`` of the matrix's requests."""
    return Share(
        port=port, port_out=32.0, l2=1e9, copies={MATRIX: 1e9}, out=1e9, hbm_read=hbm,
        hbm_write=hbm, cold={MATRIX: cold}, traffic={MATRIX: cold},
    )  # fmt: skip


def replayed(gpu, logs, share=None, work=(), compiled=None):
    """Replay one CTA's logs: the cycle at which all have ended, and the trace."""
    run = Replay(gpu, share or share_of(), work_cycles(list(work), gpu), compiled or Compiled())
    run.trace = Trace()
    logs = [logs]
    run.start(logs, counts_of(logs), [Sm()], 0.0)
    return run.run(), run.trace


def completed(trace):
    """Token -> the cycle at which its phase was complete."""
    return dict(trace.phases)


# -------------------------------------------------------------------------- pipes and issue slots


def test_arithmetic_of_warps_of_one_quarter_takes_turns():
    """8 instructions, one a cycle: warps 0 and 4 share a quarter of the SM, 0 and 1 do not."""
    log = [(E.WORK, 0, 0, 1)]
    gpu = gpu_of()
    assert replayed(gpu, [log], work=[{"fma": 8}])[0] == 8
    assert replayed(gpu, [log, log], work=[{"fma": 8}])[0] == 8
    assert replayed(gpu, [log, [], [], [], log], work=[{"fma": 8}])[0] == 16


def test_the_slowest_pipe_decides():
    """4 of the special-function unit's, at 8 cycles each; 40 instructions that take 40 cycles to
    issue beside them; and the same a second time."""
    gpu = gpu_of(mufu=0.5)
    log = [(E.WORK, 0, 0, 1)]
    assert replayed(gpu, [log], work=[{"xu": 4}])[0] == 32
    assert replayed(gpu, [log], work=[{"xu": 4, "fma": 36}])[0] == 40
    assert replayed(gpu, [[(E.WORK, 0, 0, 2)]], work=[{"xu": 4}])[0] == 64
    assert replayed(gpu_of(alu_latency=6.0), [log], work=[{"fma": 8}])[0] == 8 * 6 + 6


def test_bank_conflicts_take_the_pipe_of_the_whole_sm():
    """Two warps of different quarters: 32 wavefronts each, one behind the other, and 20 cycles
    until the value is there."""
    gpu = gpu_of(shared_load_latency=20.0)
    log = [(E.SHARED_LOAD, 0, 1, 32, 128, (0, 1024), "threads", 1)]
    assert replayed(gpu, [log])[0] == 1 + 32 + 20
    assert replayed(gpu, [log, log])[0] == 1 + 64 + 20


# ------------------------------------------------------------------------------------- barriers


def test_a_cta_barrier_waits_for_the_last_and_counts_its_warps():
    """Warp 0 comes after 8 cycles of arithmetic and issues in one; 10 to pass, 2 for each warp."""
    token = (0, 0)
    meet = [(E.SIGNAL, 0, (token,), "barrier"), (E.WAIT, 0, token, "barrier")]
    gpu = gpu_of(barrier_pass=10.0, barrier_warp=2.0)
    end, trace = replayed(gpu, [[(E.WORK, 0, 0, 1), *meet], meet], work=[{"fma": 8}])
    assert completed(trace) == {token: 9}
    assert end == 9 + 10 + 2 * 2
    assert trace.waited[0, 0] == {}  # the last to come waits for nobody
    assert trace.waited[0, 1] == {0: 23 - 1}


# --------------------------------------------------------------------------------- tensor cores


def products(count, steps=4, n=64):
    """``count`` groups of ``steps`` wgmma of m64 x ``n`` x k16, and a wait for the last."""
    one = [(E.WGMMA, 0, n, False, steps, "float16", ()), (E.WGMMA_COMMIT, 0)]
    return one * count + [(E.WGMMA_WAIT, 0, 0)]


def test_two_warps_on_one_tensor_core_take_turns():
    """4 steps of 32 cycles each. A warp issues its steps in 4 cycles, its commit in one."""
    gpu = gpu_of(wgmma_ss={"64": 32}, wgmma_latency=60.0, wgmma_queue=1e9)
    assert replayed(gpu, [products(1)])[0] == 4 + 128 + 60
    assert replayed(gpu, [products(1), products(1)])[0] == 4 + 128 + 60
    end, trace = replayed(gpu, [products(1), [], [], [], products(1)])
    assert end == 4 + 2 * 128 + 60
    assert [(t0, t1) for _, t0, t1, _ in trace.tensor] == [(4, 132), (132, 260)]


@pytest.mark.parametrize(
    ("queue", "issued"),
    # with no queue, a step is issued when the last is done
    [(1e9, [4, 9, 14]), (64, [68, 196, 324]), (0, [132, 265, 398])],
)
def test_an_issuer_runs_ahead_of_the_tensor_core_by_the_queue(queue, issued):
    gpu = gpu_of(wgmma_ss={"64": 32}, wgmma_queue=queue)
    _, trace = replayed(gpu, [products(3)])
    spans = [(t1, at) for _, t1, at in trace.warps[0, 0]]
    assert [t1 for t1, at in spans if at in (0, 2, 4)] == issued


def test_products_that_the_compiler_keeps_apart_do_not_overlap():
    """A wait behind each of 4 steps: 32 cycles of work and 60 until the result is there."""
    gpu = gpu_of(wgmma_ss={"64": 32}, wgmma_latency=60.0, wgmma_queue=1e9)
    end, _ = replayed(gpu, [products(1)], compiled=Compiled(serialised=True))
    assert end >= 4 + 4 * (32 + 60)


def test_products_in_a_pair_of_ctas_take_both_tensor_cores():
    gpu = gpu_of("sm_100a", tcgen05_mma_m256_group2={"128": 64}, tcgen05_issue=10.0,
                 tcgen05_commit_latency=20.0)  # fmt: skip
    token = (0, 0)
    issue = [
        (E.TC_MMA, 0, 256, 128, 2, False, 4, (), 0, 128),
        (E.TC_COMMIT, 0, [token], 2),
        (E.WAIT, 0, token, "mbarrier"),
    ]
    logs = [[issue], [[(E.WAIT, 0, token, "mbarrier")]]]
    run = Replay(gpu, share_of(), [], Compiled())
    run.trace = Trace()
    run.start(logs, counts_of(logs), [Sm(), Sm()], 0.0)
    assert run.run() == 4 + 10 + 4 * 64 + 20
    assert [(rank, t0, t1) for rank, t0, t1, _ in run.trace.tensor] == [(0, 14, 270), (1, 14, 270)]


# ------------------------------------------------------------------------------- copies of TMA


def copy(token, nbytes=12800):
    return (E.COPY_IN, 0, nbytes, ((token, 0, nbytes, 0),), (MATRIX, 0), "A", ((0, 1024, nbytes),))


@pytest.mark.parametrize(("port", "done"), [(128.0, [203, 303, 403]), (256.0, [153, 203, 253])])
def test_copies_in_flight_overlap_but_share_the_port(port, done):
    """12,800 bytes take 100 cycles of a port of 128 bytes a cycle, then 100 more to be there; the
    warp issues one every 3 cycles."""
    gpu = gpu_of(tma_instruction=3.0, tma_latency_l2=100.0)
    tokens = [(0, 0), (1, 0), (2, 0)]
    _, trace = replayed(gpu, [[copy(token) for token in tokens]], share_of(port))
    assert [(t0, t1) for _, t0, t1, _, _ in trace.copies] == list(zip([3, 6, 9], done, strict=True))
    assert list(completed(trace).values()) == done


def test_a_load_that_the_other_cta_counts_takes_its_own_port():
    """12,800 bytes each: 3 cycles to issue, 100 of a port of 128 bytes a cycle, 100 to be there.
    The bytes of CTA 1 count at a barrier of CTA 0, which is 40 cycles away."""
    gpu = gpu_of("sm_100a", tma_instruction=3.0, tma_latency_l2=100.0,
                 remote_latency=40.0)  # fmt: skip
    own, other = copy((0, 0)), copy((1, 0))
    other = (*other[:3], (((1, 0), 1, 12800, 0),), *other[4:])
    logs = [[[own]], [[other]]]
    run = Replay(gpu, share_of(), [], Compiled())
    run.trace = Trace()
    run.start(logs, counts_of(logs), [Sm(), Sm()], 0.0)
    run.run()
    assert completed(run.trace) == {(0, 0): 203, (1, 0): 243}


def test_a_load_of_a_pair_is_recorded_where_its_bytes_come_to():
    """Both CTAs load for a barrier of CTA 0, each into its own shared memory."""
    shape = (256, 128, 64)
    A, B = gemm_inputs(*shape)
    kernel = blackwell_persistent.build(*shape)
    timing = mg.simulate(kernel, A, B, poisoned(shape[:2]), timing=True).timing
    found = [
        (rank, to, owner, nbytes)
        for _, logs in timing.recording.sampled.items()
        for rank, cta in enumerate(logs)
        for event in itertools.chain.from_iterable(cta)
        if event[0] == E.COPY_IN
        for _, to, nbytes, owner in event[3]
    ]
    A_half, B_half = 128 * 64 * 2, 64 * 64 * 2
    assert sorted(found) == sorted((r, r, 0, n) for r in (0, 1) for n in (A_half, B_half))


def test_what_comes_from_device_memory_takes_longer():
    """All of it: 200 cycles of a share of 64 bytes a cycle, and 300 of latency. None: 100 of the
    port, and 100. A half of it: 100 cycles of the share, and 300."""
    gpu = gpu_of(tma_instruction=3.0, tma_latency_l2=100.0, tma_latency_hbm=300.0)
    log = [copy((0, 0))]
    for cold, cycles in ((0.0, 203), (1.0, 503), (0.5, 403)):
        _, trace = replayed(gpu, [log], share_of(cold=cold))
        assert completed(trace)[0, 0] == cycles, cold


def test_what_waits_in_a_log_for_a_store_is_over_when_it_is_read():
    """128 bytes a 32-byte port takes 4 cycles for; 50 until shared memory may be written again, 80
    until the bytes are in memory."""
    gpu = gpu_of(tma_instruction=3.0, tma_store_read_latency=50.0, tma_store_latency=80.0)
    store = [(E.COPY_OUT, 0, 128, 0, (MATRIX, 0), "D", (0, 1024)), (E.BULK_COMMIT, 0, 0)]
    assert replayed(gpu, [[*store, (E.BULK_WAIT, 0, 0, 0, True), (E.WORK, 0, 0, 1)]],
                    work=[{"fma": 1000}])[0] == 3 + 4 + 50 + 1000  # fmt: skip
    assert replayed(gpu, [[*store, (E.BULK_WAIT, 0, 0, 0, False), (E.WORK, 0, 0, 1)]],
                    work=[{"fma": 1000}])[0] == 3 + 4 + 80 + 1000  # fmt: skip
    # with one group allowed to be left, nothing is waited for but the two issue slots
    assert replayed(gpu, [[*store, (E.BULK_WAIT, 0, 0, 1, True), (E.WORK, 0, 0, 1)]],
                    work=[{"fma": 1000}])[0] == 3 + 1 + 1 + 1000  # fmt: skip


# --------------------------------------------------------------------- a pipeline of two stages

FULL, EMPTY = (0, 1), (2, 3)  # barriers, by stage


def ring(k_tiles, stages=2):
    """Logs of the consumer and the producer of a ring: a copy, a product of 4 steps."""
    producer, consumer = [], []
    for k in range(k_tiles):
        stage, turn = k % stages, k // stages
        free = (EMPTY[stage], turn - 1) if turn else None
        full = (FULL[stage], turn)
        producer += [(E.WAIT, 0, free, "mbarrier"), (E.SIGNAL, 0, (full,), "mbarrier"), copy(full)]
        consumer += [
            (E.WAIT, 0, full, "mbarrier"),
            *products(1),
            (E.SIGNAL, 0, ((EMPTY[stage], turn),), "mbarrier"),
        ]
    return [consumer, producer]


RING = {
    "mbarrier_pass": 5.0, "mbarrier_arrive": {"issue": 2.0, "latency": 2.0},
    "mbarrier_latency": 10.0, "tma_instruction": 3.0, "tma_latency_l2": 100.0,
    "wgmma_ss": {"64": 40}, "wgmma_latency": 20.0, "wgmma_queue": 1e9,
}  # fmt: skip


@pytest.mark.parametrize("apart", [1, 4])
def test_every_phase_of_a_ring_of_two_stages(apart):
    """By hand. A wait that need not wait takes 5 cycles, an arrival 2 and comes 10 later, a copy 3
    to issue, 100 of the port and 100 to be there; a product 4 to issue, 160, its commit 1, and 20
    until the result is there.

    Producer: 5, 7 (arrival), 10 issues stage 0: full 210. 15, 17, 20 issues stage 1, whose bytes
    are behind the first's on the port: 110 to 210, full 310. It waits for empty[0].
    Consumer: passes full[0] at 215, issues to 219, product to 379, result 399, arrives 401:
    empty[0] 411. It passes full[1] at 406, issues to 410, product to 570, result 590, arrives 592:
    empty[1] 602.
    Producer: passes at 416, arrives 418, issues at 421: full[0] 621. Passes empty[1] at 607, 609,
    issues at 612: full[1] 812.
    Consumer: passes full[0] at 626, issues to 630, result 810, arrives 812: empty[0] 822. full[1]
    is complete just then: 817, issues to 821, product to 981, result 1001, arrives 1003.

    The two warps never issue at one moment, so that they may as well share a quarter of the SM.
    """
    consumer, producer = ring(4)
    end, trace = replayed(gpu_of(**RING), [consumer, *[[]] * (apart - 1), producer])
    assert completed(trace) == {
        (FULL[0], 0): 210, (FULL[1], 0): 310, (EMPTY[0], 0): 411, (EMPTY[1], 0): 602,
        (FULL[0], 1): 621, (FULL[1], 1): 812, (EMPTY[0], 1): 822, (EMPTY[1], 1): 1013,
    }  # fmt: skip
    assert end == 1003
    assert [(t0, t1) for _, t0, t1, _ in trace.tensor] == [
        (219, 379), (410, 570), (630, 790), (821, 981),
    ]  # fmt: skip
    # the producer waits from 20 to 416 and from 421 to 607
    assert trace.waited[0, apart] == {EMPTY[0]: 396, EMPTY[1]: 186}
    assert trace.waited[0, 0][FULL[0]] == 215 + (626 - 592)
    # the bytes of each stage: when they came, when they were in flight
    arriving = [(t0, t1) for _, _, t0, t1, state, _ in trace.regions if state == "arriving"]
    assert arriving == [(10, 210), (20, 310), (421, 621), (612, 812)]


def test_a_wait_of_one_lane_takes_longer_to_wake():
    """The same whether the phase's time is known when the warp comes to wait, or not."""
    token = (0, 0)
    gpu = gpu_of(mbarrier_latency=50.0, mbarrier_pass=5.0, lane_wake=7.0)
    wait, arrive = (E.WAIT, 0, token, "lane"), (E.SIGNAL, 0, (token,), "mbarrier")
    later = [(E.WORK, 0, 0, 1), arrive]
    assert replayed(gpu, [[wait], later], work=[{"fma": 8}])[0] == 8 + 50 + 5 + 7  # not known
    assert replayed(gpu, [[arrive, wait]])[0] == 50 + 5 + 7  # known
    late = [(E.WORK, 0, 0, 1), wait]
    assert replayed(gpu, [late, [arrive]], work=[{"fma": 90}])[0] == 90 + 5  # over by then


def test_one_stage_alone_takes_the_sum_of_its_parts():
    """Each round in turn: a pass 5, arrival 2, issue 3, copy 200, pass 5, issue 4, product 160,
    result 20, arrival 2 and 10 until it counts."""
    end, trace = replayed(gpu_of(**RING), ring(3, stages=1))
    fulls = [completed(trace)[FULL[0], turn] for turn in range(3)]
    round_trip = 5 + 2 + 3 + 200 + 5 + 4 + 160 + 20 + 2 + 10
    assert fulls == [210, 210 + round_trip, 210 + 2 * round_trip]
    assert end == 3 * round_trip - 10


# --------------------------------------------------------------- shared memory and global memory


def wavefronts_by_hand(addresses, width):
    """Words of each bank that a group of lanes wants, the most of any bank; over all groups."""
    lanes = 32 if width <= 4 else 128 // width  # that go at a time
    total = 0
    for instruction in addresses.T:
        for first in range(0, len(instruction), lanes):
            banks = [set() for _ in range(32)]
            for address in instruction[first : first + lanes]:
                for byte in range(int(address), int(address) + width):
                    banks[byte // 4 % 32].add(byte // 4)
            total += max(len(words) for words in banks)
    return total


def sectors_by_hand(addresses, width):
    return sum(
        len({byte // 32 for a in instruction for byte in range(int(a), int(a) + width)})
        for instruction in addresses.T
    )


@pytest.mark.parametrize("ways", [1, 2, 4, 8, 16, 32])
def test_strides_of_words_conflict_as_often_as_they_hit_a_bank(ways):
    lanes = np.arange(32)[:, None]
    assert wavefronts_of(4 * ways * lanes, 4) == ways
    assert sectors_of(4 * ways * lanes, 4) == min(32, 4 * ways)


def test_wide_accesses_and_broadcasts():
    lanes = np.arange(32)[:, None]
    assert wavefronts_of(8 * lanes, 8) == 2  # 256 bytes
    assert wavefronts_of(16 * lanes, 16) == 4  # 512 bytes
    assert wavefronts_of(128 * lanes, 16) == 32  # a column of rows of 128 bytes
    swizzled = 128 * lanes + 16 * (lanes % 8)  # the same with the 128-byte swizzle
    assert wavefronts_of(swizzled, 16) == 4
    assert wavefronts_of(np.zeros((32, 1), dtype=np.int64), 4) == 1
    assert wavefronts_of(4 * (lanes // 2), 4) == 1  # pairs of lanes share a word
    assert wavefronts_of(4 * lanes + 128 * np.arange(3)[None, :], 4) == 3  # three instructions
    assert wavefronts_of(np.empty((0, 1), dtype=np.int64), 4) == 0
    assert sectors_of(np.zeros((32, 1), dtype=np.int64), 4) == 1
    assert sectors_of(16 * lanes, 16) == 16


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
def test_conflicts_and_sectors_against_a_count_byte_by_byte(width):
    rng = np.random.default_rng(width)
    for spread in (32, 64, 512, 4096):
        for lanes in (32, 32, 17):
            addresses = width * rng.integers(0, spread, (lanes, 3))
            assert wavefronts_of(addresses, width) == wavefronts_by_hand(addresses, width)
            assert sectors_of(addresses, width) == sectors_by_hand(addresses, width)


# ----------------------------------------------------------------------- the chip and its waves


@pytest.mark.parametrize(
    ("threads", "shared", "registers", "columns", "ctas", "limit"),
    [
        (256, 0, 32, 0, 8, "threads"),
        (1024, 0, 32, 0, 2, "threads"),
        (32, 0, 32, 0, 32, "CTAs"),
        (256, 0, 37, 0, 6, "registers"),  # 37 a thread: 1,280 for a warp, 10,240 for 8
        (256, 0, 128, 0, 2, "registers"),
        (384, 0, 168, 0, 1, "registers"),  # 5,376 a warp: 3 in each quarter, 12 in all
        (128, 0, 168, 0, 3, "registers"),
        (160, 0, 80, 0, 4, "registers"),  # 2,560 a warp: 6 in each quarter, 24 in all
        (128, 48 * 1024, 32, 0, 4, "shared memory"),  # 49 KiB each, with what the system keeps
        (128, 113 * 1024, 32, 0, 2, "shared memory"),
        (128, 114 * 1024, 32, 0, 1, "shared memory"),
        (128, 227 * 1024, None, 0, 1, "shared memory"),
        (128, 0, None, 256, 2, "tensor memory"),
        (128, 0, None, 512, 1, "tensor memory"),
    ],
)
def test_occupancy(threads, shared, registers, columns, ctas, limit):
    found = occupancy(threads, shared, registers, columns)
    assert (found.ctas, found.limit) == (ctas, limit)


def launch(grid, log, shared=120 * 1024, work=({"fma": 100},), cluster=(1, 1, 1)):
    """A program and a recording of all its clusters, whose one warp did ``log``."""
    clusters = int(np.prod(grid)) // int(np.prod(cluster))
    program = SimpleNamespace(
        name="made_up",
        launch={"grid": grid, "cluster": cluster, "threads": 32, "shared_bytes": shared},
        static_shared=0, work=list(work), regions=[], texts={}, location=lambda site: None,
    )  # fmt: skip
    recording = Recording(clusters=clusters)
    recording.sampled = {n: [[log] for _ in range(int(np.prod(cluster)))] for n in range(clusters)}
    recording.tensors = {MATRIX: ("A", 1 << 20)}
    return recording, program


@pytest.mark.parametrize(
    ("clusters", "cycles", "waves"),
    # Two SMs that hold one CTA each: 100 cycles of arithmetic, and 10 until the next has started.
    [(1, 100, 0.5), (2, 100, 1), (4, 210, 2), (5, 320, 2.5), (6, 320, 3)],
)
def test_waves(clusters, cycles, waves):
    gpu = gpu_of(cta_start=10.0, launch=2.0)
    found = Model(*launch((clusters, 1, 1), [(E.WORK, 0, 0, 1)]), gpu).timing()
    assert found.occupancy.ctas == 1
    assert found.slots == 2
    assert found.waves == waves
    assert found.cycles == cycles
    assert found.microseconds == pytest.approx(2 + cycles / 1000)
    assert "modelled" in found.note


def test_ctas_of_one_sm_share_it():
    """Four CTAs on two SMs with room for two each: their warps have the same quarter."""
    gpu = gpu_of()
    found = Model(*launch((4, 1, 1), [(E.WORK, 0, 0, 1)], shared=100 * 1024), gpu).timing()
    assert found.occupancy.ctas == 2
    assert found.cycles == 200
    assert found.waves == 1


@pytest.mark.parametrize(
    ("grid", "cluster", "sample", "chosen"),
    [
        ((4, 1, 1), (1, 1, 1), 8, {0, 1, 2, 3}),
        ((4, 4, 1), (1, 1, 1), 8, {0, 1, 4, 15, 3, 6, 9, 12}),
        ((8, 4, 1), (2, 1, 1), 8, {0, 1, 4, 15, 3, 6, 9, 12}),
        ((100, 1, 1), (1, 1, 1), 4, {0, 1, 99, 50}),
    ],
)
def test_chosen_clusters(grid, cluster, sample, chosen):
    assert chosen_clusters({"grid": grid, "cluster": cluster}, sample) == chosen


def test_statistics_of_a_made_up_launch():
    token = (0, 0)
    log = [
        (E.SHARED_STORE, 3, 2, 16, 256, (0, 1024), "threads", 2),
        (E.SHARED_STORE, 3, 2, 16, 256, (0, 1280), "threads", 2),
        (E.LOAD, 4, 1, 4, 128, (MATRIX, 0, 124)),
        (E.STORE, 5, 1, 4, 128, (MATRIX, 0, 124)),
        (E.WGMMA, 6, 64, False, 4, "float16", ()),
        (E.SIGNAL, 7, (token,), "mbarrier"),
        (E.WAIT, 8, token, "mbarrier"),
    ]
    recording, program = launch((2, 1, 1), log)
    recording.barriers = [("full[0]", 0, "mbarrier")]
    found = Model(recording, program, gpu_of(mbarrier_latency=70.0)).timing()
    made = found.statistics()
    assert made["conflicts"] == [
        {
            "location": "", "access": "store", "instructions": 4, "wavefronts": 32,
            "without_conflicts": 4,
        }
    ]  # fmt: skip
    assert made["bytes"] == {"global_load": 128, "global_store": 128, "shared_store": 512}
    assert made["roles"][0]["waits"]["full[0]"] == 70
    assert found.tensor_flops == 2 * (2 * 16 * 64 * 16 * 4)  # a warp's 16 of the 64 rows
    assert {(row["tensor"], row["direction"]) for row in made["traffic"]} == {
        ("A", "read"), ("A", "write"),
    }  # fmt: skip
    assert json.loads(json.dumps(found.summary())) == found.summary()


# ------------------------------------------------------------------ recordings of real kernels


@pytest.fixture(scope="module")
def steps():
    """Timed runs of Step 3 on both architectures: 2 x 2 tiles of 128 x 128, two K tiles."""
    M, N, K = 256, 256, 128
    found = {}
    for arch in gemm.ARCHS:
        A, B = gemm_inputs(M, N, K)
        D = poisoned((M, N))
        report = mg.simulate(gemm.step(3, arch).build(M, N, K), A, B, D, timing=True)
        assert compare_gemm(A, B, D).max_error <= 1
        found[arch] = report
    return found


@pytest.mark.parametrize("arch", gemm.ARCHS)
def test_what_step_3_must_move_is_what_was_recorded(steps, arch):
    timing = steps[arch].timing
    moved = timing.statistics()["bytes"]
    tiles = 2 * 128 * 64 * 2 * 2  # A's and B's, two K tiles of 64, 2 bytes an element
    assert moved["global_load"] == tiles
    assert moved["shared_store"] == tiles
    assert moved["global_store"] == 128 * 128 * 2
    assert timing.tensor_flops == 2 * 256 * 256 * 128
    if arch == "blackwell":
        assert moved["tensor_memory"] == 128 * 128 * 4  # float32 sums, once
    assert timing.clusters == 4
    requested = {(t.name, t.write): t.requested for t in timing.traffic}
    # D leaves in pieces of 16 bytes, and sectors of 32 bytes move: each twice, half of it
    assert requested == {("A", False): 2 * tiles, ("B", False): 2 * tiles,
                         ("D", True): 2 * 256 * 256 * 2}  # fmt: skip
    memory = {t.name: t.memory for t in timing.traffic}
    assert memory["D"] == 256 * 256 * 2
    assert {t.name: t.memory for t in timing.traffic if not t.write} == {
        "A": 256 * 128 * 2, "B": 256 * 128 * 2,
    }  # fmt: skip
    swizzled = [row for row in timing.statistics()["conflicts"] if row["access"] == "store"]
    assert swizzled
    assert all(row["wavefronts"] == row["without_conflicts"] for row in swizzled)


def test_a_ring_of_copies_moves_each_tile_once():
    """Four tiles of 128 x 64 for two CTAs, three K tiles of 64: two tiles each."""
    M, N, K = 256, 128, 192
    A, B = gemm_inputs(M, N, K)
    kernel = hopper_persistent.build(M, N, K, stages=2)
    timing = mg.simulate(kernel, A, B, poisoned((M, N)), timing="h200").timing
    moved = timing.statistics()["bytes"]
    assert moved["global_load"] == moved["shared_filled_by_copies"] == 2 * 3 * (128 + 64) * 64 * 2
    assert moved["global_store"] == moved["shared_store"] == 2 * 128 * 64 * 2
    assert timing.tensor_flops == 2 * M * N * K
    for role in timing.statistics()["roles"]:
        if "TMA loads" in role["name"]:
            assert "empty[0]" in role["waits"]
        elif "wgmma" in role["name"]:
            assert {"full[0]", "full[1]"} <= set(role["waits"])
    stages = {t["name"] for t in timing.timeline()["tracks"] if t["kind"] == "stage"}
    assert {"As[0]", "As[1]", "Bs[0]", "Bs[1]"} <= stages


SCHEDULES: list[dict[str, Any]] = [
    {"schedule": "eager"},
    {"schedule": "lazy"},
    {"schedule": "seeded", "schedule_seed": 3},
]

CASES = {
    "hopper persistent": (hopper_persistent, (256, 128, 192), {}),
    "hopper cluster": (hopper_cluster, (128, 128, 128), {}),
    "hopper rows": (hopper_rows, (18, 100), {}),
    "hopper split": (hopper_split, (10, 100), {}),
    "blackwell persistent": (blackwell_persistent, (512, 256, 128), {}),
    "blackwell clc": (blackwell_clc, (512, 128, 128), {}),
    "blackwell multicast": (blackwell_multicast, (256, 128, 128), {}),
    "blackwell steal": (blackwell_steal, (6, 512), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_timed_run_computes_and_finds_the_same(name):
    kernel = Kernel(*CASES[name])
    for schedule in SCHEDULES:
        plain, arrays = kernel.run(**schedule)
        timed, filled = kernel.run(timing=True, **schedule)
        assert kernel.right(filled)
        for one, other in zip(arrays, filled, strict=True):
            assert one.tobytes() == other.tobytes()
        before, after = plain.to_dict(), timed.to_dict()
        assert before.pop("modelled") is None
        assert after.pop("modelled")["microseconds"] > 0
        different = {"seconds"}
        if name in ("blackwell clc", "blackwell steal"):
            # who takes which tile: in a timed run no cluster takes more than its share
            different |= {"counters", "coverage"}
        for key in before.keys() - different:
            assert before[key] == after[key], key


def test_a_timed_run_finds_the_faults_of_an_untimed_one(tmp_path):
    """Step 3 without its first CTA barrier: the products read what other warps still write."""
    source = gemm.step(3, "hopper").source_path.read_text()
    wrong = source.replace(
        "            T.ptx.fence.proxy.async_.shared__cta()\n            T.cuda.cta_sync()\n",
        "            T.ptx.fence.proxy.async_.shared__cta()\n",
    )
    assert wrong != source
    kernel = kernel_from(wrong, tmp_path, (128, 128, 128), {})
    plain, _ = kernel.run()
    timed, _ = kernel.run(timing=True)
    assert plain.findings
    assert [f.to_dict() for f in plain.findings] == [f.to_dict() for f in timed.findings]


def test_the_same_seeds_give_the_same_bytes():
    kernel = Kernel(*CASES["hopper cluster"])
    texts = []
    for _ in range(2):
        report, _ = kernel.run(timing=True, schedule="seeded", schedule_seed=5)
        report.seconds = 0.0
        texts.append((report.to_json(), json.dumps(report.timing.timeline())))
    assert texts[0] == texts[1]


# ------------------------------------------------------------------------------ what a report says


def test_a_report_says_its_modelled_time(steps):
    report = steps["hopper"]
    last = str(report).splitlines()[-1]
    assert f"{report.timing.microseconds:.1f} us" in last
    assert "modelled for H200, not measured" in last
    assert "modelled" in report._repr_html_()
    found = report.to_dict()["modelled"]
    assert found == report.timing.summary()
    assert found["gpu"] == "H200"
    untimed = sim.Report("k", "sm_90a", "lazy", 0, True, {"grid": [1], "threads": 32})
    assert untimed.to_dict()["modelled"] is None
    assert "us" not in str(untimed).splitlines()[-1].split()
    with pytest.raises(ValueError, match="was not timed: pass timing=True"):
        untimed.timing


def test_a_timeline_shows_in_a_notebook_and_saves(steps, tmp_path):
    report = steps["hopper"]
    shown = report.timeline(title="Step 3")
    assert "Step 3" in shown._repr_html_()
    assert "modelled" in shown._repr_html_()
    assert report.save_trace(tmp_path / "t.json") == tmp_path / "t.json"
    assert json.loads((tmp_path / "t.json").read_text())["otherData"]["gpu"] == "H200"
    report.timing.save(str(tmp_path / "t.html"))
    assert (tmp_path / "t.html").read_text().startswith("<!doctype html>")
    with pytest.raises(ValueError, match=r"\.json file .* or an \.html file"):
        report.save_trace(tmp_path / "t.png")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(ValueError, match="is a folder"):
        report.save_trace(tmp_path / "folder.json")


def test_a_run_that_did_not_end_has_no_modelled_time(tmp_path):
    text = (FIXTURES / "hopper_persistent.py").read_text()
    stuck = text.replace("T.uint32(tile_bytes)", "T.uint32(tile_bytes + 16)")
    assert stuck != text
    report, _ = kernel_from(stuck, tmp_path, (128, 64, 64), {"ctas": 1}).run(timing=True)
    assert not report.completed
    assert report.to_dict()["modelled"] is None
    assert "no modelled time" in str(report)
    with pytest.raises(ValueError, match="did not come to its end"):
        report.timing


def test_options_are_refused_by_name():
    kernel = gemm.step(1, "hopper").build(128, 128, 64)
    A, B = gemm_inputs(128, 128, 64)
    with pytest.raises(ValueError, match="no constants for the GPU 'v100'; there are b200, h200"):
        mg.simulate(kernel, A, B, poisoned((128, 128)), timing="v100")
    with pytest.raises(ValueError, match="the kernel is for sm_90a, and B200 is of sm_100a"):
        mg.simulate(kernel, A, B, poisoned((128, 128)), timing="b200")
    with pytest.raises(ValueError, match="2 or more, not 1"):
        mg.model(kernel, clusters=1)


@pytest.mark.parametrize("name", ["h200", "b200"])
def test_every_constant_has_a_value_a_unit_and_a_source(name):
    """``Gpu`` refuses one that lacks them; here: all that the replay asks for is there."""
    gpu = gpu_constants(name)
    assert gpu.constants
    for constant in gpu.constants.values():
        values = constant["value"]
        for value in values.values() if isinstance(values, dict) else [values]:
            assert np.isfinite(value)
    Replay(gpu, share_of(), [], Compiled())


# ------------------------------------------------------------------------- kernels from outside


def test_representative_clusters_stand_for_a_launch():
    """As far as a whole run goes: the same kernel, all clusters run or eight of them."""
    M, N, K = 1024, 512, 128
    kernel = gemm.step(3, "hopper").build(M, N, K)
    A, B = gemm_inputs(M, N, K)
    whole = mg.simulate(kernel, A, B, poisoned((M, N)), checks=False, timing=True).timing
    part = mg.model(kernel)
    assert part.executed < part.clusters == whole.clusters == 32
    assert part.microseconds == pytest.approx(whole.microseconds, rel=0.02)
    assert part.tensor_flops == whole.tensor_flops == 2 * M * N * K


def test_an_upstream_gemm_is_timed():
    module = pytest.importorskip("tirx_kernels.gemm.fp16_bf16_gemm")
    import torch

    size = 1024
    a, b, d = (torch.zeros(size, size, dtype=torch.float16) for _ in range(3))
    kernel = module.get_kernel(M=size, N=size, K=size, dtype="fp16")
    report = sim.simulate(kernel, a, b, d, checks=False, arch="sm_100a", timing=True)
    timing = report.timing
    assert timing.tensor_flops == 2 * size**3
    assert 0 < timing.tflops() < 2500  # the dense peak of a B200
    kinds = {track["kind"] for track in timing.timeline()["tracks"]}
    assert {"role", "engine", "barrier", "tmem"} <= kinds


def test_an_upstream_attention_is_timed():
    module = pytest.importorskip("tirx_kernels.ported.flashattention.flash_attention4")
    import torch

    from mlsys_gpu import tensormap  # noqa: F401  (encodes the host's tensor maps)

    torch.manual_seed(0)
    q = torch.randn(1, 256, 2, 128, dtype=torch.float16)
    k, v = (torch.randn(1, 256, 2, 128, dtype=torch.float16) for _ in range(2))
    out = torch.empty_like(q)
    maps = module.build_tensor_maps(
        q, k, v, out, batch_size=1, seq_len_q=256, seq_len_kv=256, num_qo_heads=2,
        num_kv_heads=2, head_dim=128, is_causal=False,
    )  # fmt: skip
    kernel = module.get_kernel(1, 256, 2, 2, 128, False)
    report = sim.simulate(kernel, *[m.ptr for m in maps], checks=False, arch="sm_100a", timing=True)
    timing = report.timing
    assert timing.tensor_flops == 2 * (2 * 256 * 256 * 128) * 2  # two products, two heads
    assert timing.timeline()["tracks"]
    assert timing.text()


def test_the_power_limit_is_the_chips():
    """The same tiles on half of the SMs: as busy as before, and half of the power is left."""
    M, N, K = 2048, 2048, 1024  # 64 tiles of 256 x 256, a pair of SMs each
    step = gemm.step(8, "blackwell")
    every, half = (mg.model(step.build(M, N, K, ctas=n), gpu="b200") for n in (128, 64))
    gpu = gpu_constants("b200")
    for timing, sms in ((every, 128), (half, 64)):
        assert timing.tensor_busy > 0.5
        part = timing.tensor_busy * sms / 148
        limit = (float(gpu["clock_tensor"]) / float(gpu["clock"])) ** 3  # of power, always busy
        clock = float(gpu["clock"]) * min(1.0, (limit / part) ** (1 / 3))
        assert timing.clock_mhz == pytest.approx(clock, rel=1e-6)
    assert every.clock_mhz < half.clock_mhz == float(gpu["clock"])


# ------------------------------------------------------------------------------------------ cost


SPEED = {
    "hopper": (hopper_persistent, {"ctas": 16, "stages": 4}),
    "blackwell": (blackwell_persistent, {"stages": 4, "tile_n": 256, "clusters": 8}),
}


@pytest.mark.slow
@pytest.mark.parametrize("checks", [False, True])
@pytest.mark.parametrize("arch", SPEED)
def test_time_costs_at_most_30_percent(arch, checks):
    """A persistent GEMM at 1024³: simulated, against simulated with its modelled time; processor
    time, the best of several runs that take turns. What the compiler made is in the cache."""
    module, options = SPEED[arch]
    n = 1024
    kernel = module.build(n, n, n, **options)
    A, B = gemm_inputs(n, n, n)
    D = poisoned((n, n))

    def seconds(timed):
        start = time.process_time()
        report = sim.simulate(kernel, A, B, D, checks=checks, timing=timed)
        if timed:
            assert report.timing.tensor_flops == 2 * n**3
        return time.process_time() - start

    seconds(True)
    seconds(False)
    best = {True: float("inf"), False: float("inf")}
    for _, timed in itertools.product(range(6), (False, True)):
        best[timed] = min(best[timed], seconds(timed))
    ratio = best[True] / best[False]
    print(f"{arch}, checks {checks}: {best[False]:.3f} s, {best[True]:.3f} s timed: {ratio:.2f}")
    assert ratio <= 1.30, best
