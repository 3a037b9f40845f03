"""A replayed cluster as plain data: what the viewer, the Perfetto export and tests read.

See :func:`timeline` for the form. Times are cycles of the SM clock from the cluster's start.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mlsys_gpu.sim.timing import events as E
from mlsys_gpu.sim.timing.chip import Timing

#: Spans that a timeline holds at most; a longer run is shown up to where they suffice.
MOST_SPANS = 30_000

#: Bytes at the start of a CTA's shared memory that the system keeps (as the machine has it).
RESERVED_SHARED = 1024

_DOES = {
    E.COPY_IN: "TMA loads",
    E.WGMMA: "wgmma",
    E.TC_MMA: "tcgen05.mma",
    E.MMA: "mma.sync",
    E.TC_LOAD: "tcgen05.ld",
    E.ASYNC_COPY: "cp.async",
    E.LOAD: "loads",
    E.COPY_OUT: "TMA stores",
    E.STORE: "stores",
}

_WAITS = (E.WAIT, E.WGMMA_WAIT, E.BULK_WAIT, E.ASYNC_WAIT, E.TC_WAIT)


def roles(logs: list[list[list[tuple]]]) -> dict[tuple[int, int], tuple[list[int], str]]:
    """Warps of each CTA that walk through the same lines: by rank and first warp, all of them and
    what they do, in words. Warps that do nothing are left out."""
    found: dict[tuple[int, int], tuple[list[int], str]] = {}
    for rank, cta in enumerate(logs):
        before: tuple[frozenset, int] | None = None
        for warp, log in enumerate(cta):
            sites = frozenset((event[0], event[1]) for event in log)
            if not sites:
                continue
            if before is not None and before[0] == sites:
                found[rank, before[1]][0].append(warp)
                continue
            before = (sites, warp)
            kinds = {kind for kind, _ in sites}
            does = ", ".join(name for kind, name in _DOES.items() if kind in kinds)
            found[rank, warp] = ([warp], does)
    return found


def role_name(warps: list[int], does: str) -> str:
    """``warps 4-7: wgmma, stores``."""
    if len(warps) == 1:
        name = f"warp {warps[0]}"
    elif warps[-1] - warps[0] == len(warps) - 1:
        name = f"warps {warps[0]}-{warps[-1]}"
    else:
        name = "warps " + ", ".join(str(w) for w in warps)
    return f"{name}: {does}" if does else name


def label(event: tuple, barriers: list[tuple[str, int, str]]) -> str:
    """What an event is, in words."""
    kind = event[0]
    if kind == E.WORK:
        return "arithmetic"
    if kind == E.LOAD:
        return f"load {event[4]} bytes from global memory"
    if kind == E.STORE:
        return f"store {event[4]} bytes to global memory"
    if kind in (E.SHARED_LOAD, E.SHARED_STORE):
        verb = "load from" if kind == E.SHARED_LOAD else "store to"
        conflicts = f", {event[3]} wavefronts" if event[3] > event[7] else ""
        return f"{verb} shared memory, {event[4]} bytes{conflicts}"
    if kind == E.DELAY:
        return event[2].replace("_", " ")
    if kind == E.SIGNAL:
        names = ", ".join(barriers[token[0]][0] for token in event[2])
        return f"arrive at {names}"
    if kind == E.WAIT:
        if event[2] is None:
            return "wait for a phase that is over from the start"
        name, _, what = barriers[event[2][0]]
        return f"wait for {name}, {'phase' if what == 'mbarrier' else 'turn'} {event[2][1]}"
    if kind == E.COPY_IN:
        return f"load {_moved(event[5], event[4])}"
    if kind == E.COPY_OUT:
        return f"store {_moved(event[5], event[4])}"
    if kind == E.WGMMA:
        return f"wgmma m64n{event[2]}k16, {event[4]} steps"
    if kind == E.WGMMA_WAIT:
        return f"wgmma.wait_group {event[2]}"
    if kind == E.TC_MMA:
        return f"tcgen05.mma {event[2]}x{event[3]}x16, {event[6]} steps"
    if kind == E.TC_COMMIT:
        return "tcgen05.commit"
    if kind == E.TC_LOAD:
        return f"tcgen05.ld of {event[2]} columns"
    if kind == E.TC_STORE:
        return f"tcgen05.st of {event[2]} columns"
    if kind == E.TC_WAIT:
        return f"tcgen05.wait::{event[2]}"
    if kind == E.BULK_WAIT:
        return "wait for bulk stores" + (" to be read" if event[4] else "")
    if kind == E.ASYNC_WAIT:
        return f"cp.async.wait_group {event[2]}"
    if kind == E.MMA:
        return f"mma.sync m16n8k{event[2]}, {event[3]} times"
    return E.NAMES[kind].replace("_", " ")


def _moved(what: Any, place: tuple) -> str:
    """The part of a tensor that a copy moves, as the author would write it: ``A[0:128, 64:128]``.

    ``what`` is the tensor's name and the box of its tensor map, or words; of a map with more
    dimensions than the tensor has, the dimensions are the map's.
    """
    if isinstance(what, str):
        return what
    name, *extent = what
    parts = [f"{c}:{c + e}" for c, e in zip(place[2:], extent, strict=False)][::-1]
    return f"{name}[{', '.join(parts)}]"


def _state(event: tuple, cycles: float) -> str:
    if event[0] in _WAITS or (event[0] in (E.LOAD, E.SHARED_LOAD) and cycles > 4 * event[2]):
        return "wait"
    return "issue" if event[0] in (E.COPY_IN, E.COPY_OUT, E.WGMMA, E.TC_MMA, E.MMA) else "run"


class _Builder:
    """Tables of labels and source lines, and the tracks so far."""

    def __init__(self, timing: Timing):
        self.timing = timing
        self.program = timing.program
        self.barriers = timing.recording.barriers
        self.labels: dict[str, int] = {}
        self.sites: dict[tuple[str, int], int] = {}
        self.of_site: dict[int, int] = {}
        self.tracks: list[dict[str, Any]] = []
        grid = self.program.launch["cluster"]
        self.block = [f"({r % grid[0]}, {r // grid[0] % grid[1]})" for r in range(len(timing.logs))]

    def label(self, text: str) -> int:
        return self.labels.setdefault(text, len(self.labels))

    def site(self, number: int) -> int:
        """The index of a site's line among ``sites``; -1 where it has none."""
        found = self.of_site.get(number)
        if found is None:
            places = self.program.locations(number)
            found = -1
            if places:
                key = (places[0].file, places[0].line)
                found = self.sites.setdefault(key, len(self.sites))
            self.of_site[number] = found
        return found

    def track(self, ident: str, name: str, group: str, kind: str, spans: list, **more: Any) -> None:
        self.tracks.append(
            {"id": ident, "name": name, "group": group, "kind": kind, "spans": spans, **more}
        )

    def group(self, rank: int) -> str:
        return f"CTA rank {rank}" if len(self.block) > 1 else "CTA"


