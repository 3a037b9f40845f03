"""The timeline figure's data and static form, against counts made one cycle at a time."""

import copy
import html
import json
import re
from fractions import Fraction

import pytest

from mlsys_gpu import viz
from mlsys_gpu.viz.timeline import both, page, timeline_data, union

from .two_stage import joined, two_stage


def cycles_of(track: dict, *states: str) -> set[int]:
    """The whole cycles that spans of these states cover."""
    return {
        c
        for t0, t1, _, _, state in track["spans"]
        if state in states
        for c in range(int(t0), int(t1))
    }


def named(timeline: dict, ident: str) -> dict:
    return next(t for t in timeline["tracks"] if t["id"] == ident)


VARIANTS = [
    {},
    {"steps": 9, "stages": 1},
    {"steps": 31, "stages": 3, "load": 1700.0, "product": 300.0},
    {"steps": 5, "load": 100.0, "product": 900.0, "tmem": True},
]


@pytest.mark.parametrize("how", VARIANTS)
def test_shares_and_overlap_are_counts_of_cycles(how):
    given = two_stage(**how)
    before = copy.deepcopy(given)
    data = timeline_data(given)
    assert given == before
    assert json.loads(json.dumps(data)) == data
    assert data["tracks"] == given["tracks"]
    total = int(given["cycles"])
    for share in data["shares"]:
        track = named(given, share["track"])
        covered = {s: cycles_of(track, s) for s in ("run", "issue", "wait")}
        for state, found in covered.items():
            assert share[state] == len(found), (share["track"], state)
        assert share["idle"] == total - len(set().union(*covered.values()))
        assert sum(n for _, n in share["waits"]) == share["wait"]
        assert [n for _, n in share["waits"]] == sorted(
            (n for _, n in share["waits"]), reverse=True
        )
    loads = cycles_of(named(given, "sm0/copies-in"), "busy")
    tensor = cycles_of(named(given, "sm0/tensor"), "busy")
    assert dict(map(tuple, data["busy"])) == {
        "sm0/copies-in": len(loads),
        "sm0/tensor": len(tensor),
    }
    (meet,) = data["overlaps"]
    assert (meet["compute"], meet["load"]) == (len(tensor), len(loads))
    assert meet["both"] == len(tensor & loads)
    assert {c for t0, t1 in meet["spans"] for c in range(int(t0), int(t1))} == tensor & loads


def test_more_stages_hide_more_of_the_loads():
    hidden = [
        (m["both"] / m["compute"], m["compute"] / two_stage(stages=n)["cycles"])
        for n in (1, 2, 3)
        for m in timeline_data(two_stage(stages=n))["overlaps"]
    ]
    assert hidden[0][0] == 0  # one stage: the load waits for the product and the product for it
    assert hidden == sorted(hidden)
    assert hidden[0][1] < hidden[1][1]


def test_intervals_that_touch_are_one_and_empty_ones_none():
    assert union([[5, 9], [0, 2], [2, 4], [7, 8], [4, 4], [12, 12]]) == [(0, 4), (5, 9)]
    assert both([(0, 4), (6, 9)], [(3, 7), (9, 10)]) == [(3, 4), (6, 7)]
    assert both([], [(0, 1)]) == []


@pytest.mark.parametrize(("how", "steps"), [({}, 6), ({"steps": 90, "stages": 3}, 6)])
def test_the_first_window_is_a_few_steps_from_the_middle(how, steps):
    given = two_stage(**how)
    data = timeline_data(given)
    t0, t1 = data["window"]
    products = named(given, "sm0/tensor")["spans"]
    inside = [i for i, s in enumerate(products) if t0 <= s[0] and s[1] <= t1]
    assert steps - 1 <= len(inside) <= steps + 2
    assert abs((inside[0] + inside[-1] + 1) / 2 - len(products) / 2) <= steps
    assert t0 <= data["cursor"] <= t1
    assert int(data["cursor"]) in cycles_of(named(given, "sm0/tensor"), "busy")
    assert int(data["cursor"]) in cycles_of(named(given, "sm0/copies-in"), "busy")


def test_the_first_window_is_that_of_the_loop_and_not_of_an_epilogue():
    """A named barrier of an epilogue completes more often than any one stage, and not than all."""
    given = two_stage(steps=60, stages=4)
    plain = timeline_data(given)
    ring = named(given, "cta0/full[0]")
    spans = ring["spans"]
    begin, end = spans[-1][0], given["cycles"]
    turns = len(spans) + 2
    each = (end - begin) / turns
    late = [
        [begin + n * each, begin + (n + 1) * each, spans[0][2], spans[0][3], "phase"]
        for n in range(turns)
    ]
    own = {**ring, "id": "cta0/named", "name": "named barrier 1", "spans": late, "arrivals": []}
    data = timeline_data({**given, "tracks": [*given["tracks"], own]})
    assert data["window"] == plain["window"]
    assert data["window"][0] <= data["cursor"] <= data["window"][1]


