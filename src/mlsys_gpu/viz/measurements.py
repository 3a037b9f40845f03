"""Measured, recorded and modelled figures: tables, and pictures with their provenance.

Everything here is read from result files (``book/results/<gpu>/<name>.json``, written by
``mlsys-gpu bench``; ``book/results/modelled/<name>.json``, written by ``scripts/h200/model.py`` and
its like), or was measured by the cell that shows it. Nothing is typed in. A row whose kernel has
another source now than when it was measured is marked *stale*.
"""

from __future__ import annotations

import hashlib
import html
import importlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlsys_gpu.kernels.baselines import TITLES as BASELINES

from . import figures
from .figures import Html

if TYPE_CHECKING:
    from mlsys_gpu.benchmarking import Benchmark

    from .static import Picture

Row = Mapping[str, Any]
Shape = tuple[int, int, int]

KERNELS = Path(__file__).resolve().parents[1] / "kernels"

#: Where the ladder's figures are: the result file of ``mlsys-gpu bench gemm`` on an H200.
MEASURED = "h200/gemm"
CUBE: Shape = (4096, 4096, 4096)


# ------------------------------------------------------------------------------------ result files


def results(name: str = MEASURED) -> Benchmark:
    """The result file ``book/results/<name>.json``; no rows where there is none.

    Raises ValueError for a file that holds no results.
    """
    from mlsys_gpu import benchmarking

    path = _file(name)
    return benchmarking.load(path) if path is not None else benchmarking.Benchmark()


def modelled(name: str = "modelled/ladder_h200") -> list[dict[str, Any]]:
    """The launches of ``book/results/<name>.json``, whose time was modelled; none without a file.

    Each has ``kernel``, ``M``, ``N``, ``K``, ``dtype``, ``modelled_us`` (microseconds) and
    ``bound`` (in words).
    """
    path = _file(name)
    return json.loads(path.read_text(encoding="utf-8"))["launches"] if path is not None else []


def _file(name: str) -> Path | None:
    from mlsys_gpu import benchmarking

    folder = benchmarking.results_directory()
    path = folder / f"{name.removesuffix('.json')}.json" if folder else None
    return path if path is not None and path.is_file() else None


def source_path(kernel: str) -> Path:
    """The file of a kernel such as ``gemm/hopper/step9-dynamic``; it may be missing."""
    return KERNELS / f"{kernel.replace('-', '_')}.py"


def source_state(row: Row, path_of: Callable[[str], Path] = source_path) -> str:
    """``current``, ``stale`` (the source changed since it was measured) or ``unknown``."""
    recorded = row.get("source_sha256")
    try:
        source = path_of(row["kernel"]).read_bytes()
    except FileNotFoundError:
        return "unknown"
    if not recorded:
        return "unknown"
    return "current" if hashlib.sha256(source).hexdigest() == recorded else "stale"


def kernel_title(kernel: str) -> str:
    """``gemm/hopper/step9-dynamic`` for a reader: ``Step 9, dynamic``."""
    last = kernel.rsplit("/", 1)[-1]
    match = re.fullmatch(r"step(\d+)(?:[-_](\w+))?", last)
    if match is None:
        return last.replace("_", " ")
    return f"Step {match[1]}" + (f", {match[2]}" if match[2] else "")


def _order(kernel: str) -> tuple[int, int, str]:
    """The ladder's order: steps, a variant behind its step, ``tuned`` at the end."""
    match = re.search(r"/step(\d+)(?:[-_](\w+))?$", kernel)
    if match is None:
        return 99, 1, kernel
    return int(match[1]), int(match[2] is not None), kernel


def _shape_of(row: Row) -> Shape | None:
    return (row["M"], row["N"], row["K"]) if all(name in row for name in "MNK") else None


def _flop(row: Row) -> int:
    return 2 * row["M"] * row["N"] * row["K"]


def chosen_rows(
    data: Mapping[str, Any],
    kernels: list[str] | None = None,
    dtype: str | None = None,
    shapes: list[str] | None = None,
) -> list[dict[str, Any]]:
    """Rows of a result file by kernel, dtype and shape (``"4096,4096,4096"``); all by default.

    Raises ValueError naming a kernel, dtype or shape that no row has.
    """
    rows = data["rows"]
    shape_of = {id(row): ",".join(str(row.get(k)) for k in "MNK") for row in rows}
    tests: list[tuple[list[str], Callable[[dict[str, Any]], Any]]] = [
        (kernels or [], lambda row: row["kernel"]),
        ([dtype] if dtype else [], lambda row: row.get("dtype")),
        (shapes or [], lambda row: shape_of[id(row)]),
    ]
    for wanted, value in tests:
        for one in wanted:
            if not any(value(row) == one for row in rows):
                raise ValueError(f"no row has {one}")
        rows = [row for row in rows if not wanted or value(row) in wanted]
    return rows


# ------------------------------------------------------------------------------------------ tables


