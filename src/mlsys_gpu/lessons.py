"""What the chapters do with the steps of the ladder: run them, break them, look into them.

Each function shows one thing in a notebook and works in plain Python too. Numbers come from the
simulator, the compiler, a GPU or a committed result file, and every output says from which.
"""

from __future__ import annotations

import functools
import html
import importlib.util
import itertools
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlsys_gpu import benchmarking, device, launch, sim, verification
from mlsys_gpu.kernels import gemm
from mlsys_gpu.viz.figures import Html, badge, table_html

__all__ = [
    "ABSENT",
    "COUNTED",
    "Change",
    "attempt",
    "changed",
    "counted",
    "diagnose",
    "drawn",
    "inspected",
    "megahertz",
    "recorded",
    "residents",
    "run",
    "table",
    "tensor_share",
    "turns",
    "waits",
]

#: One change of a source: text that occurs once, and what stands there instead.
Change = tuple[str, str]


def _show(what: Any) -> None:
    """Put something out where the reader is: in a notebook as HTML, elsewhere as text."""
    try:
        from IPython.display import display
    except ImportError:
        print(what)
    else:
        display(what)


def table(header: Sequence[Any], rows: Sequence[Sequence[Any]], caption: str = "") -> Html:
    """A table for a page; lines of text where there is no HTML."""
    # A shape stays on one line, and so does a number with its unit.
    whole = [
        [
            re.sub(r" (?=[×µ])|(?<=×) |(?<=\d) (?=[KM]iB$|MHz$)", "\u00a0", str(cell))
            for cell in line
        ]
        for line in [header, *rows]
    ]
    text = "\n".join(" | ".join(line) for line in whole)
    return Html(table_html(whole[0], whole[1:], caption), text)


def drawn(draw: Callable[[Any], Any]) -> Any:
    """What ``draw(viz.static)`` returns; a sentence instead where matplotlib is not installed."""
    try:
        from mlsys_gpu.viz import static

        return draw(static)
    except ImportError:
        text = "This picture needs matplotlib, which is not installed here."
        return Html(f"<p>{text}</p>", text)


def inspected(kernel: Any, what: str) -> Any:
    """An artifact of a kernel: ``cuda``, ``ptx``, ``sass`` or ``resources``.

    None, with a line that says why, where a tool that it needs is not installed.
    """
    from mlsys_gpu import artifacts

    try:
        return getattr(artifacts.inspect(kernel), what)
    except artifacts.MissingTool as missing:
        print(missing)
        return None


# --- Run -----------------------------------------------------------------------------------------


def run(step: Any, M: int, N: int, K: int, dtype: str = "float16", **options: Any) -> Any:
    """Run a step where this machine can, show one line about it, and return the outcome.

    On a GPU of the step's architecture it runs there, else in the simulator. D is filled with NaN
    before, and compared with a float64 product after. ``options`` go to the step's ``build``, and
    what it raises is raised.
    """
    import torch

    gpu = device.current() if torch.cuda.is_available() else None
    here = gpu is not None and gpu.family == step.arch
    where: dict[str, Any] = {"device": "cuda" if here else "cpu", "dtype": getattr(torch, dtype)}
    torch.manual_seed(M + N + K)
    A = torch.randn(M, K).to(**where)
    B = torch.randn(N, K).to(**where)
    D = torch.full((M, N), torch.nan, **where)
    outcome = launch.run(step.build(M, N, K, dtype, **options), A, B, D)
    verdict = verification.compare_gemm_tensors(A, B, D)
    more = "".join(f", {name} = {value}" for name, value in options.items())
    text = f"{M} × {N} × {K} {dtype}{more}: {verdict}"
    found = getattr(outcome, "findings", None)
    if found is not None:
        text += "; no findings" if not found else f"; {len(found)} findings"
    badges = badge("measured" if here else "simulated").markup
    if step.arch == "blackwell" and not benchmarking.silicon("blackwell"):
        badges += " " + badge("not-on-silicon").markup
    markup = f"<p>{badges} <code>{step.name}</code>, {html.escape(text)}</p>"
    _show(Html(markup, f"{step.name}, {text}"))
    return outcome


#: What :func:`counted` shows, and what it calls it.
COUNTED = {
    "global_load_bytes": "bytes loaded from global memory",
    "shared_store_bytes": "bytes stored to shared memory",
    "mma_instructions": "MMA instructions",
    "mma_operand_bytes": "operand bytes that the MMAs read",
    "mma_flop": "FLOP of the MMAs",
    "global_store_bytes": "bytes stored to global memory",
}


