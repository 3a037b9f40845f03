"""What a simulation reports: findings, counters, coverage of the outputs, and who waited for whom.

A :class:`Report` has three forms: text for a terminal (``print(report)``), a dictionary for
machines (``report.to_dict()``; the same seeds give the same bytes, ``seconds`` apart), and HTML in
a notebook.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: What each finding's code means, in one line; the keys are the stable codes.
CODES = {
    "race-smem": "two accesses to shared memory that nothing orders",
    "race-tmem": "two accesses to tensor memory that nothing orders",
    "race-global": "two CTAs wrote the same bytes of global memory",
    "missing-proxy-fence": "threads wrote what an asynchronous engine reads, without a proxy fence",
    "missing-tcgen05-fence": "tcgen05 operations of two threads without the fences between them",
    "missing-tcgen05-wait": "a tcgen05.ld or st was not waited for before its columns went on",
    "missing-commit": "a result was read that no observed commit covers",
    "wgmma-in-flight": "accumulator registers were touched while wgmma may still use them",
    "tcgen05-in-flight": "registers were touched while tcgen05.ld may still be filling them",
    "wgmma-fence": "wgmma was issued on registers changed since the last wgmma.fence",
    "deadlock": "every warp waits for something that nobody will do",
    "barrier-overarrival": "more arrivals at an mbarrier than its phase has room for",
    "tx-count": "an mbarrier expects another number of bytes than its copies bring",
    "barrier-lapped": "a phase completed before all who wait for the last one had seen it",
    "barrier-init": "an mbarrier was used in a way that its initialisation forbids",
    "barrier-parity": "a wait names a phase of an mbarrier other than the one that comes next",
    "barrier-mixed": "a thread may count for another turn of a named barrier than its own",
    "uninitialised-read": "memory or registers were read that nothing has written",
    "unwritten-output": "elements of an output that no CTA writes",
    "out-of-bounds": "an address outside the memory it belongs to",
    "tma-operand": "a tensor map, or another operand, that a bulk copy cannot take",
    "integer-overflow": "a 32-bit product that an address is made of does not fit",
    "misaligned": "an address that its access width does not divide",
    "tmem-lifetime": "tensor memory used outside its allocation, or never given back",
    "cta-group": "the CTAs of a pair, or a kernel's tcgen05 instructions, disagree about the pair",
    "tmem-lane-quarter": "a warp addressed tensor-memory lanes of another warp's quarter",
    "divergent-collective": "a warp-wide instruction was reached by a part of the warp",
    "cluster-start": "a CTA's shared memory is used by another before it is known to have started",
    "cluster-exit": "a CTA may end while another still uses its shared memory",
    "setmaxnreg-budget": "warps ask for more registers than the CTA has, or not together",
    "clc-protocol": "cluster launch control used against its protocol",
    "descriptor": "a matrix or instruction descriptor that the instruction cannot take",
    "wrong-operand": "the tensor core multiplied elements that do not belong together",
    "discarded-product": "a product was overwritten before anything had read it",
    "assertion": "an assertion of the kernel's author failed",
    "in-flight-at-exit": "asynchronous work was still running when its thread exited",
}


@dataclass(frozen=True)
class Location:
    """A line of the kernel's source: ``file`` as TVM recorded it, ``line`` from 1, and its text."""

    file: str
    line: int
    text: str = ""

    def __str__(self) -> str:
        path = Path(self.file)
        if path.parent.name.startswith("ipykernel_"):  # a notebook's cell; its name is a hash
            return f"cell line {self.line}"
        return f"{path.name}:{self.line}"

    def to_dict(self) -> dict[str, Any]:
        return {"file": self.file, "line": self.line, "text": self.text}


@dataclass(frozen=True)
class Finding:
    """One fault in a kernel.

    ``code`` is one of :data:`CODES`; ``severity`` is ``error`` or ``warning``; ``related`` holds
    further places, each with what it has to do with the fault.
    """

    code: str
    message: str
    location: Location | None
    threads: str
    memory: str
    fix: str
    severity: str = "error"
    related: tuple[tuple[str, Location], ...] = ()
    count: int = 1

    def to_dict(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "severity": self.severity,
            "message": self.message,
            "location": self.location.to_dict() if self.location else None,
            "threads": self.threads,
            "memory": self.memory,
            "fix": self.fix,
            "related": [{"what": what, **place.to_dict()} for what, place in self.related],
            "count": self.count,
        }

    def __str__(self) -> str:
        where = f" at {self.location}" if self.location else ""
        lines = [f"[{self.code}]{where}: {self.message}"]
        if self.location and self.location.text:
            lines.append(f"    {self.location.line:>4} | {self.location.text.strip()}")
        for what, place in self.related:
            lines.append(f"    {what}: {place}")
            if place.text:
                lines.append(f"    {place.line:>4} | {place.text.strip()}")
        if self.threads:
            lines.append(f"    threads: {self.threads}")
        if self.memory:
            lines.append(f"    memory:  {self.memory}")
        lines.append(f"    fix:     {self.fix}")
        if self.count > 1:
            lines.append(f"    (seen {self.count} times)")
        return "\n".join(lines)


