"""The trace for Perfetto: its structure, read as Perfetto reads it, and its sums."""

import itertools
import json
from collections import defaultdict

import pytest

from mlsys_gpu.sim.timing.trace import lanes, perfetto, waited_for

from ..viz.two_stage import joined, two_stage

TIMELINES = {
    "two stages": lambda: two_stage(),
    "loads that overlap": lambda: two_stage(stages=4, load=1900.0),
    "tenths of a cycle": lambda: two_stage(steps=300, issue=33.3, load=517.7, product=459.1),
    "nearly nothing": lambda: two_stage(issue=0.1, load=0.2, product=20.1, store=0.3),
    "two CTAs": lambda: joined(two_stage(tmem=True), two_stage(cta=1, load=900.0)),
}


@pytest.fixture(params=TIMELINES)
def given(request) -> dict:
    return TIMELINES[request.param]()


def ns(us: float) -> int:
    """Perfetto's reading of a time: ``static_cast<int64_t>(value * 1000.0)`` (json_utils.cc)."""
    return int(us * 1000.0)


def read(given: dict) -> list[dict]:
    return json.loads(json.dumps(perfetto(given), allow_nan=False))["traceEvents"]


def threads(events: list[dict]) -> dict[tuple[int, int], str]:
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}


def test_spans_of_a_thread_never_overlap(given):
    by_thread = defaultdict(list)
    for e in read(given):
        if e["ph"] == "X":
            by_thread[e["pid"], e["tid"]].append((ns(e["ts"]), ns(e["ts"]) + ns(e["dur"])))
            assert e["dur"] >= 0
    for spans in by_thread.values():
        spans.sort()
        for (_, before), (after, _) in itertools.pairwise(spans):
            assert before <= after


def test_busy_time_of_each_track_is_the_timelines(given):
    events = read(given)
    names = threads(events)
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    found: dict = defaultdict(lambda: [0, 0.0, 0])
    for e in events:
        if e["ph"] == "X":
            name = names[e["pid"], e["tid"]]
            if name.rsplit(" (", 1)[-1].rstrip(")").isdigit():
                name = name.rsplit(" (", 1)[0]
            kind, state = e["cat"].split(",")
            one = found[processes[e["pid"]], name, kind, state]
            one[0] += ns(e["dur"])
            one[1] += e["args"]["cycles"]
            one[2] += 1
    wanted: dict = defaultdict(lambda: [0.0, 0])
    for track in given["tracks"]:
        for t0, t1, _, _, state in track["spans"]:
            one = wanted[track["group"], track["name"], track["kind"], state]
            one[0] += t1 - t0
            one[1] += 1
    assert found.keys() == wanted.keys()
    for key, (cycles, count) in wanted.items():
        busy, exact, spans = found[key]
        assert spans == count
        assert exact == pytest.approx(cycles, abs=1e-6 * count)
        assert abs(busy - cycles * 1000 / given["clock_mhz"]) <= count  # a nanosecond a span


def test_everything_has_a_name_and_a_place(given):
    events = read(given)
    meta = defaultdict(set)
    for e in events:
        assert {"ph", "pid", "tid", "ts", "name"} <= e.keys()
        assert isinstance(e["pid"], int)
        assert isinstance(e["tid"], int)
        if e["ph"] == "M":
            key = (e["pid"], e["tid"] if e["name"].startswith("thread") else None)
            assert e["name"] not in meta[key]
            meta[key].add(e["name"])
    for e in events:
        assert meta[e["pid"], None] == {"process_name", "process_sort_index"}
        if e["ph"] in "Xisf":
            assert meta[e["pid"], e["tid"]] == {"thread_name", "thread_sort_index"}
    groups = {t["group"] for t in given["tracks"]}
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == groups
    assert len({e["pid"] for e in events}) == len(groups)


def test_spans_carry_cycles_and_source_line():
    given = two_stage()
    trace = perfetto(given)
    assert trace["displayTimeUnit"] == "ns"
    assert "modelled" in trace["otherData"]["note"]
    copies = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["name"] == "copy A[7]"]
    (one,) = copies
    assert one["args"]["line"] == "two_stage.py:5"
    assert one["args"]["cycles"] == 40
    assert one["ts"] == pytest.approx(one["args"]["start in cycles"] / given["clock_mhz"], abs=1e-3)


