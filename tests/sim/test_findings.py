"""Invalid accesses, initialisation, tensor memory's life, proxies; schedules; and reports."""

import json

import numpy as np
import pytest

from mlsys_gpu import sim
from mlsys_gpu.sim.machine.numerics import POISON

from . import warps

SCHEDULES = [("eager", 0), ("lazy", 0)] + [("seeded", n) for n in range(6)]


@pytest.fixture(params=SCHEDULES, ids=lambda s: f"{s[0]}-{s[1]}")
def schedule(request):
    return {"schedule": request.param[0], "seed": request.param[1]}


def tensor(name="X", size=64, dtype=np.float32):
    return (name, np.zeros(size, dtype))


# --------------------------------------------------------------------------- invalid accesses


@pytest.mark.parametrize(
    ("access", "code", "words"),
    [
        ("ld_global(w, X + 4 * (w.lanes + 33), 4, 1)", "out-of-bounds", "4 bytes past its end"),
        ("ld_global(w, X - 4, 4, 1)", "out-of-bounds", "4 bytes before its start"),
        ("ld_global(w, X + 8 * (w.lanes - 4), 4, 1)", "out-of-bounds", "32 bytes before its start"),
        ("st_global(w, X + 248, 0, 4, 4)", "out-of-bounds", "16 bytes outside X"),
        ("ld_global(w, X + 4, 4, 4)", "misaligned", "16 bytes at byte 4"),
        ("st_global(w, X + 2 * w.lanes, 0, 4, 1)", "misaligned", "4 bytes at byte 2"),
        ("ld_shared(w, SB + 1024, 4, 1)", "out-of-bounds", "which holds 1024 bytes"),
        ("st_shared(w, SB - 4, 1, 4, 1)", "out-of-bounds", "byte -4 of shared memory"),
        ("st_shared(w, SB + 8, 1, 4, 4)", "misaligned", "16 bytes"),
        ("ld_generic(w, (1 << 40) + SB + 2048, 4, 1)", "out-of-bounds", "shared memory"),
        ("register_index(w, 8, 8, 'acc')", "out-of-bounds", "register 8 of acc, which has 8"),
        ("register_index(w, w.lanes - 1, 40, 'acc')", "out-of-bounds", "register -1 of acc"),
    ],
)
def test_invalid_accesses(access, code, words):
    report = warps.run(f"X = w.machine.pointers[0]\n{access}", tensors=[tensor()])
    finding = warps.only(report)
    assert finding.code == code
    assert words in finding.message
    assert finding.location.line == 2
    assert finding.location.text == access
    assert not report.completed
    assert not report.ok


def test_lanes_outside_a_mask_access_nothing():
    report = warps.run(
        """
        X = w.machine.pointers[0]
        inside = w.lanes < 16
        st_global(w, X + 16 * w.lanes, 7, 4, 1, mask=inside)
        ld_global(w, X + 16 * w.lanes, 4, 1, mask=inside)
        ld_global(w, X - 400, 4, 1, mask=w.lanes < 0)
        """,
        tensors=[tensor()],
    )
    assert not report.findings, report


def test_a_read_of_unwritten_shared_memory_names_the_element():
    report = warps.run(
        "st_shared(w, SB + 4 * w.lanes, 1, 4, 1)\nwarp_sync(w)\n"
        "ld_shared(w, SB + 4 + 4 * w.lanes, 4, 1)",
        regions=[["row", 0, 256, [64], "float32"]],
    )
    finding = warps.only(report)
    assert (finding.code, finding.location.line) == ("uninitialised-read", 3)
    assert "row[32]" in finding.message
    assert finding.memory.endswith("1 word in all")


