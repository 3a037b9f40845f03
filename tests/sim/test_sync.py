"""Synchronisation against models of its own: mbarriers, named barriers, votes, shuffles, addresses.

The random programs run one warp against a few lines of Python that keep an mbarrier's counts as the
PTX ISA's "Contents of the mbarrier object" and "Phase Completion" describe them.
"""

# Kernels are TVMScript: its parser gives names and annotations their meaning.
# pyright: reportUnboundVariable=false
# pyright: reportInvalidTypeForm=false
# (The annotations are TVMScript's.)

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tvm.script import tirx as T

from mlsys_gpu import sim
from mlsys_gpu.sim.machine import lanes

from . import warps
from .warps import only

SCHEDULES = [("eager", 0), ("lazy", 0)] + [("seeded", n) for n in range(4)]
N = 64
I = np.arange(N, dtype=np.int32)
FULL = T.uint32(0xFFFFFFFF)


@pytest.fixture(params=SCHEDULES, ids=lambda s: f"{s[0]}-{s[1]}")
def schedule(request):
    return {"schedule": request.param[0], "seed": request.param[1]}


class Lanes:
    """As much of a warp as the operations across lanes look at."""

    def __init__(self, present=32):
        self.present = np.arange(32) < present
        self.checks = False
        self.machine = SimpleNamespace(other=False)


# ------------------------------------------------------------------------- mbarriers: counts


class Model:
    """Expected, pending and transaction counts, and the phase, of one mbarrier."""

    def __init__(self, count):
        self.expected = self.pending = count
        self.tx = self.phase = 0

    def settle(self):
        if self.pending == 0 and self.tx == 0:
            self.phase += 1
            self.pending = self.expected

    def arrive(self, count, tx=0, drop=False):
        self.tx += tx
        self.expected -= count * drop
        self.pending -= count
        self.settle()


@pytest.mark.parametrize("seed", range(25))
def test_random_programs_of_arrivals_and_bytes(seed):
    rng = random.Random(seed)
    count = rng.randint(1, 6)
    model, lines, expected = Model(count), [f"mbarrier_init(w, SB, {count})"], []
    for step in range(40):
        n = rng.randint(1, max(1, model.pending))
        tx = rng.choice([0, 16, 64])
        kinds = ["arrive", "state", "expect", "complete", "drop", "lanes"]
        kind = rng.choice(kinds) if model.pending else "complete"
        if kind == "arrive":
            lines.append(f"mbarrier_arrive(w, SB, {n}, mask=True)")
            model.arrive(n)
        elif kind == "state":
            lines.append(f"s = mbarrier_arrive_state(w, SB, {n}, None, mask=True)")
            pending, phase = model.pending, model.phase
            model.arrive(n)
            lines.append(
                f"c[{step}, 'state'] = (mbarrier_pending_count(s), mbarrier_test_state(w, SB, s))"
            )
            expected.append(((step, "state"), (pending, model.phase > phase)))
        elif kind == "expect":
            lines.append(f"mbarrier_arrive(w, SB, 1, {tx}, mask=True)")
            model.arrive(1, tx)
        elif kind == "complete":
            lines.append(f"mbarrier_complete_tx(w, SB, {model.tx}, mask=True)")
            model.tx = 0
            model.settle()
        elif kind == "drop":
            if model.expected - n < 1:
                continue
            lines.append(f"mbarrier_arrive(w, SB, {n}, mask=True, drop=True)")
            model.arrive(n, drop=True)
        else:
            lines.append(f"mbarrier_arrive(w, SB, 1, mask=w.lanes < {n})")
            model.arrive(n)
        lines.append(f"c[{step}] = (mbarrier_test(w, SB, 0), mbarrier_test(w, SB, 1))")
        expected.append((step, (model.phase % 2 == 1, model.phase % 2 == 0)))
    report = warps.run("c = w.machine.counters\n" + "\n".join(lines))
    assert not report.findings, report
    assert report.completed
    assert {k: tuple(v) for k, v in report.counters.items()} == dict(expected)


