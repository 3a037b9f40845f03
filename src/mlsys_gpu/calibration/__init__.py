"""The constants of the time model, measured on the GPU at hand: ``mlsys-gpu calibrate``.

Micro-benchmarks (``kernels/*.cu``) time one thing each: the latency of an instruction, the rate of
an engine, the cost of a barrier. Latencies come from the SM's clock inside the kernel, bandwidths
of the whole chip from events. None of them is one of the kernels whose modelled time is judged.

    constants = calibrate()
    constants.value("wgmma.ss.wg1.n256")

A file of constants holds ``{"provenance": …, "constants": {name: {"value", "unit", "spread",
"how"}}, "missing": {group: why}}``; ``spread`` is the 20th and the 80th percentile of the samples
whose median ``value`` is. Groups that were measured later and put into the file are in its
provenance's ``later``, oldest first: ``{"date", "command", "driver", "libraries", "gpu", "sources",
"constants": [name]}``. A constant that several of them name is from the last.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
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
        groups: those that were measured now; empty for a file.
    """

    constants: dict[str, dict[str, Any]] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    groups: list[str] = field(default_factory=list)

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

    def with_later(self, later: Calibration) -> Calibration:
        """These constants with those of a later run on a GPU of the same name added or replaced.

        The provenance stays, but for what it says of the later run in ``later`` and for files of
        kernels that it does not know yet. A group that the later run lacks leaves its constants
        here as they are; one that was missing here and has been measured now is missing no more.

        Raises:
            ValueError: the later run is of another GPU.
        """
        self.refuse_other_gpu(_gpu_name(later))
        run, known = later.provenance, dict(self.provenance)
        known["sources"] = run["sources"] | known.get("sources", {})
        known["later"] = [
            *known.get("later", []),
            {
                **{n: run[n] for n in ("date", "command", "driver", "libraries", "gpu", "sources")},
                "constants": list(later.constants),
            },
        ]
        missing = {group: why for group, why in self.missing.items() if group not in later.groups}
        return Calibration(self.constants | later.constants, known, missing)

    def refuse_other_gpu(self, name: str | None) -> None:
        """Raise ``ValueError`` where these constants are of another GPU than ``name``."""
        if (own := _gpu_name(self)) != name:
            raise ValueError(f"the constants are of {own or 'no named GPU'}, the GPU is {name}")

    def save(self, path: str | Path) -> Path:
        """Write a file of constants, one a line; all of it or nothing."""
        path = Path(path)
        lines = ",\n".join(
            f"    {json.dumps(name)}: {json.dumps(constant, ensure_ascii=False)}"
            for name, constant in self.constants.items()
        )
        provenance = json.dumps(self.provenance, indent=2, ensure_ascii=False)
        missing = json.dumps(self.missing, ensure_ascii=False)
        text = (
            f'{{\n  "provenance": {provenance.replace(chr(10), chr(10) + "  ")},\n'
            f'  "constants": {{\n{lines}\n  }},\n  "missing": {missing}\n}}\n'
        )
        if path.exists() and not path.is_file():  # /dev/stdout
            path.write_text(text, encoding="utf-8")
            return path
        whole = path.resolve()  # a link stays one
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=whole.parent)
        try:
            with open(handle, "w", encoding="utf-8") as file:
                file.write(text)
            with contextlib.suppress(OSError):  # a temporary file is its owner's alone
                os.chmod(name, whole.stat().st_mode & 0o777 if whole.exists() else 0o644)
            os.replace(name, whole)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        return path

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Header and cells for a reader."""
        cells = [
            [name, f"{c['value']:g}", f"{c['spread'][0]:g}–{c['spread'][1]:g}", c["unit"], c["how"]]
            for name, c in self.constants.items()
        ]
        return ["constant", "value", "p20–p80", "unit", "how"], cells


def _gpu_name(constants: Calibration) -> str | None:
    gpu = constants.provenance.get("gpu")
    return gpu.get("name") if isinstance(gpu, dict) else None


def load(path: str | Path) -> Calibration:
    """Read a file of constants.

    Raises:
        ValueError: it holds no JSON, or no provenance and constants, or a constant lacks a part.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no file of constants: it is no JSON ({error})") from error
    if not isinstance(content, dict) or not all(
        isinstance(content.get(part), dict) for part in ("provenance", "constants")
    ):
        raise ValueError(f"{path} is no file of constants: it needs provenance and constants")
    for name, constant in content["constants"].items():
        parts = constant.keys() if isinstance(constant, dict) else set()
        if lacking := {"value", "unit", "spread", "how"} - parts:
            raise ValueError(f"{path}: {name} lacks {', '.join(sorted(lacking))}")
    return Calibration(content["constants"], content["provenance"], content.get("missing", {}))


def source_hashes() -> dict[str, str]:
    """SHA-256 of each file of kernels, by name."""
    return {
        f"calibration/{name}": hashlib.sha256(sources.source(name).encode()).hexdigest()
        for name in sources.names()
    }


def group_names(groups: Sequence[str] | None = None) -> list[str]:
    """Groups of constants, each once; all of them for None.

    Raises:
        ValueError: a name is no group's, or there is none; the message names it and the choices.
    """
    from mlsys_gpu.calibration.measure import GROUPS

    wanted = list(GROUPS) if groups is None else list(dict.fromkeys(groups))
    if wrong := [name for name in wanted if name not in GROUPS] or ([] if wanted else [""]):
        raise ValueError(f"groups are {', '.join(GROUPS)}, got {wrong[0]!r}")
    return wanted


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
        ValueError: a group is none, or there is none.
        device.NeedsGpu: there is no Hopper GPU.
        artifacts.MissingTool: NVRTC is not installed.
    """
    wanted = group_names(groups)
    gpu = device.require(ARCH, "calibrating")
    from mlsys_gpu import benchmarking

    for name in sources.names():  # kept for the processes that measure
        sources.compiled(name, ARCH)
    result = Calibration(provenance=benchmarking.provenance(gpu, source_hashes(), command))
    result.provenance["method"] = METHOD
    for group in wanted:
        found, why = _in_a_process(group)
        result.constants |= found
        if why is None:
            result.groups.append(group)
        else:
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