def timeline(timing: Timing, flops: float | None = None) -> dict[str, Any]:
    """The modelled run of one cluster, the one that takes longest of those sampled.

    A dictionary of plain values: ``kernel``, ``gpu``, ``clock_mhz``, ``cycles`` (of what is shown),
    ``note``, ``summary`` (``duration_us``, ``tflops``, ``bound`` of the whole launch), ``files``
    (source text by name), ``sites`` (``[file, line]``), ``labels``, ``tracks`` and ``waits``
    (``[role, what, cycles]``). A track has ``id``, ``name``, ``group``, ``kind`` (``role``,
    ``engine``, ``barrier``, ``stage``, ``tmem``) and ``spans``: ``[t0, t1, label, site, state]``,
    where label and site are indices. Barriers' tracks have ``arrivals``, ``[t, label, site]``, too.
    """
    builder = _Builder(timing)
    kinds = roles(timing.logs)
    horizon = _horizon(timing, kinds)
    _roles(builder, kinds, horizon)
    _engines(builder, horizon)
    _barriers(builder, kinds, horizon)
    _stages(builder, horizon)
    _tmem(builder, horizon)
    files, sites = _files(builder)
    shown = min(timing.shown, horizon)
    note = timing.note
    if horizon < timing.shown:
        note += f"; the first {round(shown)} of {round(timing.shown)} cycles are shown"
    return {
        "kernel": timing.program.name,
        "gpu": timing.gpu,
        "clock_mhz": round(timing.clock_mhz, 1),
        "cycles": round(shown, 1),
        "note": note,
        "summary": {
            "duration_us": round(timing.microseconds, 3),
            "tflops": round(timing.tflops(flops), 2) if flops or timing.tensor_flops else None,
            "bound": timing.bound,
        },
        "files": files,
        "sites": sites,
        "labels": list(builder.labels),
        "tracks": builder.tracks,
        "waits": [
            [track, what, round(cycles, 1)]
            for track, what, cycles in _waits(builder, kinds, horizon)
            if cycles >= 1
        ],
    }