def counted(number: int, M: int, N: int, K: int, words: Mapping[str, str] = COUNTED) -> Html:
    """A table of the simulator's counters of a step, both architectures side by side.

    ``words`` maps names of :attr:`mlsys_gpu.sim.Report.counters` to what the table calls them.
    """
    found = {}
    for arch in gemm.ARCHS:
        A, B = verification.gemm_inputs(M, N, K)
        kernel = gemm.step(number, arch=arch).build(M, N, K)
        found[arch] = sim.simulate(kernel, A, B, verification.poisoned((M, N))).counters
    rows = [
        [text, *(f"{found[arch].get(name, 0):,}" for arch in gemm.ARCHS)]
        for name, text in words.items()
    ]
    _show(badge("simulated"))
    return table([f"{M} × {N} × {K}", *(arch.capitalize() for arch in gemm.ARCHS)], rows)


# --- Break ---------------------------------------------------------------------------------------

_numbers = itertools.count(1)


@functools.cache
def _scratch() -> tempfile.TemporaryDirectory:
    # Files of changed steps live as long as the process: diagnoses quote their lines.
    return tempfile.TemporaryDirectory()


def changed_source(text: str, changes: Sequence[Change]) -> str:
    """A source with each change made.

    Raises ValueError where a text to change does not occur exactly once, or where a change would
    give the lines behind it other numbers: a diagnosis must point into the listing.
    """
    for line, instead in changes:
        if text.count(line) != 1:
            raise ValueError(f"{line!r} occurs {text.count(line)} times; it must occur once")
        if line.count("\n") != instead.count("\n"):
            raise ValueError(f"{instead!r} has another number of lines than {line!r}")
        text = text.replace(line, instead)
    return text


@functools.cache
def _module(step: Any, changes: tuple[Change, ...]) -> Any:
    text = changed_source(step.source_path.read_text(encoding="utf-8"), changes)
    number = next(_numbers)
    path = Path(_scratch().name) / str(number) / step.source_path.name
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"changed_{number}_{step.number}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def changed(step: Any, *changes: Change) -> Any:
    """The module of a step with its source changed; its lines keep their numbers.

    ``changes``: pairs of a text that occurs once in the source and what stands there instead.
    Raises ValueError for a text that does not occur exactly once.
    """
    return _module(step, changes)


@functools.cache
def _program(step: Any, shape: tuple[int, int, int], changes: tuple[Change, ...]) -> sim.Program:
    # A chapter shows a change under several schedules, and again in its table of faults.
    return sim.compile(changed(step, *changes).build(*shape))


def attempt(
    step: Any, shape: tuple[int, int, int], *changes: Change, **options: Any
) -> tuple[Any, verification.Comparison]:
    """Simulate a changed step: its report, and how D compares with float64.

    ``shape``: (M, N, K); float16. ``options`` go to :func:`mlsys_gpu.simulate`. Raises ValueError
    as :func:`changed` does.
    """
    A, B = verification.gemm_inputs(*shape)
    D = verification.poisoned(shape[:2])
    report = sim.simulate(_program(step, shape, changes), A, B, D, **options)
    return report, verification.compare_gemm(A, B, D)


def diagnose(step: Any, shape: tuple[int, int, int], *changes: Change, **options: Any) -> None:
    """Show a change of a step, what came out of it, and what the simulator says.

    Parameters and errors as :func:`attempt`.
    """
    before = step.source_path.read_text(encoding="utf-8")
    after = changed_source(before, changes)
    report, verdict = attempt(step, shape, *changes, **options)
    _show(badge("simulated", f"{step.arch}, {report.schedule} schedule"))
    lines = []
    for number, (old, new) in enumerate(
        zip(before.splitlines(), after.splitlines(), strict=True), 1
    ):
        if old != new:
            lines += [f"{step.source_path.name}, line {number}:"]
            lines += [f"- {old.strip()}", f"+ {new.strip()}"]
    lines.append(f"D is {verdict}")
    kinds: dict[str, list[Any]] = {}
    for finding in report.findings:
        kinds.setdefault(finding.code, []).append(finding)
    for code, (first, *more) in kinds.items():
        lines += ["", f"[{code}] at {first.location}: {first.message}"]
        if first.location and first.location.text:
            lines.append(f"    {first.location.line} | {first.location.text.strip()}")
        lines.append(f"  fix: {first.fix}")
        if more:
            lines.append(f"  ({len(more)} more of this kind)")
    if not kinds:
        lines += ["", "no findings"]
    text = "\n".join(lines)
    whole = f"<details><summary>The whole report</summary>{report._repr_html_()}</details>"
    _show(
        Html(
            f'<div class="mg-report"><pre style="white-space: pre-wrap">{html.escape(text)}</pre>'
            f"{whole if kinds else ''}</div>",
            text,
        )
    )


# --- Look ----------------------------------------------------------------------------------------

ABSENT = "No figures from an H200 are in this copy of the course yet."