def test_two_ctas_write_one_element():
    report = warps.run(
        "st_global(w, w.machine.pointers[0] + 4 * (w.lanes + 31 * w.block[0]), 0, 4, 1)",
        tensors=[tensor()],
        grid=(2, 1, 1),
    )
    finding = warps.only(report)
    assert finding.code == "race-global"
    assert "CTA (1, 0) writes X[31], which CTA (0, 0) has written too" in finding.message
    assert report.coverage["X"] == {
        "elements": 64,
        "written": 63,
        "twice": 1,
        "missing": report.coverage["X"]["missing"],
        "tile": [1, 2],
        "map": ["#" * 15 + "2" + "#" * 15 + "-"],
    }


# ------------------------------------------------------------------------- races and proxies


def test_a_race_is_one_finding_whoever_comes_first(schedule):
    """The reader stands in the report, also where the read came before the write."""
    report = warps.run(
        """
        if w.id == 1: st_shared(w, SB, 5, 4, 1)
        if w.id == 0: ld_shared(w, SB, 4, 1)
        """,
        threads=64,
        **schedule,
    )
    finding = warps.only(report)
    assert (finding.code, finding.location.line) == ("race-smem", 2)
    assert [place.line for _, place in finding.related] == [1]
    assert "warp 0 reads" in finding.message
    assert "does not wait for warp 1" in finding.message


def test_an_overwrite_is_the_writers_fault(schedule):
    report = warps.run(
        """
        if w.id == 0: st_shared(w, SB, 5, 4, 1)
        await cta_sync(w)
        if w.id == 1: ld_shared(w, SB, 4, 1)
        if w.id == 0: st_shared(w, SB, 6, 4, 1)
        """,
        threads=64,
        **schedule,
    )
    finding = warps.only(report)
    assert (finding.code, finding.location.line) == ("race-smem", 4)
    assert [place.line for _, place in finding.related] == [3]
    assert "warp 0 overwrites" in finding.message


def test_two_writers(schedule):
    report = warps.run(
        """
        if w.id == 0: st_shared(w, SB, 5, 4, 1)
        if w.id == 1: st_shared(w, SB, 5, 4, 1)
        """,
        threads=64,
        **schedule,
    )
    finding = warps.only(report)
    assert (finding.code, finding.location.line) == ("race-smem", 2)
    assert "both write" in finding.message


# -------------------------------------------------------------------------- tensor memory


def test_columns_come_and_go(schedule):
    report = warps.run(
        """
        if w.id == 0:
            await tcgen05_alloc(w, SB, 64)
        await cta_sync(w)
        at = int(ld_shared(w, SB, 4, 1))
        r = fresh(2, "float32")
        tcgen05_st(w, at, np.tile(w.tid[:, None], 2).astype(np.float32), "32x32b", 2)
        tcgen05_wait_st(w)
        tcgen05_ld(w, r, at, "32x32b", 2)
        tcgen05_wait_ld(w)
        w.machine.count("sum", int(r.sum()))
        await cta_sync(w)
        if w.id == 0: tcgen05_dealloc(w, at, 64)
        """,
        threads=128,
        **schedule,
    )
    assert not report.findings, report
    assert report.counters["sum"] == 2 * sum(range(128))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("await tcgen05_alloc(w, SB, 48)", "of 48 columns"),
        ("await tcgen05_alloc(w, SB, 16)", "of 16 columns"),
        ("tcgen05_relinquish(w)\nawait tcgen05_alloc(w, SB, 32)", "after relinquish"),
        ("tcgen05_ld(w, fresh(1, 'float32'), 0, '32x32b', 1)", "which are not allocated"),
        ("tcgen05_ld(w, fresh(8, 'float32'), 510, '32x32b', 8)", "which do not exist"),
        ("tcgen05_dealloc(w, 0, 32)", "which is no allocation"),
        ("await tcgen05_alloc(w, SB, 64)\ntcgen05_dealloc(w, int(ld_shared(w, SB, 4, 1)), 32)",
         "dealloc of 32 columns"),
    ],
)  # fmt: skip
def test_misuse_of_tensor_memory(body, words):
    report = warps.run(body, schedule="eager")
    finding = report.findings[0]
    assert finding.code == "tmem-lifetime"
    assert words in finding.message


