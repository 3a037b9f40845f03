"""The course's Sphinx extension: listings, diffs, badges, recorded results, and fresh outputs.

Directives ``kernel``, ``kernel-diff`` and ``recorded``, role ``badge`` (how to write them is in
``mlsys_gpu.viz``). Besides that it

* gives a chapter its number, taken from the file's name (``12-building-a-tiled-gemm.md``);
* hands the figures' style and code to every page;
* moves the notebook cache to a folder named after a hash of what the cells depend on, and re-reads
  every page when that hash changes: jupyter-cache hashes cells alone, Sphinx a page's text alone,
  and neither sees an edit of ``src/mlsys_gpu``;
* names the empty corners of tables for screen readers;
* warns about a page whose cells together take longer than ``mlsys_page_seconds``.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import html
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.directives.code import LiteralInclude, container_wrapper
from sphinx.transforms import SphinxTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective, SphinxRole

from mlsys_gpu.viz import figures

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "src" / "mlsys_gpu" / "kernels"
RESULTS = ROOT / "book" / "results"
log = logging.getLogger(__name__)

# ------------------------------------------------------------------------------ fresh outputs

#: What the output of a cell may depend on, besides the cell.
INPUTS = (
    "src/mlsys_gpu",
    "exercises",
    "solutions",
    "book/results",
    "book/_ext",
    "requirements.txt",
)


def inputs_hash(root: Path = ROOT) -> str:
    """SHA-256 (first 16 hex digits) of everything that cells depend on, the GPU included."""
    digest = hashlib.sha256()
    for name in INPUTS:
        top = root / name
        files = [top] if top.is_file() else sorted(p for p in top.rglob("*") if p.is_file())
        for path in files:
            if "__pycache__" in path.parts or path.suffix == ".pyc":
                continue
            digest.update(str(path.relative_to(root)).encode() + b"\0")
            digest.update(path.read_bytes() + b"\0")
    # Cells measure live where there is a GPU, so a page simulated elsewhere is another page.
    driver = Path("/proc/driver/nvidia/version")
    digest.update(driver.read_bytes() if driver.exists() else b"no GPU")
    return digest.hexdigest()[:16]


def keep_outputs_fresh(app: Sphinx, config: Config) -> None:
    key = inputs_hash()
    caches = Path(app.outdir).parent / ".jupyter_cache"
    if caches.is_dir():
        for old in caches.iterdir():
            if old.name != key:
                shutil.rmtree(old, ignore_errors=True)
    config.nb_execution_cache_path = str(caches / key)
    config.mlsys_inputs_hash = key  # an "env" value: another one makes Sphinx read all pages
    os.environ[figures.BOOK_VARIABLE] = "1"  # kernels inherit it
    # A page that shows how a check answers is no attempt of the reader's.
    os.environ["MLSYS_GPU_PROGRESS"] = "off"


def check_page_time(app: Sphinx, env: Any) -> None:
    limit = app.config.mlsys_page_seconds
    for docname in env.found_docs:
        data = env.nb_metadata.get(docname, {}).get("exec_data")
        seconds = (data or {}).get("runtime")
        if seconds and seconds > limit:
            log.warning(
                "the cells of this page took %.3g s; the limit is %g s",
                seconds,
                limit,
                location=docname,
            )


# ------------------------------------------------------------------------------ chapter numbers


class ChapterNumber(SphinxTransform):
    """Puts the number in the file's name before the page's title, unless it is there already."""

    default_priority = 205

    def apply(self, **kwargs: Any) -> None:
        match = re.match(r"(\d+)-", Path(self.env.docname).name)
        if not match:
            return
        title = next(iter(self.document.findall(nodes.title)), None)
        if title is not None and not re.match(r"\d+\b", title.astext()):
            title.insert(0, nodes.Text(f"{int(match.group(1))}. "))


class NamedCorners(SphinxTransform):
    """A word, for screen readers alone, in a table's empty corner above its row titles."""

    default_priority = 800

    def apply(self, **kwargs: Any) -> None:
        for entry in self.document.findall(nodes.entry):
            if isinstance(entry.parent.parent, nodes.thead) and not entry.astext().strip():
                word = nodes.inline("", "row", classes=["mg-hidden"])
                entry.children = []
                entry += nodes.paragraph("", "", word)


# ------------------------------------------------------------------------------ listings


def kernel_path(name: str) -> Path:
    """File of a kernel (``gemm/hopper/step1``), or of a source named from the repository's root."""
    group = name.partition("/")[0]
    if name.endswith(".py"):
        path = ROOT / name
    elif group == "fixtures":
        path = ROOT / "tests/sim" / f"{name}.py"
    elif group == "micro":  # kernels of a few lines, in one file
        path = ROOT / "tests/sim/fixtures/hopper_micro.py"
    else:
        path = KERNELS / f"{name}.py"
    if not path.is_file():
        raise FileNotFoundError(f"no source {path.relative_to(ROOT)}")
    return path


