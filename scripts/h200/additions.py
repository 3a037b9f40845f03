#!/usr/bin/env python3
"""What each addition of the tuned kernel gives: measured with it, and without it.

    python scripts/h200/additions.py                        cubes from 1024 to 16384, float16
    python scripts/h200/additions.py --shapes 1024 4096 -o FILE

At each shape the tuned kernel, the same without each of its additions, and without all of them take
samples in turn, next to Step 9 and cuBLAS. Rows go to book/results/<gpu>/additions.json, those of
other shapes stay there.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

from mlsys_gpu import benchmarking, device, gemm, launch, verification  # noqa: E402


def kernels(tuned: Any, last: Any) -> list[Any]:
    """The tuned kernel whole, without each addition, without all; and the step it stands on."""
    names = list(tuned.module.ADDITIONS)
    left_out = [(name,) for name in names] + ([tuple(names)] if len(names) > 1 else [])
    return [tuned, *((tuned, {"without": list(without)}) for without in left_out), last]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--arch", choices=sorted(device.ARCHITECTURES), default="hopper")
    parser.add_argument("--shapes", type=int, nargs="+", default=[1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--dtype", nargs="+", choices=verification.DTYPES, default=["float16"])
    parser.add_argument("--seconds", type=float, default=1.0, help="samples of one kernel")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at a time")
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    try:
        gpu = device.require(device.ARCHITECTURES[given.arch], "measuring additions")
        launch.torch_with_cuda("measuring additions")
        tuned = gemm.tuned(given.arch)
    except (device.NeedsGpu, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    name = device.short_name(gpu.name)
    path = given.output or ROOT / "book" / "results" / name / "additions.json"
    try:  # before anything is measured that could not be kept
        before = benchmarking.earlier(path, gpu)
        path.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    seen = [0]

    def after(made: benchmarking.Benchmark) -> None:
        for row in made.rows[seen[0] :]:
            print(benchmarking.line(row), flush=True)
        seen[0] = len(made.rows)
        if made.rows:
            (before.merged(made) if before.rows else made).save(path)

    try:
        made = measured(tuned, given, after)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    for failure in made.failures:
        print(f"FAILED {failure}")
    print(f"wrote {path}")
    return 1 if made.failures else 0


def measured(
    tuned: Any, given: argparse.Namespace, after: Callable[[benchmarking.Benchmark], None]
) -> benchmarking.Benchmark:
    """All of it; ``after`` gets the rows as they come."""
    made = benchmarking.benchmark(
        kernels(tuned, gemm.steps(given.arch)[-1]),
        [(n, n, n) for n in given.shapes],
        given.dtype,
        baselines=["cublas"],
        together=True,
        seconds=given.seconds,
        processes=given.jobs,
        keep_going=True,
        after=after,
    )
    assert isinstance(made, benchmarking.Benchmark)  # a script is no notebook
    return made


if __name__ == "__main__":
    sys.exit(main())