def test_columns_that_were_given_back():
    report = warps.run(
        """
        await tcgen05_alloc(w, SB, 32)
        at = int(ld_shared(w, SB, 4, 1))
        tcgen05_dealloc(w, at, 32)
        tcgen05_ld(w, fresh(1, "float32"), at, "32x32b", 1)
        """
    )
    finding = warps.only(report)
    assert (finding.code, finding.location.line) == ("tmem-lifetime", 4)


def test_columns_that_nobody_gives_back():
    report = warps.run("\nawait tcgen05_alloc(w, SB, 128)")
    finding = warps.only(report)
    assert (finding.code, finding.location.line) == ("tmem-lifetime", 1)
    assert "128 columns of tensor memory" in finding.message
    assert report.completed


def test_waiting_for_columns_that_never_come_free():
    report = warps.run(
        """
        if w.id == 0:
            await tcgen05_alloc(w, SB, 512)
        await cta_sync(w)
        if w.id == 1:
            while (t := tcgen05_alloc(w, SB + 8, 32)) is not None: yield t
        """,
        threads=64,
    )
    finding, deadlock = report.findings
    assert (finding.code, finding.location.line) == ("tmem-lifetime", 5)
    assert "columns 0-511 (warp 0) are held, and nobody gives them back" in finding.message
    assert [place.line for _, place in finding.related] == [2]
    assert (deadlock.code, deadlock.location.line) == ("deadlock", 5)
    assert "512 of 512 are held" in deadlock.message


@pytest.mark.parametrize("lane", [0, 32, 64, 96, 16])
def test_a_warp_reaches_its_own_quarter(lane):
    report = warps.run(
        f"""
        if w.id == 0:
            await tcgen05_alloc(w, SB, 32)
        await cta_sync(w)
        at = int(ld_shared(w, SB, 4, 1))
        tcgen05_st(w, at, np.zeros((32, 1), np.float32), "32x32b", 1)
        tcgen05_wait_st(w)
        if w.id == 2: tcgen05_ld(w, fresh(1, "float32"), at + ({lane} << 16), "32x32b", 1)
        tcgen05_wait_ld(w)
        await cta_sync(w)
        if w.id == 0: tcgen05_dealloc(w, at, 32)
        """,
        threads=128,
    )
    codes = [f.code for f in report.findings]
    assert codes == ([] if lane in (0, 64) else ["tmem-lane-quarter"])


def test_unwritten_columns_and_registers_in_flight(schedule):
    report = warps.run(
        """
        await tcgen05_alloc(w, SB, 32)
        at = int(ld_shared(w, SB, 4, 1))
        r = fresh(1, "float32")
        tcgen05_ld(w, r, at, "32x32b", 1)
        tcgen05_touch(w, r, False)
        tcgen05_dealloc(w, at, 32)
        """,
        readings={"tcgen05-ld": "wait"},
        **schedule,
    )
    assert [f.code for f in report.findings] == ["uninitialised-read", "tcgen05-in-flight"]
    assert [f.location.line for f in report.findings] == [4, 5]
    assert "tcgen05-ld" in report.readings


def test_a_load_that_nobody_waits_for(schedule):
    report = warps.run(
        """
        await tcgen05_alloc(w, SB, 32)
        at = int(ld_shared(w, SB, 4, 1))
        tcgen05_st(w, at, np.zeros((32, 1), np.float32), "32x32b", 1)
        tcgen05_wait_st(w)
        tcgen05_ld(w, fresh(1, "float32"), at, "32x32b", 1)
        """,
        **schedule,
    )
    assert [f.code for f in report.findings] == ["missing-tcgen05-wait", "tmem-lifetime"]
    assert report.findings[0].location.line == 5


# ------------------------------------------------------------------------------- schedules