def recorded(
    *kernels: str, dtype: str = "float16", file: str = "h200/gemm.json"
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows of a committed result file and its provenance, with a badge; ``[], {}`` without one."""
    folder = benchmarking.results_directory()
    path = folder / file if folder else None
    if path is None or not path.is_file():
        return [], {}
    result = benchmarking.load(path)
    rows = [row for row in result.rows if row["kernel"] in kernels and row["dtype"] == dtype]
    stale = " (older than the kernel)" if any(map(benchmarking.is_stale, rows)) else ""
    note = f"{result.provenance['gpu']['name']}, {result.provenance['date'][:10]}{stale}"
    _show(badge("recorded", note))
    return rows, result.provenance


def megahertz(row: dict[str, Any], provenance: dict[str, Any]) -> float:
    """The SM clock that a row was measured at; the GPU's highest where it was not noted."""
    return row.get("sm_clock_mhz") or provenance["gpu"]["clock_khz"] / 1e3


def tensor_share(row: dict[str, Any], provenance: dict[str, Any]) -> float:
    """Part of the clocks in which the tensor cores work, of a measured row; 0 to 1.

    FLOP of the product over what all tensor cores could do in that time, at the SM clock that was
    seen meanwhile (the GPU's highest, where none was noted).
    """
    gpu = provenance["gpu"]
    clocks = row["ms"] * 1e3 * megahertz(row, provenance) * gpu["multiprocessors"]
    rate = device.TENSOR_FLOP_PER_CLOCK_PER_SM[gpu["arch"]]
    return 2 * row["M"] * row["N"] * row["K"] / (clocks * rate)


def turns(timing: Any) -> dict[str, float]:
    """The K loop on a modelled timeline's first SM, in cycles.

    ``load``: from the first TMA load of a K tile until all of its bytes are there, where nothing
    else is under way; ``mma``: the tensor core's work on a K tile; ``turn``: from one K tile's MMAs
    to the next one's, in the mean. For kernels that load A and B by one TMA load each. Raises
    ValueError for a timeline of fewer than two K tiles.
    """
    spans: dict[str, list[list[float]]] = {}
    for track in timing.timeline()["tracks"]:
        sm, _, engine = track["id"].partition("/")
        if track["kind"] == "engine" and sm == "sm0":
            spans[engine] = sorted(span[:2] for span in track["spans"])
    products, loads = spans.get("tensor", []), spans.get("tma-load", [])
    if len(products) < 2 or len(loads) != 2 * len(products):
        raise ValueError(f"{len(products)} K tiles and {len(loads)} TMA loads make no K loop")
    whole = [
        max(a[1], b[1]) - min(a[0], b[0]) for a, b in zip(loads[::2], loads[1::2], strict=True)
    ]
    return {
        "load": min(whole),
        "mma": min(t1 - t0 for t0, t1 in products),
        "turn": (products[-1][0] - products[0][0]) / (len(products) - 1),
    }


def waits(*timings: Any) -> Html:
    """A table of modelled launches: how busy the units are, and what each role waits for.

    ``timings``: what :func:`mlsys_gpu.model` returns, or ``timing`` of a timed report.
    """
    rows = []
    for timing in timings:
        found = timing.statistics()
        for number, role in enumerate(found["roles"]):
            parts = [
                f"{name} {cycles / role['cycles']:.0%}"
                for name, cycles in role["waits"].items()
                if cycles >= 0.02 * role["cycles"]
            ]
            first = number == 0
            rows.append(
                [
                    timing.program.name.removeprefix("gemm_") if first else "",
                    f"{timing.microseconds:.1f} µs" if first else "",
                    f"{found['busy']['tensor cores']:.0%}" if first else "",
                    f"{found['busy']['L2']:.0%}" if first else "",
                    found["occupancy"]["ctas_per_sm"] if first else "",
                    role["name"].replace(" TMA", "\u00a0TMA"),
                    ", ".join(parts) or "–",
                ]
            )
    _show(badge("modelled", ", ".join(dict.fromkeys(t.gpu for t in timings))))
    return table(
        ["kernel", "time", "tensor cores", "L2", "CTAs on an SM", "role", "waits for"], rows
    )


# Of an SM of either architecture: registers, bytes of shared memory, threads (CUDA C++ Programming
# Guide, compute capabilities 9.0 and 10.0); columns of TMEM (PTX ISA, tensor memory).
REGISTERS, SHARED, THREADS, COLUMNS = 65536, 228 * 1024, 2048, 512


@functools.cache
def residents(step: Any) -> tuple[dict[str, Any], dict[str, int]]:
    """What a CTA of a step needs, and how many fit on an SM by each resource.

    Both are empty where the compiler that counts registers is not installed.
    """
    needs = inspected(step.build(4096, 4096, 4096), "resources")
    if needs is None:
        return {}, {}
    registers = -(-needs["registers"] // 8) * 8  # handed out in eights
    shared = needs["dynamic_shared_bytes"] + 1024  # 1 KiB is CUDA's own
    fit = {
        "registers": REGISTERS // (registers * needs["threads"]),
        "shared memory": SHARED // shared,
        "threads": THREADS // needs["threads"],
    }
    if step.arch == "blackwell":
        fit["tensor memory"] = COLUMNS // step.module.TMEM_COLS
    return needs, fit
