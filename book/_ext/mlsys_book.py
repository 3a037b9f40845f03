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
import json
import os
import re
import shutil
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

from mlsys_gpu.viz import figures, measurements

ROOT = Path(__file__).resolve().parents[2]
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
        path = measurements.source_path(name)
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
            rows = measurements.chosen_rows(
                data, kernels, self.options.get("dtype"), [s for s in shapes if s]
            )
        except ValueError as error:
            text = f"book/results/{name}: {error}"
            return [self.state.document.reporter.error(text, line=self.lineno)]
        name = name.removesuffix(".json")
        markup = measurements.recorded_html(data, rows, name, path_of=kernel_path)
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
    # Three times what the longest page takes on two idle cores.
    app.add_config_value("mlsys_page_seconds", 360, "", [int, float])
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