def _shape(row: Row) -> str:
    words = []
    for names in (("M", "N", "K"), ("M", "N"), ("R", "C"), ("n",)):  # sizes
        if all(name in row for name in names):
            words.append("\u00a0×\u00a0".join(str(row[name]) for name in names))
            break
    names = ("batch", "heads", "kv_heads", "seqlen", "head_dim")
    options = ("ctas", "clusters", "stages", "padding", "count")
    words += [f"{name.replace('_', ' ')} {row[name]}" for name in names + options if name in row]
    return ", ".join(words + (["causal"] if row.get("causal") else []))


def number(value: float | None, digits: int = 3) -> str:
    """A figure for a reader: three digits, and never a power of ten."""
    if value is None:
        return "–"
    return f"{value:.{digits}g}" if abs(value) < 100 else f"{value:,.0f}"


def _time(row: Row) -> str:
    """Median and spread of a row, in the unit that reads best."""
    unit, scale = ("µs", 1000.0) if row["ms"] < 0.1 else ("ms", 1.0)
    text = f"{row['ms'] * scale:.3g} {unit}"
    if "ms_p20" in row:
        text += f"<br>({row['ms_p20'] * scale:.3g}–{row['ms_p80'] * scale:.3g})"
    return text


Column = tuple[str, Callable[[Row], str]]


def _ratio(row: Row, name: str) -> str:
    """How much faster than a baseline of the same run."""
    other = row.get("baseline", {}).get(name, {}).get("ms")
    return "–" if not other or not row.get("ms") else f"{other / row['ms']:.3g}"


def baselines(rows: Iterable[Row]) -> list[str]:
    """The baselines that any row has, in the order in which they are told of."""
    found = {name for row in rows for name in row.get("baseline", {})}
    return sorted(found, key=lambda name: [*BASELINES, name].index(name))


def _ratios(rows: Sequence[Row]) -> list[Column]:
    return [
        (f"× {BASELINES.get(name, name)}", partial(_ratio, name=name)) for name in baselines(rows)
    ]


def _code(row: Row) -> str:
    return f"<code>{html.escape(row['kernel'])}</code>{html.escape(_options(row))}"


def _options(row: Row) -> str:
    """How a kernel was built, where that is not usual: `` without stream``."""
    return "".join(
        f" {name} {', '.join(value) if isinstance(value, list) else value}"
        for name, value in row.get("options", {}).items()
    )


def _columns(rows: list[dict[str, Any]]) -> list[Column]:
    """Columns that these rows can fill: a benchmark's, or a comparison with the simulator's."""
    columns: list[Column] = [
        ("kernel", _code),
        ("shape", lambda row: html.escape(_shape(row))),
    ]
    if len({row.get("dtype") for row in rows}) > 1:
        columns.append(("dtype", lambda row: html.escape(row.get("dtype", ""))))
    if any("ms" in row for row in rows):
        columns += [
            ("time (p20–p80)", _time),
            ("TFLOP/s", lambda row: number(row.get("tflops"))),
        ]
    if any("gb_per_s" in row for row in rows):
        columns.append(("GB/s", lambda row: number(row.get("gb_per_s"))))
    if any("tflops_per_sm" in row for row in rows):
        columns.append(("TFLOP/s per SM", lambda row: number(row.get("tflops_per_sm"))))
    columns += _ratios(rows)
    if any(row.get("timing") == "graph" for row in rows):
        columns.append(("timed as", lambda row: _TIMINGS.get(row.get("timing", ""), "–")))
    if any("max_error" in row and "ms" not in row for row in rows):
        columns.append(("largest error / bound", lambda row: number(row.get("max_error"))))
    columns += [
        (tool, partial(_sanitized, tool=tool))
        for tool in ("memcheck", "racecheck", "synccheck")
        if any(tool in row for row in rows)
    ]
    if any("differing" in row for row in rows):
        columns += [
            ("elements", lambda row: f"{row['elements']:,}"),
            ("differing", lambda row: f"{row['differing']:,}"),
            (
                "largest difference, in units of the largest partial sum's last place",
                lambda row: number(row.get("max_partial_sum_ulps")),
            ),
        ]
    return columns


def _sanitized(row: Row, tool: str) -> str:
    """What a tool of compute-sanitizer said of a kernel."""
    found = row.get(tool, {})
    counts = [
        f"{count} {what if count > 1 else what[:-1]}"
        for what in ("errors", "warnings")
        if (count := found.get(what))
    ]
    return html.escape(": ".join(filter(None, [found.get("verdict", "–"), ", ".join(counts)])))


_TIMINGS = {"graph": "graph replay", "stream": "launches"}

_STATES = {
    "current": "unchanged since",
    "stale": '<span class="mg-badge mg-badge-stale" title="the kernel\'s file has changed since '
    'this was measured">stale</span>',
    "unknown": "not recorded",
}


