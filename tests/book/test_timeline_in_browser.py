"""The timeline figure, driven by keyboard and pointer, against what its data says."""

import pytest

from mlsys_gpu import viz
from mlsys_gpu.viz import figures
from mlsys_gpu.viz.timeline import page as timeline_page
from mlsys_gpu.viz.timeline import timeline_data

from ..viz.two_stage import joined, two_stage

pytestmark = pytest.mark.slow

SAYS = {"run": "runs", "issue": "issues", "arriving": "arriving:"}
SAYS |= {"full": "full:", "read": "being read:", "busy": "busy:", "accumulate": "accumulating:"}


@pytest.fixture
def show(visit, tmp_path):
    """``show(timeline)``: its self-contained page."""

    def open_timeline(given, width=1280, theme="light", scheme=None):
        path = tmp_path / "timeline.html"
        timeline_page(given, path)
        seen = visit(path.as_uri(), width=width, theme=theme)
        if scheme:
            seen.page.emulate_media(color_scheme=scheme)
        seen.page.locator(".mg-tl-tracks canvas").wait_for()
        return seen

    return open_timeline


def words(t: float) -> str:
    return f"{t:,.1f}".removesuffix(".0")


def said(page, ident: str) -> str:
    return page.locator(f"li[data-track='{ident}']").inner_text().replace("\n", " ")


def cursor(page) -> float:
    return float(page.get_by_role("slider").get_attribute("aria-valuenow"))


def highlighted(page) -> list[int]:
    lines = page.locator(".mg-tl-here").evaluate_all("all => all.map(n => +n.dataset.line)")
    return lines


def holds(track: dict, t: float) -> list:
    return [s for s in track["spans"] if s[0] <= t < s[1]]


def check(page, given: dict, t: float) -> None:
    """The readout of every track at cycle t, from the data alone."""
    assert page.locator(".mg-tl-where").inner_text() == f"At cycle {words(t)}"
    for track in given["tracks"]:
        text = said(page, track["id"])
        spans = holds(track, t)
        if not spans:
            if track["kind"] in ("stage", "tmem"):
                assert "free" in text
            else:
                assert any(
                    w in text for w in ("idle", "not started", "finished", "no later phase")
                ), text
            continue
        t0, t1, label, _, state = spans[0]
        words_of = given["labels"][label]
        if state == "wait":
            # "waits for full[0], phase 3", and "waits: wgmma.wait_group 0"
            assert (
                words_of.replace("wait for ", "waits for ")
                if words_of.startswith("wait for")
                else f"waits: {words_of}"
            ) in text
        elif track["kind"] == "stage":
            # what came last, and who reads it
            came = [s for s in track["spans"] if s[0] <= t and s[4] != "read"][-1]
            tile = given["labels"][came[2]].removeprefix("load ")
            assert f"{SAYS[state]} {tile}" + (f" by {words_of}" if state == "read" else "") in text
        elif state != "phase":
            assert f"{SAYS[state]} {words_of}" in text
        else:
            assert words_of in text
        if state != "phase":
            assert f"since cycle {words(t0)}: {words(t - t0)} of {words(t1 - t0)}" in text
        else:
            # t0 is when the phase before completed; what made it complete is not this phase's
            mine = [a for a in track["arrivals"] if t0 < a[0] <= t1 or (t0 == 0 == a[0])]
            come = [a for a in mine if a[0] <= t]
            bytes_of = [
                [a for a in of if given["labels"][a[1]].startswith("bytes come")]
                for of in (come, mine)
            ]
            landed, copies = map(len, bytes_of)
            assert f": {len(come) - landed} of {len(mine) - copies} arrived" in text
            assert (f", {landed} of {copies} copies have landed" in text) == (copies > 0)
            assert f"completes at cycle {words(t1)}" in text
            for a in mine:
                assert (given["labels"][a[1]] in text.split("pending:")[-1]) == (a[0] > t) or (
                    "pending" not in text and not len(come) < len(mine)
                )


