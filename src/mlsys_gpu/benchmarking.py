"""Measuring GEMM kernels on a GPU, next to cuBLAS and a plain Triton kernel.

How a row comes about:

* The outputs are checked against float64 first, on the tensors that are timed, poisoned before.
* Inputs are standard normal. There are as many sets of (A, B, D) as it takes to exceed twice the
  L2 cache, and every launch takes the next set, so that L2 serves no input.
* A sample is some launches back to back between two CUDA events, about 5 ms of them. A kernel that
  only waits holds the GPU back until all of them are queued, so that the time is the GPU's and not
  the host's; a sample for which that failed is thrown away.
* Ours, cuBLAS and Triton take samples in turn, in the same process, after a warm-up that brings the
  clocks to where they stay. The row holds the median, the 20th and the 80th percentile.
* A result faster than the tensor cores allow is refused.

A file of results holds rows and where they come from: GPU, driver, libraries, command, date, and
the SHA-256 of every kernel source. :func:`load` reads it back, :func:`is_stale` says whether the
kernel has changed since.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import html
import importlib
import importlib.metadata
import json
import math
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlsys_gpu import device, launch, verification
from mlsys_gpu.device import Device, NeedsGpu

if TYPE_CHECKING:
    from mlsys_gpu.kernels.gemm import Step

SAMPLE_MS = 5.0
"""How long one sample should take, in milliseconds."""
WARM_UP_SECONDS = 0.5
MOST_SAMPLES, FEWEST_SAMPLES = 200, 5
MOST_LAUNCHES = 400
"""Launches of one sample: fewer than the driver queues before it makes the host wait."""

METHOD = (
    "outputs checked against float64 on the tensors that are timed; every launch takes the next "
    "of the input sets, which together exceed twice the L2 cache; samples of back-to-back "
    "launches between CUDA events, queued before the GPU starts on them; the kernel and its "
    "baselines take samples in turn in one process; median, 20th and 80th percentile of samples"
)
INPUTS = "standard normal, A and B independent"


class MeasurementError(RuntimeError):
    """A measurement that must not be reported: wrong outputs, or faster than the chip allows."""


# ------------------------------------------------------------------------------------ what is run


@dataclass(frozen=True)
class _Case:
    """One kernel at one shape."""

    name: str
    arch: str
    M: int
    N: int
    K: int
    dtype: str
    func: Any = field(repr=False)
    source: str  # path for the reader, or the kernel's name where it has no file
    source_sha256: str

    @property
    def flop(self) -> int:
        return 2 * self.M * self.N * self.K


def source_sha256(kernel: str) -> str | None:
    """SHA-256 of the source file of a kernel such as ``"gemm/hopper/step3"``; None if unknown."""
    found = _step_of_name(kernel)
    return None if found is None else _sha256(found.source_path)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _step_of_name(kernel: str) -> Step | None:
    from mlsys_gpu.kernels import gemm

    return next((s for arch in gemm.ARCHS for s in gemm.everything(arch) if s.name == kernel), None)


def _step_of_symbol(symbol: str) -> Step | None:
    from mlsys_gpu.kernels import gemm

    return next(
        (s for arch in gemm.ARCHS for s in gemm.everything(arch) if s.symbol == symbol), None
    )


def _case_of_step(step: Step, shape: tuple[int, int, int], dtype: str) -> _Case:
    M, N, K = shape
    return _Case(
        name=step.name,
        arch=device.ARCHITECTURES[step.arch],
        M=M,
        N=N,
        K=K,
        dtype=dtype,
        func=step.build(M, N, K, dtype),
        source=step.source_path.name,
        source_sha256=_sha256(step.source_path),
    )


def _case_of_kernel(kernel: Any) -> _Case:
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
    return _Case(
        name=step.name if step else symbol,
        arch=arch,
        M=M,
        N=N,
        K=K,
        dtype=params[-1].dtype,
        func=kernel,
        source=step.source_path.name if step else symbol,
        source_sha256=_sha256(step.source_path) if step else content_key(kernel, arch),
    )


def cases(
    kernels: Any, shapes: Sequence[tuple[int, int, int]] | None, dtype: str | None
) -> list[_Case]:
    """Every kernel at every shape that it takes.

    A step that takes none of ``shapes`` (Steps 1 and 2 compute one tile) is measured at its own.
    """
    several = kernels if isinstance(kernels, Sequence) else [kernels]
    found: list[_Case] = []
    for kernel in several:
        if not hasattr(kernel, "build"):
            if shapes is not None or dtype not in (None, _case_of_kernel(kernel).dtype):
                raise ValueError(
                    "a built kernel has its shape and dtype: leave shapes and dtype out"
                )
            found.append(_case_of_kernel(kernel))
            continue
        wanted = list(shapes) if shapes is not None else [kernel.default_shape]
        taken = [shape for shape in wanted if _takes(kernel, shape)]
        for shape in taken or [kernel.default_shape]:
            found.append(_case_of_step(kernel, shape, dtype or "float16"))
    return found


def _takes(step: Step, shape: tuple[int, int, int]) -> bool:
    try:
        step.check_shape(*shape)
    except ValueError:
        return False
    return True


# ---------------------------------------------------------------------------------------- results


@dataclass
class Benchmark:
    """Measured rows and where they come from; draws itself as a table in a notebook."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    provenance: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """``{"provenance": {…}, "rows": […]}``, as result files hold it."""
        return {"provenance": self.provenance, "rows": self.rows}

    def add(self, other: Benchmark) -> None:
        """Append the rows of another measurement on the same machine."""
        self.rows += other.rows
        sources = self.provenance.get("sources", {}) | other.provenance.get("sources", {})
        self.provenance = other.provenance | {"sources": sources}

    def save(self, path: str | Path) -> Path:
        """Write a result file, and its folder where that is missing."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n")
        return path

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Header and cells for a reader; times in milliseconds."""
        names = sorted({name for row in self.rows for name in row["baseline"]})
        header = ["kernel", "M × N × K", "dtype", "ms (p20–p80)", "TFLOP/s", "per SM"]
        header += [f"× {_BASELINE_TITLES.get(name, name)}" for name in names]
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


_BASELINE_TITLES = {"cublas": "cuBLAS", "triton": "Triton"}


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


def load(path: str | Path) -> Benchmark:
    """Read a result file.

    Raises:
        ValueError: the file holds no ``provenance`` and ``rows``, or a row lacks a key that every
            row has.
    """
    content = json.loads(Path(path).read_text())
    if not isinstance(content, dict) or not {"provenance", "rows"} <= content.keys():
        raise ValueError(f"{path} is no result file: it needs provenance and rows")
    needed = {"kernel", "dtype", "ms", "ms_p20", "ms_p80", "tflops", "baseline", "source_sha256"}
    for number, row in enumerate(content["rows"]):
        if missing := needed - row.keys():
            raise ValueError(f"{path}: row {number} lacks {', '.join(sorted(missing))}")
    return Benchmark(rows=content["rows"], provenance=content["provenance"])


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
    dtype: str | None = None,
    *,
    baselines: Sequence[str] = ("cublas", "triton"),
    seconds: float = 2.0,
    seed: int = 0,
    command: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Benchmark | Unavailable:
    """Measure GEMM kernels on this machine's GPU.

    Args:
        kernels: a step of the ladder (``mg.gemm.step(3, arch="hopper")``), a kernel built from
            one, or several of either.
        shapes: ``(M, N, K)`` of each measurement, for steps; a step that takes none of them, and
            every step where it is left out, is measured at its own shape.
        dtype: ``"float16"`` or ``"bfloat16"``, for steps.
        baselines: of ``"cublas"`` and ``"triton"``, measured in turn with the kernel.
        seconds: how long to take samples for one row; five samples are taken in any case.
        seed: seed of the inputs.
        command: what provenance names as the command; by default this process's.
        progress: called with one line before each measurement.

    Returns:
        The rows. In a notebook on a machine without the GPU that is needed: an
        :class:`Unavailable`, which says what would be.

    Raises:
        NeedsGpu: outside a notebook, there is no GPU of the kernels' architecture.
        MeasurementError: outputs are wrong, or the time is less than the chip allows.
        ValueError: a shape or dtype that a kernel cannot take.
    """
    unknown = set(baselines) - set(_BASELINES)
    if unknown:
        raise ValueError(f"baselines are {', '.join(_BASELINES)}, got {sorted(unknown)[0]!r}")
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
    for case in wanted:
        if progress is not None:
            progress(f"{case.name} {case.M},{case.N},{case.K} {case.dtype}")
        result.rows.append(_measure(case, gpu, tuple(baselines), seconds, seed))
    return result


def _gpu_for(wanted: list[_Case]) -> Device:
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


def input_sets(bytes_per_set: int, l2_bytes: int) -> int:
    """How many sets of tensors exceed twice the L2 cache; two at least."""
    return max(2, 2 * l2_bytes // bytes_per_set + 1)


# baseline -> the module that offers it as gemm(A, B, D)
_BASELINES = {
    "cublas": "mlsys_gpu.kernels.baselines.cublas",
    "triton": "mlsys_gpu.kernels.baselines.triton_gemm",
}


class _Rotation:
    """The sets of tensors that launches go through, in one cycle for all contenders."""

    def __init__(self, case: _Case, l2_bytes: int, seed: int, place: str = "cuda"):
        import torch

        M, N, K = case.M, case.N, case.K
        dtype = getattr(torch, case.dtype)
        self.bytes_per_set = (M * K + N * K + M * N) * dtype.itemsize
        self.count = input_sets(self.bytes_per_set, l2_bytes)
        generator = torch.Generator(place).manual_seed(seed)

        def normal(rows: int) -> Any:
            shape = (self.count, rows, K)
            return torch.randn(shape, generator=generator, device=place).to(dtype)

        self.A, self.B = normal(M), normal(N)
        self.D = torch.empty((self.count, M, N), dtype=dtype, device=place)
        self.sets = list(zip(self.A.unbind(), self.B.unbind(), self.D.unbind(), strict=True))
        self._next = 0

    def launch(self, contender: Callable[..., None], times: int) -> None:
        for _ in range(times):
            contender(*self.sets[self._next])
            self._next = (self._next + 1) % self.count

    def verify(self, contender: Callable[..., None]) -> verification.Comparison:
        """Poison all outputs, launch once on every set, and compare with float64."""
        self.D.fill_(math.nan)
        for tensors in self.sets:
            contender(*tensors)
        # at most 2**26 elements of D at a time: float64 copies take eight bytes for each
        step = max(1, 2**26 // self.D[0].numel())
        verdicts = [
            verification.compare_gemm_tensors(
                self.A[i : i + step], self.B[i : i + step], self.D[i : i + step]
            )
            for i in range(0, self.count, step)
        ]
        return max(verdicts, key=lambda verdict: (verdict.wrong > 0, verdict.max_error))


class _Timer:
    """Takes samples of a contender: launches between two events, queued before they start."""

    def __init__(self, rotation: _Rotation, contender: Callable[..., None], clock_khz: int):
        self.rotation, self.contender = rotation, contender
        # cycles that hold the GPU for about the time that queueing takes the host
        self._cycles_per_second = clock_khz * 1e3 or 2e9
        self._hold_seconds = 1e-3
        self.launches = 1
        self.samples: list[float] = []
        self._pending: list[tuple[Any, Any]] = []
        self.launches = self._launches_for(SAMPLE_MS)

    def _launches_for(self, milliseconds: float) -> int:
        for _ in range(8):  # the first ones load modules, and the hold grows to what is needed
            self.queue()
            if len(self._pending) == 3:
                break
        estimate = statistics.median(self.collect() or [milliseconds])
        return min(MOST_LAUNCHES, max(1, math.ceil(milliseconds / max(estimate, 1e-4))))

    def queue(self) -> None:
        """Queue one sample; it is read by :meth:`collect`."""
        import torch

        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began = time.perf_counter()
        torch.cuda._sleep(int(self._hold_seconds * self._cycles_per_second))
        start.record()
        self.rotation.launch(self.contender, self.launches)
        end.record()
        spent = time.perf_counter() - began
        if start.query():  # the GPU got there before the host was done: the host was timed
            self._hold_seconds = max(2 * self._hold_seconds, 2 * spent)
        else:
            self._pending.append((start, end))

    def collect(self) -> list[float]:
        """Wait for queued samples; milliseconds of one launch in each."""
        import torch

        torch.cuda.synchronize()
        taken = [start.elapsed_time(end) / self.launches for start, end in self._pending]
        self._pending.clear()
        return taken


def _measure(
    case: _Case, gpu: Device, baselines: tuple[str, ...], seconds: float, seed: int
) -> dict[str, Any]:
    """One row. Torch's current device is ``gpu``."""
    from mlsys_gpu.kernels.baselines import cublas
    from mlsys_gpu.lowering import lower

    rotation = _Rotation(case, gpu.l2_bytes, seed)
    contenders: dict[str, Callable[..., None]] = {"": launch.compile_for_gpu(case.func)}
    for name in baselines:
        with contextlib.suppress(ImportError):  # provenance says that it is not installed
            contenders[name] = importlib.import_module(_BASELINES[name]).gemm
    with cublas.fp32_reductions():
        verdicts = {name: rotation.verify(run) for name, run in contenders.items()}
        if not verdicts[""].ok:
            raise MeasurementError(
                f"{case.name} at {case.M},{case.N},{case.K} {case.dtype} is not measured, its "
                f"output is {verdicts['']}"
            )
        timers = {name: _Timer(rotation, run, gpu.clock_khz) for name, run in contenders.items()}
        _take_samples(list(timers.values()), seconds)
        state = _under_load(timers[""])
    figures = {name: _figures(timer.samples, case.flop) for name, timer in timers.items()}
    for name, verdict in verdicts.items():
        figures[name]["max_error"] = round(verdict.max_error, 4)
    own = figures.pop("")
    _refuse_impossible(case, own["tflops"], gpu)
    sms = min(lower(case.func).launch.ctas, gpu.multiprocessors)
    return {
        "kernel": case.name,
        "M": case.M,
        "N": case.N,
        "K": case.K,
        "dtype": case.dtype,
        **own,
        "tflops_per_sm": own["tflops"] / sms,
        "sms": sms,
        "baseline": figures,
        "samples": len(timers[""].samples),
        "launches_per_sample": timers[""].launches,
        "input_sets": rotation.count,
        "working_set_bytes": rotation.count * rotation.bytes_per_set,
        **state,
        "source_sha256": case.source_sha256,
    }