def test_hundreds_of_barriers_in_a_cta(schedule):
    report = warps.run(
        """
        X = w.machine.pointers[0]
        if w.id == 0:
            for i in range(300): mbarrier_init(w, SB + 8 * i, 1)
        await cta_sync(w)
        if w.id == 0:
            for i in range(300):
                mbarrier_arrive(w, SB + 8 * i, 1, 16, mask=True)
                bulk_load(w, SB + 4096 + 16 * i, X + 16 * i, 16, SB + 8 * i, mask=True)
        for i in range(300):
            await mbarrier_wait(w, SB + 8 * i, 0)
            w.machine.count("sum", int(ld_shared(w, SB + 4096 + 16 * i, 4, 1)))
        """,
        threads=64,
        shared=16384,
        tensors=[("X", np.arange(1200, dtype=np.uint32))],
        **schedule,
    )
    assert not report.findings, report
    assert report.counters["sum"] == 2 * sum(range(0, 1200, 4))


def test_a_barrier_that_lives_again_counts_from_the_start(schedule):
    """The bytes of the first life do not stand for those of the second."""
    body = """
        X = w.machine.pointers[0]
        for life in range(2):
            if w.id == 0: mbarrier_init(w, SB, 1)
            await cta_sync(w)
            for k in range(3 - 2 * life):
                if w.id == 0:
                    mbarrier_arrive(w, SB, 1, 16, mask=True)
                    bulk_load(w, SB + 16, X + 16 * k, 16, SB, mask=True)
                if w.id == 0 or life == 0 or {wait}:
                    await mbarrier_wait(w, SB, k % 2)
                if w.id == 1: w.machine.count("sum", int(ld_shared(w, SB + 16, 4, 1)))
                await cta_sync(w)
            if w.id == 0: mbarrier_inval(w, SB)
            await cta_sync(w)
    """
    tensors = [("X", np.arange(1, 13, dtype=np.uint32))]
    good = warps.run(body.format(wait=True), threads=64, tensors=tensors, **schedule)
    assert not good.findings, good
    assert good.counters["sum"] == 1 + 5 + 9 + 1
    bad = warps.run(body.format(wait=False), threads=64, tensors=tensors, **schedule)
    assert only(bad).code == "race-smem"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("mbarrier_init(w, SB, 1)\nmbarrier_init(w, SB, 1)", "again without mbarrier.inval"),
        ("mbarrier_init(w, SB, 2, mask=w.present)", "32 threads of warp 0 initialise"),
        ("mbarrier_init(w, SB, 1)\nmbarrier_init(w, SB + 8, 1)\n"
         "s = mbarrier_arrive_state(w, SB, 1, None, mask=True)\nmbarrier_test_state(w, SB + 8, s)",
         "with a state that no arrival at it returned"),
        ("mbarrier_init(w, SB, 1)\nld_shared(w, SB + 4, 4, 1)", "reads the 8 bytes of"),
        ("mbarrier_init(w, SB, 1)\nst_shared(w, SB, 1, 4, 1)", "overwrites the 8 bytes of"),
        ("mbarrier_init(w, SB, 1)\nmbarrier_arrive(w, SB, 1, 16, mask=True)\n"
         "bulk_load(w, SB + 16, w.machine.pointers[0], 16, SB, mask=True)\nmbarrier_inval(w, SB)",
         "while copies complete on it"),
        ("await cluster_sync(w)\ncluster_arrive(w)\ncluster_arrive(w)", "arrives at the cluster"),
    ],
)  # fmt: skip
def test_what_barriers_forbid(body, words):
    report = warps.run(body, tensors=[("X", np.zeros(64, np.uint32))], schedule="lazy")
    finding = report.findings[0]
    assert finding.code == "barrier-init"
    assert words in finding.message


def test_memory_is_ordinary_again_after_inval(schedule):
    report = warps.run(
        """
        mbarrier_init(w, SB, 1)
        mbarrier_inval(w, SB)
        st_shared(w, SB, 5, 4, 1)
        w.machine.counters["read"] = int(ld_shared(w, SB, 4, 1))
        """,
        **schedule,
    )
    assert not report.findings, report
    assert report.counters["read"] == 5


