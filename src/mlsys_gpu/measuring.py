"""Taking measurements: tensors that launches rotate through, timers, and the rows they give.

:mod:`mlsys_gpu.benchmarking` says what is measured and keeps the results; how a row comes about is
described there.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mlsys_gpu import launch, verification
from mlsys_gpu.device import Device

if TYPE_CHECKING:
    from mlsys_gpu.kernels.baselines.config import Config

SAMPLE_MS = 5.0
"""How long one sample should take, in milliseconds."""
WARM_UP_SECONDS = 0.5
MOST_SAMPLES, FEWEST_SAMPLES = 200, 5
LEAST_HOLD_SECONDS, MOST_HOLD_SECONDS = 1e-3, 0.1
"""How long the GPU is held back while a sample's launches are queued."""
MOST_LAUNCHES = 400
"""Launches of one sample: fewer than the driver queues before it makes the host wait."""
GRAPH_BELOW_MS = 0.05
"""Launches that take less, in milliseconds, are timed as replays of a graph."""
GRAPH_LAUNCHES = 200
"""Launches of one graph, at least, and as many as there are sets of tensors."""

TIMINGS = ("auto", "graph", "stream")

Contender = Callable[..., Any]
"""A kernel as it is launched: contender(A, B, D)."""


class MeasurementError(RuntimeError):
    """A measurement that must not be reported: wrong outputs, or faster than the chip allows."""


@dataclass(frozen=True)
class Case:
    """One kernel at one shape; it is built when it is first needed."""

    name: str
    arch: str
    M: int
    N: int
    K: int
    dtype: str
    build: Callable[[], Any] = field(repr=False)
    source: str  # path for the reader, or the kernel's name where it has no file
    source_sha256: str
    options: dict[str, Any] = field(default_factory=dict)  # of its build, where they are not usual

    @cached_property
    def func(self) -> Any:
        """The TIRx ``PrimFunc``."""
        return self.build()

    @property
    def flop(self) -> int:
        return 2 * self.M * self.N * self.K

    @property
    def problem(self) -> tuple[int, int, int, str]:
        """What is computed, by whichever kernel."""
        return self.M, self.N, self.K, self.dtype

    @property
    def title(self) -> str:
        """The kernel for the reader: its name, and how it was built where that is not usual."""
        options = ", ".join(
            f"{name} {'+'.join(value) if isinstance(value, (list, tuple)) else value}"
            for name, value in self.options.items()
        )
        return f"{self.name} ({options})" if options else self.name

    @property
    def label(self) -> str:
        """The whole case for the reader."""
        return f"{self.title} {self.M},{self.N},{self.K} {self.dtype}"


# ---------------------------------------------------------------------------------------- tensors


