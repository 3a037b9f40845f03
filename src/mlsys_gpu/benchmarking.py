"""Measuring GEMM kernels on a GPU, next to cuBLAS and Triton.

How a row comes about (module :mod:`mlsys_gpu.measuring`):

* The outputs are checked against float64 first, on the tensors that are timed, poisoned before.
* Inputs are standard normal. There are as many sets of (A, B, D) as it takes to exceed twice the
  L2 cache, and every launch takes the next set, so that L2 serves no input.
* Triton's kernels are tuned: on the same tensors, each configuration of a small set is timed, and
  the fastest one measured. The row names it.
* A sample is some launches back to back between two CUDA events, about 5 ms of them. A kernel that
  only waits holds the GPU back until all of them are queued, so that the time is the GPU's and not
  the host's; a sample for which that failed is thrown away. Where a launch takes less than 50 µs,
  the launches are captured once as a CUDA graph, and a sample replays it; this goes for all
  contenders of a row alike, and the row says which it was (``"timing"``).
* Ours, cuBLAS and Triton take samples in turn, in a new random order each time (a GPU at its power
  limit is faster behind a kernel that spared it), in the same process, after a warm-up that brings
  the clocks to where they stay. The row holds the median, the 20th and the 80th percentile.
* A result faster than the tensor cores allow is refused.

A file of results holds rows and where they come from: GPU, driver, libraries, command, date, and
the SHA-256 of every kernel source. A file may hold the rows of several runs: each row says which
one is its own, and the provenance holds them all. :func:`load` reads a file back, :func:`is_stale`
says whether the kernel has changed since.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import html
import importlib.metadata
import json
import math
import os
import platform
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlsys_gpu import device, launch
from mlsys_gpu.device import Device, NeedsGpu
from mlsys_gpu.kernels.baselines import TITLES
from mlsys_gpu.measuring import (
    BASELINES,
    TIMINGS,
    Bench,
    Case,
    Options,
    compile_ahead,
    nvidia_smi,
    try_configurations,
)
from mlsys_gpu.measuring import (
    MeasurementError as MeasurementError,
)

if TYPE_CHECKING:
    from mlsys_gpu.kernels.gemm import Step

METHOD = (
    "outputs checked against float64 on the tensors that are timed; every launch takes the next "
    "of the input sets, which together exceed twice the L2 cache; Triton's configuration chosen by "
    "timing a set of them on the same tensors; samples of back-to-back launches between CUDA "
    "events, queued before the GPU starts on them, or replays of a graph of such launches where "
    "one takes less than 50 us; the kernel and its baselines take samples in turn, in a new "
    "random order each time, in one process; median, 20th and 80th percentile of samples"
)
INPUTS = "standard normal, A and B independent"


# ------------------------------------------------------------------------------------ what is run


def source_sha256(kernel: str) -> str | None:
    """SHA-256 of the source file of a kernel such as ``"gemm/hopper/step3"``; None if unknown."""
    found = step_of_name(kernel)
    return None if found is None else _sha256(found.source_path)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def step_of_name(kernel: str) -> Step | None:
    """The step or variant that results call so; None for a name that is none of theirs."""
    from mlsys_gpu.kernels import gemm

    return next((s for arch in gemm.ARCHS for s in gemm.everything(arch) if s.name == kernel), None)


def _step_of_symbol(symbol: str) -> Step | None:
    from mlsys_gpu.kernels import gemm

    return next(
        (s for arch in gemm.ARCHS for s in gemm.everything(arch) if s.symbol == symbol), None
    )


def _case_of_step(
    step: Step, shape: tuple[int, int, int], dtype: str, options: dict[str, Any]
) -> Case:
    step.check_shape(*shape, dtype)
    M, N, K = shape
    return Case(
        name=step.name,
        arch=device.ARCHITECTURES[step.arch],
        M=M,
        N=N,
        K=K,
        dtype=dtype,
        build=lambda: step.build(M, N, K, dtype, **options),
        source=step.source_path.name,
        source_sha256=_sha256(step.source_path),
        options=options,
    )


def _case_of_kernel(kernel: Any) -> Case:
    """A PrimFunc that was built already: its parameters say the shape."""
    from mlsys_gpu.lowering import arch_of, content_key, parameters

    params = parameters(kernel)
    shapes = [tuple(d for d in p.shape or () if isinstance(d, int)) for p in params]
    if [len(s) for s in shapes] != [2, 2, 2] or any(p.symbolic for p in params):
        raise ValueError(
            "benchmark measures GEMM kernels of a fixed shape, "
            "which take A [M, K], B [N, K], D [M, N]"
        )
    (M, K), (N, K2), out = shapes
    if K != K2 or out != (M, N):
        raise ValueError(f"A {shapes[0]}, B {shapes[1]} and D {out} are no GEMM D = A @ B.T")
    arch = arch_of(kernel)
    symbol = str(kernel.attrs["global_symbol"])
    step = _step_of_symbol(symbol)
    return Case(
        name=step.name if step else symbol,
        arch=arch,
        M=M,
        N=N,
        K=K,
        dtype=params[-1].dtype,
        build=lambda: kernel,
        source=step.source_path.name if step else symbol,
        source_sha256=_sha256(step.source_path) if step else content_key(kernel, arch),
    )


def cases(
    kernels: Any,
    shapes: Sequence[tuple[int, int, int]] | None,
    dtype: str | Sequence[str] | None,
) -> list[Case]:
    """Every kernel at every shape that it takes, in every dtype; shape by shape.

    A pair of a step and options for its module's ``build`` is that step built so. A step that takes
    none of ``shapes`` (Steps 1 and 2 compute one tile) is measured at its own.

    Raises ValueError for a shape that is none, or that neither a step takes that is given nor the
    last of its ladder, which takes the most.
    """
    alone = not isinstance(kernels, Sequence) or _is_pair(kernels)
    several: Sequence[Any] = [kernels] if alone else kernels
    dtypes = [dtype] if dtype is None or isinstance(dtype, str) else list(dtype)
    if not several:
        raise ValueError("there is no kernel to measure: kernels is empty")
    _check_shapes(several, shapes or ())
    found: list[Case] = []
    for given in several:
        kernel, options = given if _is_pair(given) else (given, {})
        if not hasattr(kernel, "build"):
            case = _case_of_kernel(kernel)
            if shapes is not None or dtypes not in ([None], [case.dtype]):
                raise ValueError(
                    "a built kernel has its shape and dtype: leave shapes and dtype out"
                )
            found.append(case)
            continue
        wanted = list(shapes) if shapes is not None else [kernel.default_shape]
        taken = [shape for shape in wanted if _takes(kernel, shape)]
        for shape in taken or [kernel.default_shape]:
            found += [
                _case_of_step(kernel, shape, one or "float16", dict(options)) for one in dtypes
            ]
    # Kernels that compute the same stand beside each other: what was made for one serves the next.
    order = {problem: i for i, problem in enumerate(dict.fromkeys(c.problem for c in found))}
    return sorted(found, key=lambda case: order[case.problem])


def _is_pair(kernel: Any) -> bool:
    """Whether it is a step with options, and no list of steps."""
    return isinstance(kernel, tuple) and len(kernel) == 2 and isinstance(kernel[1], dict)


def _check_shapes(kernels: Sequence[Any], shapes: Any) -> None:
    """Raise ValueError for a shape that nobody will take, so that none is left out in silence."""
    from mlsys_gpu.kernels import gemm

    if not isinstance(shapes, Sequence) or isinstance(shapes, str):
        raise ValueError(f"shapes is a list of (M, N, K), got {shapes!r}")
    given = [kernel[0] if _is_pair(kernel) else kernel for kernel in kernels]
    steps = [kernel for kernel in given if isinstance(kernel, gemm.Step)]
    for shape in shapes:
        sizes = tuple(shape) if isinstance(shape, Sequence) and not isinstance(shape, str) else ()
        if len(sizes) != 3 or not all(map(_is_size, sizes)):
            raise ValueError(f"a shape is three positive whole numbers (M, N, K), got {shape!r}")
        if steps and not any(_takes(step, sizes) for step in steps):
            gemm.steps(steps[0].arch)[-1].check_shape(*sizes)


def _takes(step: Step, shape: tuple[int, int, int]) -> bool:
    try:
        step.check_shape(*shape)
    except ValueError:
        return False
    return True


# ---------------------------------------------------------------------------------------- results


@dataclass
class Benchmark:
    """Measured rows and where they come from; draws itself as a table in a notebook.

    Attributes:
        rows: one for each kernel, shape and dtype.
        provenance: of the run; where rows of several runs are together, of the latest, and
            ``runs`` in it holds each by the name that rows call it by (``"run"``).
        failures: ``{"kernel", "M", "N", "K", "dtype", "error"}`` of what could not be measured; not
            part of a result file.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    provenance: dict[str, Any] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """``{"provenance": {…}, "rows": […]}``, as result files hold it."""
        return {"provenance": self.provenance, "rows": self.rows}

    def merged(self, newer: Benchmark) -> Benchmark:
        """These rows and those of a newer run, which replace the ones of the same measurement.

        Each row keeps the provenance of its own run.
        """
        runs, rows = self._runs()
        new_runs, new_rows = newer._runs()
        for name in new_runs.keys() & runs.keys():
            if runs[name] != new_runs[name]:  # begun in the same second
                spare = next(f"{name}-{n}" for n in range(2, 1000) if f"{name}-{n}" not in runs)
                new_runs[spare] = new_runs.pop(name)
                new_rows = [r | {"run": spare} if r["run"] == name else r for r in new_rows]
        latest = {_measurement(row): row for row in rows}
        # In the order of the older file, which is the reader's; what is new comes behind.
        latest |= {_measurement(row): row for row in new_rows}
        kept = list(latest.values())
        every = {
            name: run
            for name, run in (runs | new_runs).items()
            if any(row["run"] == name for row in kept)
        }
        failures = newer.failures
        if len(every) <= 1:
            kept = [{k: v for k, v in row.items() if k != "run"} for row in kept]
            return Benchmark(kept, next(iter(every.values()), newer.provenance), failures)
        last = max(every.values(), key=lambda run: str(run.get("date", "")))
        sources = {row["kernel"]: row["source_sha256"] for row in kept}
        return Benchmark(kept, last | {"sources": sources, "runs": every}, failures)

    def _runs(self) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
        """Runs by name, and rows that name theirs."""
        if "runs" in self.provenance:
            return dict(self.provenance["runs"]), self.rows
        name = str(self.provenance.get("date", "run"))
        return {name: self.provenance}, [row | {"run": name} for row in self.rows]

    def save(self, path: str | Path) -> Path:
        """Write a result file, and its folder where that is missing; all of it or nothing."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.name}.", delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
        with contextlib.suppress(OSError):  # a temporary file is its owner's alone
            os.chmod(file.name, path.stat().st_mode if path.exists() else 0o644)
        os.replace(file.name, path)
        return path

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Header and cells for a reader; times in milliseconds."""
        found = {name for row in self.rows for name in row["baseline"]}
        names = sorted(found, key=lambda name: [*TITLES, name].index(name))
        header = ["kernel", "M × N × K", "dtype", "ms (p20–p80)", "TFLOP/s", "per SM"]
        header += [f"× {TITLES.get(name, name)}" for name in names]
        cells = []
        for row in self.rows:
            line = [
                row["kernel"],
                f"{row['M']} × {row['N']} × {row['K']}",
                row["dtype"],
                f"{row['ms']:.4g} ({row['ms_p20']:.4g}–{row['ms_p80']:.4g})",
                f"{row['tflops']:.4g}",
                f"{row['tflops_per_sm']:.3g}",
            ]
            for name in names:
                other = row["baseline"].get(name)
                line.append("–" if other is None else f"{other['ms'] / row['ms']:.3g}")
            cells.append(line)
        return header, cells

    @property
    def caption(self) -> str:
        """Where and when the rows were measured."""
        gpu = self.provenance.get("gpu", {}).get("name", "an unknown GPU")
        return f"Measured on {gpu}, {self.provenance.get('date', '')}"

    def __str__(self) -> str:
        header, cells = self.table()
        widths = [max(len(line[i]) for line in [header, *cells]) for i in range(len(header))]
        lines = [
            "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
            for line in [header, *cells]
        ]
        return "\n".join([self.caption, *lines])

    def _repr_html_(self) -> str:
        header, cells = self.table()
        head = "".join(f"<th>{html.escape(text)}</th>" for text in header)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in line) + "</tr>"
            for line in cells
        )
        caption = f"<caption>{html.escape(self.caption)}</caption>"
        return (
            f'<table class="mg-table">{caption}<thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table>"
        )