def test_an_old_state_and_a_last_arrival_without_completion():
    lapped = warps.run(
        """
        mbarrier_init(w, SB, 1)
        s = mbarrier_arrive_state(w, SB, 1, None, mask=True)
        mbarrier_arrive(w, SB, 1, mask=True)
        mbarrier_test_state(w, SB, s)
        """
    )
    assert only(lapped).code == "barrier-lapped"
    last = warps.run(
        """
        mbarrier_init(w, SB, 3)
        mbarrier_arrive(w, SB, 2, mask=True, complete=False)
        mbarrier_arrive(w, SB, 1, mask=True, complete=False)
        """
    )
    finding = only(last)
    assert (finding.code, finding.location.line) == ("barrier-overarrival", 3)
    assert ".noComplete" in finding.message


def test_relaxed_operations_order_nothing_without_a_fence(schedule):
    body = """
        if w.id == 0: mbarrier_init(w, SB, 1)
        await cta_sync(w)
        if w.id == 0:
            st_shared(w, SB + 64, 3, 4, 1)
            {before}
            mbarrier_arrive(w, SB, 1, mask=True, sem="{arrive}")
        else:
            while not mbarrier_test(w, SB, 0, relaxed={relaxed}):
                yield None
            {after}
            w.machine.counters["read"] = int(ld_shared(w, SB + 64, 4, 1))
    """
    silent = {
        ("pass", "release", False, "pass"),
        ("fence_memory(w, 'acq_rel', 'cta')", "relaxed", False, "pass"),
        ("pass", "release", True, "fence_memory(w, 'acq_rel', 'cta')"),
    }
    racy = {("pass", "relaxed", False, "pass"), ("pass", "release", True, "pass")}
    for before, arrive, relaxed, after in silent | racy:
        text = body.format(before=before, arrive=arrive, relaxed=relaxed, after=after)
        report = warps.run(text, threads=64, **schedule)
        if (before, arrive, relaxed, after) in silent:
            assert not report.findings, report
            assert report.counters["read"] == 3
        else:
            assert only(report).code == "race-smem"


PAIR: dict[str, Any] = {"grid": (2, 1, 1), "cluster": (2, 1, 1)}


@pytest.mark.parametrize(
    ("scope", "reading", "races"),
    [
        ("", "cluster", False),
        ("", "cta", True),
        ("cta", "cluster", True),
        ("cluster", "cta", False),
    ],
)
def test_how_far_a_remote_arrival_releases(scope, reading, races):
    body = f"""
        mbarrier_init(w, SB, 1)
        fence_mbarrier_init(w)
        await cluster_sync(w)
        if w.rank == 0:
            st_shared(w, mapa(w, SB + 64, 1), 3, 4, 1)
            mbarrier_arrive(w, mapa(w, SB, 1), mask=True, scope="{scope}")
        else:
            await mbarrier_wait(w, SB, 0)
            ld_shared(w, SB + 64, 4, 1)
        await cluster_sync(w)
    """
    report = warps.run(body, readings={"remote-arrive": reading}, **PAIR)
    assert [f.code for f in report.findings] == ["race-smem"] * races
    if not scope:
        assert report.readings["remote-arrive"].startswith(reading)


STARTS = {
    "whole": "await cluster_sync(w)",
    "relaxed": "cluster_arrive(w, False); t = cluster_wait(w)",
    "of the CTA alone": "await cta_sync(w)",
}


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(
    "access",
    [
        "st_shared(w, mapa(w, SB + 64, 1 - w.rank), 1, 4, 1, w.lanes == 0)",
        "atom(w, 'shared', mapa(w, SB + 64, 1 - w.rank), 1, 'add', 'uint32', mask=w.lanes == 0)",
    ],
    ids=["store", "atomic"],
)
def test_a_cta_must_have_started_before_its_memory_is_used(start, access, schedule):
    waits = "if t is not None: yield t" if start == "relaxed" else "pass"
    report = warps.run(
        f"""
        {STARTS[start]}
        {waits}
        {access}
        await cluster_sync(w)
        """,
        **PAIR,
        **schedule,
    )
    early = [f for f in report.findings if f.code == "cluster-start"]
    assert [f.location.line for f in early] == [3] * (start == "of the CTA alone"), report
    assert all("CTA rank" in f.memory for f in early)


