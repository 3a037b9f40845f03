"""The command ``mlsys-gpu``: the course's verbs from a shell.

Exit status: 0 where all is right, 1 for a wrong number or a finding, 2 for bad use, with one
sentence that names the value and the rule. ``--json`` prints one object on standard output and
nothing else there; bad use is ``{"error": "…"}`` then.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from mlsys_gpu import release
from mlsys_gpu.device import ARCHITECTURES, NeedsGpu

if TYPE_CHECKING:
    from rich.console import Console

    from mlsys_gpu.kernels.gemm import Step

RIGHT, WRONG, BAD_USE = 0, 1, 2

T = TypeVar("T")


class BadUse(Exception):
    """What was asked for cannot be done as asked; the message is one sentence."""


app = typer.Typer(
    name="mlsys-gpu",
    help="Modern GPU Programming for MLSys: run, debug, measure and inspect the course's kernels, "
    "and grade its exercises.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from mlsys_gpu import __version__

        print(f"mlsys-gpu {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _no_verb(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="The release; then exit."),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def main(arguments: list[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: without the program's name; by default this process's.

    Returns:
        The exit status.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    _prepare_streams()
    try:
        status = app(args=arguments, prog_name="mlsys-gpu", standalone_mode=False)
        sys.stdout.flush()
    except typer.Abort:
        return 130
    except BrokenPipeError:  # whoever reads has seen enough: mlsys-gpu check --list | head
        _discard_output()
        return 128 + 13
    except Exception as error:
        if isinstance(error, OSError) and error.filename is None:
            _discard_output()
            print(f"mlsys-gpu: the output cannot be written: {error.strerror}", file=sys.stderr)
            return BAD_USE
        sentence = _sentence(error)
        if "--json" in arguments:
            print(json.dumps({"error": sentence or f"{type(error).__name__}: {error}"}))
        if sentence is None:
            raise  # a fault of ours: the traceback is what helps
        print(f"mlsys-gpu: {sentence}", file=sys.stderr)
        # a grader that could not do its work is no fault in the command line
        return WRONG if type(error).__name__ == "GraderError" else BAD_USE
    return status if isinstance(status, int) else RIGHT


def _prepare_streams() -> None:
    """Output for terminals that lack some of our characters, and for streams that are closed."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _discard_output() -> None:
    """Let what is still buffered for a closed standard output go nowhere, without a traceback."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _sentence(error: Exception) -> str | None:
    """What bad use reads like; None for an error that is none of the user's."""
    if isinstance(error, BadUse | NeedsGpu | release.WrongTvmRelease):
        return " ".join(str(error).split())
    message = getattr(error, "format_message", None)
    if message is not None:  # typer's own usage errors, whichever release it is
        text = " ".join(str(message()).split())
        context = getattr(error, "ctx", None)
        command = "mlsys-gpu" if context is None else context.command_path
        return f"{text.rstrip('.')}. See {command} --help."
    # names that are only imported where they may be raised
    if type(error).__name__ in (
        "ArgumentError", "MissingTool", "Unsupported", "GraderError", "LoweringError"
    ):  # fmt: skip
        return " ".join(str(error).split())
    return None


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def _print_json(content: Any) -> None:
    print(json.dumps(content, ensure_ascii=False, allow_nan=False))


# ---------------------------------------------------------------------------------------- options

Kernel = Annotated[str, typer.Argument(metavar="KERNEL", help="gemm")]
StepOption = Annotated[
    str | None, typer.Option("--step", metavar="N", help="Step of the GEMM ladder.")
]
VariantOption = Annotated[str | None, typer.Option("--variant", help="Variant of the step.")]
ShapeOption = Annotated[
    str | None, typer.Option("--shape", metavar="M,N,K", help="Shape; the step's own if left out.")
]
ARCH_HELP = "Architecture; if left out, that of the GPU where one runs it, else blackwell."
ArchOption = Annotated[
    str | None, typer.Option("--arch", metavar="blackwell|hopper", help=ARCH_HELP)
]
DtypeOption = Annotated[str, typer.Option("--dtype", metavar="fp16|bf16", help="Of A, B and D.")]
SeedOption = Annotated[str, typer.Option("--seed", metavar="S", help="Seed of the random inputs.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object for machines.")]

_DTYPES = {
    "fp16": "float16",
    "bf16": "bfloat16",
    "float16": "float16",
    "bfloat16": "bfloat16",
}


