"""setmaxnreg: what a CTA's registers suffice for, and that its warpgroups move as one."""

import pytest

from . import warps

SCHEDULES = [("eager", 0), ("lazy", 0)] + [("seeded", n) for n in range(4)]


@pytest.fixture(params=SCHEDULES, ids=lambda s: f"{s[0]}-{s[1]}")
def schedule(request):
    return {"schedule": request.param[0], "seed": request.param[1]}


def split(low, high, min_ctas=1, most=None):
    """384 threads: warpgroup 0 lowers its registers, the other two raise theirs."""
    return f"""
    if w.id < 4:
        await setmaxnreg(w, "dec", {low}, {min_ctas}, {most})
    else:
        await setmaxnreg(w, "inc", {high}, {min_ctas}, {most})
    """


# 65,536 / 384 = 170.7: 168 registers a thread, 64,512 in all.
@pytest.mark.parametrize(("low", "high"), [(40, 232), (24, 240), (168, 168)])
def test_what_fits_goes_on(low, high, schedule):
    assert 128 * low + 256 * high <= 64512
    report = warps.run(split(low, high), threads=384, **schedule)
    assert not report.findings, report
    assert report.completed


@pytest.mark.parametrize(
    ("low", "high", "min_ctas", "most", "words"),
    [
        # 32 and 240 fill the SM's 65,536 registers, which are more than the launch has.
        (32, 240, 1, None, "128 * 32 (lowered) + 256 * 240 (asked for) = 65,536"),
        (40, 240, 1, None, "= 66,560, more than the 64,512 registers that the CTA owned at launch"),
        (40, 232, 2, None, "(384 * 80)"),  # 65,536 / 768 = 85.3
        (40, 176, None, 128, "= 50,176, more than the 49,152"),
        (40, 240, None, None, "(384 * 168, assumed: its launch bounds name no CTAs per SM)"),
    ],
)
def test_what_does_not_fit_hangs_and_shows_the_sum(low, high, min_ctas, most, words, schedule):
    report = warps.run(split(low, high, min_ctas, most), threads=384, **schedule)
    finding = warps.only(report)
    assert (finding.code, finding.location.line) == ("setmaxnreg-budget", 4)
    assert words in finding.message
    assert not report.completed


def test_nobody_lowers():
    body = """
    if w.id >= 4:
        await setmaxnreg(w, "inc", 240, 1)
    """
    finding = warps.only(warps.run(body, threads=384))
    assert (finding.code, finding.location.line) == ("setmaxnreg-budget", 2)
    assert "128 * 168 (never lowered) + 256 * 240 (asked for) = 82,944" in finding.message


def test_a_warp_waits_for_what_another_gives_back_later(schedule):
    body = """
    if w.id < 4:
        await bar_sync(w, 1, 128)
        w.machine.count("waiting", len(w.cta.state["registers"].waiting) if w.id == 0 else 0)
        await setmaxnreg(w, "dec", 24, 1)
    else:
        await setmaxnreg(w, "inc", 240, 1)
        w.machine.count("raised")
    """
    report = warps.run(body, threads=384, **schedule)
    assert not report.findings, report
    assert report.counters["raised"] == 8


@pytest.mark.parametrize("count", [16, 100, 264])
def test_counts_that_the_instruction_has_not(count):
    finding = warps.only(warps.run(f'await setmaxnreg(w, "dec", {count}, 1)', threads=128))
    assert finding.code == "setmaxnreg-budget"
    assert "multiple of 8 between 24 and 256" in finding.fix


def test_lowering_to_more_than_there_is():
    finding = warps.only(warps.run('await setmaxnreg(w, "dec", 200, 1)', threads=384))
    assert "to 200 registers a thread, of which warp 0 has 168" in finding.message


def test_warps_of_a_warpgroup_disagree(schedule):
    body = """
    if w.id == 2:
        await setmaxnreg(w, "dec", 24, 1)
    else:
        await setmaxnreg(w, "dec", 72, 1)
    """
    finding = warps.only(warps.run(body, threads=128, **schedule))
    assert (finding.code, finding.location.line) == ("setmaxnreg-budget", 2)
    assert "warp 0 sets its registers to 72, warp 2 to 24" in finding.message
    assert [place.line for _, place in finding.related] == [4]


def test_a_warp_of_the_warpgroup_never_comes(schedule):
    body = """
    if w.id != 3:
        await setmaxnreg(w, "dec", 24, 1)
    """
    finding = warps.only(warps.run(body, threads=128, **schedule))
    assert (finding.code, finding.location.line) == ("setmaxnreg-budget", 2)
    assert "warp 3 of warpgroup 0 never executes" in finding.message


def test_a_barrier_belongs_between_one_and_the_next(schedule):
    body = """
    await setmaxnreg(w, "dec", 40, 1)
    {between}
    await setmaxnreg(w, "dec", 24, 1)
    """
    good = warps.run(body.format(between="await bar_sync(w, 1, 128)"), threads=128, **schedule)
    assert not good.findings, good
    bad = warps.run(body.format(between="pass"), threads=128, **schedule)
    finding = warps.only(bad)
    assert (finding.code, finding.location.line) == ("setmaxnreg-budget", 3)


def test_some_lanes_do_not_come():
    finding = warps.only(
        warps.run('await setmaxnreg(w, "dec", 24, 1, None, w.lanes < 16)', threads=128)
    )
    assert finding.code == "divergent-collective"
