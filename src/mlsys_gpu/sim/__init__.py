"""The simulator: lowered TIRx kernels executed on the CPU, with a diagnosis of their faults.

Two halves. The *front* half (:mod:`mlsys_gpu.sim.frontend`) needs TVM: it translates the lowered
device function into a :class:`~mlsys_gpu.sim.program.Program`, one serialisable value of Python
source, launch and source map. The *back* half (:mod:`mlsys_gpu.sim.machine`) needs NumPy alone: it
runs a Program on a model of warps, memories, barriers and asynchronous engines.

:func:`simulate` joins the two and caches Programs on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlsys_gpu.sim.program import Program, Unsupported
from mlsys_gpu.sim.report import CODES, Finding, Location, Report

__all__ = [
    "CODES",
    "Finding",
    "Location",
    "Program",
    "Report",
    "Unsupported",
    "compile",
    "inline",
    "model",
    "operations",
    "simulate",
]


def compile(kernel: Any, arch: str | None = None, *, debug: bool = False) -> Program:
    """Translate a TIRx PrimFunc into a :class:`Program` (cached on disk by content).

    ``debug``: the variant for :func:`mlsys_gpu.debug`, which can stop at every statement.
    Raises :class:`Unsupported` naming the operation and its source line where the kernel uses
    something that the simulator does not model, and ``ValueError`` where ``kernel`` is none, or
    ``arch`` is not what it is for (:func:`mlsys_gpu.lowering.arch_of`).
    """
    from mlsys_gpu.lowering import architecture, prim_func
    from mlsys_gpu.sim.program import cached_program

    if isinstance(kernel, Program):
        if arch is not None and architecture(arch) != kernel.arch:
            raise ValueError(
                f"{kernel.name} is compiled for {kernel.arch}, which contradicts arch {arch!r}"
            )
        return kernel
    return cached_program(prim_func(kernel), arch, debug)


def simulate(
    kernel: Any,
    *arrays: Any,
    schedule: str = "lazy",
    schedule_seed: int = 0,
    checks: bool = True,
    arch: str | None = None,
    readings: dict[str, str] | None = None,
    timing: bool | str = False,
) -> Report:
    """Run a kernel on the CPU and report what is wrong with it.

    ``kernel`` is any TIRx PrimFunc, or a :class:`Program`; ``arrays`` are its tensors in order, as
    C-contiguous NumPy arrays or torch CPU tensors of the declared shape and dtype (bfloat16 as
    torch, as ``ml_dtypes.bfloat16`` or as its bits in ``uint16``). Outputs are filled in place.

    ``schedule``: ``eager`` (asynchronous effects land at once), ``lazy`` (at the latest point that
    the ISA allows) or ``seeded`` (anything legal in between, by ``schedule_seed``).
    ``checks=False`` leaves out the happens-before analysis and the checks of initialisation.
    ``readings`` chooses among readings of the ISA where its text is disputed, such as
    ``{"wgmma-wait": "warp"}`` (:data:`mlsys_gpu.sim.machine.READINGS` has them all); the report's
    ``readings`` says which ones mattered. ``timing`` records the run for the model of time, of the
    architecture's usual GPU or of the one named (``"h200"``, ``"b200"``): the report's ``timing``
    and ``timeline()`` show it.
    """
    from mlsys_gpu.sim.machine import run

    program = compile(kernel, arch)
    recorder = None
    if timing is not False:
        from mlsys_gpu.sim import timing as timed

        gpu, recorder = timed.chosen_gpu(timing, program.arch), timed.recorder()
    report = run(
        program,
        arrays,
        schedule=schedule,
        seed=schedule_seed,
        checks=checks,
        readings=readings,
        timing=recorder,
    )
    if timing is not False:
        report._timed = (gpu, kernel)
    return report


def model(
    kernel: Any,
    *arrays: Any,
    gpu: Any = None,
    clusters: int | None = None,
    arch: str | None = None,
    registers: int | None = None,
) -> Any:
    """The modelled duration of a launch, from a few of its clusters: for sizes that would take too
    long to execute. Returns a :class:`mlsys_gpu.sim.timing.Timing`.

    ``arrays`` are as for :func:`simulate`, and are not changed; without any, tensors of zeros of
    the declared shapes are used, and the kernel must have no other arguments. ``gpu`` names a file
    of constants (``"h200"``, ``"b200"``); ``clusters`` is how many clusters run (6); ``registers``
    of a thread, where the compiler is not to be asked for them.
    Raises ``ValueError`` for a GPU that is not known or is of another architecture.
    """
    from mlsys_gpu.sim import timing

    return timing.model(kernel, arrays, gpu=gpu, clusters=clusters, arch=arch, registers=registers)


def inline(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register what the inline CUDA function ``name`` (``T.cuda.func_call``) computes.

    The decorated function takes the arguments as NumPy arrays of 32 values, one for each lane, or
    as scalars where all lanes have the same, in their own dtypes (bfloat16 as float32), and returns
    values for the same lanes. It must have no other effect: functions that take pointers are
    refused all the same, and one that exchanges values between lanes cannot be told so.

    ::

        @sim.inline("cube")
        def cube(x):
            return x * x * x
    """
    from mlsys_gpu.sim.machine import inline as registry

    return registry.register(name)


def operations() -> list[str]:
    """Names of the PTX and CUDA operations that the simulator models."""
    from mlsys_gpu.sim.frontend import table

    return table.names()