def _take_samples(timers: list[_Timer], seconds: float) -> None:
    """Warm up, then let the contenders take samples in turn until the time is over."""
    began = time.perf_counter()
    while time.perf_counter() - began < WARM_UP_SECONDS:
        for timer in timers:
            timer.queue()
        for timer in timers:
            timer.collect()
    began = time.perf_counter()
    for turn in range(2 * MOST_SAMPLES):  # twice: a sample may be thrown away
        first = turn % len(timers)
        order = timers[first:] + timers[:first]
        for timer in order:
            timer.queue()
        for timer in order:
            timer.samples += timer.collect()
        fewest = min(len(timer.samples) for timer in timers)
        over = time.perf_counter() - began >= seconds
        if fewest >= MOST_SAMPLES or (over and fewest >= FEWEST_SAMPLES):
            return
    if min(len(timer.samples) for timer in timers) < FEWEST_SAMPLES:
        raise MeasurementError("the host queues launches too slowly to measure them back to back")


def _figures(samples: list[float], flop: int) -> dict[str, float]:
    """Median and spread, from milliseconds of one launch in each sample."""
    twentieths = statistics.quantiles(samples, n=20, method="inclusive")
    median = statistics.median(samples)
    return {
        "ms": median,
        "ms_p20": twentieths[3],
        "ms_p80": twentieths[15],
        "tflops": flop / median / 1e9,
    }


