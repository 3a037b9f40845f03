"""Lanes of one warp: what one of them releases, or hands to an engine, and what it does not."""

import numpy as np
import pytest

from . import warps

SCHEDULES = [("eager", 0), ("lazy", 0), *(("seeded", seed) for seed in range(4))]


@pytest.fixture(params=SCHEDULES, ids=lambda s: f"{s[0]}-{s[1]}")
def schedule(request):
    return {"schedule": request.param[0], "seed": request.param[1]}


#: Warp 0 stores with some lanes, and some lanes arrive; warp 1 waits and reads.
HAND_OVER = """
    if w.id == 0: mbarrier_init(w, SB, {count})
    await cta_sync(w)
    if w.id == 0:
        st_shared(w, SB + 64 + 4 * w.lanes, w.lanes, 4, 1, {stored})
        {between}
        mbarrier_arrive(w, SB, mask={arrived})
    else:
        await mbarrier_wait(w, SB, 0)
        ld_shared(w, SB + 64 + 4 * w.lanes, 4, 1, {stored})
"""


def hand_over(stored="None", between="pass", arrived="True", count=1, **how):
    body = HAND_OVER.format(stored=stored, between=between, arrived=arrived, count=count)
    return warps.run(body, threads=64, **how)


@pytest.mark.parametrize(
    "how",
    [
        {"between": "warp_sync(w)"},
        {"arrived": "None", "count": 32},
        {"stored": "w.lanes == 0"},
        {"stored": "w.lanes < 4", "arrived": "w.lanes < 4", "count": 4},
        {"readings": {"lane-release": "warp"}},
    ],
    ids=lambda how: " ".join(how),
)
def test_silent_where_the_arrivals_cover_the_stores(how, schedule):
    report = hand_over(**how, **schedule)
    assert not report.findings, report


@pytest.mark.parametrize(
    ("how", "words"),
    [({}, 31), ({"stored": "w.lanes < 5"}, 4), ({"arrived": "w.lanes < 30", "count": 30}, 2)],
    ids=["all", "five", "thirty"],
)
def test_an_arrival_does_not_cover_other_lanes_stores(how, words, schedule):
    finding = warps.only(hand_over(**how, **schedule))
    assert (finding.code, finding.location.line) == ("race-smem", 9)
    assert "line 6" not in finding.message
    assert [place.line for _, place in finding.related] == [4, 6]
    assert f"{words} word" in finding.memory
    assert "warp_sync" in finding.fix


def test_an_arrival_does_not_cover_other_lanes_reads(schedule):
    """Warp 0 frees by one lane what all its lanes have read; warp 1 overwrites it."""
    body = """
        if w.id == 0: mbarrier_init(w, SB, 1)
        st_shared(w, SB + 64 + 4 * w.tid, w.lanes, 4, 1)
        await cta_sync(w)
        if w.id == 0:
            ld_shared(w, SB + 64, 4, 1)
            {between}
            mbarrier_arrive(w, SB, mask=True)
        else:
            await mbarrier_wait(w, SB, 0)
            st_shared(w, SB + 64, 5, 4, 1, w.lanes == 3)
    """
    silent = warps.run(body.format(between="warp_sync(w)"), threads=64, **schedule)
    assert not silent.findings, silent
    finding = warps.only(warps.run(body.format(between="pass"), threads=64, **schedule))
    assert (finding.code, finding.location.line) == ("race-smem", 10)
    assert [place.line for _, place in finding.related] == [5, 7]


STORE_OUT = """
    Y = w.machine.pointers[0]
    mbarrier_init(w, SB, 1)
    st_shared(w, SB + 1024 + 4 * w.lanes, w.lanes, 4, 1)
    {fence}
    {between}
    bulk_store(w, Y, SB + 1024, 128, mask=0)
    bulk_commit(w, mask=0)
    await bulk_wait(w, 0, False, mask=0)
"""


def store_out(fence="fence_proxy_async(w)", between="pass", **how):
    Y = np.zeros(32, np.uint32)
    body = STORE_OUT.format(fence=fence, between=between)
    report = warps.run(body, shared=2048, tensors=[("Y", Y)], **how)
    assert np.array_equal(Y, np.arange(32))  # in this machine lanes do run in step
    return report


def test_a_bulk_store_does_not_wait_for_other_lanes(schedule):
    assert not store_out(between="warp_sync(w)", **schedule).findings
    finding = warps.only(store_out(**schedule))
    assert (finding.code, finding.location.line) == ("race-smem", 6)
    assert finding.related[0][1].line == 3


def test_a_proxy_fence_holds_behind_an_arrival_of_one_lane(schedule):
    """The arrival covers nothing of the others; the barrier of the warp does, and the fence did."""
    kept = "mbarrier_arrive(w, SB, mask=True); warp_sync(w)"
    assert not store_out(between=kept, **schedule).findings
    finding = warps.only(store_out(fence="pass", between=kept, **schedule))
    assert finding.code == "missing-proxy-fence"


RELEASED = {
    "in halves": "[mbarrier_arrive(w, SB, mask=w.lanes // 16 == i) for i in range(2)]",
    "lane by lane": "[mbarrier_arrive(w, SB, mask=w.lanes == i) for i in range(32)]",
    "and one elsewhere": "mbarrier_arrive(w, SB); mbarrier_arrive(w, SB + 8, mask=w.lanes == 7)",
}