@pytest.mark.parametrize("how", [{}, {"stages": 3, "load": 1500.0, "tmem": True}])
def test_keys_go_from_event_to_event_and_the_line_follows(show, how):
    given = two_stage(**how)
    seen = show(given)
    page = seen.page
    slider = page.get_by_role("slider")
    slider.focus()
    assert cursor(page) == timeline_data(given)["cursor"]
    check(page, given, cursor(page))
    for press in range(2):  # the first two tracks are the roles
        track = given["tracks"][press]
        events = sorted({t for s in track["spans"] for t in s[:2]})
        for key in ["ArrowRight"] * 5 + ["ArrowLeft"] * 2 + ["Shift+ArrowRight", "ArrowLeft"]:
            at = cursor(page)
            page.keyboard.press(key)
            step = 10 if key.startswith("Shift") else 1
            later = [e for e in events if e > at]
            before = [e for e in events if e < at]
            want = later[step - 1] if "Right" in key else before[-step]
            assert cursor(page) == want
            check(page, given, want)
            spans = holds(track, want)
            if spans:
                name, line = given["sites"][spans[0][3]]
                assert highlighted(page) == [line]
                assert (
                    page.locator(".mg-tl-here code").inner_text()
                    == given["files"][name][line - 1].rstrip()
                )
            assert slider.get_attribute("aria-valuetext").startswith(
                f"cycle {words(want)}; {track['name']}: "
            )
        page.keyboard.press("ArrowDown")
    busy = {
        k["id"]: {c for s in k["spans"] for c in range(int(s[0]), int(s[1]))}
        for k in given["tracks"]
        if k["kind"] == "engine"
    }
    tensor, loads = busy["sm0/tensor"], busy["sm0/copies-in"]
    lead = page.locator(".mg-tl-lead").inner_text()
    assert f"works {100 * len(tensor) / given['cycles']:.0f} % of the time" in lead
    assert f"in flight {100 * len(tensor & loads) / len(tensor):.0f} % of the time" in lead
    page.keyboard.press("Home")
    assert cursor(page) == 0
    check(page, given, 0)
    page.keyboard.press(".")
    assert cursor(page) == 1
    page.keyboard.press("End")
    assert cursor(page) == given["cycles"]
    check(page, given, given["cycles"])
    assert seen.errors == []
    assert seen.elsewhere() == []


def test_all_tracks_and_other_roles_lines(show):
    given = two_stage(steps=8)
    page = show(given).page
    page.get_by_role("slider").focus()
    page.keyboard.press("ArrowUp")  # above the first track: all of them
    assert "all tracks" in page.get_by_role("slider").get_attribute("aria-valuetext")
    events = sorted(
        {t for k in given["tracks"] for s in k["spans"] for t in s[:2]}
        | {a[0] for k in given["tracks"] for a in k.get("arrivals", ())}
    )
    for _ in range(6):
        at = cursor(page)
        page.keyboard.press("ArrowRight")
        assert cursor(page) == next(e for e in events if e > at)
        lines = {
            given["sites"][s[0][3]][1]
            for k in given["tracks"]
            if k["kind"] == "role"
            for s in [holds(k, cursor(page))]
            if s
        }
        marked = page.locator(".mg-tl-here, .mg-tl-there")
        assert set(marked.evaluate_all("all => all.map(n => +n.dataset.line)")) == lines
        told = page.locator(".mg-tl-who").inner_text()
        chips = page.locator(".mg-tl-line .mg-tl-tag").all_inner_texts()
        roles = [k for k in given["tracks"] if k["kind"] == "role"]
        at_work = [c for c, k in zip("AB", roles, strict=True) if holds(k, cursor(page))]
        assert sorted(chips) == at_work
        for line in lines:
            assert f"in line {line}" in told


def test_zoom_pan_and_drag(show):
    given = two_stage(steps=60)
    seen = show(given)
    page = seen.page
    page.get_by_role("slider").focus()
    canvas = page.locator(".mg-tl-canvas")
    before = canvas.evaluate("c => c.toDataURL()")
    at = cursor(page)
    for key in ("+", "]", "[", "-", "0"):
        page.keyboard.press(key)
        after = canvas.evaluate("c => c.toDataURL()")
        assert after != before, key
        before = after
        assert cursor(page) == at
    # The whole run is shown: the pointer's place is the cycle.
    box = canvas.bounding_box()
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    gutter = (
        page.evaluate("document.querySelector('.mg-tl-needle').getBoundingClientRect().x + 1")
        - box["x"]
    )
    per_cycle = (box["width"] - gutter) / (given["cycles"] - at)  # needle stands at `at`
    page.mouse.move(box["x"] + gutter, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + gutter + 100, box["y"] + 40, steps=4)
    page.mouse.up()
    page.wait_for_timeout(100)
    assert cursor(page) == pytest.approx(at + 100 / per_cycle, abs=2 / per_cycle)
    check(page, given, cursor(page))
    page.get_by_role("button", name="The window that was shown first").click()
    assert cursor(page) == timeline_data(given)["cursor"]
    assert seen.errors == []


def test_play_goes_from_event_to_event_where_motion_is_reduced(show):
    given = two_stage(steps=2)
    page = show(given).page
    page.get_by_role("slider").focus()
    page.keyboard.press("End")
    for _ in range(2):
        page.keyboard.press("ArrowLeft")
    at = cursor(page)
    page.keyboard.press("Space")
    assert page.get_by_role("button", name="Pause").is_visible()
    events = sorted({t for s in given["tracks"][0]["spans"] for t in s[:2]})
    left = [e for e in events if e > at]
    page.get_by_role("button", name="Play", exact=True).wait_for(timeout=1500 * len(left) + 3000)
    assert cursor(page) == events[-1]


