"""mbarriers, CTA and named barriers, cluster barriers: what they hold back, order, and report."""

from typing import Any

import numpy as np
import pytest

from . import warps

SCHEDULES = [("eager", 0), ("lazy", 0)] + [("seeded", n) for n in range(6)]


@pytest.fixture(params=SCHEDULES, ids=lambda s: f"{s[0]}-{s[1]}")
def schedule(request):
    return {"schedule": request.param[0], "seed": request.param[1]}


# --------------------------------------------------------------------------- mbarrier phases


def test_phases_and_parities(schedule):
    """A phase completes at its last arrival; a parity names the phase that came last with it."""
    report = warps.run(
        """
        c = w.machine.counters
        mbarrier_init(w, SB, 2)
        c["before: 0"], c["before: 1"] = mbarrier_test(w, SB, 0), mbarrier_test(w, SB, 1)
        mbarrier_arrive(w, SB, 1, mask=True)
        c["half: 0"] = mbarrier_test(w, SB, 0)
        mbarrier_arrive(w, SB, 1, mask=True)
        c["first: 0"], c["first: 1"] = mbarrier_test(w, SB, 0), mbarrier_test(w, SB, 1)
        mbarrier_arrive(w, SB, 2, mask=True)
        c["second: 0"], c["second: 1"] = mbarrier_test(w, SB, 0), mbarrier_test(w, SB, 1)
        """,
        **schedule,
    )
    assert not report.findings, report
    assert report.counters == {
        "before: 0": False,
        "before: 1": True,
        "half: 0": False,
        "first: 0": True,
        "first: 1": False,
        "second: 0": False,
        "second: 1": True,
    }


def test_every_active_thread_arrives(schedule):
    report = warps.run(
        """
        if w.id == 0: mbarrier_init(w, SB, 40)
        await cta_sync(w)
        if w.id == 0: mbarrier_arrive(w, SB)
        if w.id == 1: mbarrier_arrive(w, SB, mask=w.lanes < 8)
        await mbarrier_wait(w, SB, 0)
        """,
        threads=64,
        **schedule,
    )
    assert not report.findings, report


def test_a_wait_orders_what_was_written_before_the_arrival(schedule):
    body = """
    if w.id == 0: mbarrier_init(w, SB, 1)
    await cta_sync(w)
    if w.id == 0:
        st_shared(w, SB + 64 + 4 * w.lanes, np.uint32(7) + w.lanes.astype(np.uint32), 4, 1)
        warp_sync(w)
        {arrive}
    else:
        await mbarrier_wait(w, SB, 0)
        w.machine.counters["sum"] = int(ld_shared(w, SB + 64 + 4 * w.lanes, 4, 1).sum())
    """
    good = warps.run(
        body.format(arrive="mbarrier_arrive(w, SB, 1, mask=True)"), threads=64, **schedule
    )
    assert not good.findings, good
    assert good.counters["sum"] == sum(range(7, 39))


def test_an_arrival_before_the_write_orders_nothing(schedule):
    report = warps.run(
        """
        if w.id == 0: mbarrier_init(w, SB, 1)
        st_shared(w, SB + 64, 1, 4, 1) if w.id == 1 else None
        await cta_sync(w)
        if w.id == 0:
            mbarrier_arrive(w, SB, 1, mask=True)
            st_shared(w, SB + 64, 2, 4, 1)
        else:
            await mbarrier_wait(w, SB, 0)
            ld_shared(w, SB + 64, 4, 1)
        """,
        threads=64,
        **schedule,
    )
    finding = warps.only(report)
    assert finding.code == "race-smem"
    places = {finding.location.line, *(place.line for _, place in finding.related)}
    assert places == {6, 9}


def test_bytes_hold_a_phase_back():
    report = warps.run(
        """
        mbarrier_init(w, SB, 1)
        mbarrier_arrive(w, SB, 1, 64, mask=True)
        w.machine.counters["done"] = mbarrier_test(w, SB, 0)
        await mbarrier_wait(w, SB, 0)
        """,
        regions=[["full", 0, 8, [1], "uint64"]],
    )
    finding = warps.only(report)
    assert report.counters["done"] is False
    assert finding.code == "tx-count"
    assert finding.location.line == 4
    assert "64 bytes outstanding" in finding.message
    assert not report.completed


