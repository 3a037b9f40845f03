#!/usr/bin/env python3
"""What a division in the loop over K costs: Hopper's Steps 7 and 8 as they are, and with it.

    python scripts/h200/division.py                         4096³ and 8192³, float16
    python scripts/h200/division.py --cubes 4096 -o FILE

The steps count the stage and its phase on. Here the same kernels compute both from the number of
the K tile instead: a remainder and a quotient of a division by the number of stages. All take
samples in turn, next to cuBLAS. Rows go to book/results/<gpu>/division.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

from mlsys_gpu import benchmarking, device, gemm, launch, verification  # noqa: E402

STEPS = (7, 8)
NUMBER = {"ahead": "t * K_TILES + ahead", "k": "t * K_TILES + k"}  # of the K tile, in each role


def divided(source: str) -> str:
    """The source of a step with the stage and its phase divided out.

    Raises ValueError where the source counts them in another way than is known here.
    """

    def once(pattern: str, instead: str, text: str, times: int = 1) -> str:
        text, found = re.subn(pattern, instead, text)
        if found != times:
            raise ValueError(f"{pattern!r} occurs {found} times in the source, not {times}")
        return text

    text = once(r"(?s) +# --- Pipeline: .*?(?= +# --- )", "", source)
    text = once(r" +advance\(\)\n", "", text, 2)
    for name, number in NUMBER.items():
        text = once(
            rf"( +)(for {name} in T\.serial\(K_TILES\):\n)",
            rf"\1\2\1    s = T.meta_var(({number}) % PIPE_DEPTH)\n"
            rf"\1    phase = T.meta_var(({number}) // PIPE_DEPTH % 2)\n",
            text,
        )
    return once(r"T\.Select\(s > 0, s, PIPE_DEPTH\) - 1", f"({NUMBER['k']} - 1) % PIPE_DEPTH", text)


class Divided:
    """A step with a division, as :func:`mlsys_gpu.benchmarking.benchmark` takes steps.

    It is built so with ``divide=True``, which is how its rows call it.
    """

    def __init__(self, step: gemm.Step, folder: Path):
        self.step, self.arch, self.name = step, step.arch, step.name
        self.default_shape, self.source_path = step.default_shape, step.source_path
        self.changed = folder / f"{Path(step.source_path).stem}_divided.py"
        self.changed.write_text(divided(step.source_path.read_text(encoding="utf-8")), "utf-8")

    @property
    def module(self) -> ModuleType:
        """The changed module. Loads TVM."""
        name = self.changed.stem
        if name not in sys.modules:
            spec = importlib.util.spec_from_file_location(name, self.changed)
            assert spec is not None
            assert spec.loader is not None
            sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])
        return sys.modules[name]

    def check_shape(self, M: int, N: int, K: int, dtype: str = "float16") -> None:
        """As the step's own."""
        self.step.check_shape(M, N, K, dtype)

    def build(self, M: int, N: int, K: int, dtype: str = "float16", *, divide: bool) -> Any:
        """The kernel, a TIRx ``PrimFunc``; parameters and errors as the step's own."""
        self.check_shape(M, N, K, dtype)
        return (self.module if divide else self.step).build(M, N, K, dtype)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cubes", type=int, nargs="+", default=[4096, 8192])
    parser.add_argument("--dtype", nargs="+", choices=verification.DTYPES, default=["float16"])
    parser.add_argument("--seconds", type=float, default=1.0, help="samples of one kernel")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at a time")
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    try:
        gpu = device.require(device.ARCHITECTURES["hopper"], "measuring a division")
        launch.torch_with_cuda("measuring a division")
    except device.NeedsGpu as error:
        print(error, file=sys.stderr)
        return 2
    path = given.output or ROOT / "book" / "results" / device.short_name(gpu.name) / "division.json"
    try:  # before anything is measured that could not be kept
        before = benchmarking.earlier(path, gpu)
        path.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    steps = [gemm.step(number, arch="hopper") for number in STEPS]
    with tempfile.TemporaryDirectory() as folder:
        made = benchmarking.benchmark(
            [
                kernel
                for step in steps
                for kernel in (step, (Divided(step, Path(folder)), {"divide": True}))
            ],
            [(n, n, n) for n in given.cubes],
            given.dtype,
            baselines=["cublas"],
            together=True,
            seconds=given.seconds,
            processes=given.jobs,
            keep_going=True,
        )
    assert isinstance(made, benchmarking.Benchmark)  # a script is no notebook
    for row in made.rows:
        print(benchmarking.line(row))
    for failure in made.failures:
        print(f"FAILED {failure}")
    if made.rows:
        (before.merged(made) if before.rows else made).save(path)
        print(f"wrote {path}")
    return 1 if made.failures or not made.rows else 0


if __name__ == "__main__":
    sys.exit(main())