@pytest.mark.parametrize("ending", ["await cluster_sync(w)", "cluster_arrive(w, False)", "pass"])
def test_a_cta_must_outlive_arrivals_at_its_barriers(ending, schedule):
    report = warps.run(
        f"""
        mbarrier_init(w, SB, 1)
        fence_mbarrier_init(w)
        await cluster_sync(w)
        if w.rank == 0: mbarrier_arrive(w, mapa(w, SB, 1), mask=True)
        {ending}
        if "False" in {ending!r}:
            t = cluster_wait(w)
            if t is not None: yield t
        """,
        **PAIR,
        **schedule,
    )
    if ending == "pass":
        finding = only(report)
        assert (finding.code, finding.location.line) == ("cluster-exit", 4)
        assert "CTA rank 1" in finding.memory
    else:
        assert not report.findings, report


def test_a_poll_that_nobody_will_end_names_its_barrier():
    report = warps.run(
        """
        mbarrier_init(w, SB, 2)
        mbarrier_arrive(w, SB, mask=True)
        while not mbarrier_test(w, SB, 0):
            yield None
        """,
        regions=[["full", 0, 8, [1], "uint64"]],
    )
    finding = only(report)
    assert finding.code == "deadlock"
    assert "full, which is in phase 0 with 1 of 2 arrivals still to come" in finding.message
    assert "counts 2 arrivals a phase, and those who arrive at it bring 1" in finding.message
    assert [place.line for _, place in finding.related] == [2, 1]
    assert report.deadlock["waiting"][0]["kind"] == "mbarrier"


# ------------------------------------------------------------------------------ named barriers


@pytest.mark.parametrize("how", ["popc", "and", "or"])
@pytest.mark.parametrize("bits", [0, (1 << 96) - 1, 1, (1 << 96) - 2, 0xF0F0 << 40])
def test_reductions_at_a_barrier(how, bits, schedule):
    flags = [bits >> i & 1 for i in range(96)]
    expected = {"popc": sum(flags), "and": int(all(flags)), "or": int(any(flags))}[how]
    report = warps.run(
        f"""
        mine = ({bits} >> 32 * w.id & 0xFFFFFFFF) >> w.lanes & 1
        await bar_red(w, "{how}", 3, {{count}}, mine)
        w.machine.counters[w.id] = bar_result(w)
        await bar_sync(w, 3, {{count}})
        """.replace("{count}", "96" if bits % 3 else "None"),
        threads=96,
        **schedule,
    )
    assert not report.findings, report
    assert report.counters == {0: expected, 1: expected, 2: expected}


def test_reductions_do_not_mix_with_other_forms():
    report = warps.run(
        """
        if w.id == 0: await bar_red(w, "or", 1, 64, 1)
        if w.id == 1: await bar_sync(w, 1, 64)
        """.replace("await bar_red", "t = bar_red").replace("await bar_sync", "t = bar_sync"),
        threads=64,
        schedule="eager",
    )
    assert only(report).code == "barrier-init"
    assert "bar.sync by warp 1 while others use it with bar.red.or" in only(report).message


def test_groups_that_share_a_barrier_number(schedule):
    """Two pairs of warps with one number: nothing keeps one pair out of the other's turn."""
    body = """
        number = 1 + {apart} * (w.id // 2)
        for i in range(2):
            await bar_sync(w, number, 64)
    """
    bad = warps.run(body.format(apart=0), threads=128, **schedule)
    assert (bad.findings[0].code, bad.findings[0].location.line) == ("barrier-mixed", 3)
    assert {f.code for f in bad.findings} <= {"barrier-mixed", "deadlock"}
    good = warps.run(body.format(apart=1), threads=128, **schedule)
    assert not good.findings, good


def test_a_warp_that_arrives_and_then_waits_in_one_turn(schedule):
    """Four warps and one arrival more, for the store that the first has issued: 160 threads."""
    report = warps.run(
        """
        for i in range(3 if w.id < 4 else 0):
            st_shared(w, SB + 4 * w.lanes + 128 * w.id, i, 4, 1)
            if w.id == 0: bar_arrive(w, 11, 160)
            await bar_sync(w, 11, 160)
            v = ld_shared(w, SB + 4 * w.lanes + 128 * (3 - w.id), 4, 1)
            assert (v == i).all()
            await bar_sync(w, 12, 128)
        """,
        threads=160,
        **schedule,
    )
    assert not report.findings, report