def test_bytes_that_nobody_expects():
    """They complete nothing: the phase waits for the arrival that would have announced them."""
    report = warps.run(
        """
        mbarrier_init(w, SB, 1)
        mbarrier_complete_tx(w, SB, 64, mask=True)
        await mbarrier_wait(w, SB, 0)
        """,
        regions=[["full", 0, 8, [1], "uint64"]],
    )
    finding = warps.only(report)
    assert (finding.code, finding.location.line) == ("deadlock", 3)
    assert "64 bytes have come that no expect_tx has announced" in finding.message
    assert "64 bytes have come unexpected" in str(report)


def test_one_arrival_too_many():
    report = warps.run(
        """
        mbarrier_init(w, SB, 3)
        mbarrier_arrive(w, SB, 2, mask=True)
        mbarrier_arrive(w, SB, 2, mask=True)
        """,
        regions=[["bar", 0, 8, [1], "uint64"]],
    )
    finding = warps.only(report)
    assert (finding.code, finding.location.line) == ("barrier-overarrival", 3)
    assert "arrives 2 times at bar, which expects 1 more of 3" in finding.message
    assert [place.line for _, place in finding.related] == [1]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("mbarrier_arrive(w, SB, 1, mask=True)", "which nothing has initialised"),
        ("mbarrier_init(w, SB + 4, 1)", "8-byte aligned"),
        ("mbarrier_init(w, SB, 0)", "count 0"),
        ("mbarrier_init(w, SB, 2)\nmbarrier_arrive(w, SB, 1, mask=True)\nmbarrier_init(w, SB, 2)",
         "again while it is in use"),
        ("mbarrier_init(w, SB, 1)\nmbarrier_inval(w, SB)\nmbarrier_test(w, SB, 0)",
         "which nothing has initialised"),
    ],
)  # fmt: skip
def test_misuse_of_initialisation(body, words):
    finding = warps.only(warps.run(body))
    assert finding.code == "barrier-init"
    assert words in finding.message + finding.fix


def test_initialisation_must_be_ordered_before_use(schedule):
    report = warps.run(
        """
        if w.id == 0: mbarrier_init(w, SB, 1)
        if w.id == 1: mbarrier_test(w, SB, 1)
        """,
        threads=64,
        **schedule,
    )
    finding = warps.only(report)
    assert (finding.code, finding.location.line) == ("barrier-init", 2)


def test_lapping_is_found_from_the_order_alone(schedule):
    """Warp 0 completes two phases; nothing makes the second wait for warp 1 to see the first."""
    report = warps.run(
        """
        if w.id == 0: mbarrier_init(w, SB, 1)
        await cta_sync(w)
        if w.id == 0:
            mbarrier_arrive(w, SB, 1, mask=True)
            mbarrier_arrive(w, SB, 1, mask=True)
        else:
            await mbarrier_wait(w, SB, 0)
        """,
        threads=64,
        **schedule,
    )
    finding = report.findings[0]
    assert (finding.code, finding.location.line) == ("barrier-lapped", 5)
    assert [place.line for _, place in finding.related] == [7]
    assert [f.code for f in report.findings[1:]] in ([], ["deadlock"])


def test_bytes_that_land_come_after_what_their_issuer_did(schedule):
    """Warp 1 waits for a phase of E, and then asks for bytes; they complete F, and whoever waits
    for F completes the next phase of E: nothing is lapped, though no memory is published by bytes.
    """
    body = """
    X, E, F = w.machine.pointers[0], SB, SB + 8
    if w.id == 0:
        mbarrier_init(w, E, 1)
        mbarrier_init(w, F, 1)
        mbarrier_arrive(w, F, 1, 16, mask=True)
        mbarrier_arrive(w, E, 1, mask=True)
    await cta_sync(w)
    if w.id == 1:
        {first}
        bulk_load(w, SB + 64, X, 16, F, mask=True)
        {second}
    else:
        await mbarrier_wait(w, F, 0)
        mbarrier_arrive(w, E, 1, mask=True)
    """
    wait = "await mbarrier_wait(w, E, 0)"
    launch = {"threads": 64, "tensors": [("X", np.zeros(4, np.float32))]}
    right = warps.run(body.format(first=wait, second="pass"), **launch, **schedule)
    assert not right.findings, right
    wrong = warps.run(body.format(first="pass", second=wait), **launch, **schedule)
    assert wrong.findings[0].code == "barrier-lapped"