def input_sets(bytes_per_set: int, l2_bytes: int) -> int:
    """How many sets of tensors exceed twice the L2 cache; two at least."""
    return max(2, 2 * l2_bytes // bytes_per_set + 1)


class Rotation:
    """The sets of tensors that launches go through, in one cycle for all contenders."""

    def __init__(self, case: Case, l2_bytes: int, seed: int, place: str = "cuda"):
        import torch

        M, N, K = case.M, case.N, case.K
        dtype = getattr(torch, case.dtype)
        self.bytes_per_set = (M * K + N * K + M * N) * dtype.itemsize
        self.count = input_sets(self.bytes_per_set, l2_bytes)
        generator = torch.Generator(place).manual_seed(seed)

        def normal(rows: int) -> Any:
            made = torch.empty((self.count, rows, K), dtype=dtype, device=place)
            for one in made:  # a set at a time: float32 takes twice the room
                one.copy_(torch.randn((rows, K), generator=generator, device=place))
            return made

        self.A, self.B = normal(M), normal(N)
        self.D = torch.empty((self.count, M, N), dtype=dtype, device=place)
        self.sets = list(zip(self.A.unbind(), self.B.unbind(), self.D.unbind(), strict=True))
        self._next = 0
        self._references: list[verification.GemmReference] | None = None

    def launch(self, contender: Contender, times: int) -> None:
        for _ in range(times):
            contender(*self.sets[self._next])
            self._next = (self._next + 1) % self.count

    def verify(self, contender: Contender) -> verification.Comparison:
        """Poison all outputs, launch once on every set, and compare with float64."""

        def once() -> None:
            for tensors in self.sets:
                contender(*tensors)

        return self.verify_after(once)

    def verify_after(self, launches: Callable[[], None]) -> verification.Comparison:
        """The same for launches that go through every set."""
        self.D.fill_(math.nan)
        launches()
        # at most 2**26 elements of D at a time: float64 copies take eight bytes for each
        step = max(1, 2**26 // self.D[0].numel())
        starts = range(0, self.count, step)
        if self._references is None:
            self._references = [
                verification.GemmReference(self.A[i : i + step], self.B[i : i + step])
                for i in starts
            ]
        verdicts = [
            reference.compare(self.D[i : i + step])
            for i, reference in zip(starts, self._references, strict=True)
        ]
        return max(verdicts, key=lambda verdict: (verdict.wrong > 0, verdict.max_error))


# ----------------------------------------------------------------------------------------- timers


class Timer:
    """Takes samples of a contender: launches between two events, queued before they start."""

    def __init__(
        self,
        rotation: Rotation,
        contender: Contender,
        clock_khz: int,
        sample_ms: float = SAMPLE_MS,
    ):
        self.rotation, self.contender, self.sample_ms = rotation, contender, sample_ms
        # cycles that hold the GPU for about the time that queueing takes the host
        self._cycles_per_second = clock_khz * 1e3 or 2e9
        self._hold_seconds = LEAST_HOLD_SECONDS
        self.launches = 1
        self.samples: list[float] = []
        self.timing = "stream"
        self._graph: Any = None
        self._replays = 0
        self._pending: list[tuple[Any, Any]] = []
        # The first launch compiles and loads: nothing that a sample should wait for.
        self.rotation.launch(contender, 1)
        self.collect()
        self.estimate = self._estimated()
        self.launches = min(MOST_LAUNCHES, self._launches_for(self.estimate))

    def _estimated(self) -> float:
        """Milliseconds of a launch, about."""
        for _ in range(8):  # the hold grows to what is needed
            self.queue()
            if len(self._pending) == 3:
                break
        return statistics.median(self.collect() or [self.sample_ms])

    def _launches_for(self, milliseconds: float) -> int:
        return max(1, math.ceil(self.sample_ms / max(milliseconds, 1e-4)))

    def use_graph(self) -> None:
        """From now on, time replays of a graph of launches.

        Raises RuntimeError where the contender's launch cannot be captured.
        """
        count = self.rotation.count
        # All sets, as often as it takes: a graph of fewer would leave its inputs in L2.
        self.launches = count * math.ceil(GRAPH_LAUNCHES / count)
        self._graph = captured(lambda: self.rotation.launch(self.contender, self.launches))
        self._graph.replay()  # the first one uploads it
        per_replay = self.launches
        self._replays = math.ceil(self._launches_for(self.estimate) / per_replay)
        self.launches = per_replay * self._replays
        self.timing = "graph"

    def use_stream(self) -> None:
        """From now on, time launches one by one."""
        self._graph, self.timing = None, "stream"
        self.launches = min(MOST_LAUNCHES, self._launches_for(self.estimate))

    def verify_graph(self) -> verification.Comparison | None:
        """The outputs of a replay of what is timed; None where no graph is."""
        return None if self._graph is None else self.rotation.verify_after(self._graph.replay)

    def _launch(self) -> None:
        if self._graph is None:
            self.rotation.launch(self.contender, self.launches)
        else:
            for _ in range(self._replays):
                self._graph.replay()

    def queue(self) -> None:
        """Queue one sample; it is read by :meth:`collect`."""
        import torch

        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began = time.perf_counter()
        torch.cuda._sleep(int(self._hold_seconds * self._cycles_per_second))
        start.record()
        self._launch()
        end.record()
        spent = time.perf_counter() - began
        needed = max(LEAST_HOLD_SECONDS, 2 * spent)
        if start.query():  # the GPU got there before the host was done: the host was timed
            needed = max(needed, 2 * self._hold_seconds)
        else:
            self._pending.append((start, end))
        self._hold_seconds = min(needed, MOST_HOLD_SECONDS)

    def collect(self) -> list[float]:
        """Wait for queued samples; milliseconds of one launch in each."""
        import torch

        torch.cuda.synchronize()
        taken = [start.elapsed_time(end) / self.launches for start, end in self._pending]
        self._pending.clear()
        return taken


def captured(launches: Callable[[], None]) -> Any:
    """The launches as a CUDA graph; they are not carried out.

    Raises RuntimeError where one of them cannot be captured.
    """
    import torch

    graph = torch.cuda.CUDAGraph()
    # relaxed: a launcher may set attributes and encode tensor maps meanwhile
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        launches()
    return graph


def take_samples(timers: Sequence[Timer], seconds: float) -> None:
    """Warm up, then let the contenders take samples in turn until the time is over.

    Raises MeasurementError where the host never queues launches ahead of the GPU.
    """
    timers = list(timers)
    began = time.perf_counter()
    while time.perf_counter() - began < WARM_UP_SECONDS:
        for timer in timers:
            timer.queue()
            timer.collect()
    began = time.perf_counter()
    for turn in range(2 * MOST_SAMPLES):  # twice: a sample may be thrown away
        _turn(timers, turn)
        fewest = min(len(timer.samples) for timer in timers)
        over = time.perf_counter() - began >= seconds
        if fewest >= MOST_SAMPLES or (over and fewest >= FEWEST_SAMPLES):
            return
    if min(len(timer.samples) for timer in timers) < FEWEST_SAMPLES:
        raise MeasurementError("the host queues launches too slowly to measure them back to back")


def _turn(timers: list[Timer], turn: int) -> None:
    """One sample of each, in an order drawn anew for every turn.

    A GPU at its power limit is faster behind a kernel that spared it: no one may always follow the
    same one.
    """
    order = random.Random(turn).sample(timers, len(timers))
    for timer in order:  # one at a time: all of their launches may be more than the driver queues
        timer.queue()
        timer.samples += timer.collect()


# -------------------------------------------------------------------------------------- baselines

# baseline -> the module that offers it as gemm(A, B, D)
BASELINES = {
    "cublas": "mlsys_gpu.kernels.baselines.cublas",
    "triton": "mlsys_gpu.kernels.baselines.triton_gemm",
    "triton_persistent": "mlsys_gpu.kernels.baselines.triton_persistent",
}


class LeftOut(Exception):
    """A baseline that cannot be measured here; the message says why."""


@dataclass
class _Against:
    """A baseline at one problem: how it is launched, and what its row says besides figures."""

    run: Contender
    facts: dict[str, Any] = field(default_factory=dict)


# (baseline, M, N, K, dtype) -> the configuration that was fastest, and how many were tried
_tuned: dict[tuple[str, int, int, int, str], tuple[Config, int]] = {}

# (module of a baseline, configuration, dtype) -> why it is not tried
_unusable: dict[tuple[str, Config, str], str] = {}

TUNING_SAMPLE_MS = 2.0
FINALISTS = 3
"""Configurations whose time is taken again, in turn, before one is chosen."""


def _against(name: str, case: Case, rotation: Rotation, clock_khz: int, tune: bool) -> _Against:
    try:
        module = importlib.import_module(BASELINES[name])
    except ImportError as error:
        raise LeftOut(f"not installed: {error.name or error}") from error
    if not hasattr(module, "configs"):
        return _Against(module.gemm)
    try:
        module.check(case.M, case.N, case.K)
    except ValueError as error:
        raise LeftOut(str(error)) from error
    if not tune:
        return _Against(module.gemm)
    key = (name, *case.problem)
    if key not in _tuned:
        _tuned[key] = tuned(module, rotation, clock_khz)
    config, tried = _tuned[key]
    run = _with_config(module, config)
    return _Against(run, {"config": config.to_dict(), "configs_tried": tried})


def _with_config(module: Any, config: Config) -> Contender:
    return lambda A, B, D: module.gemm(A, B, D, config)


def tuned(module: Any, rotation: Rotation, clock_khz: int) -> tuple[Config, int]:
    """The fastest configuration of a Triton kernel on these tensors, and how many were tried.

    Each is timed; the best three, and the best one with other groups of tiles, are timed again in
    turn. Configurations that do not compile, or whose output is wrong, are passed over.

    Raises LeftOut where none is left.
    """
    A, B, _ = rotation.sets[0]
    timers: dict[Config, Timer] = {}
    problems: list[str] = []

    def enter(config: Config) -> None:
        run = _with_config(module, config)
        try:
            timers[config] = Timer(rotation, run, clock_khz, TUNING_SAMPLE_MS)
        except Exception as error:  # of Triton's compiler, which has many
            problems.append(f"{config}: {type(error).__name__}: {error}")

    def best(configs: Sequence[Config]) -> list[Config]:
        def median(config: Config) -> float:
            return statistics.median(timers[config].samples)

        for turn in range(3 if len(configs) > FINALISTS + 2 else 7):
            _turn([timers[config] for config in configs], turn)
        return sorted((c for c in configs if timers[c].samples), key=median)

    name, dtype = getattr(module, "__name__", ""), str(A.dtype).removeprefix("torch.")
    for config in module.configs(A.shape[0], B.shape[0], A.shape[1]):
        why = _unusable.get((name, config, dtype))
        if why is None:
            enter(config)
        else:
            problems.append(f"{config}: {why}")
    ranked = best(list(timers)) if timers else []
    for config in ranked[0].grouped() if ranked else []:
        enter(config)
    others = [config for config in timers if config not in ranked]
    finalists = ranked[:FINALISTS] + others
    for config in [*(best(finalists) if finalists else []), *ranked[FINALISTS:]]:
        verdict = rotation.verify(timers[config].contender)
        if verdict.ok:
            return config, len(timers)
        problems.append(f"{config}: {verdict}")
    raise LeftOut(f"no configuration works; the first: {(problems or ['there are none'])[0]}")


# ------------------------------------------------------------------------------------------- rows


@dataclass(frozen=True)
class Options:
    """How rows are measured: see :func:`mlsys_gpu.benchmarking.benchmark`."""

    baselines: tuple[str, ...]
    timing: str = "auto"
    tune: bool = True
    seconds: float = 2.0
    seed: int = 0


class Bench:
    """Measures groups of kernels that compute the same problem; keeps its tensors in between."""

    def __init__(self, gpu: Device, options: Options):
        self.gpu, self.options = gpu, options
        self._held: tuple[tuple[int, int, int, str], Rotation] | None = None

    def _rotation(self, case: Case) -> Rotation:
        if self._held is None or self._held[0] != case.problem:
            self._held = None  # before the next ones are made
            self._held = case.problem, Rotation(case, self.gpu.l2_bytes, self.options.seed)
        return self._held[1]

    def measure(self, group: Sequence[Case]) -> Iterator[tuple[Case, dict[str, Any] | Exception]]:
        """A row for each case, or why there is none. Torch's current device is the GPU.

        The cases compute the same problem and take samples in turn, with the baselines.
        """
        from mlsys_gpu.kernels.baselines import cublas

        try:
            rotation = self._rotation(group[0])
        except Exception as error:  # more tensors than the GPU has room for
            for case in group:
                yield case, error
            return
        runs: dict[str, tuple[Case, Contender]] = {}
        verdicts: dict[str, verification.Comparison] = {}
        for case in group:
            try:
                run = launch.compile_for_gpu(case.func)
                verdicts[case.title] = verdict = rotation.verify(run)
                if not verdict.ok:
                    raise MeasurementError(
                        f"{case.name} at {case.M},{case.N},{case.K} {case.dtype} is not measured, "
                        f"its output is {verdict}"
                    )
            except Exception as error:
                yield case, error
                continue
            runs[case.title] = case, run
        if not runs:
            return
        try:
            with cublas.fp32_reductions():
                rows = self._rows(rotation, runs, verdicts)
        except Exception as error:
            for case, _ in runs.values():
                yield case, error
            return
        for case, _ in runs.values():
            try:
                _refuse_impossible(case, rows[case.title]["tflops"], self.gpu)
                yield case, rows[case.title]
            except MeasurementError as error:
                yield case, error

    def _rows(
        self,
        rotation: Rotation,
        runs: dict[str, tuple[Case, Contender]],
        verdicts: dict[str, verification.Comparison],
    ) -> dict[str, dict[str, Any]]:
        options, clock_khz = self.options, self.gpu.clock_khz
        first = next(iter(runs.values()))[0]
        others: dict[str, _Against] = {}
        left_out: dict[str, str] = {}
        for name in options.baselines:
            try:
                others[name] = _against(name, first, rotation, clock_khz, options.tune)
            except LeftOut as error:
                left_out[name] = str(error)
        contenders = {name: run for name, (_, run) in runs.items()}
        contenders |= {name: other.run for name, other in others.items()}
        for name, other in others.items():
            verdicts[name] = rotation.verify(other.run)
        timers = {name: Timer(rotation, run, clock_khz) for name, run in contenders.items()}
        timing = _timed_by(list(timers.values()), options.timing)
        take_samples(list(timers.values()), options.seconds * len(runs))
        for name, timer in timers.items():
            verdict = timer.verify_graph()
            if verdict is not None and not verdict.ok:
                raise MeasurementError(f"a graph's replay of {name} gives other outputs: {verdict}")
        measured = {name: figures(timer.samples, first.flop) for name, timer in timers.items()}
        for name, verdict in verdicts.items():
            if name in measured:
                measured[name]["max_error"] = round(verdict.max_error, 4)
        baseline = {name: measured[name] | other.facts for name, other in others.items()}
        shared: dict[str, Any] = {"timing": timing}
        if len(runs) > 1:
            shared["together"] = list(runs)
        if left_out:
            shared["left_out"] = left_out
        return {
            name: self._row(case, rotation, timers[name], measured[name], baseline, shared)
            for name, (case, _) in runs.items()
        }

    def _row(
        self,
        case: Case,
        rotation: Rotation,
        timer: Timer,
        own: dict[str, float],
        baseline: dict[str, Any],
        shared: dict[str, Any],
    ) -> dict[str, Any]:
        from mlsys_gpu.lowering import lower

        sms = min(lower(case.func).launch.ctas, self.gpu.multiprocessors)
        return {
            "kernel": case.name,
            "M": case.M,
            "N": case.N,
            "K": case.K,
            "dtype": case.dtype,
            **({"options": case.options} if case.options else {}),
            **own,
            "tflops_per_sm": own["tflops"] / sms,
            "sms": sms,
            "baseline": baseline,
            **shared,
            "samples": len(timer.samples),
            "launches_per_sample": timer.launches,
            "input_sets": rotation.count,
            "working_set_bytes": rotation.count * rotation.bytes_per_set,
            **under_load(timer),
            "source_sha256": case.source_sha256,
        }


def _timed_by(timers: list[Timer], wanted: str) -> str:
    """Let all timers time graphs or all of them launches, and say which."""
    small = min(timer.estimate for timer in timers) < GRAPH_BELOW_MS
    if wanted == "stream" or (wanted == "auto" and not small):
        return "stream"
    try:
        for timer in timers:
            timer.use_graph()
    except RuntimeError as error:
        if wanted == "graph":
            raise MeasurementError(f"a launch cannot be captured as a graph: {error}") from error
        for timer in timers:
            timer.use_stream()
        return "stream"
    return "graph"


def figures(samples: list[float], flop: int) -> dict[str, float]:
    """Median and spread, from milliseconds of one launch in each sample."""
    twentieths = statistics.quantiles(samples, n=20, method="inclusive")
    median = statistics.median(samples)
    return {
        "ms": median,
        "ms_p20": twentieths[3],
        "ms_p80": twentieths[15],
        "tflops": flop / median / 1e9,
    }


def _refuse_impossible(case: Case, tflops: float, gpu: Device) -> None:
    peak = gpu.peak_tflops
    if peak is not None and tflops > peak:
        raise MeasurementError(
            f"{case.name}: {tflops:.0f} TFLOP/s is more than {gpu.name}'s tensor cores can do "
            f"({peak:.0f}): something is not measured that should be"
        )


def under_load(timer: Timer, seconds: float = 0.4) -> dict[str, float | None]:
    """SM clock in MHz and power in W, ``seconds`` into running the kernel back to back."""
    import concurrent.futures

    began = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        # nvidia-smi takes its time to start: the kernel runs until it has answered.
        asked = None
        while asked is None or not asked.done():
            for _ in range(4):
                timer.queue()
            timer.collect()
            if asked is None and time.perf_counter() - began >= seconds:
                asked = pool.submit(nvidia_smi, "clocks.sm,power.draw")
        answer = asked.result()
    clock, power = answer if answer is not None and len(answer) == 2 else (None, None)
    return {"sm_clock_mhz": _number(clock), "power_w": _number(power)}


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:  # "[N/A]"
        return None


def nvidia_smi(query: str) -> list[str] | None:
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


# --------------------------------------------------------------------------------- compiling ahead


def compile_ahead(cases: Sequence[Case], processes: int) -> None:
    """Assemble the kernels in processes beside this one, into the cache that it reads.

    Compiling is most of what a short benchmark takes. Kernels that were built by hand are left
    for later, and so is whatever fails here: it fails again, with its message, where it is needed.
    """
    import concurrent.futures
    import multiprocessing

    wanted = {case.label: (case.name, *case.problem, case.options) for case in cases}
    if processes < 2 or len(wanted) < 2:
        return
    context = multiprocessing.get_context("spawn")
    workers = min(processes, len(wanted))
    with (
        contextlib.suppress(concurrent.futures.BrokenExecutor),
        concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool,
    ):
        list(pool.map(_assemble, *zip(*wanted.values(), strict=True)))


def _assemble(name: str, M: int, N: int, K: int, dtype: str, options: dict[str, Any]) -> None:
    with contextlib.suppress(Exception):
        from mlsys_gpu.artifacts import inspect
        from mlsys_gpu.benchmarking import step_of_name

        step = step_of_name(name)
        if step is not None:
            assert inspect(step.build(M, N, K, dtype, **options)).cubin


TRIAL_SECONDS = 60.0
"""How long a configuration of Triton's may take to compile and to run once."""


def try_configurations(cases: Sequence[Case], baselines: Sequence[str], processes: int) -> None:
    """Run every configuration that may be tried once, in processes beside this one.

    It is compiled then, for this process finds it in Triton's cache. And one that crashes, or that
    hangs (no launch can be taken back), ends with its process, and is passed over here.
    """
    import concurrent.futures

    if processes < 2:
        return
    wanted: dict[tuple[str, Config], set[str]] = {}
    for case in cases:
        for baseline in baselines:
            with contextlib.suppress(ImportError, ValueError):
                module = importlib.import_module(BASELINES[baseline])
                for config in getattr(module, "configs", lambda *_: [])(case.M, case.N, case.K):
                    wanted.setdefault((module.__name__, config), set()).add(case.dtype)
    if not wanted:
        return
    with concurrent.futures.ThreadPoolExecutor(min(processes, len(wanted))) as pool:
        trials = {
            (module, config, dtypes): pool.submit(_try_apart, module, config, sorted(dtypes))
            for (module, config), dtypes in ((k, tuple(sorted(v))) for k, v in wanted.items())
        }
    for (module, config, dtypes), trial in trials.items():
        why = trial.result()
        if why is not None:
            for dtype in dtypes:
                _unusable[module, config, dtype] = why


def _try_apart(module: str, config: Config, dtypes: Sequence[str]) -> str | None:
    """Why a configuration does not work, found out in a process of its own; None if it does."""
    code = "import sys; from mlsys_gpu.measuring import _run_once; _run_once(*sys.argv[1:])"
    command = [sys.executable, "-c", code, module, json.dumps(config.to_dict()), *dtypes]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TRIAL_SECONDS)
    except subprocess.TimeoutExpired:
        return f"it did not end within {TRIAL_SECONDS:.0f} s"
    said = done.stderr.strip().splitlines()
    return None if done.returncode == 0 else (said[-1] if said else f"exit {done.returncode}")


def _run_once(module: str, config: str, *dtypes: str) -> None:
    """Compile and launch one configuration; what :func:`_try_apart` starts.

    On a GPU of 132 SMs each program of a persistent kernel takes several tiles here, so that what
    goes wrong from one tile to the next does so.
    """
    import torch

    from mlsys_gpu.kernels.baselines.config import Config

    for dtype in dtypes:
        shapes = (8192, 512), (4096, 512), (8192, 4096)
        A, B, D = (
            torch.ones(shape, dtype=getattr(torch, dtype), device="cuda") for shape in shapes
        )
        importlib.import_module(module).gemm(A, B, D, Config(**json.loads(config)))
        torch.cuda.synchronize()