def _measurement(row: dict[str, Any]) -> str:
    """What a row is a measurement of: kernel, shape, dtype."""
    keys = ("kernel", "M", "N", "K", "batch", "heads", "kv_heads", "seqlen", "head_dim", "causal")
    return json.dumps([row.get(key) for key in (*keys, "dtype", "options")])


def line(row: dict[str, Any]) -> str:
    """A row in a line for logs: time and spread, rates, ratios to the baselines, how it ran."""
    scale, unit = (1e3, "us") if row["ms"] < 0.1 else (1.0, "ms")
    options = f"{json.dumps(row['options'])} " if "options" in row else ""
    ratios = ", ".join(
        f"x {TITLES.get(name, name)} {other['ms'] / row['ms']:.3f}"
        for name, other in row["baseline"].items()
    )
    return (
        f"{row['kernel']} {options}{row['M']},{row['N']},{row['K']} {row['dtype']}: "
        f"{row['ms'] * scale:.4g} {unit} ({row['ms_p20'] * scale:.4g}-{row['ms_p80'] * scale:.4g})"
        f", {row['tflops']:.4g} TFLOP/s{', ' + ratios if ratios else ''}; {row.get('samples')} "
        f"samples of {row.get('launches_per_sample')} ({row.get('timing')}), "
        f"{row.get('sm_clock_mhz')} MHz, {row.get('power_w')} W"
    )