def test_a_ring_of_two_barriers_is_silent(schedule):
    """Producer and consumer take turns through full and empty, over several phases."""
    report = warps.run(
        """
        if w.id == 0:
            mbarrier_init(w, SB, 1)
            mbarrier_init(w, SB + 8, 1)
        await cta_sync(w)
        for i in range(5):
            if w.id == 0:
                await mbarrier_wait(w, SB + 8, (i & 1) ^ 1)
                st_shared(w, SB + 64, i, 4, 1)
                warp_sync(w)
                mbarrier_arrive(w, SB, 1, mask=True)
            else:
                await mbarrier_wait(w, SB, i & 1)
                w.machine.count("sum", int(ld_shared(w, SB + 64, 4, 1)) * 10**i)
                warp_sync(w)
                mbarrier_arrive(w, SB + 8, 1, mask=True)
        """,
        threads=64,
        **schedule,
    )
    assert not report.findings, report
    assert report.counters["sum"] == 43210


# ------------------------------------------------------------------------ deadlock reports


def test_a_deadlock_names_who_waits_for_what_and_who_came():
    report = warps.run(
        """
        if w.id == 0: mbarrier_init(w, SB + 8, 3)
        await cta_sync(w)
        if w.id == 2: mbarrier_arrive(w, SB + 8, 1, mask=True)
        if w.id == 3:
            await bar_sync(w, 5, 64)
        if w.id < 2:
            await mbarrier_wait(w, SB + 8, 0)
        """,
        threads=128,
        regions=[["ready", 0, 16, [2], "uint64"]],
    )
    finding = warps.only(report)
    assert (finding.code, finding.location.line) == ("deadlock", 7)
    assert "3 warps wait for ever" in finding.message
    assert "phase parity 0 of ready[1]" in finding.message
    assert "2 of 3 arrivals still to come" in finding.message
    assert "warp 2 at warps.txt:3 (1 in all)" in finding.message
    assert [place.line for _, place in finding.related] == [3, 1, 5]
    waiting = {entry["warp"]: entry for entry in report.deadlock["waiting"]}
    assert set(waiting) == {0, 1, 3}
    assert waiting[3]["kind"] == "barrier"
    assert "named barrier 5: 32 of 64 threads have come" in waiting[3]["waits_for"]
    assert waiting[0]["location"]["line"] == 7
    assert not report.completed


def test_nobody_ever_arrived():
    report = warps.run("mbarrier_init(w, SB, 1)\nawait mbarrier_wait(w, SB, 0)")
    assert "nobody has ever arrived at it" in warps.only(report).message


def test_a_cta_barrier_that_one_warp_never_reaches():
    report = warps.run(
        """
        if w.id == 0: mbarrier_init(w, SB, 1)
        if w.id == 1:
            await mbarrier_wait(w, SB, 0)
        await cta_sync(w)
        """,
        threads=96,
    )
    assert "deadlock" in [f.code for f in report.findings]
    texts = [entry["text"] for entry in report.deadlock["waiting"]]
    assert any("has not been reached by warp 1" in text for text in texts)


def test_an_exited_warp_counts_at_the_cta_barrier(schedule):
    report = warps.run(
        """
        if w.id == 1: return
        await cta_sync(w)
        w.machine.count("passed")
        """,
        threads=96,
        **schedule,
    )
    assert not report.findings, report
    assert report.counters["passed"] == 2


# -------------------------------------------------------------------------- named barriers