def _with_state(
    columns: list[Column], rows: Iterable[Row], path_of: Callable[[str], Path]
) -> list[Column]:
    """The columns, and one that says which rows are stale, where any is."""
    if {source_state(row, path_of) for row in rows} <= {"current"}:
        return columns
    return [*columns, ("source", lambda row: _STATES[source_state(row, path_of)])]


def _cell(content: str) -> str:
    """A cell of a table: figures stay on one line, and what is a sentence wraps."""
    words = len(re.sub(r"<[^>]*>", "", content)) > 24 and "<br>" not in content
    return f'<td class="mg-long">{content}</td>' if words else f"<td>{content}</td>"


def _table(
    rows: Sequence[Row],
    columns: Sequence[Column],
    label: str,
    path_of: Callable[[str], Path] = source_path,
) -> str:
    header = "".join(f'<th scope="col">{html.escape(name)}</th>' for name, _ in columns)
    body = "".join(
        f'<tr class="mg-{source_state(row, path_of)}">'
        + "".join(_cell(cell(row)) for _, cell in columns)
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="mg-scroll" tabindex="0" role="group" aria-label="{html.escape(label)}">'
        f'<table class="mg-table"><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table>'
        "</div>"
    )


def _text(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """The same table as lines of text."""

    def plain(markup: str) -> str:
        return html.unescape(re.sub(r"<[^>]*>", "", markup.replace("<br>", " ")))

    lines = [[name for name, _ in columns]]
    lines += [[plain(cell(row)) for _, cell in columns] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _runs(provenance: Mapping[str, Any], rows: Iterable[Row]) -> list[Mapping[str, Any]]:
    """Where these rows come from: their runs, where a file holds the rows of several."""
    every = provenance.get("runs")
    if not every:
        return [provenance] if provenance else []
    ids = dict.fromkeys(row.get("run") for row in rows)
    return [every[one] for one in ids if one in every]


def provenance_note(provenance: Mapping[str, Any], rows: Iterable[Row], source: str = "") -> str:
    """A line such as ``NVIDIA H200, 2026-11-30, float16``: GPU, days and the one dtype."""
    rows = list(rows)
    runs = _runs(provenance, rows)
    gpus = dict.fromkeys(str(run.get("gpu", {}).get("name", source)) for run in runs)
    days = sorted({str(run.get("date", ""))[:10] for run in runs})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}" if days else ""
    dtypes = {row["dtype"] for row in rows if "dtype" in row}
    one = dtypes if len(dtypes) == 1 else set()
    return ", ".join(filter(None, [*(gpus or [source]), when, *one]))


def provenance_html(provenance: Mapping[str, Any], rows: Iterable[Row]) -> str:
    """All that is known of where the rows come from, folded away."""
    lists = []
    for run in _runs(provenance, rows):
        facts = "".join(
            f"<div><dt>{html.escape(str(k).replace('_', ' '))}</dt>"
            f"<dd>{html.escape(_plain(v))}</dd></div>"
            for k, v in run.items()
            if k != "runs"
        )
        lists.append(f'<dl class="mg-facts">{facts}</dl>')
    if not lists:
        return ""
    return f"<details><summary>Where these figures come from</summary>{''.join(lists)}</details>"


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_plain(v)}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(_plain(v) for v in value)
    text = str(value)
    return f"{text[:12]}…" if re.fullmatch(r"[0-9a-f]{64}", text) else text


def recorded_html(
    data: Mapping[str, Any],
    rows: list[dict[str, Any]],
    source: str,
    *,
    badge: str = "recorded",
    path_of: Callable[[str], Path] = source_path,
) -> str:
    """Table of rows of a result file with provenance and staleness, as HTML.

    source: what the table is called. badge: ``recorded`` or ``measured``.
    """
    columns = _with_state(_columns(rows), rows, path_of)
    provenance = data.get("provenance", {})
    note = provenance_note(provenance, rows, source)
    kernels = " ".join(dict.fromkeys(row["kernel"] for row in rows))
    return (
        f'<div class="mg-recorded" data-origin="{badge}" data-kernels="{html.escape(kernels)}">'
        f"{figures.badge_html(badge, note)}"
        f"{_table(rows, columns, f'Results, {source}', path_of)}"
        f"{provenance_html(provenance, rows)}</div>"
    )


class Shown(Html):
    """Rows as a cell shows them. Attributes: ``rows``, ``provenance``, ``origin``.

    ``origin`` is ``"measured"`` (by this cell), ``"recorded"``, or ``"modelled"``; ``""`` where
    there is nothing to show but why. Without rows it is false.
    """

    def __init__(
        self,
        markup: str,
        text: str,
        rows: Sequence[Row] = (),
        provenance: Mapping[str, Any] | None = None,
        origin: str = "",
    ):
        super().__init__(markup, text)
        self.rows = list(rows)
        self.provenance = dict(provenance or {})
        self.origin = origin

    def __bool__(self) -> bool:
        return bool(self.rows)