def _horizon(timing: Timing, kinds: dict) -> float:
    """Until when a timeline of at most :data:`MOST_SPANS` spans can reach."""
    ends = sorted(
        span[0] for (rank, warp) in kinds for span in timing.trace.warps.get((rank, warp), [])
    )
    most = MOST_SPANS // 2  # about as many again are spans of engines, barriers and memory
    return ends[most] if len(ends) > most else float("inf")


def _role_id(rank: int, warps: list[int]) -> str:
    if len(warps) == 1:
        return f"cta{rank}/warp{warps[0]}"
    return f"cta{rank}/warps{warps[0]}-{warps[-1]}"


def _roles(builder: _Builder, kinds: dict, horizon: float) -> None:
    timing = builder.timing
    for (rank, first), (warps, does) in kinds.items():
        log = timing.logs[rank][first]
        spans: list[list[Any]] = []
        for t0, t1, at in timing.trace.warps.get((rank, first), []):
            if t0 >= horizon:
                break
            event = log[at]
            state = _state(event, t1 - t0)
            said = label(event, builder.barriers)
            if state == "wait" and "wait" not in said:
                said = f"wait for it: {said}"
            text = builder.label(said)
            site = builder.site(event[1])
            if spans and spans[-1][2:] == [text, site, state] and t0 - spans[-1][1] < 0.06:
                spans[-1][1] = round(t1, 1)
                continue
            spans.append([round(t0, 1), round(t1, 1), text, site, state])
        shown = f" (warp {first} shown)" if len(warps) > 1 else ""
        builder.track(
            _role_id(rank, warps),
            role_name(warps, does) + shown,
            builder.group(rank),
            "role",
            spans,
        )


def _engines(builder: _Builder, horizon: float) -> None:
    trace = builder.timing.trace
    several = len(builder.block) > 1
    for rank in range(len(builder.block)):
        group = f"SM of CTA rank {rank}" if several else "SM"
        tensor = sorted(s for s in trace.tensor if s[0] == rank and s[1] < horizon)
        spans = [
            [round(t0, 1), round(t1, 1), *_said(builder, event), "busy"]
            for _, t0, t1, event in tensor
        ]
        if spans:
            builder.track(f"sm{rank}/tensor", "tensor core", group, "engine", spans)
        for out, name, ident in (
            (False, "copies into shared memory", "tma-load"),
            (True, "copies out of shared memory", "tma-store"),
        ):
            spans = [
                [round(t0, 1), round(t1, 1), *_said(builder, event), "busy"]
                for r, t0, t1, event, way in trace.copies
                if r == rank and way == out and t0 < horizon
            ]
            if spans:
                builder.track(f"sm{rank}/{ident}", name, group, "engine", sorted(spans))