def test_what_lies_past_the_end_is_cut():
    given = two_stage()
    end = named(given, "cta0/consumer")["spans"][30][0] + 5
    data = timeline_data({**given, "cycles": end})
    for track, whole in zip(data["tracks"], given["tracks"], strict=True):
        for state in {s[4] for s in whole["spans"]}:
            assert cycles_of(track, state) == {c for c in cycles_of(whole, state) if c < end}
        assert all(a[0] <= end for a in track.get("arrivals", ()))
    for share in data["shares"]:
        assert sum(share[k] for k in ("run", "issue", "wait", "idle")) == end


def test_a_short_run_is_shown_whole():
    given = two_stage(steps=4)
    assert timeline_data(given)["window"] == [0, given["cycles"]]
    bare = {**given, "tracks": given["tracks"][:2], "waits": []}
    data = timeline_data(bare)
    assert data["window"] == [0, given["cycles"]]
    assert data["overlaps"] == data["busy"] == []


def test_static_form_and_words_carry_the_same_numbers():
    given = two_stage()
    figure = viz.timeline(given)
    text = html.unescape(re.sub(r"<[^>]+>", "|", figure.fallback))
    assert "modelled" in text
    total = int(given["cycles"])

    def share(n: int) -> str:
        exact = Fraction(100 * n, total)
        assert abs(exact % 1 - Fraction(1, 2)) > Fraction(1, 1000)  # no tie of roundings
        return f"{round(exact)} %"

    for ident in ("cta0/producer", "cta0/consumer"):
        track = named(given, ident)
        row = text[text.index(track["name"]) :]
        told = re.findall(r"\d+ %", row)[:3]
        assert told == [share(len(cycles_of(track, s))) for s in ("run", "issue", "wait")]
        per = {what: share(int(n)) for who, what, n in given["waits"] if who == ident}
        for what, n in per.items():
            assert f"{what} ({n})" in row
    tensor = cycles_of(named(given, "sm0/tensor"), "busy")
    loads = cycles_of(named(given, "sm0/copies-in"), "busy")
    assert f"tensor core||{len(tensor):,}||{share(len(tensor))}" in text
    assert f"The tensor core works {share(len(tensor))} of the time." in figure.alt
    assert f"in flight {round(100 * len(tensor & loads) / len(tensor))} % of the" in figure.alt
    assert figure.alt.startswith("Modelled timeline of two_stage on H200, ")
    assert f"{given['cycles'] / 1830:.2f} µs" in figure.alt


def test_roles_of_two_ctas_are_told_apart():
    figure = viz.timeline(joined(two_stage(), two_stage(cta=1, load=900.0)))
    assert "CTA (0, 0): producer (warp 4)" in figure.fallback
    assert "CTA (1, 0): producer (warp 4)" in figure.fallback
    assert [m["group"] for m in figure.data["overlaps"]] == ["SM 0", "SM 1"]


def broken(**change) -> dict:
    return {**two_stage(steps=3), **change}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"kernel": "x"}, "lacks gpu, clock_mhz"),
        (broken(tracks=[]), "no tracks"),
        (broken(cycles=0), "cycles is 0"),
        (broken(clock_mhz=-1), "clock_mhz is -1"),
        (broken(labels=[]), "0 labels"),
        (broken(sites=[]), "0 sites"),
    ],
)
def test_what_is_no_timeline_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        viz.timeline(given)


def test_the_page_is_one_file_that_asks_no_host(tmp_path, monkeypatch):
    monkeypatch.setenv(viz.figures.BOOK_VARIABLE, "1")  # inside the book's build, too
    path = tmp_path / "timeline.html"
    text = page(two_stage(), path)
    assert path.read_text(encoding="utf-8") == text
    assert text.startswith("<!doctype html>")
    assert 'mlsysViz.register("timeline"' in text
    assert "--mg-fg" in text
    assert "<title>Modelled timeline: two_stage on H200</title>" in text
    assert not re.search(r"""(?:src|href)\s*=|url\(|@import|fetch\(|XMLHttpRequest""", text)
    assert "http" not in re.sub(r"http://www\.w3\.org/\S+", "", text)


def test_a_name_cannot_break_the_page():
    given = {**two_stage(steps=3), "kernel": "</title><b>{x}"}
    given["files"] = {"two_stage.py": ["</script><script>alert(1)</script>"] * 13}
    text = page(given)
    assert "</title><b>" not in text
    assert "<script>alert" not in text
    assert "{x}" in text