def _absent(what: str) -> Shown:
    return Shown(f'<p class="mg-note">{html.escape(what)}</p>', what)


# ---------------------------------------------------------------------------- the benchmark's cell


def benchmarked(
    kernels: Any,
    shapes: Sequence[Shape] | None = None,
    dtype: str = "float16",
    *,
    seconds: float = 0.3,
    source: str = MEASURED,
) -> Shown:
    """The benchmark cell of a chapter: measured here where there is the GPU for it, else recorded.

    kernels: a step of the ladder (``mg.gemm.step(4, arch="hopper")``) or several. shapes: ``(M, N,
    K)`` of each measurement; if left out, the step's own where it is measured, and every recorded
    one where it is not. seconds: for how long a row takes samples. source: the result file that
    stands in (``book/results/<source>.json``). So that the cell is quick, what it measures is
    compared with cuBLAS and the plain Triton kernel as it is, not tuned.
    The table says where its rows come from, and which are stale. Raises what
    :func:`mlsys_gpu.benchmark` raises for shapes and dtypes that a kernel cannot take, and for
    outputs that are wrong.
    """
    from mlsys_gpu import benchmarking
    from mlsys_gpu.device import NeedsGpu

    try:
        made = benchmarking.benchmark(
            kernels, shapes, dtype, seconds=seconds, baselines=("cublas", "triton"), tune=False
        )
    except NeedsGpu as error:
        made = benchmarking.Unavailable(str(error))
    if isinstance(made, benchmarking.Benchmark):
        return _shown(made, made.rows, "measured here", "measured")
    wanted = kernels if isinstance(kernels, Sequence) else [kernels]
    names = [getattr(k, "name", str(k)) for k in wanted]
    recorded = results(source)
    rows = [
        row
        for row in recorded.rows
        if row["kernel"] in names
        and row.get("dtype") == dtype
        and not row.get("options")
        and (shapes is None or _shape_of(row) in {tuple(shape) for shape in shapes})
    ]
    reason = f"Not measured here: {made.reason}"
    if not rows:
        return _absent(f"{reason} Nor is there a recorded figure of {', '.join(names)} yet.")
    shown = _shown(recorded, rows, source, "recorded")
    shown.markup = f'<p class="mg-note">{html.escape(reason)}</p>{shown.markup}'
    shown.text = f"{reason}\n{shown.text}"
    return shown


def _shown(data: Benchmark, rows: list[dict[str, Any]], name: str, origin: str) -> Shown:
    markup = recorded_html(data.to_dict(), rows, name, badge=origin)
    columns = _with_state(_columns(rows), rows, source_path)
    note = provenance_note(data.provenance, rows, name)
    text = f"[{figures.BADGES[origin]}: {note}]\n{_text(rows, columns)}"
    return Shown(markup, text, rows, data.provenance, origin)


# ------------------------------------------------------------------------------------- the ladder


def _given(rows: Any) -> tuple[list[Row], Mapping[str, Any]]:
    """Rows and provenance of what a picture is to show; :data:`MEASURED` where it says nothing."""
    if rows is None or isinstance(rows, str):
        rows = results(rows or MEASURED)
    found, provenance = (rows.rows, rows.provenance) if hasattr(rows, "rows") else (rows, {})
    # What was built with options, to see what they do, is no step of a ladder.
    return [row for row in found if not row.get("options")], provenance


def _at(rows: Iterable[Row], dtype: str, arch: str | None, shape: Shape | None) -> dict[str, Row]:
    """kernel -> its last row of a dtype, architecture and shape, in the ladder's order."""
    found = {
        row["kernel"]: row
        for row in rows
        if row.get("dtype") == dtype
        and (arch is None or f"/{arch}/" in row["kernel"])
        and (shape is None or _shape_of(row) == tuple(shape))
    }
    return {kernel: found[kernel] for kernel in sorted(found, key=_order)}


