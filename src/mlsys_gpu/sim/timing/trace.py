"""A modelled timeline as a trace that Perfetto opens.

The output follows the Trace Event Format (Duca and Sinclair, "Trace Event Format", Google,
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU) as far as Perfetto
reads it (perfetto.dev, "Visualizing external trace formats", section "Chrome JSON format"): a
process for each group (CTA, SM), a thread for each track, complete events that never overlap within
a thread.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from typing import Any

#: From top to bottom within a process.
KINDS = ("role", "engine", "stage", "tmem", "barrier")


def lanes(spans: list[list[Any]]) -> list[int]:
    """Lane of each span, so that no two spans of a lane overlap; as few lanes as can be.

    spans: ``[t0, t1, ...]`` in cycles, in any order. A span that ends when another starts does not
    overlap it. The order of the result is that of ``spans``.
    """
    order = sorted(range(len(spans)), key=lambda i: (spans[i][0], spans[i][1]))
    found = [0] * len(spans)
    ends: list[tuple[float, int]] = []
    free: list[int] = []
    for i in order:
        t0, t1 = spans[i][0], spans[i][1]
        while ends and ends[0][0] <= t0:
            heapq.heappush(free, heapq.heappop(ends)[1])
        found[i] = heapq.heappop(free) if free else len(ends)
        heapq.heappush(ends, (t1, found[i]))
    return found


def _microseconds(ns: int) -> float:
    # Perfetto keeps whole nanoseconds and truncates what it reads times 1000; a value a hair too
    # small would end up one nanosecond earlier and overlap its neighbour.
    us = ns / 1000
    return us if int(us * 1000.0) == ns else math.nextafter(us, math.inf)


def perfetto(timeline: dict[str, Any]) -> dict[str, Any]:
    """The Timeline as a JSON object in Trace Event Format, for https://ui.perfetto.dev.

    Times are microseconds at the Timeline's clock, on whole nanoseconds, which is what Perfetto
    keeps; ``args`` of a span hold its exact start and duration in cycles and its source line. Spans
    of a track that overlap (transfers in flight) get a thread more each. Arrivals at a barrier
    are instant events of its thread, an arrow leads from the end of a barrier's phase to each wait
    that it ended, and a counter per CTA shows how many stages are in which state.

    Raises ValueError where the clock is not positive or a span ends before it starts.
    """
    mhz = float(timeline["clock_mhz"])
    if not mhz > 0:
        raise ValueError(f"clock_mhz is {mhz}; it must be positive")
    labels, sites = timeline["labels"], timeline["sites"]

    def ns(cycles: float) -> int:
        return round(cycles * 1000 / mhz)

    def where(site: int) -> dict[str, str]:
        return {"line": f"{sites[site][0]}:{sites[site][1]}"} if site >= 0 else {}

    events: list[dict[str, Any]] = []
    pids: dict[str, int] = {}
    threads: dict[int, int] = defaultdict(int)
    # (group, barrier's name) -> its thread and phases, for the arrows
    barriers: dict[tuple[str, str], tuple[int, list[list[Any]]]] = {}
    waiting: list[tuple[str, int, list[Any]]] = []
    stages: dict[str, list[tuple[int, str, int]]] = defaultdict(list)

    def metadata(pid: int, name: str, value: Any, tid: int = 0) -> None:
        key = "sort_index" if name.endswith("sort_index") else "name"
        events.append(
            {"ph": "M", "pid": pid, "tid": tid, "ts": 0, "name": name, "args": {key: value}}
        )

    order = {kind: i for i, kind in enumerate(KINDS)}
    for track in sorted(timeline["tracks"], key=lambda t: order.get(t["kind"], len(order))):
        group = track["group"]
        if group not in pids:
            pids[group] = len(pids) + 1
            metadata(pids[group], "process_name", group)
            metadata(pids[group], "process_sort_index", pids[group])
        pid = pids[group]
        spans = track["spans"]
        lane = lanes(spans)
        tids = []
        for i in range(max(lane, default=0) + 1):
            threads[pid] += 1
            tids.append(threads[pid])
            name = track["name"] if i == 0 else f"{track['name']} ({i + 1})"
            metadata(pid, "thread_name", name, tids[i])
            metadata(pid, "thread_sort_index", tids[i], tids[i])
        for span, at in zip(spans, lane, strict=True):
            t0, t1, label, site, state = span
            if t1 < t0:
                raise ValueError(f"{track['id']}: a span ends at {t1}, before it starts at {t0}")
            events.append(
                {
                    "ph": "X",
                    "pid": pid,
                    "tid": tids[at],
                    "ts": _microseconds(ns(t0)),
                    "dur": _microseconds(ns(t1) - ns(t0)),
                    "name": labels[label],
                    "cat": f"{track['kind']},{state}",
                    "args": {
                        "state": state,
                        "start in cycles": t0,
                        "cycles": round(t1 - t0, 1),
                        **where(site),
                    },
                }
            )
            if track["kind"] == "role" and state == "wait":
                waiting.append((group, tids[at], span))
            if track["kind"] == "stage":
                stages[group] += [(ns(t0), state, 1), (ns(t1), state, -1)]
        for t, label, site in track.get("arrivals", ()):
            events.append(
                {
                    "ph": "i",
                    "s": "t",
                    "pid": pid,
                    "tid": tids[0],
                    "ts": _microseconds(ns(t)),
                    "name": labels[label],
                    "cat": "arrival",
                    "args": {"cycle": t, **where(site)},
                }
            )
        if track["kind"] == "barrier":
            barriers[group, track["name"]] = (tids[0], spans)

    events += _arrows(waiting, barriers, pids, labels, ns)
    for group, changes in stages.items():
        events += _counts(pids[group], changes)
    return {
        "displayTimeUnit": "ns",
        "otherData": {
            "kernel": timeline["kernel"],
            "gpu": timeline["gpu"],
            "clock_mhz": mhz,
            "note": timeline["note"],
        },
        "traceEvents": events,
    }


def waited_for(label: str, names: list[str]) -> str | None:
    """The barrier that a wait's label names, the longest where several fit; None where none does.

    label: ``"wait for full[0], phase 3"``. A name counts where no letter, digit, underscore or
    opening bracket adjoins it.
    """
    best = None
    for name in names:
        at = label.find(name)
        if at < 0 or (best is not None and len(name) <= len(best)):
            continue
        around = label[max(0, at - 1) : at] + label[at + len(name) : at + len(name) + 1]
        if not any(c.isalnum() or c in "_[" for c in around):
            best = name
    return best


def _arrows(
    waiting: list[tuple[str, int, list[Any]]],
    barriers: dict[tuple[str, str], tuple[int, list[list[Any]]]],
    pids: dict[str, int],
    labels: list[str],
    ns: Any,
) -> list[dict[str, Any]]:
    """Flow events from the phase whose end let a wait go on to that wait."""
    events: list[dict[str, Any]] = []
    of_group: dict[str, list[str]] = defaultdict(list)
    for group, name in barriers:
        of_group[group].append(name)
    # A cluster's barriers are no CTA's own: they stand in a group without roles.
    shared = [g for g in of_group if g not in {group for group, *_ in waiting}]
    for group, tid, (t0, t1, label, _site, _state) in waiting:
        home = group
        name = waited_for(labels[label], of_group[group])
        for other in shared:
            if name is None:
                home, name = other, waited_for(labels[label], of_group[other])
        if name is None:
            continue
        from_tid, phases = barriers[home, name]
        ended = [p for p in phases if t0 < p[1] <= t1]
        if not ended:
            continue
        begin, end = ns(ended[-1][0]), ns(ended[-1][1])
        if end <= begin or ns(t1) <= ns(t0):
            continue  # shorter than a nanosecond: there is no slice to tie the arrow to
        # An arrow belongs to the slices that enclose its ends, hence the nanosecond before each.
        tied = {"cat": "barrier", "name": f"{name} completes", "id": len(events) // 2 + 1}
        here, there = {"pid": pids[group], "tid": tid}, {"pid": pids[home], "tid": from_tid}
        events.append({"ph": "s", **there, "ts": _microseconds(end - 1), **tied})
        events.append({"ph": "f", "bp": "e", **here, "ts": _microseconds(ns(t1) - 1), **tied})
    return events


def _counts(pid: int, changes: list[tuple[int, str, int]]) -> list[dict[str, Any]]:
    """Counter events: stages in each state, one event per moment at which something changes."""
    now = dict.fromkeys(sorted({state for _, state, _ in changes}), 0)
    by_time: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for t, state, by in changes:
        by_time[t].append((state, by))
    events = []
    for t in sorted(by_time):
        for state, by in by_time[t]:
            now[state] += by
        events.append(
            {
                "ph": "C",
                "pid": pid,
                "tid": 0,
                "ts": _microseconds(t),
                "name": "stages",
                "args": dict(now),
            }
        )
    return events