@pytest.mark.parametrize("released", RELEASED)
def test_what_a_lane_has_released_stays_released(released, schedule):
    """Whatever other lanes of its warp release later, at the same barrier or at another one."""
    report = warps.run(
        f"""
        if w.id == 0: mbarrier_init(w, SB, 32)
        if w.id == 0: mbarrier_init(w, SB + 8, 1)
        await cta_sync(w)
        if w.id == 0:
            st_shared(w, SB + 64 + 4 * w.lanes, w.lanes, 4, 1)
            {RELEASED[released]}
        else:
            await mbarrier_wait(w, SB, 0)
            ld_shared(w, SB + 64 + 4 * w.lanes, 4, 1)
        """,
        threads=64,
        **schedule,
    )
    assert not report.findings, report


def test_lanes_that_store_their_own_rows_out(schedule):
    """Each lane writes its row, fences, and copies the row out, round after round."""
    body = """
        Y = w.machine.pointers[0]
        for i in range(3):
            st_shared(w, SB + 1024 + 16 * w.lanes, np.full((32, 4), i), 4, 4)
            fence_proxy_async(w)
            bulk_store(w, Y + 16 * w.lanes + 512 * i, SB + 1024 + 16 * w.lanes, 16)
            bulk_commit(w)
            await bulk_wait(w, 0, False)
    """
    Y = np.full((3, 128), 9, np.uint32)
    report = warps.run(body, shared=2048, tensors=[("Y", Y)], **schedule)
    assert not report.findings, report
    assert (Y == np.arange(3)[:, None]).all()


@pytest.mark.parametrize("between", ["pass", "warp_sync(w)"])
def test_a_wait_holds_for_the_lanes_that_wait(between, schedule):
    report = warps.run(
        f"""
        if w.id == 0: mbarrier_init(w, SB, 32)
        await cta_sync(w)
        if w.id == 0:
            st_shared(w, SB + 64 + 4 * w.lanes, w.lanes, 4, 1)
            mbarrier_arrive(w, SB)
        else:
            await mbarrier_wait(w, SB, 0, mask=w.lanes == 3)
            {between}
            ld_shared(w, SB + 64 + 4 * w.lanes, 4, 1)
        """,
        threads=64,
        **schedule,
    )
    if between != "pass":
        assert not report.findings, report
        return
    finding = warps.only(report)
    assert (finding.code, finding.location.line) == ("race-smem", 9)
    assert [place.line for _, place in finding.related] == [4, 7]
    assert "31 words" in finding.memory


def test_a_proxy_fence_covers_the_lanes_that_execute_it(schedule):
    one = "fence_proxy_async(w, mask=w.lanes == 0)"
    finding = warps.only(store_out(fence=one, between="warp_sync(w)", **schedule))
    assert (finding.code, finding.location.line) == ("missing-proxy-fence", 6)
    # behind a barrier of the warp, one lane's fence covers what it has seen of the others
    assert not store_out(fence="warp_sync(w)", between=one, **schedule).findings


def test_a_barrier_of_one_lane_orders_nothing(schedule):
    body = """
        st_shared(w, SB + 4 * w.lanes, w.lanes, 4, 1)
        warp_sync(w, mask={mask})
        ld_shared(w, SB + 4 * (31 - w.lanes), 4, 1)
    """
    assert not warps.run(body.format(mask=None), **schedule).findings
    finding = warps.only(warps.run(body.format(mask="w.lanes == 0"), **schedule))
    assert (finding.code, finding.location.line) == ("race-smem", 3)


def test_lanes_that_all_wait_for_what_all_have_released_are_ordered(schedule):
    """Every lane arrives, and waits: then one may hand to an engine what the others stored."""
    body = STORE_OUT.replace("SB, 1)", "SB, 32)").format(
        fence="fence_proxy_async(w)",
        between="mbarrier_arrive(w, SB)\n    await mbarrier_wait(w, SB, 0)",
    )
    report = warps.run(body, shared=2048, tensors=[("Y", np.zeros(32, np.uint32))], **schedule)
    assert not report.findings, report


GROUPS = {
    "all commit and wait": ("", "", True),
    "in turn": ("mask=w.lanes < 16); cp_async_commit(w, mask=w.lanes > 15", "", True),
    "one lane commits": ("mask=w.lanes == 0", "", False),
    "half of them wait": ("", ", mask=w.lanes < 16", False),
    # the others' only group is their latest, which wait_group 1 leaves
    "half of them have another group": ("); cp_async_commit(w, mask=w.lanes < 16", "", False),
}


@pytest.mark.parametrize("how", GROUPS)
def test_groups_of_copies_are_each_threads_own(how, schedule):
    """All lanes copy; the barrier of the CTA then hands over what they have waited for."""
    commit, wait, right = GROUPS[how]
    count = 1 if "another" in how else 0
    report = warps.run(
        f"""
        X = w.machine.pointers[0]
        cp_async(w, SB + 64 + 4 * w.lanes, X + 4 * w.lanes, 4)
        cp_async_commit(w, {commit})
        cp_async_wait(w, {count}{wait})
        await cta_sync(w)
        ld_shared(w, SB + 64 + 4 * (31 - w.lanes), 4, 1)
        """,
        tensors=[("X", np.arange(32, dtype=np.uint32))],
        **schedule,
    )
    if right:
        assert not report.findings, report
    else:
        finding = warps.only(report)
        assert (finding.code, finding.location.line) == ("race-smem", 6)
        assert finding.related[0][1].line == 2