def without_docstring(source: str) -> list[str]:
    """Lines of a module with its docstring left out; the lines before and after stay."""
    lines = source.splitlines(keepends=True)
    first = ast.parse(source).body[:1]
    if (
        first
        and isinstance(first[0], ast.Expr)
        and isinstance(first[0].value, ast.Constant)
        and isinstance(first[0].value.value, str)
    ):
        del lines[first[0].lineno - 1 : first[0].end_lineno]
    while lines and not lines[0].strip():
        del lines[0]
    return lines


def _essence(line: str) -> str:
    """A line without its indentation, and a ruled comment without the rule that fills it up."""
    return re.sub(r"\s*-{3,}$", "", line.strip())


def kernel_diff(old: Path, new: Path, context: int = 3) -> tuple[list[str], dict[str, int]]:
    """What changes between two kernels, docstrings apart.

    Returns the lines of a unified diff and how many are ``added``, ``removed`` and ``moved``.
    A line that only got another indentation, because a loop or a condition was put around it, is
    no change of its own: it is shown once, at its new place, with ``~`` before it.
    """
    before = without_docstring(old.read_text(encoding="utf-8"))
    after = without_docstring(new.read_text(encoding="utf-8"))
    # Empty lines, closing brackets and the like match anywhere; only longer lines may anchor.
    matcher = difflib.SequenceMatcher(
        lambda line: len(line) < 3,
        [_essence(line) for line in before],
        [_essence(line) for line in after],
        autojunk=False,
    )
    count = {"added": 0, "removed": 0, "moved": 0}
    rows: list[tuple[str, str, int, int]] = []  # mark, text, line in old, line in new
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            for i, j in zip(range(i1, i2), range(j1, j2), strict=True):
                moved = before[i] != after[j]
                count["moved"] += moved
                rows.append(("~" if moved else " ", after[j], i, j))
            continue
        rows += [("-", before[i], i, j1) for i in range(i1, i2)]
        rows += [("+", after[j], i2, j) for j in range(j1, j2)]
        count["removed"] += i2 - i1
        count["added"] += j2 - j1
    near = [False] * len(rows)
    for at, row in enumerate(rows):
        if row[0] != " ":
            for k in range(max(0, at - context), min(len(rows), at + context + 1)):
                near[k] = True
    lines: list[str] = []
    for at, (mark, text, i, j) in enumerate(rows):
        if not near[at]:
            continue
        if at == 0 or not near[at - 1]:
            lines.append(f"@@ line {i + 1} -> line {j + 1} @@\n")
        lines.append(mark + text)
    return lines, count


def _relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