@pytest.mark.parametrize("waits", [True, False])
def test_arriving_in_a_loop_needs_a_wait_between(waits, schedule):
    report = warps.run(
        f"""
        for i in range(3):
            if w.id == 0:
                bar_arrive(w, 1, 64)
                if {waits}:
                    t = bar_sync(w, 2, 64)
                    if t is not None: yield t
            else:
                t = bar_sync(w, 1, 64)
                if t is not None: yield t
                if {waits}: bar_arrive(w, 2, 64)
        """,
        threads=64,
        **schedule,
    )
    if waits:
        assert not report.findings, report
    else:
        assert report.findings[0].code == "barrier-mixed", report


# ----------------------------------------------------------------------------- lanes of a warp


def test_votes_and_matches_against_plain_loops():
    rng = np.random.default_rng(0)
    for _ in range(60):
        present = int(rng.integers(1, 33))
        w: Any = Lanes(present)
        bits, mask = rng.integers(0, 2, 32).astype(bool), rng.integers(0, 2, 32).astype(bool)
        mask[0] = True
        active = [i for i in range(present) if mask[i]]
        votes = [bool(bits[i]) for i in active]
        assert lanes.vote(w, "any", bits, mask) == any(votes)
        assert lanes.vote(w, "all", bits, mask) == all(votes)
        assert lanes.vote(w, "uni", bits, mask) == (len(set(votes)) == 1)
        assert lanes.vote(w, "ballot", bits, mask) == sum(1 << i for i in active if bits[i])
        assert lanes.active_lanes(w, mask) == sum(1 << i for i in active)
        values = rng.integers(0, 4, 32)
        found = lanes.match(w, "any", values, mask)
        for i in active:
            assert found[i] == sum(1 << j for j in active if values[j] == values[i])
        same = len({int(values[i]) for i in active}) == 1
        expected = sum(1 << i for i in active) if same else 0
        assert lanes.match(w, "all", values, mask) == expected


def test_reductions_against_plain_loops():
    rng = np.random.default_rng(1)
    w: Any = Lanes()
    for _ in range(40):
        mask = rng.integers(0, 2, 32).astype(bool)
        mask[5] = True
        ints = rng.integers(-(2**31), 2**31, 32)
        chosen = [int(v) for v in ints[mask]]
        assert lanes.redux(w, "add", ints, mask) == sum(chosen) % 2**32
        assert lanes.redux(w, "min", ints, mask) == min(chosen)
        assert lanes.redux(w, "max", ints, mask) == max(chosen)
        bits = [v % 2**32 for v in chosen]
        whole = {"and": bits[0], "or": 0, "xor": 0}
        for v in bits:
            whole = {"and": whole["and"] & v, "or": whole["or"] | v, "xor": whole["xor"] ^ v}
        for how, expected in whole.items():
            assert lanes.redux(w, how, ints % 2**32, mask) == expected
        floats = rng.standard_normal(32).astype(np.float32)
        assert lanes.redux(w, "max", floats, mask) == max(floats[mask])
        assert lanes.redux(w, "min.abs", floats, mask) == min(abs(floats[mask]))
        floats[5] = np.nan
        others = [float(v) for v in floats[mask] if v == v] or [np.nan]
        np.testing.assert_equal(float(lanes.redux(w, "min", floats, mask)), min(others))
        assert np.isnan(lanes.redux(w, "max.NaN", floats, mask))


def test_shuffles_within_segments():
    """``__shfl_*_sync(mask, value, by, width)`` is shfl.sync with c = (32 - width) << 8 | clamp."""
    rng = np.random.default_rng(2)
    w: Any = Lanes()
    for _ in range(40):
        values, width = rng.integers(0, 1000, 32), int(2 ** rng.integers(0, 6))
        by = int(rng.integers(0, 32)) % width
        for mode in ("idx", "up", "down", "bfly"):
            short = lanes.shuffle(w, values, by, mode, width)
            clamp = (32 - width) << 8 | (0 if mode == "up" else 31)
            full, inside = lanes.shfl_p(w, mode, values, by, clamp)
            for lane in range(32):
                start = lane // width * width
                target = {
                    "idx": start + by,
                    "up": lane - by,
                    "down": lane + by,
                    "bfly": lane ^ by,
                }[mode]
                within = start <= target < start + width
                expected = values[target if within else lane]
                assert short[lane] == full[lane] == expected, (mode, width, by, lane)
                assert inside[lane] == within