def test_arrivals_are_instants_of_their_barrier():
    given = two_stage(steps=7)
    events = read(given)
    names = threads(events)
    for track in given["tracks"]:
        if track["kind"] == "barrier":
            mine = [
                e for e in events if e["ph"] == "i" and names[e["pid"], e["tid"]] == track["name"]
            ]
            assert [e["args"]["cycle"] for e in mine] == [a[0] for a in track["arrivals"]]
            assert {e["s"] for e in mine} <= {"t"}


def test_arrows_lead_from_a_phases_end_to_the_wait_that_it_ended(given):
    events = read(given)
    names = threads(events)
    slices = [e for e in events if e["ph"] == "X"]

    def enclosing(flow: dict) -> dict:
        (one,) = [
            e
            for e in slices
            if (e["pid"], e["tid"]) == (flow["pid"], flow["tid"])
            and ns(e["ts"]) <= ns(flow["ts"]) < ns(e["ts"]) + ns(e["dur"])
        ]
        return one

    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert starts.keys() == ends.keys()
    for ident, start in starts.items():
        end = ends[ident]
        assert end["bp"] == "e"
        assert ns(start["ts"]) <= ns(end["ts"])
        phase, wait = enclosing(start), enclosing(end)
        assert wait["cat"] == "role,wait"
        assert wait["name"] == f"wait for {names[start['pid'], start['tid']]}, {phase['name']}"


def test_each_wait_for_a_barrier_has_its_arrow():
    given = two_stage()
    waits = sum(
        given["labels"][s[2]].startswith("wait for")
        for t in given["tracks"]
        if t["kind"] == "role"
        for s in t["spans"]
        if s[4] == "wait"
    )
    assert sum(e["ph"] == "f" for e in read(given)) == waits > 20


def test_the_counter_counts_stages(given):
    events = read(given)
    pids = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"}
    for group in {t["group"] for t in given["tracks"] if t["kind"] == "stage"}:
        counts = [e for e in events if e["ph"] == "C" and e["pid"] == pids[group]]
        assert [e["ts"] for e in counts] == sorted({e["ts"] for e in counts})
        assert set(counts[-1]["args"].values()) == {0}
        stages = [t for t in given["tracks"] if t["kind"] == "stage" and t["group"] == group]
        for e in counts[:: max(1, len(counts) // 50)]:
            now = ns(e["ts"])
            for state, n in e["args"].items():
                held = sum(
                    round(s[0] * 1000 / given["clock_mhz"])
                    <= now
                    < round(s[1] * 1000 / given["clock_mhz"])
                    for t in stages
                    for s in t["spans"]
                    if s[4] == state
                )
                assert n == held


def test_lanes_are_as_few_as_can_be():
    spans = [[0, 10], [10, 12], [1, 5], [2, 9], [5, 11], [12, 12]]
    found = lanes(spans)
    for i, a in enumerate(spans):
        for j in range(i):
            b = spans[j]
            assert found[i] != found[j] or a[1] <= b[0] or b[1] <= a[0]
    most = max(sum(a <= c < b for a, b in spans) for c in range(13))
    assert max(found) + 1 == most
    assert lanes([]) == []


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("wait for full[1], phase 3", "full[1]"),
        ("wait for full[11], phase 3", None),
        ("wait for full", "full"),
        ("fuller", None),
        ("k_full[1]", None),
        ("wgmma.wait_group 1", None),
    ],
)
def test_a_barrier_is_found_in_a_label_by_its_whole_name(label, name):
    assert waited_for(label, ["full", "full[1]", "empty[1]"]) == name


def test_impossible_times_are_refused():
    given = two_stage(steps=2)
    with pytest.raises(ValueError, match="clock_mhz is 0"):
        perfetto({**given, "clock_mhz": 0})
    given["tracks"][0]["spans"][0][1] = -1.0
    with pytest.raises(ValueError, match="before it starts"):
        perfetto(given)