TRANSFER = """
await tcgen05_alloc(w, SB, 32)
at = int(ld_shared(w, SB, 4, 1))
tcgen05_st(w, at, np.full((32, 1), 3, np.float32), "32x32b", 1)
tcgen05_wait_st(w)
r = fresh(1, "float32")
tcgen05_ld(w, r, at, "32x32b", 1)
w.machine.counters["early"] = int(r.view(np.uint32)[0, 0])
tcgen05_wait_ld(w)
w.machine.counters["late"] = float(r[0, 0])
tcgen05_dealloc(w, at, 32)
"""


def test_eager_effects_land_at_once_and_lazy_ones_at_the_wait():
    eager = warps.run(TRANSFER, schedule="eager")
    lazy = warps.run(TRANSFER, schedule="lazy")
    assert eager.counters["early"] == int(np.float32(3).view(np.uint32))
    assert lazy.counters["early"] == int(POISON)
    assert eager.counters["late"] == lazy.counters["late"] == 3


def test_seeds_draw_the_order_of_warps():
    body = "st_global(w, w.machine.pointers[0], w.id, 4, 1)"
    last = set()
    for seed in range(20):
        X = np.zeros(1, np.uint32)
        warps.run(body, "seeded", seed, threads=128, tensors=[("X", X)])
        last.add(int(X[0]))
    assert last == {0, 1, 2, 3}


def test_a_seed_gives_the_same_report_again():
    body = """
    if w.id == 0: mbarrier_init(w, SB, 1)
    await cta_sync(w)
    if w.id == 1: mbarrier_arrive(w, SB, 1, mask=True)
    st_shared(w, SB + 64, w.id, 4, 1)
    await mbarrier_wait(w, SB, 0)
    """
    for seed in range(5):
        one, two = (warps.run(body, "seeded", seed, threads=128) for _ in range(2))
        one.seconds = two.seconds = 0
        assert one.to_json() == two.to_json()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"schedule": "random"}, "eager, lazy, seeded, not 'random'"),
        ({"schedule": "seeded", "seed": -1}, "non-negative integer, not -1"),
        ({"schedule": "seeded", "seed": True}, "non-negative integer, not True"),
    ],
)
def test_schedules_that_do_not_exist(arguments, words):
    with pytest.raises(ValueError, match=words):
        warps.run("pass", **arguments)


def test_readings_that_do_not_exist():
    from mlsys_gpu.sim.machine import run

    with pytest.raises(ValueError, match="wgmma-wait: warpgroup, warp"):
        run(warps.program("pass"), [], schedule="lazy", seed=0, checks=True, readings={"x": "y"})


# --------------------------------------------------------------------------------- reports


def test_a_report_in_its_three_forms():
    report = warps.run("st_shared(w, SB, 1, 4, 1)\nld_shared(w, SB + 4, 4, 1)")
    text, page, record = str(report), report._repr_html_(), json.loads(report.to_json())
    assert "[uninitialised-read] at warps.txt:2" in text
    assert "ld_shared(w, SB + 4, 4, 1)" in text
    assert "1 finding" in page
    assert record["findings"][0]["location"] == {
        "file": "warps.txt",
        "line": 2,
        "text": "ld_shared(w, SB + 4, 4, 1)",
    }
    assert record["ok"] is False
    assert record["completed"] is True
    assert set(record["findings"][0]) >= {"code", "severity", "message", "threads", "memory", "fix"}


def test_a_run_that_stopped_says_so():
    report = warps.run("ld_shared(w, SB + 4096, 4, 1)")
    assert "stopped before its end" in str(report)
    assert report.to_dict()["completed"] is False


def test_no_checks_no_analysis():
    report = warps.run(
        "st_shared(w, SB, w.id, 4, 1)\nld_shared(w, SB + 4, 4, 1)", checks=False, threads=64
    )
    assert not report.findings
    assert "checks off" in str(report)


def test_every_finding_has_a_known_code():
    import re
    from pathlib import Path

    source = Path(sim.__file__).parent
    reported = set()
    for file in source.glob("machine/*.py"):
        reported |= set(re.findall(r"\.report\(\s*\"([a-z-]+)\"", file.read_text()))
    assert len(reported) > 12
    assert reported <= set(sim.CODES)