@dataclass
class Report:
    """The outcome of one simulation.

    ``seconds`` is the time of the simulation alone, lowering and translation apart.
    ``coverage`` gives, for each tensor the kernel wrote, how many of its elements were written,
    how many of them by more than one CTA, and a map of tiles (:func:`coverage_map`). ``deadlock``
    lists who waits for what, and holds the wait-for graph: ``nodes``, ``edges``, ``cycles``
    (:func:`mlsys_gpu.sim.machine.waitgraph.graph`). ``completed`` is False where a fault stopped
    the run: what the kernel had not written by then is as it was.
    """

    kernel: str
    arch: str
    schedule: str
    schedule_seed: int
    checks: bool
    launch: dict[str, Any]
    findings: list[Finding] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    coverage: dict[str, dict[str, Any]] = field(default_factory=dict)
    deadlock: dict[str, Any] | None = None
    readings: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    completed: bool = True
    #: The Program, its arrays and the readings: what :meth:`explain` needs to run it again.
    _again: tuple[Any, Any, Any] | None = field(default=None, repr=False, compare=False)
    #: What the sampled clusters of a timed run have done (:mod:`.machine.recording`).
    _recording: Any = field(default=None, repr=False, compare=False)
    _timed: Any = field(default=None, repr=False, compare=False)  # GPU and kernel of a timed run
    _timing: Any = field(default=None, repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """Whether the run ended without an error (the numbers are not compared here)."""
        return not any(f.severity == "error" for f in self.findings)

    def to_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "kernel": self.kernel,
            "arch": self.arch,
            "schedule": self.schedule,
            "schedule_seed": self.schedule_seed,
            "completed": self.completed,
            "checks": self.checks,
            "launch": self.launch,
            "findings": [f.to_dict() for f in self.findings],
            "counters": dict(sorted(self.counters.items())),
            "coverage": self.coverage,
            "deadlock": self.deadlock,
            "readings": self.readings,
            "modelled": self._modelled().summary() if self._modelled() else None,
            "seconds": round(self.seconds, 6),
        }

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps(self.to_dict(), indent=indent, sort_keys=True)

    def _modelled(self) -> Any:
        """The timing of a timed run that came to its end, else None."""
        return self.timing if self._recording is not None and self.completed else None

    def _time_line(self) -> str:
        """The modelled time in a line, or why there is none; empty for a run that was not timed."""
        if self._recording is None:
            return ""
        found = self._modelled()
        if found is None:
            return "no modelled time: the run did not come to its end"
        speed = f", {found.tflops():.1f} TFLOP/s" if found.tensor_flops else ""
        return f"{found.microseconds:.1f} us{speed}, bound by {found.bound} ({found.note})"

    def _head(self) -> str:
        grid = "x".join(str(n) for n in self.launch["grid"])
        return (
            f"{self.kernel} ({self.arch}) in the simulator: grid {grid}, "
            f"{self.launch['threads']} threads a CTA, {self.schedule} schedule"
            + (f" with seed {self.schedule_seed}" if self.schedule == "seeded" else "")
            + ("" if self.checks else ", checks off")
        )

    def _wrote(self, name: str) -> str:
        """What was written of a tensor, in words."""
        seen = self.coverage[name]
        if seen["written"] is None:
            return f"wrote {name} (how much of it, only the checks tell)"
        text = f"wrote {name}: {seen['written']} of {seen['elements']} elements"
        if seen["twice"]:
            text += f", {seen['twice']} of them by more than one CTA"
        return text

    def __str__(self) -> str:
        lines = [self._head()]
        if not self.completed:
            lines.append("  stopped before its end: the outputs are incomplete")
        for name, seen in self.coverage.items():
            lines.append(f"  {self._wrote(name)}")
            if seen.get("missing"):
                lines.append(f"    not written: {seen['missing']}")
            cells = seen.get("map", [])
            if len(cells) > 1 and any(set(row) != {"#"} for row in cells):
                rows, cols = seen["tile"]
                lines.append(f"    by {rows} x {cols} elements ({_legend(cells)}):")
                lines.extend(f"      {row}" for row in cells)
        if self.findings:
            lines.append(f"  {len(self.findings)} finding{'s' * (len(self.findings) != 1)}:")
            for finding in self.findings:
                lines.extend("  " + line for line in str(finding).splitlines())
        else:
            lines.append("  no findings" if self.checks else "  no findings (checks were off)")
        if self.deadlock:
            lines.append("  who waits for what:")
            lines.extend(f"    {line}" for line in graph_lines(self.deadlock))
        if self._recording is not None:
            lines.append(f"  {self._time_line()}")
        return "\n".join(lines)

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled and copied: of a timed run its modelled time, and not the kernel."""
        state = dict(self.__dict__)
        if self._timed is not None:
            if self.completed:
                state["_timing"] = self.timing
            state["_timed"] = (self._timed[0], None)
        return state

    @property
    def timing(self) -> Any:
        """The modelled time of a run with ``timing=``: a :class:`mlsys_gpu.sim.timing.Timing`.

        Raises ``ValueError`` for a run without it, or one that did not come to its end.
        """
        if self._recording is None:
            raise ValueError(
                "this run was not timed: pass timing=True to simulate (or timing='h200')"
            )
        if not self.completed:
            raise ValueError("this run did not come to its end: it has no modelled time")
        if self._timing is None:
            from mlsys_gpu.sim import timing

            self._timing = timing.of(self)
        return self._timing

    def timeline(self, **options: Any) -> Any:
        """The modelled run of one cluster as a figure that scrubs (:func:`mlsys_gpu.viz.timeline`);
        ``title``, ``alt`` and ``caption`` may be given. Raises ``ValueError`` as :attr:`timing`."""
        return self.timing.figure(**options)

    def save_trace(self, path: Any) -> Any:
        """Write the modelled run of one cluster to a file, and return its path.

        ``path``: a ``.json`` file opens at https://ui.perfetto.dev, an ``.html`` file in a browser.
        Raises ``ValueError`` for another suffix or a place that cannot be written, and as
        :attr:`timing`.
        """
        return self.timing.save(path)

    def explain(self, output: Any, reference: Any = None, **options: Any) -> Any:
        """Where a wrong number of the output came from: see :func:`mlsys_gpu.sim.explain.explain`.

        ``output``: the array that the run filled (or its parameter's name); ``reference``: what it
        should hold, of the same shape. Runs the kernel again, under the same schedule and seed, on
        the arrays that it was given: they must hold what they held then.

        Returns:
            An :class:`~mlsys_gpu.sim.explain.Explanation`.
        """
        from mlsys_gpu.sim.explain import explain

        if self._again is None:
            raise ValueError("this report was not made by a run in this process: use mg.explain")
        program, arrays, readings = self._again
        options = {"schedule": self.schedule, "schedule_seed": self.schedule_seed} | options
        return explain(
            program, *arrays, output=output, reference=reference, readings=readings, **options
        )

    def _repr_html_(self) -> str:
        from mlsys_gpu.sim import page

        n = len(self.findings)
        words = f"{n} finding{'s' * (n != 1)}" if n else "no findings"
        colour = "bad" if not self.ok else "warm" if n or not self.completed else "good"
        parts = [f'<p class="o-head">{page.tag(words, colour)} {page.esc(self._head())}</p>']
        if not self.completed:
            parts.append("<p>The run stopped before its end: the outputs are incomplete.</p>")
        parts += [_finding_html(finding) for finding in self.findings]
        if self.deadlock:
            parts.append(graph_html(self.deadlock))
        if self._recording is not None:
            parts.append(f"<p>{page.tag('modelled', 'info')} {page.esc(self._time_line())}</p>")
        parts += [self._coverage_html(name) for name in self.coverage]
        parts.append(self._details_html())
        return page.page("mg-report", "".join(parts))

    def _coverage_html(self, name: str) -> str:
        from mlsys_gpu.sim import page

        seen = self.coverage[name]
        text = self._wrote(name)
        body = f"{page.title('Output ' + name)}<p>{page.esc(text[0].upper() + text[1:])}."
        if seen.get("missing"):
            body += f" Not written: {page.esc(seen['missing'])}."
        body += "</p>"
        if seen.get("map"):
            rows, cols = seen["tile"]
            label = f"map of {name}, {rows} x {cols} elements a cell: {_legend(seen['map'])}"
            body += page.cell_map(seen["map"], label)
            body += f'<p class="o-muted">A cell is {rows} × {cols} elements.</p>'
        return body

    def _details_html(self) -> str:
        from mlsys_gpu.sim import page

        rows = [[name.replace("_", " "), f"{n:,}"] for name, n in sorted(self.counters.items())]
        body = ""
        if rows:
            counted = page.table(["what", "how many"], rows, "counted in this run")
            body += page.folded("Counters", counted)
        if self.readings:
            items = "".join(
                f"<li><code>{page.esc(rule)}</code>: {page.esc(text)}</li>"
                for rule, text in sorted(self.readings.items())
            )
            body += page.folded("Readings of the ISA that were used", f"<ul>{items}</ul>")
        return body


#: Cells of a coverage map, in a terminal's legend.
_CELLS = {
    "#": "written once",
    "-": "written in part",
    ".": "never written",
    "2": "written by several CTAs",
}


def _legend(cells: list[str]) -> str:
    """The characters of a coverage map with what they mean and how many there are."""
    text = "".join(cells)
    return ", ".join(f"{k} {words}: {text.count(k)}" for k, words in _CELLS.items() if k in text)


def coverage_map(owner: Any, most: int = 32) -> tuple[list[int], list[str]]:
    """Tiles of a matrix and how they were written.

    ``owner`` ``[rows, cols]``: 0 where nothing wrote, 1 + the CTA that did, -1 for several CTAs.
    The tile is the largest one whose edges are all edges between CTAs (or between written and
    unwritten), made larger where there are more than ``most`` tiles along a side. Returns its rows
    and columns, and a string for each row of tiles: ``#`` written once, ``-`` in part, ``.`` not at
    all, ``2`` by several CTAs.
    """
    import numpy as np

    sizes = []
    for axis, length in enumerate(owner.shape):
        step = np.diff(owner, axis=axis) != 0
        edges = np.flatnonzero(step.any(axis=1 - axis)) + 1
        size = math.gcd(length, *(int(e) for e in edges))
        least = -(-length // most)
        if size < least:  # irregular: cells of a round size
            size = 1 << (least - 1).bit_length()
        sizes.append(size)
    rows, cols = sizes
    lines = []
    for r in range(0, owner.shape[0], rows):
        line = ""
        for c in range(0, owner.shape[1], cols):
            part = owner[r : r + rows, c : c + cols]
            if (part < 0).any():
                line += "2"
            elif (part == 0).any():
                line += "." if not part.any() else "-"
            else:
                line += "#"
        lines.append(line)
    return sizes, lines


# --------------------------------------------------------------------------- the wait-for graph


def graph_lines(graph: dict[str, Any]) -> list[str]:
    """A deadlock as text: what is waited for, by whom, who would have to act; cycles.

    A run whose warps' next lines are not known has no graph: then, what each warp waits for.
    """
    if not graph.get("nodes"):
        return [entry["text"] for entry in graph.get("waiting", [])]
    lines = []
    for node, waiters, acts in _waited_for(graph):
        lines.append(_needs(node))
        for text, words in waiters:
            why = f": {words.removeprefix('waits for ')}" if words else ""
            lines.append(f"  waited for by {text}{why}")
        lines += [f"  {text}" for text in acts]
    for cycle in graph.get("cycles", []):
        lines.append("cycle: " + " -> ".join([*cycle, cycle[0]]))
    return lines


_NOBODY = "no warp that still runs comes to a line that would bring it about"


def _waited_for(
    graph: dict[str, Any],
) -> list[tuple[dict[str, Any], list[tuple[str, str]], list[str]]]:
    """Each thing that is waited for, who waits for it and how, and who would have to act.

    Warps that stand at the same line are named together.
    """
    nodes = {node["id"]: node for node in graph.get("nodes", [])}
    found = []
    for node in nodes.values():
        if node["kind"] == "warp":
            continue
        waiters: dict[tuple[str, str], list[str]] = {}
        acts: dict[str, list[str]] = {}
        for edge in graph["edges"]:
            if edge["kind"] == "waits" and edge["to"] == node["id"]:
                key = (_spell(edge["location"]), nodes[edge["from"]]["waits_for"])
                waiters.setdefault(key, []).append(edge["from"])
            elif edge["kind"] == "acts" and edge["from"] == node["id"]:
                acts.setdefault(_act(edge, nodes), []).append(edge["to"])
        waits = [
            (_together(who, nodes) + (f" ({line})" if line else ""), words)
            for (line, words), who in waiters.items()
        ]
        lines = [f"{_together(who, nodes)}: {text}" for text, who in acts.items()]
        if node.get("flying"):
            lines.append(f"copies of {node['flying']} bytes are under way")
        elif not node.get("actors"):
            lines.append(_NOBODY)
        found.append((node, waits, lines))
    return found


def _together(ids: list[str], nodes: dict[str, dict[str, Any]]) -> str:
    """``warps 0, 1, 2 of CTA (0, 0)``: warps named by CTA."""
    by_cta: dict[str, list[int]] = {}
    for one in ids:
        by_cta.setdefault(one.partition(" of ")[2], []).append(nodes[one]["warp"])
    return " and ".join(
        f"warp{'s' * (len(warps) > 1)} {', '.join(str(n) for n in warps)} of {cta}"
        for cta, warps in by_cta.items()
    )


def _spell(place: dict[str, Any] | None) -> str:
    return str(Location(place["file"], place["line"])) if place else ""


def _act(edge: dict[str, Any], nodes: dict[str, dict[str, Any]]) -> str:
    """What a warp would have to do, where, and what keeps it from that."""
    warp = nodes.get(edge["to"], {})
    line, stands = _spell(edge["location"]), _spell(warp.get("location"))
    waits = warp.get("state") == "waits"
    if line == stands or not line:
        text = edge["text"]
        return f"{text}; {'itself waiting' if waits else 'now'} at {stands}" if stands else text
    text = f"{edge['text']} at {line}"
    return f"{text}; itself waiting at {stands}" if waits else text


def _needs(node: dict[str, Any]) -> str:
    """What is waited for, and what it lacks."""
    text = node["id"]
    if node["kind"] == "mbarrier":
        text += f", phase {node['phase']}: {node['pending']} of {node['count']} arrivals to come"
        if node["bytes"] < 0:
            text += f", {-node['bytes']} bytes have come unexpected"
        elif node["bytes"]:
            text += f", {node['bytes']} bytes to come"
    elif "arrived" in node:
        text += f": {node['arrived']} threads have come"
    return text


def graph_html(graph: dict[str, Any]) -> str:
    """The wait-for graph as HTML: its cycles, and a card for everything that is waited for."""
    from mlsys_gpu.sim import page

    inside = {node for cycle in graph.get("cycles", []) for node in cycle}
    parts = [page.title("Who waits for what")]
    for cycle in graph.get("cycles", []):
        steps = "".join(f"<li>{page.esc(node)}</li>" for node in [*cycle, cycle[0]])
        parts.append(
            f"<p>{page.tag('cycle', 'bad')} each of these waits for the next:</p>"
            f'<ol class="o-chain">{steps}</ol>'
        )
    for node, waiters, acts in _waited_for(graph):
        mark = f" {page.tag('in a cycle', 'bad')}" if node["id"] in inside else ""
        waits = "".join(
            f'<li>{page.esc(who)} <span class="o-muted">{page.esc(words)}</span></li>'
            for who, words in waiters
        )
        needed = "".join(f"<li>{page.esc(text)}</li>" for text in acts)
        parts.append(
            f'<div class="o-card o-plain">{page.lead(page.esc(_needs(node)) + mark)}'
            f"<p>Waited for by</p><ul>{waits}</ul>"
            f"<p>Who would have to act</p><ul>{needed}</ul></div>"
        )
    if len(parts) == 1:
        items = "".join(f"<li>{page.esc(e['text'])}</li>" for e in graph.get("waiting", []))
        parts.append(f"<ul>{items}</ul>")
    return "".join(parts)


def _finding_html(finding: Finding) -> str:
    from mlsys_gpu.sim import page

    where = f" at {page.esc(finding.location)}" if finding.location else ""
    colour = "bad" if finding.severity == "error" else "warm"
    related = ""
    for what, place in finding.related:
        related += f"<li>{page.esc(what)}: {page.esc(place)}{page.source_line(place, what)}</li>"
    pairs = [("threads", page.esc(finding.threads)), ("memory", page.esc(finding.memory))]
    pairs += [("fix", page.esc(finding.fix))]
    if finding.count > 1:
        pairs.append(("seen", f"{finding.count} times"))
    meaning = page.esc(CODES.get(finding.code, ""))
    return (
        f'<div class="o-card o-of-{page.esc(finding.severity)}">'
        + page.lead(f'<span title="{meaning}">{page.tag(finding.code, colour)}</span>{where}')
        + f"<p>{page.esc(finding.message)}</p>{page.source_line(finding.location)}"
        + (f"<ul>{related}</ul>" if related else "")
        + page.facts(pairs)
        + "</div>"
    )