def test_named_barriers_hold_their_own_groups(schedule):
    report = warps.run(
        """
        group = w.id // 2
        st_shared(w, SB + 4 * w.tid, w.tid.astype(np.uint32), 4, 1)
        await bar_sync(w, 1 + group, 64)
        other = w.tid ^ 32
        w.machine.count("sum", int(ld_shared(w, SB + 4 * other, 4, 1).sum()))
        """,
        threads=128,
        **schedule,
    )
    assert not report.findings, report
    assert report.counters["sum"] == sum(range(128))


def test_another_groups_barrier_orders_nothing(schedule):
    report = warps.run(
        """
        if w.id == 0: st_shared(w, SB, 1, 4, 1)
        await bar_sync(w, 1 + w.id // 2, 64)
        if w.id == 3: ld_shared(w, SB, 4, 1)
        """,
        threads=128,
        **schedule,
    )
    assert warps.only(report).code == "race-smem"


def test_arriving_without_waiting(schedule):
    report = warps.run(
        """
        if w.id == 0:
            st_shared(w, SB, 77, 4, 1)
            bar_arrive(w, 3, 64)
        else:
            await bar_sync(w, 3, 64)
            w.machine.counters["read"] = int(ld_shared(w, SB, 4, 1))
        """,
        threads=64,
        **schedule,
    )
    assert not report.findings, report
    assert report.counters["read"] == 77


@pytest.mark.parametrize(("barrier", "threads"), [(16, 64), (-1, 64), (1, 48), (1, 128), (1, 0)])
def test_named_barriers_that_do_not_exist(barrier, threads):
    report = warps.run(f"await bar_sync(w, {barrier}, {threads})", threads=64)
    assert warps.only(report).code == "barrier-init"


def test_two_groups_at_one_number():
    report = warps.run(
        "await bar_sync(w, 1, 64 if w.id == 0 else 96)", threads=96, schedule="eager"
    )
    finding = warps.only(report)
    assert finding.code == "barrier-init"
    assert "for 96 threads by warp 1 while others use it for 64" in finding.message


# ------------------------------------------------------------------------ cluster barriers

PAIR: dict[str, Any] = {"grid": (2, 1, 1), "cluster": (2, 1, 1)}


def test_distributed_shared_memory_between_cluster_barriers(schedule):
    report = warps.run(
        """
        await cluster_sync(w)  # the peer has started
        peer = mapa(w, SB + 128, 1 - w.rank)
        st_shared(w, peer + 4 * w.lanes, w.lanes.astype(np.uint32) + 100 * w.rank, 4, 1)
        cluster_arrive(w)
        await cluster_wait(w)
        mine = ld_shared(w, SB + 128 + 4 * w.lanes, 4, 1)
        w.machine.counters[f"cta {w.rank}"] = int(mine[5])
        """,
        **PAIR,
        **schedule,
    )
    assert not report.findings, report
    assert report.counters["cta 0"] == 105
    assert report.counters["cta 1"] == 5


def test_lanes_that_address_several_ctas(schedule):
    report = warps.run(
        """
        st_shared(w, SB + 4 * w.lanes, (w.lanes + 100 * w.rank).astype(np.uint32), 4, 1)
        await cluster_sync(w)
        got = ld_shared(w, mapa(w, SB + 4 * w.lanes, w.lanes % 2), 4, 1)
        w.machine.count("sum", int(got.sum()))
        some = ld_shared(w, mapa(w, SB + 4 * w.lanes, w.lanes % 2), 4, 1, mask=w.lanes < 7)
        w.machine.count("some", int(some[:7].sum()))
        await cluster_sync(w)
        to = mapa(w, SB + 128 + 4 * w.lanes + 128 * w.rank, w.lanes % 2)
        st_shared(w, to, w.lanes.astype(np.uint32) + 1, 4, 1)
        await cluster_sync(w)
        for r in range(2):
            mine = ld_shared(w, SB + 128 + 128 * r + 8 * (w.lanes % 16) + 4 * w.rank, 4, 1)
            w.machine.count("stored", int(mine[:16].sum()))
        await cluster_sync(w)
        """,
        **PAIR,
        **schedule,
    )
    assert not report.findings, report
    assert report.counters["sum"] == 2 * (sum(range(32)) + 16 * 100)
    assert report.counters["some"] == 2 * (sum(range(7)) + 3 * 100)
    assert report.counters["stored"] == 2 * sum(range(1, 33))