def _one_of(name: str, value: str, allowed: tuple[str, ...], or_alone: str | None = None) -> str:
    if value not in allowed:
        alone = f", or {or_alone} alone" if or_alone is not None else ""
        raise BadUse(f"{name} must be one of {', '.join(allowed)}{alone}, got {value!r}.")
    return value


def _arch(value: str | None) -> str | None:
    return value if value is None else _one_of("--arch", value, tuple(ARCHITECTURES))


def _dtype(value: str) -> str:
    if value not in _DTYPES:
        raise BadUse(f"--dtype must be fp16 or bf16, got {value!r}.")
    return _DTYPES[value]


def _shape(value: str, option: str) -> tuple[int, int, int]:
    if not re.fullmatch(r"\s*\d+\s*,\s*\d+\s*,\s*\d+\s*", value):
        raise BadUse(f"{option} takes three positive numbers M,N,K, got {value!r}.")
    M, N, K = (int(part) for part in value.split(","))
    if min(M, N, K) == 0:
        raise BadUse(f"{option} takes three positive numbers M,N,K, got {value!r}.")
    return M, N, K


def _natural(option: str, value: str) -> int:
    if not value.isascii() or not value.isdigit():
        raise BadUse(f"{option} takes a whole number from 0 on, got {value!r}.")
    return int(value)


def _gemm_only(kernel: str) -> None:
    if kernel == "attention":
        raise BadUse("attention is not part of this release yet: the kernel is gemm.")
    if kernel != "gemm":
        raise BadUse(f"KERNEL must be gemm, got {kernel!r}.")


def _ready() -> None:
    """Refuse to go on without the TVM release that the kernels are written for."""
    release.require_tvm()
    if release.installed_tvm() is None:
        raise BadUse(
            f"{release.TVM_DISTRIBUTION}=={release.TVM_VERSION} is not installed: "
            f'run `pip install "{release.TVM_DISTRIBUTION}=={release.TVM_VERSION}"`.'
        )


def _said_by_kernels(ask: Callable[[], T]) -> T:
    """Turn a refusal of the kernels (a ValueError that names value and rule) into bad use."""
    try:
        return ask()
    except ValueError as error:
        raise BadUse(f"{error}.".replace("..", ".")) from error


@dataclass(frozen=True)
class _Chosen:
    """The kernel that the options name."""

    step: Step
    shape: tuple[int, int, int]
    dtype: str

    @property
    def target(self) -> str:
        return ARCHITECTURES[self.step.arch]

    def build(self) -> Any:
        return self.step.build(*self.shape, self.dtype)

    def facts(self) -> dict[str, Any]:
        return {
            "kernel": self.step.name,
            "arch": self.step.arch,
            "shape": list(self.shape),
            "dtype": self.dtype,
        }

    def __str__(self) -> str:
        M, N, K = self.shape
        return f"{self.step.name}, {M} × {N} × {K}, {self.dtype}"


def _choose(
    kernel: str,
    step: str | None,
    variant: str | None,
    shape: str | None,
    arch: str | None,
    dtype: str,
) -> _Chosen:
    _gemm_only(kernel)
    if step is None:
        raise BadUse("gemm needs --step N: which step of the ladder.")
    if step.isalpha():
        raise BadUse(
            f"--step takes a whole number from 0 on, got {step!r}; "
            "a variant is named by --step 9 --variant NAME."
        )
    number = _natural("--step", step)
    name, wanted = _dtype(dtype), None if shape is None else _shape(shape, "--shape")
    chosen_arch = _arch(arch) or "blackwell"
    _ready()
    from mlsys_gpu.kernels import gemm

    found = _said_by_kernels(lambda: gemm.step(number, arch=chosen_arch, variant=variant))
    dimensions = wanted or found.default_shape
    _said_by_kernels(lambda: found.check_shape(*dimensions, name))
    return _Chosen(found, dimensions, name)


# ----------------------------------------------------------------------------------------- doctor


@app.command()
def doctor(as_json: JsonOption = False) -> int:
    """What this machine can run, and what is missing."""
    from mlsys_gpu import doctor as facts

    found = facts.examine()
    if as_json:
        _print_json(found)
    else:
        _print_doctor(found)
    return RIGHT if found["ok"] else WRONG


