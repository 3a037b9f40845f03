"""A modelled timeline to scrub through: roles, engines, barriers, stages, TMEM, source line.

The data is a Timeline: what :mod:`mlsys_gpu.sim.timing` replays, plain JSON, times in cycles of the
GPU's clock. Here what the figure says about it is computed: shares of time, the overlap of loads
with the tensor core, and the window that is shown first.
"""

from __future__ import annotations

import html
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .figures import Figure, badge_html, figure, table_html

Interval = tuple[float, float]

#: How the last part of an engine track's id begins: what multiplies, and what brings operands.
COMPUTE = ("tensor",)
LOADS = ("copies-in", "tma-load")

_KEYS = ("kernel", "gpu", "clock_mhz", "cycles", "note", "files", "sites", "labels", "tracks")
_STATES = ("run", "issue", "wait")


def union(spans: Iterable[Any]) -> list[Interval]:
    """The moments that at least one span covers, as disjoint intervals in order; cycles."""
    found: list[Interval] = []
    for t0, t1 in sorted((s[0], s[1]) for s in spans):
        if found and t0 <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], t1))
        elif t1 > t0:
            found.append((t0, t1))
    return found


def both(a: list[Interval], b: list[Interval]) -> list[Interval]:
    """Where two lists of disjoint intervals overlap; cycles."""
    found, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        t0, t1 = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if t1 > t0:
            found.append((t0, t1))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return found


def _length(intervals: Iterable[Interval]) -> float:
    return sum(t1 - t0 for t0, t1 in intervals)


def shares(timeline: Mapping[str, Any]) -> list[dict[str, Any]]:
    """How each role spends the time that is shown.

    A dict per role: ``track`` (its id), ``name``, ``group``; ``run``, ``issue``, ``wait`` and
    ``idle`` (not yet started, or gone) in cycles; ``waits``: ``[what, cycles]``, longest first.
    """
    found = []
    for track in timeline["tracks"]:
        if track["kind"] != "role":
            continue
        spent = dict.fromkeys(_STATES, 0.0)
        for t0, t1, _label, _site, state in track["spans"]:
            spent[state] += t1 - t0
        waits = [[what, n] for who, what, n in timeline.get("waits", ()) if who == track["id"]]
        found.append(
            {
                "track": track["id"],
                "name": track["name"],
                "group": track["group"],
                **{state: round(n, 1) for state, n in spent.items()},
                "idle": round(max(0.0, timeline["cycles"] - sum(spent.values())), 1),
                "waits": sorted(waits, key=lambda w: -w[1]),
            }
        )
    return found


def sort_of(track: Mapping[str, Any]) -> str:
    """What an engine does: ``"compute"`` (:data:`COMPUTE`), ``"load"`` (:data:`LOADS`), ``""``."""
    last = track["id"].rsplit("/", 1)[-1]
    return "compute" if last.startswith(COMPUTE) else "load" if last.startswith(LOADS) else ""