class Rungs:
    """What a ladder shows: one entry a kernel, in order, measured, modelled or both.

    Attributes: ``rows`` (kernel -> measured row), ``launches`` (kernel -> modelled launch),
    ``cited`` (kernel -> a published figure), ``kernels`` in order, ``provenance``.
    """

    def __init__(
        self,
        rows: Any,
        shape: Shape,
        dtype: str,
        arch: str | None,
        launches: Any,
        cited: Iterable[Row],
        per_sm: bool,
    ):
        listed, self.provenance = _given(rows)
        self.rows = _at(listed, dtype, arch, shape)
        if per_sm:  # a step that takes one tile alone stands there with its own, largest shape
            own = sorted(
                (r for r in listed if r["kernel"] not in self.rows and _shape_of(r)), key=_flop
            )
            self.rows |= _at(own, dtype, arch, None)
        if launches is True:
            launches = modelled()
        elif isinstance(launches, str):
            launches = modelled(launches)
        self.launches = _at(launches or (), dtype, arch, shape)
        self.cited = _at(cited, dtype, arch, shape)
        every = self.rows | self.launches | self.cited
        self.kernels = sorted(every, key=_order)
        self.shape, self.dtype = tuple(shape), dtype

    def modelled_tflops(self, kernel: str) -> float | None:
        launch = self.launches.get(kernel)
        return None if launch is None else _flop(launch) / launch["modelled_us"] / 1e6

    def cited_tflops(self, kernel: str) -> float | None:
        one = self.cited.get(kernel)
        if one is None:
            return None
        return one["tflops"] if "tflops" in one else _flop(one) / one["ms"] / 1e9

    def state(self, kernel: str) -> str:
        """``stale`` where the measured row or the modelled launch is older than the source."""
        of = [found[kernel] for found in (self.rows, self.launches) if kernel in found]
        return "stale" if any(source_state(one) == "stale" for one in of) else "current"

    @property
    def badges(self) -> str:
        """Where the figures come from, as badges."""
        found = []
        if self.rows:
            note = provenance_note(self.provenance, self.rows.values())
            found.append(figures.badge_html("recorded", note))
        if self.launches:
            found.append(figures.badge_html("modelled", "not measured"))
        if any(self.state(kernel) == "stale" for kernel in self.kernels):
            found.append(_STATES["stale"])
        return " ".join(found)

    @property
    def nothing(self) -> Shown:
        size = " × ".join(map(str, self.shape))
        return _absent(f"No figures at {size}, {self.dtype}, are in this copy of the course yet.")


def ladder(
    rows: Any = None,
    shape: Shape = CUBE,
    dtype: str = "float16",
    *,
    arch: str | None = None,
    value: str = "tflops",
    modelled: Any = None,
    cited: Iterable[Row] = (),
    title: str | None = None,
    alt: str | None = None,
) -> Picture | Shown:
    """The ladder at one shape: a bar for each step and variant, and the baselines of the same run.

    rows: a ``Benchmark``, rows of one, or the name of a result file (``"h200/gemm"``, which it is
    where nothing is given). arch: ``"hopper"`` or ``"blackwell"``; all that the rows hold if left
    out. value: ``tflops``, or ``tflops_per_sm``, which compares Steps 1 and 2, at their own shape,
    with the rest (and shows no baselines: a row does not say how many SMs they used).
    modelled: modelled launches, as a list or the name of their file; True for those of the H200.
    They are hatched, and never stand where a measured figure is claimed. cited: published figures,
    each with ``kernel``, ``M``, ``N``, ``K``, ``dtype``, ``tflops`` or ``ms``, and ``source``.
    Returns a sentence instead of a picture where there is nothing to draw, or no matplotlib.
    Raises ValueError for another ``value``.
    """
    if value not in ("tflops", "tflops_per_sm"):
        raise ValueError(f"value is {value!r}; there are tflops, tflops_per_sm")
    rungs = Rungs(rows, shape, dtype, arch, modelled, cited, value == "tflops_per_sm")
    if not rungs.kernels:
        return rungs.nothing
    return _drawn(lambda charts: charts.ladder(rungs, value, title, alt))


def ladder_table(
    rows: Any = None,
    shape: Shape = CUBE,
    dtype: str = "float16",
    *,
    arch: str | None = None,
    modelled: Any = None,
    cited: Iterable[Row] = (),
) -> Shown:
    """:func:`ladder` as a table: time and spread, gain over the step before, ratios, provenance.

    Arguments are those of :func:`ladder`. A gain compares a step with the one before it and a
    variant with its step; a ratio above 1 is faster than that baseline in the same run.
    """
    rungs = Rungs(rows, shape, dtype, arch, modelled, cited, per_sm=False)
    if not rungs.kernels:
        return rungs.nothing
    lines = [
        {"kernel": k, **rungs.launches.get(k, {}), **rungs.rows.get(k, {})} for k in rungs.kernels
    ]
    measured = list(rungs.rows.values())
    columns: list[Column] = [("step", lambda row: html.escape(kernel_title(row["kernel"])))]
    if measured:
        columns += [
            ("time (p20–p80)", lambda row: _time(row) if "ms" in row else "–"),
            ("TFLOP/s", lambda row: number(row.get("tflops"))),
            ("gain", partial(_gain, rungs=rungs)),
            *_ratios(measured),
        ]
    if rungs.launches:
        columns.append(
            ("TFLOP/s, modelled", lambda row: number(rungs.modelled_tflops(row["kernel"])))
        )
        if measured:
            columns.append(("model's error in time", partial(_error, rungs=rungs)))
        columns.append(("bound by, modelled", lambda row: html.escape(row.get("bound", "–"))))
    if rungs.cited:
        columns += [
            ("TFLOP/s, published", lambda row: number(rungs.cited_tflops(row["kernel"]))),
            ("published by", partial(_published_by, rungs=rungs)),
        ]
    if any(rungs.state(kernel) == "stale" for kernel in rungs.kernels):
        columns.append(("source", lambda row: _STATES[rungs.state(row["kernel"])]))
    size = "\u00a0×\u00a0".join(map(str, rungs.shape))
    name = f"{size}, {dtype}"
    kernels = html.escape(" ".join(rungs.kernels))
    markup = (
        f'<div class="mg-recorded" data-kernels="{kernels}"><p>{rungs.badges} {name}</p>'
        f"{_table(lines, columns, f'The ladder at {name}')}"
        f"{provenance_html(rungs.provenance, measured)}</div>"
    )
    text = f"{name}\n{_text(lines, columns)}"
    origin = "recorded" if measured else "modelled" if rungs.launches else ""
    return Shown(markup, text, lines, rungs.provenance, origin)