def test_work_between_arrive_and_wait_is_not_ordered(schedule):
    report = warps.run(
        """
        st_shared(w, SB + 128, 1, 4, 1)
        cluster_arrive(w)
        st_shared(w, SB + 132, 2, 4, 1)
        await cluster_wait(w)
        ld_shared(w, mapa(w, SB + 128, 1 - w.rank), 4, 1)
        ld_shared(w, mapa(w, SB + 132, 1 - w.rank), 4, 1)
        await cluster_sync(w)
        """,
        **PAIR,
        **schedule,
    )
    finding = warps.only(report)
    assert finding.code == "race-smem"
    assert {finding.location.line, *(p.line for _, p in finding.related)} == {3, 6}


def test_a_relaxed_arrival_publishes_nothing(schedule):
    report = warps.run(
        """
        st_shared(w, SB + 128, 1, 4, 1)
        cluster_arrive(w, False)
        await cluster_wait(w)
        ld_shared(w, mapa(w, SB + 128, 1 - w.rank), 4, 1)
        await cluster_sync(w)
        """,
        **PAIR,
        **schedule,
    )
    assert warps.only(report).code == "race-smem"


def test_a_cta_barrier_does_not_order_the_cluster(schedule):
    report = warps.run(
        """
        await cluster_sync(w)
        st_shared(w, SB + 128, 1, 4, 1)
        await cta_sync(w)
        ld_shared(w, mapa(w, SB + 128, 1 - w.rank), 4, 1)
        await cluster_sync(w)
        """,
        **PAIR,
        **schedule,
    )
    finding = warps.only(report)
    assert finding.code == "race-smem"
    assert "cluster barrier" in finding.fix


def test_waiting_without_arriving():
    finding = warps.only(warps.run("await cluster_wait(w)", **PAIR))
    assert finding.code == "barrier-init"
    assert "without having arrived" in finding.message


def test_a_cluster_barrier_that_a_cta_never_reaches():
    report = warps.run(
        """
        if w.rank == 1:
            mbarrier_init(w, SB, 1)
            await mbarrier_wait(w, SB, 0)
        await cluster_sync(w)
        """,
        **PAIR,
    )
    assert warps.only(report).code == "deadlock"
    texts = " ".join(entry["text"] for entry in report.deadlock["waiting"])
    assert "not reached by warp 0 of CTA rank 1" in texts


@pytest.mark.parametrize("rank", [2, -1])
def test_ranks_that_the_cluster_does_not_have(rank):
    finding = warps.only(warps.run(f"mapa(w, SB, {rank})", **PAIR))
    assert finding.code == "out-of-bounds"
    assert f"rank {rank}" in finding.message


def test_remote_arrivals(schedule):
    """Each CTA arrives at the other's barrier; one address of each lane."""
    report = warps.run(
        """
        mbarrier_init(w, SB, 2)
        fence_mbarrier_init(w)
        await cluster_sync(w)
        to = mapa(w, SB, w.lanes % 2)
        mbarrier_arrive(w, to, mask=w.lanes < 2)
        await mbarrier_wait(w, SB, 0)
        w.machine.count("passed")
        await cluster_sync(w)
        """,
        **PAIR,
        **schedule,
    )
    assert not report.findings, report
    assert report.counters["passed"] == 2


@pytest.mark.parametrize("parity", [2, 3, -1])
def test_a_parity_is_one_bit(parity):
    report = warps.run(
        f"""
        mbarrier_init(w, SB, 1)
        mbarrier_arrive(w, SB, mask=True)
        mbarrier_arrive(w, SB, mask=True)
        await mbarrier_wait(w, SB, {parity})
        """
    )
    finding = next(f for f in report.findings if "a parity is 0 or 1" in f.message)
    assert (finding.code, finding.location.line) == ("barrier-parity", 4)
    assert f"parity {parity} of" in finding.message