def test_a_shuffle_from_a_lane_that_takes_no_part_gives_poison():
    w: Any = Lanes()
    low = np.arange(32) < 16
    taken, inside = lanes.shfl_p(w, "down", np.arange(32), 1, 31, low)
    assert taken[:15].tolist() == list(range(1, 16))
    assert inside[15]
    assert taken[15] not in range(32)


# ------------------------------------------------------------------------- from kernels' sources


def run(kernel, *arrays, **options):
    report = sim.simulate(kernel, *arrays, **options)
    assert not report.findings, report
    return report


@T.prim_func
def lane_operations(Y: T.Buffer((N, 12), "int32")):
    T.device_entry()
    cta = T.cta_id([1])
    warp = T.warp_id([2])
    lane = T.lane_id([32])
    tid = T.thread_id([N])
    leader: T.uint32
    chosen: T.uint32
    T.ptx.elect_sync(leader, chosen, T.uint32(0xFFFFFFFF))
    Y[tid, 0] = T.cast(leader, "int32")
    if chosen == T.uint32(1):
        Y[tid, 1] = 7
    else:
        Y[tid, 1] = 8
    m: T.uint32
    T.ptx.match.any.sync.b32(m, T.cast(lane % 3, "uint32"), T.uint32(0xFFFFFFFF))
    Y[tid, 2] = T.reinterpret("int32", m)
    everyone: T.uint32
    T.ptx.match.all.sync.b32(m, everyone, T.cast(warp, "uint32"), T.uint32(0xFFFFFFFF))
    Y[tid, 3] = T.reinterpret("int32", m) + T.cast(everyone, "int32")
    a: T.uint32
    a = T.uint32(0)
    v: T.uint32
    v = T.uint32(0)
    if lane < 12:
        T.ptx.activemask.b32(a)
        T.ptx.vote_sync.ballot.b32(v, T.ptx.pred(T.cast(lane % 2, "uint32")), T.uint32(0xFFF))
    Y[tid, 4] = T.cast(a, "int32")
    Y[tid, 5] = T.cast(v, "int32")
    s: T.uint32
    p: T.uint32
    T.ptx.shfl_sync.down.b32(
        s, p, T.cast(tid * 10, "uint32"), T.uint32(3), T.uint32(31), T.uint32(0xFFFFFFFF)
    )
    Y[tid, 6] = T.cast(s, "int32")
    Y[tid, 7] = T.cast(p, "int32")
    r: T.int32
    T.ptx.redux_sync.min.s32(r, 5 - tid, T.uint32(0xFFFFFFFF))
    Y[tid, 8] = r
    T.ptx.bar.warp.sync(T.uint32(0xFFFFFFFF))
    f: T.float32
    T.ptx.redux_sync.max.abs.f32(f, T.cast(tid - 40, "float32"), T.uint32(0xFFFFFFFF))
    Y[tid, 9] = T.cast(f, "int32")
    if lane == 3:
        T.ptx.vote_sync.any.pred(v, T.ptx.pred(T.uint32(1)), T.uint32(8))
        Y[tid, 10] = T.cast(v, "int32")
    else:
        Y[tid, 10] = -1
    Y[tid, 11] = T.cast(
        T.cuda.ballot_sync(T.uint32(0xFFFFFFFF), T.cast(lane > 29, "int32")) >> T.uint32(30),
        "int32",
    )


def test_operations_across_lanes():
    Y = np.zeros((N, 12), np.int32)
    run(lane_operations, Y)
    lane = I % 32
    residue = [sum(1 << j for j in range(32) if j % 3 == k) for k in range(3)]
    assert (Y[:, 0] == 0).all()
    assert (Y[:, 1] == np.where(lane == 0, 7, 8)).all()
    assert (Y[:, 2] == np.array(residue, np.uint32).view(np.int32)[lane % 3]).all()
    assert (Y[:, 3] == 0).all()  # 0xFFFFFFFF + 1
    assert (Y[:, 4] == np.where(lane < 12, 0xFFF, 0)).all()
    assert (Y[:, 5] == np.where(lane < 12, 0xAAA, 0)).all()
    assert (Y[:, 6] == 10 * np.where(lane < 29, I + 3, I)).all()
    assert (Y[:, 7] == (lane < 29)).all()
    assert (Y[:, 8] == np.where(I < 32, 5 - 31, 5 - 63)).all()
    assert (Y[:, 9] == np.where(I < 32, 40, 23)).all()
    assert (Y[:, 10] == np.where(lane == 3, 1, -1)).all()
    assert (Y[:, 11] == 3).all()


