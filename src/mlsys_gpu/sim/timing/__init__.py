"""The model of time: what a kernel's operations would take on a GPU, from a run in the simulator.

A timed run *records* what the warps of a few clusters do (:mod:`mlsys_gpu.sim.machine.recording`);
:mod:`.replay` walks through that in cycles, with the constants of a GPU (:mod:`.constants`);
:mod:`.chip` lays the grid out over the chip; :mod:`.statistics`, :mod:`.timeline` and :mod:`.trace`
show the result. All of it is modelled, and says so.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import replace
from typing import Any

from mlsys_gpu.parameters import ArgumentError
from mlsys_gpu.sim.program import Program
from mlsys_gpu.sim.timing.chip import Model, Occupancy, Timing, Traffic
from mlsys_gpu.sim.timing.constants import Gpu, default_gpu, gpu_constants
from mlsys_gpu.sim.timing.replay import Compiled

__all__ = [
    "Compiled",
    "Gpu",
    "Model",
    "Occupancy",
    "Timing",
    "Traffic",
    "chosen_gpu",
    "compiled_facts",
    "default_gpu",
    "gpu_constants",
    "model",
    "of",
    "recorder",
]


def chosen_gpu(wanted: bool | str | Gpu | None, arch: str) -> Gpu:
    """The constants of the GPU to model: the one named, or an architecture's usual one.

    Raises :class:`ArgumentError` where it is not known, or of another architecture.
    """
    if wanted is True or wanted is None:
        return gpu_constants(default_gpu(arch))
    if not isinstance(wanted, (str, Gpu)):
        raise ArgumentError(
            f"timing is True, False, a GPU's name or a file of its constants, not {wanted!r}"
        )
    try:
        gpu = wanted if isinstance(wanted, Gpu) else gpu_constants(wanted)
    except ValueError as error:
        raise ArgumentError(str(error)) from None
    if gpu.arch.rstrip("af") != arch.rstrip("af"):
        raise ArgumentError(
            f"the kernel is for {arch}, and {gpu.name} is of {gpu.arch}; "
            f"leave the GPU out, or name one of {arch}, as {default_gpu(arch)}"
        )
    return gpu


def recorder(sample: int | None = None, alone: bool = False) -> Any:
    """What makes the recorder of a timed run, once its machine is there."""
    recording = importlib.import_module("mlsys_gpu.sim.machine.recording")
    usual = recording.SAMPLE if alone else recording.SAMPLE_OF_ALL
    count = usual if sample is None else sample
    return lambda machine: recording.Recorder(machine, count, alone)


#: What is known of the kernels of this process, by their Programs' keys.
_FACTS: dict[str, Compiled] = {}


def compiled_facts(kernel: Any, program: Program) -> Compiled:
    """What the compiler has decided about a kernel: read from its machine code, once a process.

    Nothing is known where the compiler or the disassembler is not installed, or where the kernel is
    a :class:`Program`, of which only the translation is there.
    """
    if isinstance(kernel, Program):
        return Compiled()
    found = _FACTS.get(program.key)
    if found is None:
        found = _FACTS[program.key] = _read_facts(kernel, program.arch)
    return found


def _read_facts(kernel: Any, arch: str) -> Compiled:
    from mlsys_gpu import artifacts

    try:
        made = artifacts.inspect(kernel, arch)
        registers, sass = int(made.resources["registers"]), made.sass
    except (artifacts.MissingTool, artifacts.CompileError):
        return Compiled()
    products = len(re.findall(r"\bHGMMA\.", sass))
    waits = len(re.findall(r"\bWARPGROUP\.DEPBAR", sass))
    return Compiled(
        registers,
        loads_together(sass),
        loads_together(sass, "LDS"),
        bool(products) and waits >= products,
    )


_INSTRUCTION = re.compile(
    r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\d+ )?(\w+)((?:\.\w+)*)\s*(.*?)\s*;", re.MULTILINE
)
_WIDTH = {".64": 2, ".128": 4}


def loads_together(sass: str, opcode: str = "LDG") -> int | None:
    """How many loads the machine code has under way before it waits for one of them.

    A warp issues in order: it stops at the first use of a register that a load has yet to fill. So
    loads that stand before that use are under way together, and those behind it come in a later
    round. Returns loads a round, over the whole kernel; None where it has none.
    """
    loads = rounds = now = begun = 0
    filling: dict[int, int] = {}  # registers, and the round of the load that fills them
    for name, modifiers, operands in _INSTRUCTION.findall(sass):
        registers = [int(n) for n in re.findall(r"\bR(\d+)\b", operands)]
        if name in ("BAR", "SYNCS", "BRA", "EXIT", "WARPSYNC"):
            rounds += begun
            now = begun = 0
            filling.clear()
            continue
        wide = next((n for m, n in _WIDTH.items() if m in modifiers), 1)
        stores = name in ("STG", "STS", "ST")
        used = registers if stores else registers[1:]
        if stores and registers:
            used = [*used, *range(registers[-1], registers[-1] + wide)]
        waited = [filling[r] for r in used if r in filling]
        if waited:
            now = max(now, max(waited) + 1)
        if name == opcode and registers:
            loads += 1
            begun = now + 1
            for r in range(registers[0], registers[0] + wide):
                filling[r] = now
        elif registers and not stores:
            filling.pop(registers[0], None)
    rounds += begun
    return max(1, round(loads / rounds)) if loads else None


def of(report: Any) -> Timing:
    """The timing of a report of a timed run."""
    gpu, kernel = report._timed
    if not report.completed:
        raise ValueError(f"no time can be modelled of a run that stopped: {_fault(report)}")
    program = report._recording.program
    compiled = compiled_facts(kernel, program)
    return Model(report._recording, program, gpu, compiled).timing()


def _fault(report: Any) -> str:
    """What stopped a run, in one sentence."""
    found = [f for f in report.findings if f.severity == "error"]
    return found[0].message if found else "it did not complete"


def model(
    kernel: Any,
    arrays: Any = (),
    *,
    gpu: str | Gpu | None = None,
    clusters: int | None = None,
    arch: str | None = None,
    registers: int | None = None,
) -> Timing:
    """See :func:`mlsys_gpu.sim.model`."""
    import numpy as np

    from mlsys_gpu.sim import compile
    from mlsys_gpu.sim.machine import run
    from mlsys_gpu.sim.machine.numerics import STORAGE

    if clusters is not None and (not isinstance(clusters, int) or clusters < 2):
        raise ValueError(f"clusters is a number of clusters to run, 2 or more, not {clusters!r}")
    if registers is not None and (not isinstance(registers, int) or not 1 <= registers <= 255):
        raise ValueError(f"registers is a number of registers of a thread, 1 to 255: {registers!r}")
    program = compile(kernel, arch)
    constants = chosen_gpu(gpu, program.arch)
    if arrays:
        held = [np.array(a) if isinstance(a, np.ndarray) else a for a in arrays]
    else:
        held = [np.zeros(shape, STORAGE[dtype]) for _, shape, dtype in program.params]
    report = run(
        program,
        held,
        schedule="lazy",
        seed=0,
        checks=False,
        timing=recorder(clusters, alone=True),
    )
    if not report.completed:
        raise ValueError(
            f"no time can be modelled: {_fault(report)}. Only a few clusters have run; where they "
            "wait for others, run the kernel whole: simulate(…, timing=True)"
        )
    compiled = compiled_facts(kernel, program)
    if registers is not None:
        compiled = replace(compiled, registers=registers)
    program = report._recording.program
    return Model(report._recording, program, constants, compiled).timing()
