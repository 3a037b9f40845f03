#!/usr/bin/env python3
"""What one launch of a kernel does, by Nsight Compute's counters, on this machine's GPU.

    python scripts/h200/profiled.py                          Steps 5-9 and tuned, 4096³ and 8192³
    python scripts/h200/profiled.py --steps 7,8 --cubes 4096 -o FILE

Each kernel is launched a few times under ncu, which runs one launch at a time; A and B are random
normal data and stay the same. Medians go to book/results/<gpu>/profile.json; rows of other kernels
and shapes stay there.
"""

from __future__ import annotations

import argparse
import csv
import shlex
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

from mlsys_gpu import benchmarking, device, gemm, launch, verification  # noqa: E402

#: What a row calls it: the metric, and what its unit is multiplied by.
METRICS = {
    "cycles": ("sm__cycles_elapsed.max", 1.0),
    "us": ("gpu__time_duration.sum", 1e-3),
    "tensor_active": ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", 1e-2),
    "l2_bytes": ("lts__t_bytes.sum", 1.0),
}
METHOD = (
    "one launch at a time under Nsight Compute, clocks as the GPU has them, inputs not rotated; "
    "median of the launches"
)
UNITS = {"ns", "byte", "cycle", "%"}


def launches(steps: Iterable[Any], cubes: Iterable[int], times: int) -> Iterator[tuple[Any, int]]:
    """Which kernel is launched at which size, in order."""
    for size in cubes:
        for _ in range(times):
            for step in steps:
                yield step, size


def run(steps: list[Any], cubes: list[int], dtype: str, times: int) -> int:
    """In the process that ncu watches: all the launches."""
    import torch

    data: dict[int, Any] = {}
    for step, size in launches(steps, cubes, times):
        if size not in data:
            data.clear()
            A, B = (
                torch.randn(size, size, device="cuda").to(getattr(torch, dtype)) for _ in range(2)
            )
            data[size] = A, B, torch.empty_like(A)
        launch.compile_for_gpu(step.build(size, size, size, dtype))(*data[size])
        torch.cuda.synchronize()
    return 0


def read(printed: str) -> list[tuple[str, dict[str, float]]]:
    """Kernel and metrics of each launch that ncu saw, in order, from its ``--csv`` output.

    Raises ValueError where there is no table, or a metric has a unit that is not known here.
    """
    lines = [line for line in printed.splitlines() if line.startswith('"')]
    seen: dict[str, tuple[str, dict[str, float]]] = {}
    for row in csv.DictReader(lines):
        if row["Metric Unit"] not in UNITS:
            raise ValueError(f"{row['Metric Name']} is in {row['Metric Unit']!r}")
        _, values = seen.setdefault(row["ID"], (row["Kernel Name"], {}))
        values[row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
    if not seen:
        raise ValueError(f"ncu printed no table: {printed.strip()[-400:] or 'nothing'}")
    return list(seen.values())


def rows(
    found: list[tuple[str, dict[str, float]]], wanted: list[tuple[Any, int]], dtype: str
) -> list[dict[str, Any]]:
    """Medians of each kernel and size.

    Raises ValueError where ncu did not see just the launches that were made, or not all metrics.
    """
    names = [f"{step.symbol}_kernel" for step, _ in wanted]
    if [name for name, _ in found] != names:
        raise ValueError(f"ncu saw {[name for name, _ in found]}, launched were {names}")
    samples: dict[tuple[Any, int], list[dict[str, float]]] = {}
    for key, (name, values) in zip(wanted, found, strict=True):
        if lacking := {metric for metric, _ in METRICS.values()} - values.keys():
            raise ValueError(f"{name} lacks {', '.join(sorted(lacking))}")
        samples.setdefault(key, []).append(
            {what: values[metric] * scale for what, (metric, scale) in METRICS.items()}
        )
    made = []
    for (step, size), taken in samples.items():
        cycles = [sample["cycles"] for sample in taken]
        row = {"kernel": step.name, "M": size, "N": size, "K": size, "dtype": dtype}
        row |= {what: float(f"{statistics.median(s[what] for s in taken):.6g}") for what in METRICS}
        row |= {
            "cycles_spread": [min(cycles), max(cycles)],
            "launches": len(taken),
            "source_sha256": benchmarking.source_sha256(step.name),
        }
        made.append(row)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", default="5-9,tuned", help="kernels: 3-9,dynamic,tuned")
    parser.add_argument("--cubes", type=int, nargs="+", default=[4096, 8192])
    parser.add_argument("--dtype", choices=verification.DTYPES, default="float16")
    parser.add_argument("--launches", type=int, default=3, help="of each kernel")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--watched", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    try:
        if given.launches < 1:
            raise ValueError(f"--launches must be at least 1, got {given.launches}")
        steps = list(gemm.selected(given.steps, "hopper"))
        for step, size in launches(steps, given.cubes, 1):
            step.check_shape(size, size, size, given.dtype)
        gpu = device.require(device.ARCHITECTURES["hopper"], "profiling")
        launch.torch_with_cuda("profiling")
        if given.watched:
            return run(steps, given.cubes, given.dtype, given.launches)
        ncu = shutil.which("ncu")
        if ncu is None:
            raise ValueError("profiling needs ncu (NVIDIA Nsight Compute), which is not on PATH")
        path = given.output or (
            ROOT / "book" / "results" / device.short_name(gpu.name) / "profile.json"
        )
        before = benchmarking.earlier(path, gpu, timed=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        command = [
            ncu, "--csv", "--clock-control", "none", "-k", "regex:gemm_hopper",
            "--metrics", ",".join(metric for metric, _ in METRICS.values()),
            sys.executable, __file__, *sys.argv[1:], "--watched",
        ]  # fmt: skip
        print(shlex.join(command), file=sys.stderr)
        done = subprocess.run(command, capture_output=True, text=True)
        wanted = list(launches(steps, given.cubes, given.launches))
        found = rows(read(done.stdout + done.stderr), wanted, given.dtype)
    except (device.NeedsGpu, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    sources = {row["kernel"]: row["source_sha256"] for row in found}
    made = benchmarking.Benchmark(found, benchmarking.provenance(gpu, sources))
    made.provenance["method"] = METHOD
    for row in found:
        print(f"{row['kernel']} {row['M']}: {row['cycles']:,.0f} cycles, tensor cores "
              f"{row['tensor_active']:.1%}, L2 {row['l2_bytes'] / 1e9:.2f} GB")  # fmt: skip
    (before.merged(made) if before.rows else made).save(path)
    print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