def _gain(row: Row, rungs: Rungs) -> str:
    """Against the step before; of a variant and of tuned, against the last step."""
    number, variant, _ = _order(row["kernel"])
    steps = {_order(k)[0]: r for k, r in rungs.rows.items() if not _order(k)[1]}
    lower = [n for n in steps if n < number + (variant and number != 99)]
    if "ms" not in row or not lower:
        return "–"
    before = max(lower)
    words = "" if before in (number, number - 1) else f" ({kernel_title(steps[before]['kernel'])})"
    return f"× {steps[before]['ms'] / row['ms']:.3g}{words}"


def _error(row: Row, rungs: Rungs) -> str:
    launch = rungs.launches.get(row["kernel"])
    if launch is None or "ms" not in row:
        return "–"
    return f"{100 * (launch['modelled_us'] / (1e3 * row['ms']) - 1):+.1f} %"


def _published_by(row: Row, rungs: Rungs) -> str:
    one = rungs.cited.get(row["kernel"])
    return "–" if one is None else html.escape(str(one.get("source", "")))


# ------------------------------------------------------------------------------------ additions

ADDITIONS = "h200/additions"


def gains(rows: Any = None, dtype: str = "float16") -> dict[str, dict[Shape, float]]:
    """What each addition of the tuned kernel gives: its name -> shape -> time without over with.

    rows: a ``Benchmark``, rows, or the name of a result file (``"h200/additions"``, which it is
    where nothing is given), as ``scripts/h200/additions.py`` writes it; or modelled launches, or
    the name of their file (``"modelled/additions_b200"``, of ``scripts/b200/model.py``). ``""``
    names all of them together. Above 1, the addition makes the kernel faster.
    """
    listed = [row for row in _additions(rows)[0] if row["dtype"] == dtype]
    whole = {(row["kernel"], _shape_of(row)): _time_of(row) for row in listed if not _without(row)}
    every = {name for row in listed for name in _without(row)}
    found: dict[str, dict[Shape, float]] = {}
    for row in sorted(listed, key=lambda row: row["M"]):
        without, shape = _without(row), _shape_of(row)
        if not without or (row["kernel"], shape) not in whole or shape is None:
            continue
        name = without[0] if len(without) == 1 else "" if set(without) == every else None
        if name is not None:
            found.setdefault(name, {})[shape] = _time_of(row) / whole[row["kernel"], shape]
    return found


def _additions(rows: Any) -> tuple[Sequence[Row], Mapping[str, Any]]:
    """The rows, and the provenance of those that were measured."""
    if isinstance(rows, str) and rows.startswith("modelled/"):
        rows = modelled(rows)
    elif rows is None or isinstance(rows, str):
        rows = results(rows or ADDITIONS)
    return getattr(rows, "rows", rows), getattr(rows, "provenance", {})


def _without(row: Row) -> Sequence[str]:
    return row.get("without") or row.get("options", {}).get("without", [])


def _time_of(row: Row) -> float:
    """Milliseconds, measured or modelled."""
    return row["ms"] if "ms" in row else 1e-3 * row["modelled_us"]


def additions_table(
    rows: Any = None, dtype: str = "float16", *, words: Mapping[str, str] | None = None
) -> Shown:
    """:func:`gains` as a table, a line for each addition and a column for each shape.

    words: what each addition is (``mg.gemm.tuned("hopper").module.ADDITIONS``). A table of modelled
    launches says so.
    """
    given, provenance = _additions(rows)
    listed = [row for row in given if row["dtype"] == dtype]
    found = gains(listed, dtype)
    if not found:
        return _absent("The gain of each addition has not been measured yet.")
    measured = all("ms" in row for row in listed)
    shapes = sorted({shape for of in found.values() for shape in of}, key=lambda s: s[0])
    titles = [
        f"{M}³" if M == N == K else "\u00a0×\u00a0".join(map(str, (M, N, K))) for M, N, K in shapes
    ]
    words = words or {}
    header = ["addition", *(["what it is"] if words else []), *titles]
    names = [name for name in [*words, *found] if name in found and name]
    lines = [
        [
            name or "all together",
            *([words.get(name, "")] if words else []),
            *(f"× {found[name][s]:.3f}" if s in found[name] else "–" for s in shapes),
        ]
        for name in [*dict.fromkeys(names), *([""] if "" in found else [])]
    ]
    same = "in the same run" if measured else "as modelled"
    caption = f"Time without the addition over time with it, {same}; above × 1 it helps"
    markup = (
        f'<div class="mg-recorded"><p>{_badges(provenance, listed, measured)}</p>'
        f'<div class="mg-scroll" tabindex="0" role="group" aria-label="{html.escape(caption)}">'
        f"{figures.table_html(header, lines, caption)}</div>"
        f"{provenance_html(provenance, listed) if measured else ''}</div>"
    )
    text = "\n".join(" | ".join(line) for line in [header, *lines])
    origin = "recorded" if measured else "modelled"
    return Shown(markup, f"{caption}\n{text}", listed, provenance, origin)