@T.prim_func
def waits_by_state(Y: T.Buffer((N, 4), "int32")):
    T.device_entry()
    cta = T.cta_id([1])
    warp = T.warp_id([2])
    lane = T.lane_id([32])
    tid = T.thread_id([N])
    pool = T.SMEMPool()
    bar = pool.alloc((40,), "uint64")
    pool.commit()
    if tid < 32:
        T.ptx.mbarrier.init.shared.b64(bar.ptr_to([tid]), T.uint32(1))
    if tid == 32:
        T.ptx.mbarrier.init.shared.b64(bar.ptr_to([32]), T.uint32(N))
    T.cuda.cta_sync()
    state: T.uint64
    done: T.uint32
    pending: T.uint32
    T.ptx.mbarrier.arrive.shared.b64(state, bar.ptr_to([32]))
    done = T.uint32(0)
    while done == T.uint32(0):
        T.ptx.mbarrier.try_wait.shared.b64(done, bar.ptr_to([32]), state)
    T.ptx.mbarrier.pending_count.b64(pending, state)
    Y[tid, 0] = T.cast(pending, "int32")
    if warp == 0:
        T.ptx.mbarrier.arrive.shared.b64(bar.ptr_to([lane]))
    else:
        T.cuda.mbarrier_wait(bar.ptr_to([lane]), 0)
    T.ptx.mbarrier.test_wait.parity.shared.b64(done, bar.ptr_to([lane]), T.uint32(0))
    Y[tid, 1] = T.cast(done, "int32")
    Y[tid, 2] = T.cast(T.cuda.syncthreads_and(tid < 60), "int32")
    Y[tid, 3] = T.cast(T.cuda.syncthreads_or(tid == 60), "int32")


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_parities_that_the_lanes_hold(schedule, seed):
    """A phase that lies in a register of each lane; lanes that do not ask may hold any."""

    @T.prim_func
    def kernel(X: T.Buffer((N,), "uint32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        tid = T.thread_id([N])
        bar = T.alloc_shared((1,), "uint64")
        if tid == 0:
            T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), T.uint32(32))
        T.cuda.cta_sync()
        phase: T.uint32 = X[tid]
        y: T.int32 = 0
        if warp == 0:
            T.ptx.mbarrier.arrive.shared.b64(bar.ptr_to([0]))
        if lane < 20:
            for _round in T.serial(2):
                done: T.uint32 = T.uint32(0)
                while done == T.uint32(0):
                    T.ptx.mbarrier.try_wait.parity.shared.b64(done, bar.ptr_to([0]), phase)
                y = y + 1
        Y[tid] = y

    X, Y = np.where(np.arange(N) % 32 < 20, 0, 9).astype(np.uint32), np.zeros(N, np.int32)
    report = sim.simulate(kernel, X, Y, schedule=schedule, schedule_seed=seed)
    assert not report.findings, report
    np.testing.assert_array_equal(Y, np.where(X == 0, 2, 0))


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_waiting_by_state_and_a_barrier_of_each_lane(schedule, seed):
    Y = np.zeros((N, 4), np.int32)
    run(waits_by_state, Y, schedule=schedule, schedule_seed=seed)
    assert sorted(Y[:, 0]) == list(range(1, N + 1))
    assert (Y[:, 1] == 1).all()
    assert (Y[:, 2] == 0).all()
    assert (Y[:, 3] == 1).all()


