"""The constants of the time model, measured on the GPU at hand: ``mlsys-gpu calibrate``.

Micro-benchmarks (``kernels/*.cu``) time one thing each: the latency of an instruction, the rate of
an engine, the cost of a barrier. Latencies come from the SM's clock inside the kernel, bandwidths
of the whole chip from events. None of them is one of the kernels whose modelled time is judged.

    constants = calibrate()
    constants.value("wgmma.ss.wg1.n256")

A file of constants holds ``{"provenance": …, "constants": {name: {"value", "unit", "spread",
"how"}}, "missing": {group: why}}``; ``spread`` is the 20th and the 80th percentile of the samples
whose median ``value`` is.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlsys_gpu import device
from mlsys_gpu.calibration import sources

ARCH = "sm_90a"
GROUP_SECONDS = 150
"""How long one group of constants may take before it is given up."""

METHOD = (
    "each constant by a kernel of its own; in-kernel cycles as the difference of two numbers of "
    "passes through an unrolled loop that ran before, single copies by clock64 less what reading "
    "it twice takes, whole-chip rates between events; median, 20th and 80th percentile of samples"
)


@dataclass
class Calibration:
    """Constants and where they come from.

    Attributes:
        constants: name to ``value``, ``unit``, ``spread`` and ``how``.
        provenance: GPU, driver, libraries, command, date and the kernels' sources.
        missing: groups of constants that could not be measured, and why.
    """

    constants: dict[str, dict[str, Any]] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def value(self, name: str) -> float:
        """The value of a constant. Raises ``KeyError`` for one that was not measured."""
        return self.constants[name]["value"]

    def to_dict(self) -> dict[str, Any]:
        """What a file of constants holds."""
        return {
            "provenance": self.provenance,
            "constants": self.constants,
            "missing": self.missing,
        }

    def save(self, path: str | Path) -> Path:
        """Write a file of constants, one a line."""
        path = Path(path)
        lines = ",\n".join(
            f"    {json.dumps(name)}: {json.dumps(constant, ensure_ascii=False)}"
            for name, constant in self.constants.items()
        )
        provenance = json.dumps(self.provenance, indent=2, ensure_ascii=False)
        missing = json.dumps(self.missing, ensure_ascii=False)
        path.write_text(
            f'{{\n  "provenance": {provenance.replace(chr(10), chr(10) + "  ")},\n'
            f'  "constants": {{\n{lines}\n  }},\n  "missing": {missing}\n}}\n'
        )
        return path

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Header and cells for a reader."""
        cells = [
            [name, f"{c['value']:g}", f"{c['spread'][0]:g}–{c['spread'][1]:g}", c["unit"], c["how"]]
            for name, c in self.constants.items()
        ]
        return ["constant", "value", "p20–p80", "unit", "how"], cells


def load(path: str | Path) -> Calibration:
    """Read a file of constants.

    Raises:
        ValueError: it holds no provenance and constants, or a constant lacks a part.
    """
    content = json.loads(Path(path).read_text())
    if not isinstance(content, dict) or not {"provenance", "constants"} <= content.keys():
        raise ValueError(f"{path} is no file of constants: it needs provenance and constants")
    for name, constant in content["constants"].items():
        if lacking := {"value", "unit", "spread", "how"} - constant.keys():
            raise ValueError(f"{path}: {name} lacks {', '.join(sorted(lacking))}")
    return Calibration(content["constants"], content["provenance"], content.get("missing", {}))


def source_hashes() -> dict[str, str]:
    """SHA-256 of each file of kernels, by name."""
    return {
        f"calibration/{name}": hashlib.sha256(sources.source(name).encode()).hexdigest()
        for name in sources.names()
    }


def calibrate(
    groups: Sequence[str] | None = None,
    *,
    command: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Calibration:
    """Measure the constants on this machine's first GPU, in about a minute.

    Args:
        groups: which of :data:`mlsys_gpu.calibration.measure.GROUPS`; all if left out.
        command: what provenance names as the command; by default this process's.
        progress: called with one line for each group.

    Returns:
        The constants; groups that faulted or took too long are among ``missing``.

    Raises:
        device.NeedsGpu: there is no Hopper GPU.
        artifacts.MissingTool: NVRTC is not installed.
    """
    gpu = device.require(ARCH, "calibrating")
    from mlsys_gpu import benchmarking
    from mlsys_gpu.calibration.measure import GROUPS

    wanted = list(GROUPS) if groups is None else list(groups)
    if unknown := set(wanted) - set(GROUPS):
        raise ValueError(f"groups are {', '.join(GROUPS)}, got {sorted(unknown)[0]!r}")
    for name in sources.names():  # kept for the processes that measure
        sources.compiled(name, ARCH)
    result = Calibration(provenance=benchmarking.provenance(gpu, source_hashes(), command))
    result.provenance["method"] = METHOD
    for group in wanted:
        found, why = _in_a_process(group)
        result.constants |= found
        if why is not None:
            result.missing[group] = why
        if progress is not None:
            progress(f"{group}: {len(found)} constants" if why is None else f"{group}: {why}")
    return result


def _in_a_process(group: str) -> tuple[dict[str, Any], str | None]:
    """The constants of one group, or why there are none."""
    command = [sys.executable, "-m", "mlsys_gpu.calibration.measure", group]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GROUP_SECONDS)
    except subprocess.TimeoutExpired:
        return {}, f"took more than {GROUP_SECONDS} s"
    if done.returncode:
        said = done.stderr.strip().splitlines()
        return {}, said[-1] if said else f"exit status {done.returncode}"
    return json.loads(done.stdout), None