def _drawn(draw: Callable[[Any], Any]) -> Any:
    """A picture; its absence in words, where matplotlib is missing."""
    try:
        charts = importlib.import_module(".charts", __package__)
    except ImportError:
        return _absent("This picture needs matplotlib, which is not installed here.")
    return draw(charts)


# --------------------------------------------------------------------------------- ratios over size


def ratios(
    rows: Any = None,
    kernels: Sequence[str] | None = None,
    dtype: str = "float16",
    *,
    against: str = "cublas",
) -> dict[str, dict[int, float]]:
    """How fast each kernel is against a baseline of the same run, for cubes: name -> n -> ratio.

    kernels: their names (``gemm/hopper/step9``); if left out, Step 9, its variants and ``tuned``,
    or the last step where none of these has rows. The other baselines stand there too, as measured
    beside the last of the kernels. A ratio above 1 is faster.
    """
    listed, _ = _given(rows)
    cubes = [r for r in listed if r.get("M") == r.get("N") == r.get("K") and r["dtype"] == dtype]
    if kernels is None:
        known = sorted({r["kernel"] for r in cubes}, key=_order)
        kernels = [k for k in known if _order(k)[0] >= 9] or known[-1:]
    found: dict[str, dict[int, float]] = {}
    for row in sorted(cubes, key=lambda row: row["M"]):
        base = row.get("baseline", {}).get(against, {}).get("ms")
        if row["kernel"] not in kernels or not base:
            continue
        found.setdefault(row["kernel"], {})[row["M"]] = base / row["ms"]
        if row["kernel"] == kernels[-1]:
            for name, other in row["baseline"].items():
                if name != against and other.get("ms"):
                    found.setdefault(name, {})[row["M"]] = base / other["ms"]
    order = [*kernels, *baselines(cubes)]
    return {name: found[name] for name in sorted(found, key=order.index)}


def _used(rows: Any, kernels: Iterable[str], dtype: str) -> tuple[list[Row], Mapping[str, Any]]:
    listed, provenance = _given(rows)
    names = set(kernels)
    cubes = [r for r in listed if r["kernel"] in names and r["dtype"] == dtype]
    return [r for r in cubes if r.get("M") == r.get("N") == r.get("K")], provenance


def _badges(provenance: Mapping[str, Any], rows: Sequence[Row], measured: bool = True) -> str:
    if measured:
        found = figures.badge_html("recorded", provenance_note(provenance, rows))
    else:
        found = figures.badge_html("modelled", "not measured")
    stale = any(source_state(row) == "stale" for row in rows)
    return f"{found} {_STATES['stale']}" if stale else found


def sizes(
    rows: Any = None,
    kernels: Sequence[str] | None = None,
    dtype: str = "float16",
    *,
    against: str = "cublas",
    title: str | None = None,
    alt: str | None = None,
) -> Picture | Shown:
    """Ratio to cuBLAS over the sizes of cubes, for the last kernels of the ladder and Triton's.

    Arguments are those of :func:`ratios`, which computes what is drawn; title and alt those of
    every picture. Returns a sentence where there is nothing to draw, or no matplotlib.
    """
    found = ratios(rows, kernels, dtype, against=against)
    if not found:
        return _absent("No figures over several sizes are in this copy of the course yet.")
    used, provenance = _used(rows, found, dtype)
    names = {name: BASELINES.get(name, kernel_title(name)) for name in found}
    note = _badges(provenance, used)
    other = BASELINES.get(against, against)
    return _drawn(lambda charts: charts.sizes(found, names, other, note, title, alt))