@T.prim_func
def addresses(Y: T.Buffer((2, 32, 8), "int32")):
    T.device_entry()
    cbx, _cby = T.cta_id_in_cluster([2, 1])
    bx = T.cta_id([2])
    lane = T.lane_id([32])
    tid = T.thread_id([32])
    pool = T.SMEMPool()
    x = pool.alloc((32,), "int32")
    pool.commit()
    x[lane] = 100 * cbx + lane
    T.cuda.cluster_sync()
    far: T.uint64
    near: T.uint64
    p: T.uint32
    rank: T.uint32
    word: T.uint32
    T.ptx.mapa.u64(far, x.ptr_to([lane]), T.cast(1 - cbx, "uint32"))
    T.ptx.ld.s32(word, far)
    Y[bx, lane, 0] = T.cast(word, "int32")
    T.ptx.getctarank.u64(rank, far)
    Y[bx, lane, 1] = T.cast(rank, "int32")
    T.ptx.isspacep.shared__cluster(p, T.reinterpret("handle", far))
    Y[bx, lane, 2] = T.cast(p, "int32")
    T.ptx.isspacep.shared__cta(p, T.reinterpret("handle", far))
    Y[bx, lane, 3] = T.cast(p, "int32")
    T.ptx.isspacep.global_(p, Y.ptr_to([0, 0, 0]))
    Y[bx, lane, 4] = T.cast(p, "int32")
    T.ptx.cvta.to.shared.u64(near, x.ptr_to([lane]))
    T.ptx.cvta.shared.u64(near, near)
    T.ptx.isspacep.shared__cta(p, T.reinterpret("handle", near))
    Y[bx, lane, 5] = T.cast(p, "int32")
    Y[bx, lane, 6] = T.cuda.mov_sreg(32, "cluster_ctarank") * 10 + T.cuda.mov_sreg(
        32, "cluster_nctarank"
    )
    Y[bx, lane, 7] = T.cuda.mov_sreg(32, "laneid") + T.cuda.mov_sreg(32, "tid.x") * 100
    T.cuda.cluster_sync()


def test_addresses_and_special_registers():
    Y = np.zeros((2, 32, 8), np.int32)
    run(addresses, Y)
    lane = np.arange(32)
    for rank in range(2):
        expected = np.stack(
            [100 * (1 - rank) + lane, 1 - rank + 0 * lane, 1 + 0 * lane, 0 * lane, 1 + 0 * lane,
             1 + 0 * lane, 10 * rank + 2 + 0 * lane, 101 * lane], axis=1,
        )  # fmt: skip
        assert (Y[rank] == expected).all(), Y[rank][:2]


@T.prim_func
def prints(X: T.Buffer((32,), "float32")):
    T.device_entry()
    cta = T.cta_id([1])
    tid = T.thread_id([32])
    if tid < 2:
        T.cuda.printf("thread %u has %.2f of %lld%%\n", tid, X[tid], T.int64(5))


def test_printf_writes_what_the_active_lanes_say(capsys):
    run(prints, np.array([0.5, 1.25] + [0] * 30, np.float32))
    assert capsys.readouterr().out == "thread 0 has 0.50 of 5%\nthread 1 has 1.25 of 5%\n"


@T.prim_func
def asserts(X: T.Buffer((32,), "int32"), Y: T.Buffer((32,), "int32")):
    T.device_entry()
    cta = T.cta_id([1])
    tid = T.thread_id([32])
    T.cuda.trap_when_assert_failed(X[tid] < 5)
    Y[tid] = X[tid]


def test_an_assertion_that_fails_stops_the_run():
    X, Y = np.zeros(32, np.int32), np.zeros(32, np.int32)
    run(asserts, X, Y)
    X[9] = 5
    report = sim.simulate(asserts, X, Y)
    finding = only(report)
    assert finding.code == "assertion"
    assert "lane 9" in finding.threads
    assert "trap_when_assert_failed" in finding.location.text
    assert not report.completed


@T.prim_func
def wrong_members(Y: T.Buffer((32,), "int32")):
    T.device_entry()
    cta = T.cta_id([1])
    tid = T.thread_id([32])
    v: T.uint32
    if tid < 8:
        T.ptx.vote_sync.ballot.b32(v, T.ptx.pred(T.uint32(1)), T.uint32(0xFFF))
        Y[tid] = T.cast(v, "int32")


def test_a_member_mask_that_names_other_lanes():
    finding = only(sim.simulate(wrong_members, np.zeros(32, np.int32)))
    assert finding.code == "divergent-collective"
    assert "lanes 8-11 do not reach it" in finding.message