class Kernel(LiteralInclude):
    """Listing of a kernel's file, or of a part of it; takes ``literalinclude``'s options."""

    option_spec: ClassVar[dict] = {**LiteralInclude.option_spec, "part": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        try:
            path = kernel_path(self.arguments[0].strip())
        except FileNotFoundError as error:
            return [self.state.document.reporter.error(str(error), line=self.lineno)]
        self.arguments[0] = "/" + os.path.relpath(path, self.env.srcdir)
        part = self.options.pop("part", None)
        if part:
            self.options["pyobject"] = part
        self.options.setdefault("language", "python")
        self.options.setdefault("caption", f"`{_relative(path)}`" + (f", {part}" if part else ""))
        self.options.setdefault("class", ["mg-listing"])
        return super().run()


class KernelDiff(SphinxDirective):
    """What changes from one kernel's file to another's, docstrings apart."""

    required_arguments = 2
    option_spec: ClassVar[dict] = {
        "context": directives.nonnegative_int,
        "caption": directives.unchanged,
    }

    def run(self) -> list[nodes.Node]:
        try:
            old, new = (kernel_path(name) for name in self.arguments)
        except FileNotFoundError as error:
            return [self.state.document.reporter.error(str(error), line=self.lineno)]
        for path in (old, new):
            self.env.note_dependency(str(path))
        lines, count = kernel_diff(old, new, self.options.get("context", 3))
        text = "".join(lines) or "(no difference)\n"
        block = nodes.literal_block(text, text, language="diff", classes=["mg-diff"])
        self.set_source_info(block)
        counted = f"{count['added']} lines added, {count['removed']} removed"
        if count["moved"]:
            counted += f", {count['moved']} only indented anew (`~`)"
        default = f"`{_relative(old)}` → `{new.name}`: {counted}"
        caption = self.options.get("caption", default)
        return [container_wrapper(self, block, caption)]


# ------------------------------------------------------------------------------ badges, results


class Badge(SphinxRole):
    """``{badge}`recorded H200, 2026-11-30```: where an output comes from."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        kind, _, note = self.text.partition(" ")
        try:
            markup = figures.badge_html(kind, note.strip(" :,"))
        except ValueError as error:
            message = self.inliner.reporter.error(str(error), line=self.lineno)
            return [], [message]
        return [nodes.raw("", markup, format="html")], []


def source_state(row: dict[str, Any]) -> str:
    """``current``, ``stale`` (the source changed since it was measured) or ``unknown``."""
    recorded = row.get("source_sha256")
    try:
        path = kernel_path(row["kernel"])
    except FileNotFoundError:
        return "unknown"
    if not recorded:
        return "unknown"
    return "current" if hashlib.sha256(path.read_bytes()).hexdigest() == recorded else "stale"


#: How the baselines of a result file are spelled.
BASELINES = {
    "cublas": "cuBLAS",
    "cudnn": "cuDNN",
    "triton": "Triton",
    "flash_attention2": "FlashAttention-2",
}


def _shape(row: dict[str, Any]) -> str:
    words = []
    for names in (("M", "N", "K"), ("M", "N"), ("R", "C"), ("n",)):  # sizes
        if all(name in row for name in names):
            words.append(" × ".join(str(row[name]) for name in names))
            break
    names = ("batch", "heads", "kv_heads", "seqlen", "head_dim")
    options = ("ctas", "clusters", "stages", "padding", "count")
    words += [f"{name.replace('_', ' ')} {row[name]}" for name in names + options if name in row]
    return ", ".join(words + (["causal"] if row.get("causal") else []))


def _number(value: float | None, digits: int = 3) -> str:
    if value is None:
        return "–"
    return f"{value:.{digits}g}" if abs(value) < 100 else f"{value:,.0f}"


def _time(row: dict[str, Any]) -> str:
    """Median and spread of a row, in the unit that reads best."""
    unit, scale = ("µs", 1000.0) if row["ms"] < 0.1 else ("ms", 1.0)
    text = f"{row['ms'] * scale:.3g} {unit}"
    if "ms_p20" in row:
        text += f"<br>({row['ms_p20'] * scale:.3g}–{row['ms_p80'] * scale:.3g})"
    return text


Column = tuple[str, Callable[[dict[str, Any]], str]]


def _columns(rows: list[dict[str, Any]]) -> list[Column]:
    """Columns that these rows can fill: a benchmark's, or a comparison with the simulator's."""
    columns: list[Column] = [
        ("kernel", lambda row: f"<code>{html.escape(row['kernel'])}</code>"),
        ("shape", lambda row: html.escape(_shape(row))),
    ]
    if len({row.get("dtype") for row in rows}) > 1:
        columns.append(("dtype", lambda row: html.escape(row.get("dtype", ""))))
    if any("ms" in row for row in rows):
        columns += [
            ("time (p20–p80)", _time),
            ("TFLOP/s", lambda row: _number(row.get("tflops"))),
        ]
    if any("gb_per_s" in row for row in rows):
        columns.append(("GB/s", lambda row: _number(row.get("gb_per_s"))))
    if any("tflops_per_sm" in row for row in rows):
        columns.append(("TFLOP/s per SM", lambda row: _number(row.get("tflops_per_sm"))))
    for name in sorted({name for row in rows for name in row.get("baseline", {})}):

        def ratio(row: dict[str, Any], name: str = name) -> str:
            other = row.get("baseline", {}).get(name, {}).get("ms")
            return "–" if not other else f"{other / row['ms']:.3g}"

        columns.append((f"× {BASELINES.get(name, name)}", ratio))
    if any("differing" in row for row in rows):
        columns += [
            ("elements", lambda row: f"{row['elements']:,}"),
            ("differing", lambda row: f"{row['differing']:,}"),
            (
                "largest difference, in units of the largest partial sum's last place",
                lambda row: _number(row.get("max_partial_sum_ulps")),
            ),
        ]
    return columns


_STATES = {
    "current": "unchanged since",
    "stale": '<span class="mg-badge mg-badge-stale" title="the kernel\'s file has changed since '
    'this was measured">stale</span>',
    "unknown": "not recorded",
}


def chosen_rows(
    data: dict[str, Any],
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


def recorded_html(data: dict[str, Any], rows: list[dict[str, Any]], source: str) -> str:
    """Table of rows of a result file with provenance and staleness, as HTML."""
    columns = _columns(rows)
    states = {source_state(row) for row in rows}
    if states != {"current"}:
        columns.append(("source", lambda row: _STATES[source_state(row)]))
    header = "".join(f'<th scope="col">{html.escape(name)}</th>' for name, _ in columns)
    body = "".join(
        f'<tr class="mg-{source_state(row)}">'
        + "".join(f"<td>{cell(row)}</td>" for _, cell in columns)
        + "</tr>"
        for row in rows
    )
    provenance = data.get("provenance", {})
    facts = "".join(
        f"<div><dt>{html.escape(str(k).replace('_', ' '))}</dt>"
        f"<dd>{html.escape(_plain(v))}</dd></div>"
        for k, v in provenance.items()
    )
    gpu = provenance.get("gpu", {}).get("name", source)
    dtypes = {row["dtype"] for row in rows if "dtype" in row}
    day = str(provenance.get("date", ""))[:10]
    note = ", ".join(filter(None, [gpu, day, *(dtypes if len(dtypes) == 1 else ())]))
    return (
        f'<div class="mg-recorded">{figures.badge_html("recorded", note)}'
        f'<div class="mg-scroll" tabindex="0" role="group" aria-label="Results, {source}">'
        f'<table class="mg-table"><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table>'
        "</div>"
        f'<details><summary>Where these figures come from</summary><dl class="mg-facts">{facts}'
        "</dl></details></div>"
    )


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_plain(v)}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(_plain(v) for v in value)
    text = str(value)
    return f"{text[:12]}…" if re.fullmatch(r"[0-9a-f]{64}", text) else text


class Recorded(SphinxDirective):
    """Rows of ``book/results/<gpu>/<name>.json`` with their provenance; stale rows are marked."""

    required_arguments = 1
    option_spec: ClassVar[dict] = {
        "kernels": directives.unchanged,
        "dtype": directives.unchanged,
        "shapes": directives.unchanged,
        "plot": lambda value: directives.choice(value, ("ladder", "ladder-per-sm")),
        "title": directives.unchanged,
    }

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        path = RESULTS / name
        if not path.is_file():
            gpu = Path(name).parts[0].upper()
            text = f"No figures from {gpu} have been recorded yet: book/results/{name} is missing."
            return [nodes.note("", nodes.paragraph("", text))]
        self.env.note_dependency(str(path))
        data = json.loads(path.read_text(encoding="utf-8"))
        kernels = [k.strip() for k in self.options.get("kernels", "").split(",") if k.strip()]
        shapes = self.options.get("shapes", "").replace(" ", "").split(";")
        try:
            rows = chosen_rows(data, kernels, self.options.get("dtype"), [s for s in shapes if s])
        except ValueError as error:
            text = f"book/results/{name}: {error}"
            return [self.state.document.reporter.error(text, line=self.lineno)]
        markup = recorded_html(data, rows, name.removesuffix(".json"))
        if "plot" in self.options:
            from mlsys_gpu.viz import static

            value = "tflops_per_sm" if self.options["plot"] == "ladder-per-sm" else "tflops"
            picture = static.ladder(rows, value=value, title=self.options.get("title"))
            markup = picture._repr_html_() + markup
        return [nodes.raw("", markup, format="html")]


# ------------------------------------------------------------------------------ set-up


def add_assets(app: Sphinx, config: Config) -> None:
    config.html_static_path.append(str(figures.ASSETS))
    app.add_css_file("viz-figure.css")
    app.add_css_file("book.css")
    app.add_js_file("book.js")
    for script in ("viz-core.js", *figures.KINDS.values()):
        app.add_js_file(script, loading_method="defer")


def trim_scripts(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Drop Thebe (it would ask another host) and whatever a page was given twice."""
    seen = set()
    kept = []
    for script in context.get("script_files", []):
        body = getattr(script, "attributes", {}).get("body", "")
        key = (str(getattr(script, "filename", script)), body)
        if key in seen or "thebe" in f"{key[0]} {body}".lower():
            continue
        seen.add(key)
        kept.append(script)
    context["script_files"] = kept


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_config_value("mlsys_inputs_hash", "", "env", [str])
    app.add_config_value("mlsys_page_seconds", 180, "", [int, float])
    app.connect("config-inited", keep_outputs_fresh)
    app.connect("config-inited", add_assets)
    app.connect("env-updated", check_page_time)
    app.connect("html-page-context", trim_scripts, priority=900)
    app.add_transform(ChapterNumber)
    app.add_transform(NamedCorners)
    app.add_directive("kernel", Kernel)
    app.add_directive("kernel-diff", KernelDiff)
    app.add_directive("recorded", Recorded)
    app.add_role("badge", Badge())
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