@dataclass(frozen=True)
class Unavailable:
    """In a notebook, what stands where a measurement would: why there is none. It is false."""

    reason: str
    rows: tuple[dict[str, Any], ...] = ()

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"Not measured: {self.reason}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f'<p class="mg-note"><strong>Not measured:</strong> {html.escape(self.reason)}</p>'


#: What every row of times has, and what a row of another comparison has.
_TIMED = {"kernel", "dtype", "ms", "ms_p20", "ms_p80", "tflops", "baseline", "source_sha256"}
_NAMED = {"kernel", "dtype"}


def load(path: str | Path, *, timed: bool = True) -> Benchmark:
    """Read a result file.

    Args:
        path: the file.
        timed: whether its rows hold times; those of ``right.json`` and ``simulator.json`` do not.

    Raises:
        ValueError: the file is no JSON, holds no ``provenance`` and ``rows``, or a row lacks a key
            that every row has, or has what is no figure there. The message names file and row.
        OSError: the file cannot be read.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # no UTF-8 is a ValueError, too
        raise ValueError(f"{path} is no result file: it is no JSON ({error})") from error
    if not isinstance(content, dict) or not {"provenance", "rows"} <= content.keys():
        raise ValueError(f"{path} is no result file: it needs provenance and rows")
    found, rows = content["provenance"], content["rows"]
    if not isinstance(found, dict) or not isinstance(rows, list):
        raise ValueError(f"{path} is no result file: provenance is an object, and rows are a list")
    runs = found.get("runs", {})
    if not isinstance(runs, dict) or not all(isinstance(run, dict) for run in runs.values()):
        raise ValueError(f"{path}: runs in provenance must be objects by name")
    for run in (found, *runs.values()):
        if not isinstance(run.get("gpu", {}), dict):
            raise ValueError(f"{path}: gpu in provenance must be an object, got {run['gpu']!r}")
    for number, row in enumerate(rows):
        if problem := _problem(row, timed, runs if "runs" in found else None):
            raise ValueError(f"{path}: row {number} {problem}")
    return Benchmark(rows=rows, provenance=found)


def _problem(row: Any, timed: bool, runs: dict[str, Any] | None) -> str | None:
    """What keeps an entry from being a row, in words; None where nothing does."""
    if not isinstance(row, dict):
        return f"must be an object, got {row!r}"
    if missing := (_TIMED if timed else _NAMED) - row.keys():
        return f"lacks {', '.join(sorted(missing))}"
    for key in ("kernel", "dtype"):
        if not isinstance(row[key], str):
            return f"has a {key} that is no text: {row[key]!r}"
    figures = {key: row[key] for key in ("ms", "ms_p20", "ms_p80", "tflops") if timed}
    if timed:
        if not isinstance(row["baseline"], dict):
            return f"has a baseline that is no object: {row['baseline']!r}"
        for name, other in row["baseline"].items():
            figures[f"ms of {name}"] = other.get("ms") if isinstance(other, dict) else str(other)
    for key, value in figures.items():
        if not _is_number(value) or not 0 < value < math.inf:
            return f"has no positive number as {key}: {value!r}"
    for key in "MNK":
        if key in row and not _is_size(row[key]):
            return f"has no positive whole number as {key}: {row[key]!r}"
    if runs is not None and row.get("run") not in runs:
        return f"names no run of provenance: {row.get('run')!r}"
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def earlier(path: str | Path, gpu: Device | None, *, timed: bool = True) -> Benchmark:
    """The rows of a file that a run on ``gpu`` is going to be merged into; none without a file.

    Raises what :func:`load` raises, and ValueError for figures of another GPU: those of two kinds
    do not stand in one file. Without a GPU (None) there will be nothing to merge.
    """
    if not Path(path).exists():
        return Benchmark()
    before = load(path, timed=timed)
    if gpu is not None and before.rows:
        for run in before._runs()[0].values():
            name = run.get("gpu", {}).get("name", "an unknown GPU")
            if name != gpu.name:
                raise ValueError(f"{path} holds figures of {name}, and this is {gpu.name}")
    return before


def is_stale(row: dict[str, Any]) -> bool:
    """Whether the kernel of a row has another source now than when it was measured."""
    return source_sha256(row["kernel"]) != row["source_sha256"]


def results_directory() -> Path | None:
    """``book/results`` of the checkout that this package runs from; None where there is none."""
    folder = Path(__file__).resolve().parents[2] / "book" / "results"
    return folder if folder.is_dir() else None


def silicon(arch: str) -> list[str]:
    """GPUs on which the kernels for ``arch`` were measured, by the committed result files.

    Empty for Blackwell means that its kernels have *not yet run on silicon*.
    """
    folder = results_directory()
    found = set()
    for path in sorted(folder.glob("*/*.json")) if folder else []:
        with contextlib.suppress(ValueError, OSError):
            result = load(path)
            gpu = result.provenance.get("gpu", {})
            if gpu.get("arch") == device.ARCHITECTURES[arch] and any(
                f"/{arch}/" in row["kernel"] for row in result.rows
            ):
                found.add(str(gpu.get("name")))
    return sorted(found)


# -------------------------------------------------------------------------------------- measuring


def benchmark(
    kernels: Any,
    shapes: Sequence[tuple[int, int, int]] | None = None,
    dtype: str | Sequence[str] | None = None,
    *,
    baselines: Sequence[str] = tuple(BASELINES),
    timing: str = "auto",
    tune: bool = True,
    together: bool = False,
    seconds: float = 2.0,
    seed: int = 0,
    command: str | None = None,
    processes: int = 1,
    keep_going: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
    after: Callable[[Benchmark], None] | None = None,
) -> Benchmark | Unavailable:
    """Measure GEMM kernels on this machine's GPU.

    Args:
        kernels: a step of the ladder (``mg.gemm.step(3, arch="hopper")``), a kernel built from
            one, a step with options of its module's ``build`` (``(mg.gemm.tuned("hopper"),
            {"without": ["stream"]})``), or several of any.
        shapes: ``(M, N, K)`` of each measurement, for steps; a step that takes none of them, and
            every step where it is left out, is measured at its own shape.
        dtype: ``"float16"`` or ``"bfloat16"``, or both, for steps.
        baselines: of ``"cublas"``, ``"triton"`` and ``"triton_persistent"``, measured in turn with
            the kernel.
        timing: ``"graph"`` replays a CUDA graph of launches, ``"stream"`` queues them one by one;
            ``"auto"`` takes graphs where a launch takes less than 50 µs.
        tune: choose Triton's configurations by measuring; else those that they have unasked.
        together: all kernels of a shape and dtype take samples in turn, with one set of baselines.
        seconds: how long to take samples for one row; five samples are taken in any case.
        seed: seed of the inputs.
        command: what provenance names as the command; by default this process's.
        processes: how many processes may compile kernels before they are measured.
        keep_going: note what cannot be measured in ``failures`` and go on with the next.
        progress: called before each measurement with its number from 0 on, how many there are, and
            what it is.
        after: called with all rows so far after each measurement.

    Returns:
        The rows. In a notebook on a machine without the GPU that is needed: an
        :class:`Unavailable`, which says what would be.

    Raises:
        NeedsGpu: outside a notebook, there is no GPU of the kernels' architecture.
        MeasurementError: outputs are wrong, or the time is less than the chip allows.
        ValueError: a shape or dtype that a kernel cannot take, or an option that there is not.
    """
    unknown = set(baselines) - set(BASELINES)
    if unknown:
        raise ValueError(f"baselines are {', '.join(BASELINES)}, got {sorted(unknown)[0]!r}")
    if timing not in TIMINGS:
        raise ValueError(f"timing is {', '.join(TIMINGS)}, got {timing!r}")
    if not _is_number(seconds) or not 0 < seconds < math.inf:
        raise ValueError(f"seconds must be a positive number, got {seconds!r}")
    if not isinstance(processes, int) or processes < 0:
        raise ValueError(f"processes must be a whole number from 0 on, got {processes!r}")
    wanted = cases(kernels, shapes, dtype)
    try:
        gpu = _gpu_for(wanted)
    except NeedsGpu as error:
        if _in_notebook():
            return Unavailable(str(error))
        raise
    sources = {case.name: case.source_sha256 for case in wanted}
    result = Benchmark(provenance=provenance(gpu, sources, command))
    result.provenance |= {"method": METHOD, "inputs": INPUTS}
    compile_ahead(wanted, processes)
    if tune:
        try_configurations(wanted, baselines, processes)
    bench = Bench(gpu, Options(tuple(baselines), timing, tune, seconds, seed))
    groups = _groups(wanted, together)
    for number, group in enumerate(groups):
        if progress is not None:
            M, N, K, kind = group[0].problem
            names = ", ".join(case.title for case in group)
            progress(number, len(groups), f"{names} {M},{N},{K} {kind}")
        for case, row in bench.measure(group):
            if isinstance(row, dict):
                result.rows.append(row)
            elif keep_going:
                shape = {"M": case.M, "N": case.N, "K": case.K, "dtype": case.dtype}
                words = f"{type(row).__name__}: {' '.join(str(row).split())}"
                result.failures.append({"kernel": case.title, **shape, "error": words})
            else:
                raise row
        if after is not None:
            after(result)
    return result


def _groups(wanted: list[Case], together: bool) -> list[list[Case]]:
    """Cases that are measured in turn with each other."""
    groups: list[list[Case]] = []
    for case in wanted:
        if together and groups and groups[-1][0].problem == case.problem:
            groups[-1].append(case)
        else:
            groups.append([case])
    return groups


def _gpu_for(wanted: list[Case]) -> Device:
    arches = sorted({case.arch for case in wanted})
    if len(arches) != 1:
        raise ValueError(f"kernels for one architecture at a time, got {', '.join(arches)}")
    gpu = device.require(arches[0], f"measuring {wanted[0].name}")
    launch.torch_with_cuda(f"measuring {wanted[0].name}")
    return gpu


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")


# ------------------------------------------------------------------------------------- provenance

_LIBRARIES = (
    "apache-tvm",
    "apache-tvm-ffi",
    "torch",
    "triton",
    "nvidia-cublas",
    "nvidia-cuda-nvrtc",
    "cuda-bindings",
    "numpy",
)


def library_versions() -> dict[str, str | None]:
    """Versions of what a result depends on; None for what is not installed."""
    import mlsys_gpu

    versions: dict[str, str | None] = {
        "mlsys-gpu": mlsys_gpu.__version__,
        "python": platform.python_version(),
    }
    for name in _LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def this_command() -> str:
    """The command line of this process, without folders that only this machine has."""
    if _in_notebook():
        return "mg.benchmark in a notebook"
    program = Path(sys.argv[0] if sys.argv and sys.argv[0] else "python").absolute()
    with contextlib.suppress(ValueError):  # not a file of this checkout
        program = program.relative_to(Path(__file__).resolve().parents[2])
    shown = program.name if program.is_absolute() or program.parts[0] == ".venv" else str(program)
    return shlex.join([shown, *sys.argv[1:]])


def provenance(gpu: Device, sources: dict[str, str], command: str | None = None) -> dict[str, Any]:
    """Where results come from: GPU, driver, libraries, command, date (UTC), sources.

    Args:
        gpu: the GPU that was measured on, torch's current one.
        sources: SHA-256 of each kernel's source, by the kernel's name.
        command: how they were made; by default this process's command line.
    """
    answer = nvidia_smi("driver_version")
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    return {
        "gpu": gpu.to_dict(),
        "driver": answer[0] if answer else None,
        "cuda": device.driver_cuda_version(),
        "libraries": library_versions(),
        "command": command if command is not None else this_command(),
        "date": now.isoformat().replace("+00:00", "Z"),
        "sources": sources,
    }