def _said(builder: _Builder, event: tuple) -> tuple[int, int]:
    return builder.label(label(event, builder.barriers)), builder.site(event[1])


def _barriers(builder: _Builder, kinds: dict, horizon: float) -> None:
    trace = builder.timing.trace
    role_of = {
        (rank, warp): role_name(warps, does)
        for (rank, _), (warps, does) in kinds.items()
        for warp in warps
    }
    ends: dict[int, list[tuple[int, float]]] = {}
    for token, time in trace.phases:
        ends.setdefault(token[0], []).append((token[1], time))
    came: dict[int, list[list[Any]]] = {}
    last: dict[tuple[int, int], int] = {}
    for token, time, rank, warp, event in sorted(trace.arrivals, key=lambda a: a[1]):
        last[token] = builder.site(event[1])
        if time >= horizon:
            continue
        what = "bytes come" if event[0] in (E.COPY_IN, E.PEER) else "arrival"
        text = builder.label(f"{what}: {role_of.get((rank, warp), f'warp {warp}')}")
        came.setdefault(token[0], []).append([round(time, 1), text, builder.site(event[1])])
    for number, phases in sorted(ends.items()):
        name, rank, kind = builder.barriers[number]
        spans, begin = [], 0.0
        for phase, time in sorted(phases):
            if begin >= horizon:
                break
            word = "phase" if kind == "mbarrier" else "turn"
            text = builder.label(f"{word} {phase}")
            site = last.get((number, phase), -1)
            if time > begin:
                spans.append([round(begin, 1), round(time, 1), text, site, "phase"])
            begin = time
        group = "cluster" if kind == "cluster" else builder.group(rank)
        builder.track(
            f"cta{rank}/{name}", name, group, "barrier", spans, arrivals=came.get(number, [])
        )


def _cell(builder: _Builder, byte: int) -> tuple[str, int] | None:
    """The named buffer that holds a byte of shared memory: ``As[1]``, and where it starts."""
    at = byte - RESERVED_SHARED
    for name, start, nbytes, shape, dtype in builder.program.regions:
        if name and start <= at < start + nbytes and not dtype.startswith("uint64"):
            if len(shape) >= 3 and shape[0] > 1:
                each = nbytes // shape[0]
                index = (at - start) // each
                return f"{name}[{index}]", start + index * each
            return name, start
    return None


def _stages(builder: _Builder, horizon: float) -> None:
    cells: dict[tuple[int, int, str], list[tuple]] = {}
    for rank, byte, t0, t1, state, event in builder.timing.trace.regions:
        cell = _cell(builder, byte)
        if cell is not None and t0 < horizon:
            cells.setdefault((rank, cell[1], cell[0]), []).append((t0, t1, state, event))
    for (rank, _, name), touched in sorted(cells.items(), key=lambda item: item[0]):
        spans = _contents(builder, touched)
        if len(spans) > 1:
            builder.track(f"cta{rank}/{name}", name, builder.group(rank), "stage", spans)


def _tmem(builder: _Builder, horizon: float) -> None:
    cells: dict[tuple[int, int, int], list[tuple]] = {}
    events = [e for e in builder.timing.trace.tmem if e[3] < horizon]
    for rank, column, columns, *_ in [e for e in events if e[5] == "accumulate"]:
        cells.setdefault((rank, column, columns), [])
    for rank, column, columns, t0, t1, state, event in events:
        for (r, first, count), touched in cells.items():
            if r == rank and first < column + columns and column < first + count:
                touched.append((t0, t1, "written" if state == "accumulate" else state, event))
    for (rank, column, columns), touched in sorted(cells.items()):
        spans = _contents(builder, touched, "accumulate")
        name = f"TMEM columns {column}-{column + columns - 1}"
        ident = f"cta{rank}/tmem[{column}:{column + columns}]"
        builder.track(ident, name, builder.group(rank), "tmem", spans)


