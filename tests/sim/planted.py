"""Faults planted in real kernels, as data: ``mutants/<arch>*.toml``. The tests run them.

A ``mutant`` is a change of text in the source of a kernel:

``name``                 what is wrong
``class``                its class in the catalogue of faults (``mlsys_gpu.sim.catalogue.CLASSES``)
``step`` or ``kernel``   a step of the ladder, or a fixture, ``fixtures/<arch>_<kernel>.py``
``shape``, ``options``   arguments of its ``build``
``find``, ``replace``    the change; ``find`` must match exactly once. Lists of equal length make
                         several. A first newline in a block does not count.
``code``                 code of the leading finding
``line``                 how that finding's line begins, in the changed source
``severity``             of that finding; ``error`` unless said otherwise
``points_to``            how a line begins that the finding names besides (optional)
``readings``             readings of the ISA that the fault depends on (optional)
``numbers_show``         the schedules in which the numbers alone would have shown the fault
``hangs``, ``stops``     the schedules in which the kernel never ends, or stops at an invalid access
``found_in``             the schedules in which the checks find the fault; ``all`` unless said so

Schedules are ``eager``, ``lazy`` and the seeds 0 to 9 of ``seeded``; ``all`` names them all. In a
schedule that ``numbers_show``, ``hangs`` and ``stops`` do not name a run without checks ends with
right numbers. A ``control`` is a change that plants no fault: nothing may be found.

A kernel's module has ``build(*shape, **options)``. It computes ``D = A @ B.T`` for a shape of M, N
and K, unless it defines ``arrays(*shape, seed)``, its arguments with poisoned outputs, and
``right(*arrays)``, whether the outputs are what they should be. A GEMM fixture with an option
``k_tiles`` sums over the first so many K tiles of 64 alone.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from mlsys_gpu import sim
from mlsys_gpu.kernels import gemm
from mlsys_gpu.verification import compare_gemm, gemm_inputs, poisoned

from .sources import module_from

HERE = Path(__file__).parent
FILES, FIXTURES = HERE / "mutants", HERE / "fixtures"

#: How many seeds run; ten unless the environment asks for another number of them, or for fewer.
SEEDS = int(os.environ.get("MLSYS_GPU_TEST_SEEDS", "10"))
SCHEDULES: dict[str, dict[str, Any]] = {
    "eager": {"schedule": "eager"},
    "lazy": {"schedule": "lazy"},
    **{str(seed): {"schedule": "seeded", "schedule_seed": seed} for seed in range(SEEDS)},
}
#: The schedules that the files speak of.
DECLARED = ("eager", "lazy", *(str(seed) for seed in range(10)))


class Planted:
    """A mutant or a control, and the kernel that it makes."""

    def __init__(self, arch: str, file: str, kind: str, entry: dict[str, Any]):
        self.arch, self.file, self.kind, self.entry = arch, file, kind, entry
        self.name: str = entry["name"]
        self.shape: tuple[int, ...] = tuple(entry["shape"])
        self.options: dict[str, Any] = entry.get("options", {})

    @property
    def kernel(self) -> str:
        """``blackwell/step3``, ``hopper/persistent``."""
        of = f"step{self.entry['step']}" if "step" in self.entry else self.entry["kernel"]
        return f"{self.arch}/{of}"

    @property
    def id(self) -> str:
        return f"{self.kernel.replace('/', '-')}-{self.name.replace(' ', '-')}"

    def path(self) -> Path:
        """The unbroken kernel's source."""
        if "step" in self.entry:
            return gemm.step(self.entry["step"], self.arch).source_path
        return FIXTURES / f"{self.arch}_{self.entry['kernel']}.py"

    def source(self) -> str:
        """The changed source."""
        text = self.path().read_text()
        for find, replace in self.edits():
            count = text.count(find)
            assert count == 1, f"{find!r} matches {count} times in {self.kernel}"
            text = text.replace(find, replace)
        return text

    def edits(self) -> list[tuple[str, str]]:
        finds, replaces = (
            [one] if isinstance(one, str) else one
            for one in (self.entry["find"], self.entry["replace"])
        )
        return [
            (find.removeprefix("\n"), replace.removeprefix("\n"))
            for find, replace in zip(finds, replaces, strict=True)
        ]

    def named(self, field: str, default: str = "") -> set[str]:
        """The schedules of this run that a field names."""
        text = self.entry.get(field, default)
        names = set(DECLARED) if text == "all" else set(text.split())
        assert names <= set(DECLARED), names
        return names & set(SCHEDULES)

    def declared(self) -> set[str]:
        """The schedules of this run that the file speaks of."""
        return set(SCHEDULES) & set(DECLARED)


@cache
def planted(kind: str) -> list[Planted]:
    """The ``mutant`` or ``control`` entries of all files."""
    found = []
    for file in sorted(FILES.glob("*.toml")):
        arch = next(arch for arch in gemm.ARCHS if file.name.startswith(arch))
        for entry in tomllib.loads(file.read_text()).get(kind, []):
            found.append(Planted(arch, file.name, kind, entry))
    return found


def line_of(source: str, start: str) -> int:
    """Number of the one line that begins with ``start``."""
    lines = [i for i, line in enumerate(source.splitlines(), 1) if line.strip().startswith(start)]
    assert len(lines) == 1, f"{start!r} begins lines {lines}"
    return lines[0]


class Kernel:
    """A kernel's module, its Program, and how its outputs are checked."""

    def __init__(self, module: ModuleType, shape: Sequence[int], options: dict[str, Any]):
        self.module, self.shape, self.options = module, tuple(shape), options
        self.program = sim.compile(module.build(*shape, **options))

    def arrays(self, seed: int = 1) -> list[np.ndarray]:
        """Inputs and poisoned outputs, as the kernel takes them."""
        if hasattr(self.module, "arrays"):
            return list(self.module.arrays(*self.shape, seed=seed))
        dtype = self.options.get("dtype", "float16")
        M, N, K = self.shape
        return [*gemm_inputs(M, N, K, dtype=dtype, seed=seed), poisoned((M, N), dtype)]

    def right(self, arrays: Sequence[np.ndarray]) -> bool:
        """Whether the outputs are what they should be."""
        if hasattr(self.module, "right"):
            return bool(self.module.right(*arrays))
        A, B, D = arrays
        tiles = self.options.get("k_tiles")
        if tiles is not None:
            A, B = A[:, : 64 * tiles], B[:, : 64 * tiles]
        if A.shape[1] == 0:
            return bool((D == 0).all())
        return compare_gemm(A, B, D).max_error <= 1

    def run(self, checks: bool = True, **schedule: Any) -> tuple[sim.Report, list[np.ndarray]]:
        """Simulate on fresh arrays."""
        arrays = self.arrays()
        return sim.simulate(self.program, *arrays, checks=checks, **schedule), arrays

    def outcome(self, **schedule: Any) -> str:
        """How a run without any checks ends: ``right``, ``wrong``, ``hangs`` or ``stops``."""
        report, arrays = self.run(checks=False, **schedule)
        if not report.completed:
            return "hangs" if report.deadlock else "stops"
        return "right" if self.right(arrays) else "wrong"


def kernel_from(source: str, folder: Path, shape: Sequence[int], options: dict[str, Any]) -> Kernel:
    """The Kernel that a source text makes."""
    return Kernel(module_from(folder / "kernel.py", source), shape, options)