def sizes_table(
    rows: Any = None,
    kernels: Sequence[str] | None = None,
    dtype: str = "float16",
    *,
    against: str = "cublas",
) -> Shown:
    """:func:`sizes` as a table: a line for each size, a column for each kernel; the geometric mean
    over the sizes stands below."""
    import math

    found = ratios(rows, kernels, dtype, against=against)
    if not found:
        return _absent("No figures over several sizes are in this copy of the course yet.")
    used, provenance = _used(rows, found, dtype)
    every = sorted({n for of in found.values() for n in of})
    header = ["M = N = K", *(BASELINES.get(name, kernel_title(name)) for name in found)]
    lines = [
        [str(n), *(f"{of[n]:.3f}" if n in of else "–" for of in found.values())] for n in every
    ]
    means = [math.exp(sum(map(math.log, of.values())) / len(of)) for of in found.values()]
    lines.append(["geometric mean", *(f"{mean:.3f}" for mean in means)])
    other = BASELINES.get(against, against)
    caption = f"Speed as a multiple of {other}'s in the same run; above 1 is faster"
    table = figures.table_html(header, lines, caption)
    markup = (
        f'<div class="mg-recorded"><p>{_badges(provenance, used)}</p>'
        f'<div class="mg-scroll" tabindex="0" role="group" aria-label="{html.escape(caption)}">'
        f"{table}</div>{provenance_html(provenance, used)}</div>"
    )
    text = "\n".join("  ".join(cell.ljust(18) for cell in line) for line in [header, *lines])
    return Shown(markup, f"{caption}\n{text}", used, provenance, "recorded")


# ------------------------------------------------------------------------------------ the roofline


def roofline(
    rows: Any = None,
    shape: Shape | None = CUBE,
    dtype: str = "float16",
    *,
    arch: str | None = None,
    kernels: Sequence[str] | None = None,
    intensity: Mapping[str, float] | Callable[[Row], float] | None = None,
    traffic: str = "memory",
    bandwidth: str = "hbm_copy_gbps",
    title: str | None = None,
    alt: str | None = None,
) -> Picture | Shown:
    """The kernels of the ladder under the roof of the GPU that measured them.

    rows, dtype, arch: as for :func:`ladder`. shape: one shape, or None for all of them. kernels:
    which to show, by name; all if left out. intensity: FLOP per byte of each kernel (a mapping by
    name, or a function of a row); if left out, the shape's own: its FLOP over A, B and D once each.
    traffic: what those bytes cross, in a word, and bandwidth: the constant of the GPU's calibration
    (``book/results/<gpu>/calibration.json``, in GB/s) that says how fast they do; it is the slope
    of the roof.

    The flat roof is the tensor cores' at the GPU's highest clock, with a dashed one at the lowest
    clock that was seen while these rows were measured. Returns a sentence where there is nothing to
    draw, or no matplotlib. Raises ValueError where the GPU's roof or bandwidth is not recorded.
    """
    from mlsys_gpu import device

    listed, provenance = _given(rows)
    chosen = [
        row
        for row in sorted(listed, key=lambda row: _order(row["kernel"]))
        if row.get("dtype") == dtype
        and _shape_of(row) is not None
        and (shape is None or _shape_of(row) == tuple(shape))
        and (arch is None or f"/{arch}/" in row["kernel"])
        and (kernels is None or row["kernel"] in kernels)
    ]
    if not chosen:
        return _absent("No figures to put under a roof are in this copy of the course yet.")
    gpu = provenance.get("gpu", {})
    rate = device.TENSOR_FLOP_PER_CLOCK_PER_SM.get(gpu.get("arch"))
    if not rate or not gpu.get("clock_khz"):
        raise ValueError(f"the roof of {gpu.get('name', 'an unknown GPU')} is not known")
    per_mhz = rate * gpu["multiprocessors"] / 1e6  # TFLOP/s for each MHz
    clocks = [row["sm_clock_mhz"] for row in chosen if row.get("sm_clock_mhz")]
    roofs = {
        "highest": per_mhz * gpu["clock_khz"] / 1e3,
        "seen": per_mhz * min(clocks) if clocks else None,
    }

    def at(row: Row) -> float:
        if callable(intensity):
            return intensity(row)
        if intensity is not None:
            return intensity[row["kernel"]]
        M, N, K = row["M"], row["N"], row["K"]
        return _flop(row) / (2 * (M * K + N * K + M * N))

    points = [
        (kernel_title(row["kernel"]) + ("" if shape else f", {row['M']}"), at(row), row["tflops"])
        for row in chosen
        if intensity is None or callable(intensity) or row["kernel"] in intensity
    ]
    slope = _bandwidth(gpu, bandwidth)
    note = _badges(provenance, chosen)
    return _drawn(lambda charts: charts.roofline(points, roofs, slope, traffic, note, title, alt))


def _bandwidth(gpu: Mapping[str, Any], name: str) -> float:
    """Measured bandwidth of a GPU in TB/s, from the calibration of its kind."""
    from mlsys_gpu import device

    path = _file(f"{device.short_name(str(gpu.get('name')))}/calibration")
    constants = json.loads(path.read_text(encoding="utf-8"))["constants"] if path else {}
    if name not in constants:
        raise ValueError(f"{name} of {gpu.get('name', 'an unknown GPU')} is not recorded")
    return constants[name]["value"] / 1e3