def _merged(spans: Iterable[tuple]) -> list[tuple]:
    """Overlapping spans of one kind as one, with the first one's event."""
    merged: list[tuple] = []
    for t0, t1, state, event in sorted(spans, key=lambda s: (s[0], s[1])):
        if merged and t0 <= merged[-1][1] + 0.05:
            merged[-1] = (merged[-1][0], max(t1, merged[-1][1]), state, merged[-1][3])
        else:
            merged.append((t0, t1, state, event))
    return merged


def _contents(builder: _Builder, touched: list[tuple], written: str = "written") -> list[list]:
    """What a place holds, over time: being filled, full, being read; free in the gaps."""
    fills = _merged(s for s in touched if s[2] in ("arriving", "written"))
    reads = _merged(s for s in touched if s[2] == "read")
    spans: list[list] = []
    for i, (t0, t1, state, event) in enumerate(fills):
        until = fills[i + 1][0] if i + 1 < len(fills) else float("inf")
        text, site = _said(builder, event)
        spans.append([t0, t1, text, site, state if state == "arriving" else written])
        now = t1
        for r0, r1, _, reader in reads:
            if r1 <= t1 or r0 >= until:
                continue
            r0, r1 = max(r0, now), min(r1, until)
            if r1 <= r0:
                continue
            if r0 > now:
                spans.append([now, r0, text, site, "full"])
            spans.append([r0, r1, *_said(builder, reader), "read"])
            now = r1
    return [[round(t0, 1), round(t1, 1), *rest] for t0, t1, *rest in spans if t1 > t0]


#: What a warp waits for, by the kind of event at which it does.
_WAITS_FOR = {
    E.LOAD: "memory",
    E.SHARED_LOAD: "memory",
    E.ASYNC_WAIT: "memory",
    E.WGMMA_WAIT: "tensor core",
    E.BULK_WAIT: "stores",
    E.TC_WAIT: "tensor memory",
}


def _waits(builder: _Builder, kinds: dict, horizon: float) -> Iterable[tuple[str, str, float]]:
    """What each role waits for, in cycles, in the part of the run that is shown."""
    timing = builder.timing
    for (rank, first), (warps, _) in kinds.items():
        waited: dict[str, float] = {}
        for t0, t1, at in timing.trace.warps.get((rank, first), []):
            event = timing.logs[rank][first][at]
            if t0 >= horizon or _state(event, t1 - t0) != "wait":
                continue
            name = _WAITS_FOR.get(event[0], "")
            if event[0] == E.WAIT and event[2] is not None:
                name = builder.barriers[event[2][0]][0]
            waited[name] = waited.get(name, 0.0) + min(t1, horizon) - t0
        for name, cycles in sorted(waited.items(), key=lambda item: -item[1]):
            yield _role_id(rank, warps), name or "a phase that is over", cycles


def _files(builder: _Builder) -> tuple[dict[str, list[str]], list[list[Any]]]:
    """Source text of the files that sites name, and the sites with the files' short names."""
    names: dict[str, str] = {}
    files: dict[str, list[str]] = {}
    for path, _ in builder.sites:
        if path in names:
            continue
        short = path.rsplit("/", 1)[-1]
        while short in files:
            short = "_" + short
        names[path] = short
        files[short] = _text(builder, path)
    return files, [[names[path], line] for path, line in builder.sites]


def _text(builder: _Builder, path: str) -> list[str]:
    """A file's lines; where it cannot be read (a notebook's cell), those that the Program knows."""
    import linecache

    lines = [line.rstrip("\n") for line in linecache.getlines(path)]
    if lines:
        return lines
    known = {int(n): text for n, text in builder.program.texts.get(path, {}).items()}
    return [known.get(n, "") for n in range(1, max(known, default=0) + 1)]