def test_many_groups_open_with_one_cta_and_can_be_shown(show):
    given = joined(*(two_stage(cta=n, stages=4) for n in range(3)))
    seen = show(given)
    page = seen.page
    assert page.locator("li[data-track='cta0/producer']").count() == 1
    assert page.locator("li[data-track='cta1/producer']").count() == 0
    page.get_by_role("button", name="CTA (1, 0)").click()
    assert (
        page.locator("li[data-track='cta1/producer'] strong").inner_text()
        == "CTA (1, 0) producer (warp 4)"
    )
    assert page.get_by_text("More tracks below").is_visible()
    page.get_by_role("button", name="barriers").click()
    assert page.locator("li[data-track='cta0/full[0]']").count() == 0
    assert page.locator("tr[data-track]").count() == 6  # the table holds every role
    page.get_by_role("button", name="CTA (1, 0)").click()
    assert not page.get_by_text("More tracks below").is_visible()
    for name in ("roles", "engines", "stages"):  # nothing left is no error
        page.get_by_role("button", name=name).click()
    page.get_by_role("slider").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert page.locator("li[data-track]").count() == 0
    assert seen.errors == []


def test_thirty_thousand_spans_scrub_smoothly(show):
    given = two_stage(steps=2500, stages=4)
    assert sum(len(t["spans"]) for t in given["tracks"]) > 29_000
    seen = show(given)
    page = seen.page
    page.get_by_role("slider").focus()
    page.keyboard.press("0")  # the dearest view: all of it
    took = page.evaluate(
        """() => {
          const slider = document.querySelector("[role=slider]");
          const began = performance.now();
          for (let i = 0; i < 20; i++) {
            slider.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
          }
          return (performance.now() - began) / 20;
        }"""
    )
    assert took < 60, f"{took:.0f} ms a step"
    assert seen.errors == []


@pytest.mark.parametrize(("scheme", "width"), [("light", 390), ("dark", 390), ("dark", 1280)])
def test_accessible_in_both_themes_and_on_a_phone(show, scheme, width):
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe is not installed"
    )
    seen = show(two_stage(tmem=True), width=width, scheme=scheme)
    page = seen.page
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator(".mg-tl-keys summary").click()
    found = axe.Axe().run(page).response["violations"]
    assert [f"{v['id']}: {n['target']}" for v in found for n in v["nodes"]] == []
    small = page.evaluate(
        """() => [...document.querySelectorAll("figure *")].filter((n) =>
             [...n.childNodes].some((c) => c.nodeType === 3 && c.textContent.trim())
             && n.checkVisibility() && parseFloat(getComputedStyle(n).fontSize) < 12)
             .map((n) => n.outerHTML.slice(0, 80))"""
    )
    assert small == []
    assert seen.errors == []
    assert seen.elsewhere() == []


def test_the_theme_changes_the_canvas(show):
    seen = show(two_stage(), scheme="light")
    page = seen.page
    corner = """() => { const c = document.querySelector(".mg-tl-overview");
        return [...c.getContext("2d").getImageData(c.width - 3, 3, 1, 1).data].slice(0, 3); }"""
    light = page.evaluate(corner)
    page.get_by_role("button", name="Light or dark").click()
    page.wait_for_timeout(100)
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    dark = page.evaluate(corner)
    assert sum(light) > 600 > 200 > sum(dark)


def test_without_javascript_the_shares_stand_in_a_table(visit, tmp_path):
    path = tmp_path / "timeline.html"
    timeline_page(two_stage(), path)
    page = visit(path.as_uri(), javascript=False).page
    assert page.get_by_role("row", name="consumer (warps 0-3)").is_visible()
    assert page.get_by_text("modelled", exact=True).is_visible()


def test_two_timelines_and_another_figure_share_a_page(visit, tmp_path, monkeypatch):
    monkeypatch.delenv(figures.BOOK_VARIABLE, raising=False)
    shown = [viz.timeline(two_stage()), viz.layout(8, 64), viz.timeline(two_stage(steps=3))]
    path = tmp_path / "figures.html"
    body = "".join(f._repr_html_() for f in shown)
    path.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>f</title>{body}</html>',
        encoding="utf-8",
    )
    seen = visit(path.as_uri(), width=360)
    assert seen.page.locator("[role=slider][aria-label^=Cursor]").count() == 2
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= 360
    assert seen.errors == []