def _refuse_impossible(case: _Case, tflops: float, gpu: Device) -> None:
    peak = gpu.peak_tflops
    if peak is not None and tflops > peak:
        raise MeasurementError(
            f"{case.name}: {tflops:.0f} TFLOP/s is more than {gpu.name}'s tensor cores can do "
            f"({peak:.0f}): something is not measured that should be"
        )


def _under_load(timer: _Timer, seconds: float = 0.4) -> dict[str, float | None]:
    """SM clock and power while the kernel runs back to back."""
    import torch

    began = time.perf_counter()
    timer.queue()
    torch.cuda.synchronize()
    one = max(time.perf_counter() - began, 1e-4)
    for _ in range(min(200, math.ceil(seconds / one))):
        timer.queue()
    answer = _nvidia_smi("clocks.sm,power.draw")
    timer.collect()
    clock, power = answer if answer is not None and len(answer) == 2 else (None, None)
    return {"sm_clock_mhz": _number(clock), "power_w": _number(power)}


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:  # "[N/A]"
        return None


def _nvidia_smi(query: str) -> list[str] | None:
    """What ``nvidia-smi`` says about torch's current GPU; None where it says nothing.

    Without torch, or before it was imported, that is the first GPU.
    """
    torch, uuid = sys.modules.get("torch"), None
    if torch is not None and torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        uuid = getattr(properties, "uuid", None)
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    if uuid is not None:
        command.append(f"--id=GPU-{uuid}")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.strip().splitlines()
    return (
        [part.strip() for part in lines[0].split(",")] if done.returncode == 0 and lines else None
    )


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
    answer = _nvidia_smi("driver_version")
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