def _print_doctor(found: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    console = _console()
    parts = Table("", "what", "found", "for", box=None, pad_edge=False)
    for item in found["items"]:
        mark = (
            "[green]✓[/]" if item["ok"] else ("[red]✗[/]" if item["required"] else "[yellow]–[/]")
        )
        detail = escape(item["detail"]) + (f"\n→ {escape(item['fix'])}" if item["fix"] else "")
        parts.add_row(mark, item["name"], detail, item["needed_for"])
    console.print(parts)
    console.print()
    table = Table("kernel", "simulator", "this machine's GPU", "silicon", box=None, pad_edge=False)
    # Names are what one types: they are never cut, on a narrow terminal either.
    table.columns[0].min_width = max((len(row["kernel"]) for row in found["kernels"]), default=0)
    for row in found["kernels"]:
        table.add_row(
            row["kernel"],
            "runs" if row["simulator"] else "–",
            "runs" if row["gpu"] else f"needs {row['needs']}",
            row["badge"] or "measured on " + ", ".join(row["silicon"]),
        )
    console.print(table)
    console.print()
    if found["ok"]:
        console.print(
            "The course runs here." if found["gpus"] else "The course runs here, simulated."
        )
    else:
        console.print("The course does not run here yet: see ✗ above.")


# -------------------------------------------------------------------------------------------- run


@app.command()
def run(
    kernel: Kernel,
    step: StepOption = None,
    variant: VariantOption = None,
    shape: ShapeOption = None,
    arch: ArchOption = None,
    dtype: DtypeOption = "fp16",
    seed: SeedOption = "0",
    on: Annotated[str, typer.Option("--on", metavar="sim|gpu", help="Where to run.")] = "sim",
    schedule: Annotated[
        str | None,
        typer.Option(
            "--schedule",
            metavar="eager|lazy|seeded",
            help="Simulator: when asynchronous effects land. By default lazy.",
        ),
    ] = None,
    schedule_seed: Annotated[
        str | None,
        typer.Option("--schedule-seed", metavar="S", help="Simulator: seed of the schedule."),
    ] = None,
    no_checks: Annotated[
        bool, typer.Option("--no-checks", help="Simulator: look for no faults, numbers only.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Run a kernel on random inputs and compare with float64."""
    _one_of("--on", on, ("sim", "gpu"))
    if schedule is not None:
        _one_of("--schedule", schedule, ("eager", "lazy", "seeded"))
    data_seed = _natural("--seed", seed)
    order_seed = _natural("--schedule-seed", schedule_seed or "0")
    if on == "gpu":
        if schedule is not None or schedule_seed is not None or no_checks:
            raise BadUse(
                "--schedule, --schedule-seed and --no-checks are the simulator's: "
                "leave them out or say --on sim."
            )
        arch = arch or _arch_here()
    elif schedule_seed is not None and schedule != "seeded":
        raise BadUse("--schedule-seed is the seed of --schedule seeded, which is not asked for.")
    chosen = _choose(kernel, step, variant, shape, arch, dtype)
    if on == "gpu":
        outcome = _run_on_gpu(chosen, data_seed)
    else:
        outcome = _run_simulated(chosen, data_seed, schedule or "lazy", order_seed, not no_checks)
    if as_json:
        _print_json(outcome.to_dict())
    else:
        _console().print(str(outcome), markup=False)
    return RIGHT if outcome.ok else WRONG


def _arch_here() -> str | None:
    """The architecture of this machine's GPU, if the ladder is written for it."""
    from mlsys_gpu import device

    found = device.current()
    return None if found is None else found.family


@dataclass(frozen=True)
class _Outcome:
    """What ``run`` found: numbers against their bound, and the simulator's findings."""

    chosen: _Chosen
    on: str
    where: str  # for the reader
    seed: int
    comparison: Any
    report: Any  # the simulator's, or None
    seconds: float
    lowering_seconds: float

    @property
    def ok(self) -> bool:
        return self.comparison.ok and not (self.report is not None and self.report.findings)

    def to_dict(self) -> dict[str, Any]:
        compared = self.comparison.to_dict()
        content = {
            "ok": self.ok,
            **self.chosen.facts(),
            "on": self.on,
            "max_error": compared.pop("max_error"),
            "findings": [],
            "seconds": round(self.seconds, 9),
            "lowering_seconds": round(self.lowering_seconds, 6),
            "seed": self.seed,
            "numbers": compared,
        }
        if self.report is not None:
            report = self.report.to_dict()
            content["findings"] = report["findings"]
            content |= {key: report[key] for key in ("schedule", "schedule_seed", "checks")}
            content["deadlock"] = report["deadlock"]
        else:
            content["gpu"] = self.where
        return content

    def __str__(self) -> str:
        lines = [f"{self.chosen}, on {self.where}", f"  {self.comparison}"]
        if self.report is not None:
            found = self.report.findings
            if found:
                lines.append(f"  {len(found)} finding{'' if len(found) == 1 else 's'}:")
                lines += ["  " + line for one in found for line in str(one).splitlines()]
            else:
                lines.append("  no findings" if self.report.checks else "  not checked for faults")
            if self.report.deadlock:
                from mlsys_gpu.sim.report import graph_lines

                lines.append("  who waits for what:")
                lines += [f"    {line}" for line in graph_lines(self.report.deadlock)]
            lines.append(
                f"  {self.seconds:.3f} s simulated, {self.lowering_seconds:.3f} s lowered before"
            )
        else:
            lines.append(f"  {self.seconds * 1e6:.1f} µs on the GPU")
        return "\n".join(lines)


def _run_simulated(
    chosen: _Chosen, seed: int, schedule: str, schedule_seed: int, checks: bool
) -> _Outcome:
    from mlsys_gpu import launch, sim, verification

    began = time.perf_counter()
    program = sim.compile(chosen.build())
    lowering_seconds = time.perf_counter() - began
    M, N, K = chosen.shape
    A, B = verification.gemm_inputs(M, N, K, chosen.dtype, seed)
    D = verification.poisoned((M, N), chosen.dtype)
    report = launch.simulate(
        program, A, B, D, schedule=schedule, schedule_seed=schedule_seed, checks=checks
    )
    label = f"the simulator ({schedule} schedule"
    label += f", seed {schedule_seed})" if schedule == "seeded" else ")"
    return _Outcome(
        chosen=chosen,
        on="sim",
        where=label,
        seed=seed,
        comparison=verification.compare_gemm(A, B, D),
        report=report,
        seconds=report.seconds,
        lowering_seconds=lowering_seconds,
    )


def _run_on_gpu(chosen: _Chosen, seed: int) -> _Outcome:
    from mlsys_gpu import device, launch, verification

    purpose = f"running {chosen.step.name} with --on gpu"
    try:
        gpu = device.require(chosen.target, purpose)
        launch.torch_with_cuda(purpose)
    except NeedsGpu as error:
        raise BadUse(f"{str(error).rstrip('.')}: --on sim runs it in the simulator.") from error
    M, N, K = chosen.shape
    A, B = verification.gemm_inputs(M, N, K, chosen.dtype, seed)
    D = verification.poisoned((M, N), chosen.dtype)
    began = time.perf_counter()
    kernel = chosen.build()
    launch.compile_for_gpu(kernel)
    lowering_seconds = time.perf_counter() - began
    ran = launch.run_on_gpu(kernel, A, B, D)
    return _Outcome(
        chosen=chosen,
        on="gpu",
        where=gpu.name,
        seed=seed,
        comparison=verification.compare_gemm(A, B, D),
        report=None,
        seconds=ran.seconds or 0.0,
        lowering_seconds=lowering_seconds,
    )


# ------------------------------------------------------------------------------------------ debug


@app.command()
def debug(
    kernel: Kernel,
    step: StepOption = None,
    variant: VariantOption = None,
    shape: ShapeOption = None,
    arch: ArchOption = None,
    dtype: DtypeOption = "fp16",
    seed: SeedOption = "0",
    schedule: Annotated[
        str,
        typer.Option(
            "--schedule",
            metavar="eager|lazy|seeded",
            help="When asynchronous effects land.",
        ),
    ] = "lazy",
    schedule_seed: Annotated[
        str, typer.Option("--schedule-seed", metavar="S", help="Seed of the schedule.")
    ] = "0",
    no_checks: Annotated[
        bool, typer.Option("--no-checks", help="Look for no faults (no in-flight marks either).")
    ] = False,
    breaks: Annotated[
        list[str] | None,
        typer.Option(
            "--break",
            metavar="WHERE",
            help="A breakpoint, as the command break takes it: 93, Tx.gemm_async, 'barrier full[1] "
            "3', 'finding', each with 'warp N', 'cta X,Y', 'if k == 3' behind it if wanted. The "
            "run goes on to the first. May be given several times.",
        ),
    ] = None,
) -> int:
    """Run a kernel in the simulator under control: stop, look, step on.

    Commands come from the terminal, or from a pipe (one a line). help lists them; the most used
    are break, continue, step, next (barrier), vars, print, smem, tmem, barriers, waits, warp, list
    and quit. The exit status is 1 where the run ended with a wrong number or a finding, or a
    command from a pipe could not be done. For example:

    printf 'until Tx.gemm_async warp 0\\nsmem As\\nquit\\n' | mlsys-gpu debug gemm --step 3
    """
    _one_of("--schedule", schedule, ("eager", "lazy", "seeded"))
    data_seed, order_seed = _natural("--seed", seed), _natural("--schedule-seed", schedule_seed)
    chosen = _choose(kernel, step, variant, shape, arch, dtype)
    from mlsys_gpu import launch, verification
    from mlsys_gpu.sim import shell

    M, N, K = chosen.shape
    A, B = verification.gemm_inputs(M, N, K, chosen.dtype, data_seed)
    D = verification.poisoned((M, N), chosen.dtype)
    session = launch.debug(
        chosen.build(),
        A,
        B,
        D,
        schedule=schedule,
        schedule_seed=order_seed,
        checks=not no_checks,
    )
    try:
        for where in breaks or ():
            session.break_at(**shell.place(where))
    except shell.DebugError as error:
        session.close()
        raise BadUse(f"--break {where}: {error}.") from error
    if breaks:
        session.cont()
    commands = shell.Shell(session, None if sys.stdin.isatty() else sys.stdin, sys.stdout)
    commands.cmdloop()
    failed = commands.failed and not commands.interactive  # nobody was there to try again
    if not session.finished:
        return WRONG if failed else RIGHT
    outcome = verification.compare_gemm(A, B, D)
    print(outcome)
    return RIGHT if outcome.ok and not session.report.findings and not failed else WRONG


# ------------------------------------------------------------------------------------------ trace


@app.command()
def trace(
    kernel: Kernel,
    step: StepOption = None,
    variant: VariantOption = None,
    shape: ShapeOption = None,
    arch: Annotated[
        str | None,
        typer.Option(
            "--arch",
            metavar="blackwell|hopper",
            help="Architecture; if left out, that of --gpu, else blackwell.",
        ),
    ] = None,
    dtype: DtypeOption = "fp16",
    seed: Annotated[
        str | None,
        typer.Option("--seed", metavar="S", help="Seed of random inputs; zeros if left out."),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", metavar="h200|b200", help="Whose constants; the architecture's."),
    ] = None,
    clusters: Annotated[
        str | None,
        typer.Option("--clusters", metavar="N", help="Clusters to run, for all of them; 6."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="trace.json opens at https://ui.perfetto.dev, trace.html in a browser.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """When each warp, engine and barrier of a kernel works or waits: modelled, with no GPU.

    A few clusters run in the simulator and stand for all of them, so that any size will do.
    """
    data_seed = None if seed is None else _natural("--seed", seed)
    count = None if clusters is None else _natural("--clusters", clusters)
    if count is not None and count < 2:
        raise BadUse(f"--clusters takes a whole number from 2 on, got {clusters!r}.")
    if gpu is not None and arch is None:
        arch = _arch_of_gpu(gpu)
    chosen = _choose(kernel, step, variant, shape, arch, dtype)
    from mlsys_gpu import launch, verification
    from mlsys_gpu.sim import timing
    from mlsys_gpu.sim.timing import files

    constants = _said_by_kernels(lambda: timing.chosen_gpu(gpu, chosen.target))
    if output is not None:
        _said_by_kernels(lambda: files.check(output))
    M, N, K = chosen.shape
    arrays: tuple[Any, ...] = ()
    if data_seed is not None:
        A, B = verification.gemm_inputs(M, N, K, chosen.dtype, data_seed)
        arrays = A, B, verification.poisoned((M, N), chosen.dtype)
    found = launch.model(chosen.build(), *arrays, gpu=constants, clusters=count)
    flops = 2.0 * M * N * K
    if output is not None:
        try:
            found.save(output, flops)
        except OSError as error:
            raise BadUse(f"--output {output} cannot be written: {error.strerror}.") from error
    if as_json:
        content = {
            "ok": True,
            **chosen.facts(),
            "gpu": constants.name.lower(),
            "modelled": found.summary(flops),
            "statistics": found.statistics(),
            "output": None if output is None else str(output),
        }
        _print_json(content)
        return RIGHT
    console = _console()
    console.print(f"{chosen}, modelled on {found.gpu}", markup=False)
    console.print(found.text(flops), markup=False)
    if output is not None:
        console.print(f"{output}: {files.OPENED[output.suffix.lower()]}", markup=False)
    return RIGHT


def _arch_of_gpu(name: str) -> str:
    """The architecture that a GPU of the time model has, as ``--arch`` spells it."""
    from mlsys_gpu.sim import timing

    found = _said_by_kernels(lambda: timing.gpu_constants(name)).arch
    return next(arch for arch, target in ARCHITECTURES.items() if target == found)


# ------------------------------------------------------------------------------------------ bench


@app.command()
def bench(
    kernel: Kernel,
    steps: Annotated[
        str | None,
        typer.Option(
            "--steps",
            metavar="1-9",
            help="Steps and variants: 1-3, or 3-9,dynamic,tuned. All if left out.",
        ),
    ] = None,
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            "--shapes",
            metavar="M,N,K",
            help="Shapes, separated by spaces; one number is a cube. May be given several times.",
        ),
    ] = None,
    arch: ArchOption = None,
    dtype: Annotated[
        str, typer.Option("--dtype", metavar="fp16|bf16", help="Or both: fp16,bf16.")
    ] = "fp16",
    seed: SeedOption = "0",
    seconds: Annotated[
        str, typer.Option("--seconds", metavar="T", help="Time for the samples of a row.")
    ] = "2",
    baselines: Annotated[
        str,
        typer.Option(
            "--baselines",
            metavar="B",
            help="What to compare with: cublas,triton,triton_persistent, or none.",
        ),
    ] = "cublas,triton,triton_persistent",
    no_tuning: Annotated[
        bool,
        typer.Option("--no-tuning", help="Take Triton's configurations as they are."),
    ] = False,
    timing: Annotated[
        str,
        typer.Option(
            "--timing",
            metavar="auto|graph|stream",
            help="Time replays of a CUDA graph, or launches; auto takes graphs for small sizes.",
        ),
    ] = "auto",
    together: Annotated[
        bool,
        typer.Option("--together", help="All kernels of a shape and dtype take samples in turn."),
    ] = False,
    jobs: Annotated[
        str | None,
        typer.Option(
            "--jobs", metavar="N", help="Processes that compile ahead; by default one a core."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Result file (JSON), written row by row."
        ),
    ] = None,
    merge: Annotated[
        bool,
        typer.Option("--merge", help="Keep the rows of FILE that are not measured again."),
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Measure kernels on this machine's GPU, next to cuBLAS and Triton."""
    _gemm_only(kernel)
    dtypes = list(dict.fromkeys(_dtype(part) for part in dtype.split(",")))
    wanted = _shapes(shapes) if shapes else [(4096, 4096, 4096)]
    if not wanted:
        raise BadUse(f"--shapes names no shape, got {' '.join(shapes or ())!r}.")
    if not re.fullmatch(r"\d+(\.\d+)?", seconds) or not 0 < float(seconds) <= 600:
        raise BadUse(f"--seconds must be more than 0 and at most 600, got {seconds!r}.")
    data_seed = _natural("--seed", seed)
    processes = _natural("--jobs", jobs) if jobs is not None else os.cpu_count() or 1
    if merge and output is None:
        raise BadUse("--merge needs --output: the file whose rows are kept.")
    chosen_arch = _arch(arch) or _arch_here() or "blackwell"
    from mlsys_gpu import benchmarking, device, measuring

    _one_of("--timing", timing, measuring.TIMINGS)
    others = [] if baselines == "none" else baselines.split(",")
    for name in others:
        _one_of("--baselines", name, tuple(measuring.BASELINES), or_alone="none")
    _ready()
    from mlsys_gpu.kernels import gemm

    ladder = _said_by_kernels(lambda: gemm.selected(steps, chosen_arch))
    _said_by_kernels(lambda: benchmarking.cases(ladder, wanted, dtypes))
    before = benchmarking.Benchmark()
    if output is not None:
        if merge and not output.is_dir():
            before = _said_by_kernels(lambda: benchmarking.earlier(output, device.current()))
        _refuse_unwritable(output, with_folder=True)
    shown = _Progress(quiet=as_json)

    def after(result: Any) -> None:
        shown.after(result)
        if output is not None and result.rows:
            _merged(before, result).save(output)

    with shown:
        result = benchmarking.benchmark(
            ladder,
            wanted,
            dtypes,
            baselines=others,
            timing=timing,
            tune=not no_tuning,
            together=together,
            seconds=float(seconds),
            seed=data_seed,
            processes=processes,
            keep_going=True,
            progress=shown.before,
            after=after,
        )
    assert isinstance(result, benchmarking.Benchmark)  # a command is no notebook
    if as_json:
        failed = {"failures": result.failures} if result.failures else {}
        _print_json(_merged(before, result).to_dict() | failed)
    else:
        _print_benchmark(result)
    for failure in result.failures:
        M, N, K = (failure[k] for k in "MNK")
        what = f"{failure['kernel']} {M},{N},{K} {failure['dtype']}"
        print(f"mlsys-gpu: not measured: {what}: {failure['error']}", file=sys.stderr)
    return WRONG if result.failures else RIGHT


def _merged(before: Any, result: Any) -> Any:
    """The rows of the file, and over them those of this run."""
    if not before.rows:
        return result
    return before.merged(result)


class _Progress:
    """How far a benchmark is, on standard error: a bar on a terminal, else a line for each step."""

    def __init__(self, quiet: bool):
        self.quiet = quiet
        self.rows = self.failures = 0
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> _Progress:
        if not self.quiet and sys.stderr.isatty():
            from rich import progress
            from rich.console import Console

            self._bar = progress.Progress(
                progress.BarColumn(),
                progress.MofNCompleteColumn(),
                progress.TimeElapsedColumn(),
                progress.TextColumn("{task.description}", markup=False),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("compiling", total=None)
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def before(self, number: int, total: int, label: str) -> None:
        """A measurement begins."""
        if self._bar is not None:
            self._bar.update(self._task, completed=number, total=total, description=label)
        elif not self.quiet:
            print(f"[{number + 1}/{total}] {label}", file=sys.stderr, flush=True)

    def after(self, result: Any) -> None:
        """A measurement is over: a line for each of its rows."""
        from mlsys_gpu.benchmarking import line

        for row in result.rows[self.rows :]:
            if self._bar is None and not self.quiet:
                print(f"  {line(row)}", file=sys.stderr, flush=True)
        for failure in result.failures[self.failures :]:
            if self._bar is None and not self.quiet:
                print(f"  not measured: {failure['error']}", file=sys.stderr, flush=True)
        self.rows, self.failures = len(result.rows), len(result.failures)


def _shapes(values: list[str]) -> list[tuple[int, int, int]]:
    found = []
    for token in (token for value in values for token in value.split()):
        found.append(_shape(f"{token},{token},{token}" if token.isdigit() else token, "--shapes"))
    return found


def _print_benchmark(result: Any) -> None:
    from rich.table import Table

    header, cells = result.table()
    table = Table(*header, box=None, pad_edge=False)
    for line in cells:
        table.add_row(*line)
    console = _console()
    console.print(result.caption, markup=False)
    console.print(table)


# -------------------------------------------------------------------------------------- calibrate


@app.command()
def calibrate(
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Result file (JSON). With --groups, one that is there keeps its other constants.",
        ),
    ] = None,
    groups: Annotated[
        str | None,
        typer.Option(
            "--groups",
            metavar="NAMES",
            help="Measure these groups of constants only, with commas between: rings,shares. All "
            "if left out.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Measure the time model's constants on this machine's GPU."""
    from mlsys_gpu import calibration, device

    wanted = None if groups is None else [name.strip() for name in groups.split(",")]
    try:
        calibration.group_names(wanted)
    except ValueError as error:
        raise BadUse(f"--groups: {error}.") from error
    if output is not None:
        _refuse_unwritable(output)
    earlier = None
    if wanted is not None and output is not None and output.is_file():
        try:
            earlier = calibration.load(output)
            earlier.refuse_other_gpu(device.require(calibration.ARCH, "calibrating").name)
        except ValueError as error:
            raise BadUse(f"--groups cannot be put into --output {output}: {error}.") from error
    result = calibration.calibrate(
        groups=wanted, progress=lambda line: print(line, file=sys.stderr, flush=True)
    )
    if output is not None and earlier is None:
        result.save(output)
    elif output is not None and earlier is not None and result.constants:
        earlier.with_later(result).save(output)
    if as_json:
        _print_json(result.to_dict())
    elif output is None:
        _print_constants(result)
    return WRONG if result.missing else RIGHT


def _refuse_unwritable(path: Path, with_folder: bool = False) -> None:
    """Refuse a result file that cannot be written, before anything is measured."""
    if path.is_dir():
        raise BadUse(f"--output must name a file, and {path} is a folder.")
    try:
        if with_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        existed = path.exists()
        with path.open("a"):
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        raise BadUse(f"--output {path} cannot be written: {error.strerror}.") from error


def _print_constants(result: Any) -> None:
    from rich.table import Table

    header, cells = result.table()
    table = Table(*header, box=None, pad_edge=False)
    for line in cells:
        table.add_row(*line)
    _console().print(table, markup=False)


# ---------------------------------------------------------------------------------------- inspect


@app.command()
def inspect(
    kernel: Kernel,
    step: StepOption = None,
    variant: VariantOption = None,
    shape: ShapeOption = None,
    arch: ArchOption = None,
    dtype: DtypeOption = "fp16",
    emit: Annotated[
        str, typer.Option("--emit", metavar="cuda|ptx|sass|resources", help="What to print.")
    ] = "resources",
    as_json: JsonOption = False,
) -> int:
    """What a kernel becomes: CUDA C++, PTX, machine code, or the resources it takes."""
    _one_of("--emit", emit, ("cuda", "ptx", "sass", "resources"))
    chosen = _choose(kernel, step, variant, shape, arch, dtype)
    from mlsys_gpu import artifacts

    made = getattr(artifacts.inspect(chosen.build()), emit)
    if as_json:
        key = "resources" if emit == "resources" else "text"
        _print_json({**chosen.facts(), "emit": emit, key: made})
    elif emit == "resources":
        print(f"{chosen}, for {chosen.target}")
        width = max(len(name) for name in made)
        for name, value in made.items():
            print(f"  {name.replace('_', ' '):{width}}  {value}")
    else:
        print(made)
    return RIGHT


# -------------------------------------------------------------------------------------- exercises


@app.command()
def check(
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="1.4 | chapter 1 | all", help="Which exercises; several ids, too."),
    ] = None,
    list_only: Annotated[bool, typer.Option("--list", help="List them, grade nothing.")] = False,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Results as JSON.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Grade exercises."""
    from mlsys_gpu.grading import api, manifest, paths

    words = " ".join(what or ())
    if list_only:
        chosen = _graded(lambda: manifest.select(manifest.load(paths.find_root()), words or "all"))
        exercises = [exercise.to_dict() for exercise in chosen]
        if as_json:
            _print_json({"exercises": exercises})
        else:
            print("\n".join(f"{e['id']:<5} {e['kind']:<9} {e['title']}" for e in exercises))
        return RIGHT
    if not words:
        raise BadUse("check needs to know what to grade: 12.1, chapter 12, or all.")
    if report is not None and (report.is_dir() or not report.absolute().parent.is_dir()):
        raise BadUse(f"--report must name a file in a folder that exists, got {report}.")

    def show(verdict: Any) -> None:
        print(verdict, flush=True)

    results = _graded(
        lambda: api.check_exercises(words, report, on_verdict=None if as_json else show)
    )
    if as_json:
        _print_json(results.to_dict())
    elif len(results.verdicts) > 1:
        print(results.summary())
    return RIGHT if results.ok else WRONG


@app.command()
def reset(
    exercise: Annotated[str, typer.Argument(metavar="1.4", help="The exercise's id.")],
    as_json: JsonOption = False,
) -> int:
    """The stub again; your file is kept beside it."""
    from mlsys_gpu.grading import api

    message = _graded(lambda: api.reset(exercise))
    if as_json:
        _print_json({"ok": True, "id": exercise, "message": message})
    else:
        print(message)
    return RIGHT


@app.command()
def progress(as_json: JsonOption = False) -> int:
    """What is solved, and what comes next."""
    from mlsys_gpu.grading import api

    found = _graded(api.progress)
    if as_json:
        _print_json(found.to_dict())
    else:
        print(found)
    return RIGHT


def _graded(ask: Callable[[], T]) -> T:
    """Turn what the grader says about an unknown exercise or a missing course into bad use."""
    from mlsys_gpu.grading import manifest, paths

    try:
        return ask()
    except (manifest.UnknownExercise, manifest.ManifestError, paths.CourseNotFound) as error:
        raise BadUse(str(error)) from error


if __name__ == "__main__":
    sys.exit(main())