def overlaps(timeline: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Per SM: when operands are in flight while the tensor core works.

    A dict per group that has engines of both sorts (:data:`LOADS`, :data:`COMPUTE`): ``group``,
    ``spans`` (``[t0, t1]``), and in cycles ``both``, ``compute`` (the tensor core is busy) and
    ``load`` (at least one load is in flight).
    """
    engines: dict[str, dict[str, list[Any]]] = {}
    for track in timeline["tracks"]:
        if track["kind"] == "engine":
            of_group = engines.setdefault(track["group"], {})
            of_group.setdefault(sort_of(track), []).extend(track["spans"])
    found = []
    for group, sorts in engines.items():
        if {"compute", "load"} <= sorts.keys():
            compute, load = union(sorts["compute"]), union(sorts["load"])
            spans = both(compute, load)
            found.append(
                {
                    "group": group,
                    "spans": [list(s) for s in spans],
                    "both": round(_length(spans), 1),
                    "compute": round(_length(compute), 1),
                    "load": round(_length(load), 1),
                }
            )
    return found


def steady_window(timeline: Mapping[str, Any], steps: int = 6) -> tuple[float, float]:
    """What is shown first, in cycles: about ``steps`` steps of a loop in the middle of the run.

    The steps are phases of the ring of barriers (``full[0]``, ``full[1]``, …) that complete most of
    them together; a barrier of its own is a ring of one. Without barriers, the role with most spans
    stands in, five spans for a step. A run of few steps is shown whole.
    """
    end = float(timeline["cycles"])
    rings: dict[tuple[str, str], list[Any]] = {}
    for track in timeline["tracks"]:
        if track["kind"] == "barrier":
            rings.setdefault((track["group"], track["name"].split("[")[0]), []).append(track)
    if rings:
        ring = max(rings.values(), key=lambda tracks: sum(len(t["spans"]) for t in tracks))
        spans = max((t["spans"] for t in ring), key=len)
        wanted = max(2, -(-steps // len(ring)))
    else:
        roles = (t["spans"] for t in timeline["tracks"] if t["kind"] == "role")
        spans = max(roles, key=len, default=[])
        wanted = 5 * steps
    if len(spans) < 2 * wanted:
        return 0.0, end
    first = (len(spans) - wanted) // 2
    t0, t1 = spans[first][0], spans[first + wanted - 1][1]
    if t1 <= t0:
        return 0.0, end
    margin = 0.04 * (t1 - t0)
    return max(0.0, t0 - margin), min(end, t1 + margin)


def _until(track: Mapping[str, Any], end: float) -> dict[str, Any]:
    """A track with what happens before ``end`` alone."""
    cut = {"spans": [[s[0], min(s[1], end), *s[2:]] for s in track["spans"] if s[0] < end]}
    if "arrivals" in track:
        cut["arrivals"] = [a for a in track["arrivals"] if a[0] <= end]
    return {**track, **cut}


def timeline_data(timeline: Mapping[str, Any]) -> dict[str, Any]:
    """What the ``timeline`` figure draws: the Timeline, cut at ``cycles``, and what is derived.

    Adds ``shares``, ``overlaps`` (:func:`shares`, :func:`overlaps`), ``busy`` (``[track id,
    cycles]`` per engine), ``sorts`` (:func:`sort_of` by engine's id), ``window``
    (:func:`steady_window`) and ``cursor`` (the cycle at which the figure opens: in the middle of an
    overlap, where the window has one). Raises ValueError naming what is missing or out of range.
    """
    missing = [key for key in _KEYS if key not in timeline]
    if missing:
        raise ValueError(f"the timeline lacks {', '.join(missing)}")
    if not timeline["tracks"]:
        raise ValueError("the timeline has no tracks")
    if not timeline["cycles"] > 0 or not timeline["clock_mhz"] > 0:
        raise ValueError(
            f"cycles is {timeline['cycles']} and clock_mhz is {timeline['clock_mhz']}; both must "
            "be positive"
        )
    labels, sites = len(timeline["labels"]), len(timeline["sites"])
    for track in timeline["tracks"]:
        for t0, t1, label, site, _state in track["spans"]:
            if not (0 <= t0 <= t1 and 0 <= label < labels and -1 <= site < sites):
                raise ValueError(
                    f"{track['id']}: span {t0} to {t1} with label {label} and site {site}; there "
                    f"are {labels} labels and {sites} sites"
                )
    end = timeline["cycles"]
    timeline = {**timeline, "tracks": [_until(track, end) for track in timeline["tracks"]]}
    t0, t1 = steady_window(timeline)
    middle = (t0 + t1) / 2
    meets = overlaps(timeline)
    cursor = middle
    spans = meets[0]["spans"] if meets else []
    if spans:
        at = bisect_left(spans, [middle])
        near = min(spans[max(0, at - 1) : at + 1], key=lambda s: abs(s[0] + s[1] - 2 * middle))
        meeting = (near[0] + near[1]) / 2
        cursor = meeting if t0 <= meeting <= t1 else middle
    return {
        **timeline,
        "shares": shares(timeline),
        "overlaps": meets,
        "busy": [
            [t["id"], round(_length(union(t["spans"])), 1)]
            for t in timeline["tracks"]
            if t["kind"] == "engine"
        ],
        "sorts": {t["id"]: sort_of(t) for t in timeline["tracks"] if t["kind"] == "engine"},
        "window": [round(t0, 1), round(t1, 1)],
        "cursor": round(cursor, 1),
    }


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "–"


def _names(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Track id -> name, with its group where several groups share the kind."""
    several = len({r["group"] for r in rows}) > 1
    return {r["track"]: f"{r['group']}: {r['name']}" if several else r["name"] for r in rows}


def _fallback(data: Mapping[str, Any], most: int = 24) -> str:
    cycles = data["cycles"]
    names = _names(data["shares"])
    roles = [
        [
            names[s["track"]],
            _percent(s["run"], cycles),
            _percent(s["issue"], cycles),
            _percent(s["wait"], cycles),
            ", ".join(
                f"{what} ({_percent(n, cycles)})" for what, n in s["waits"][:6] if 200 * n >= cycles
            )
            or "–",
        ]
        for s in data["shares"]
    ]
    engines = {t["id"]: t for t in data["tracks"] if t["kind"] == "engine"}
    of = _names([{"track": i, "name": t["name"], "group": t["group"]} for i, t in engines.items()])
    busy = [[of[ident], f"{n:,.0f}", _percent(n, cycles)] for ident, n in data["busy"]]
    parts = [f"<p>{badge_html('modelled')} {html.escape(data['note'])}</p>"]
    more = f" (the first {most} of {len(roles)})" if len(roles) > most else ""
    if roles:
        head = ["", "runs", "issues", "waits", "waits for"]
        parts.append(table_html(head, roles[:most], f"Roles: share of {cycles:,.0f} cycles{more}"))
    if busy:
        parts.append(table_html(["", "busy cycles", "share"], busy[:most], "Engines"))
    if len(parts) == 1:
        rows = [[t["name"], len(t["spans"])] for t in data["tracks"][:most]]
        parts.append(table_html(["", "spans"], rows, "Tracks"))
    return "".join(parts)


def _words(data: Mapping[str, Any]) -> str:
    cycles, mhz = data["cycles"], data["clock_mhz"]
    said = [
        f"Modelled timeline of {data['kernel']} on {data['gpu']}, {cycles:,.0f} cycles or "
        f"{cycles / mhz:,.2f} µs at {mhz / 1000:.2f} GHz."
    ]
    tensor = [n for ident, n in data["busy"] if data["sorts"][ident] == "compute"]
    if tensor:
        said.append(f"The tensor core works {_percent(tensor[0], cycles)} of the time.")
    for meet in data["overlaps"][:1]:
        said.append(
            f"While it does, loads are in flight {_percent(meet['both'], meet['compute'])} of the "
            "time."
        )
    names = _names(data["shares"])
    for share in data["shares"][:6]:
        waits = share["waits"][:1]
        most = f", most of it for {waits[0][0]}" if waits else ""
        said.append(
            f"{names[share['track']]} waits {_percent(share['wait'], cycles)} of the time{most}."
        )
    return " ".join(said)


def timeline(
    data: Mapping[str, Any],
    *,
    title: str | None = None,
    alt: str | None = None,
    caption: str | None = None,
) -> Figure:
    """Interactive figure of a modelled timeline, with the source line beside it.

    data: a Timeline (plain JSON; times in cycles). Raises ValueError where it lacks something, has
    no tracks, or a span names a label or site that does not exist.
    """
    shown = timeline_data(data)
    return figure(
        "timeline",
        shown,
        title=title or f"{shown['kernel']} on {shown['gpu']}: who works, who waits",
        alt=alt or _words(shown),
        caption=caption,
        fallback=_fallback(shown),
    )


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<script>
(function () {{
  var dark = window.matchMedia("(prefers-color-scheme: dark)");
  function set(theme) {{ document.documentElement.dataset.theme = theme; }}
  set(dark.matches ? "dark" : "light");
  dark.addEventListener("change", function () {{ set(dark.matches ? "dark" : "light"); }});
  document.addEventListener("DOMContentLoaded", function () {{
    document.getElementById("theme").addEventListener("click", function () {{
      set(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
    }});
  }});
}})();
</script>
<style>
:root {{ color-scheme: light; }}
html[data-theme="dark"] {{ color-scheme: dark; }}
body {{ margin: 0 auto; padding: 0.8rem 1rem 2rem; max-width: 110rem; background: var(--mg-bg);
  color: var(--mg-fg); font: 14px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans",
  sans-serif; }}
header {{ display: flex; flex-wrap: wrap; align-items: center; gap: 0.4rem 1rem; }}
h1 {{ flex: 1 1 12rem; margin: 0; font-size: 20px; overflow-wrap: anywhere; }}
#theme {{ min-height: 30px; padding: 0.2rem 0.6rem; border: 1px solid var(--mg-line);
  border-radius: 6px; background: var(--mg-panel); color: var(--mg-fg); font: inherit;
  font-size: 13px; cursor: pointer; }}
#theme:focus-visible {{ outline: 3px solid var(--mg-accent); outline-offset: 2px; }}
figure.mg-fig {{ margin: 0.8rem 0 0; }}
@media (max-width: 480px) {{ body {{ padding: 0.6rem 0.4rem 1.5rem; }} }}
</style>
</head>
<body>
<header><h1>{title}</h1><button type="button" id="theme">Light or dark</button></header>
<main>{figure}</main>
</body>
</html>
"""


def page(
    data: Mapping[str, Any], path: str | Path | None = None, *, title: str | None = None
) -> str:
    """One self-contained HTML file of the figure: no other file, no other host.

    data: a Timeline. path: where to write it, too; UTF-8. Returns the HTML. Raises what
    :func:`timeline` raises, and OSError where the file cannot be written.
    """
    shown = timeline(data)
    text = _PAGE.format(
        title=html.escape(title or f"Modelled timeline: {data['kernel']} on {data['gpu']}"),
        figure=shown.standalone(),
    )
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text
