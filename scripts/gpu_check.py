#!/usr/bin/env python3
"""Verify and benchmark this GPU's kernels, and compare the simulator with the GPU.

    python scripts/gpu_check.py                        all parts, results to book/results/<gpu>/
    python scripts/gpu_check.py --arch blackwell       refuse any other GPU (make verify-blackwell)
    python scripts/gpu_check.py --skip benchmarks      several may be skipped; --only is the reverse
    python scripts/gpu_check.py --only benchmarks --steps 7-9,tuned --cubes 4096 8192 --minutes 9

Parts: what the machine has; every kernel against float64, at small and ragged shapes and at cubes
(written to right.json); arguments that must be refused; the simulator's outputs against the GPU's
on the same inputs (simulator.json); benchmarks (gemm.json, row by row). What a run measures takes
the place of the same rows in these files, and the other rows stay (--fresh drops them), so that the
whole may be done in slices: --steps, --cubes and --dtype choose, --minutes says when to stop.

A part that fails does not stop the next; the summary says what failed, and the exit status is 1
then.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

import numpy as np  # noqa: E402

import mlsys_gpu as mg  # noqa: E402
from mlsys_gpu import benchmarking, device, doctor, launch, measuring, verification  # noqa: E402

Shape = tuple[int, int, int]

DTYPES = verification.DTYPES
SMALL: dict[int, list[Shape]] = {
    1: [(128, 128, 64)],
    2: [(128, 128, 64), (128, 128, 128), (128, 128, 448)],
    # M, N and K all different, and more than one tile each way
    3: [(256, 384, 192), (384, 256, 128), (512, 256, 320), (256, 640, 448)],
}
# From Step 4 on ragged M, N and K, too: tiles that reach over the edges.
RAGGED: list[Shape] = [(256, 384, 192), (200, 328, 512), (1000, 520, 448), (328, 264, 456)]
# From Step 7 on many turns of the ring; and more tiles than CTAs, with M of an odd number of tiles,
# so that a cluster's second CTA has none, and 64 columns of which few are inside.
RING: list[Shape] = [(136, 520, 2056), (4488, 2056, 200)]
CUBES = [512, 1024, 2048, 4096, 8192]
PARTS = ("machine", "right", "refusals", "simulator", "benchmarks")
#: The parts that write a file.
FILES = {"right": "right.json", "simulator": "simulator.json", "benchmarks": "gemm.json"}


class Checks:
    """The parts of this run: what failed, and how much time is left."""

    def __init__(self, minutes: float, skip: Sequence[str]):
        self.began = time.monotonic()
        self.deadline = self.began + 60 * minutes
        self.skip = skip
        self.failures: list[str] = []
        self.lines: list[str] = []

    def left(self) -> float:
        return self.deadline - time.monotonic()

    def attempt(self, what: str, action: Callable[[], str]) -> None:
        """Do one thing, print its one line, and go on whatever happens."""
        if self.left() <= 0:
            self.failures.append(f"{what}: no time left")
            return
        began = time.monotonic()
        try:
            line = action()
        except Exception as error:
            traceback.print_exc()
            line = f"FAILED, {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            self.failures.append(f"{what}: {line}")
        print(f"  {what}: {line}  [{time.monotonic() - began:.1f} s]", flush=True)

    def part(self, name: str, body: Callable[[Checks], None]) -> None:
        """Run a part unless it is to be skipped."""
        if name in self.skip:
            print(f"== {name}: skipped", flush=True)
            return
        print(f"== {name}", flush=True)
        before, began = len(self.failures), time.monotonic()
        try:
            body(self)
        except Exception as error:
            traceback.print_exc()
            self.failures.append(f"{name}: {type(error).__name__}: {error}")
        failed = len(self.failures) - before
        verdict = "all right" if not failed else f"{failed} FAILED"
        self.lines.append(f"{name}: {verdict}, {time.monotonic() - began:.0f} s")


def require(condition: bool, sentence: str) -> None:
    """An assertion that python -O does not remove."""
    if not condition:
        raise AssertionError(sentence)


def small_shapes(step: Any) -> list[Shape]:
    """Shapes at which NumPy gives the reference, and the simulator is quick."""
    if step.number in SMALL:
        return SMALL[step.number]
    more = RING if step.number >= 7 else []
    return list(dict.fromkeys([*RAGGED, *more, step.default_shape]))


def label(step: Any, shape: Shape, dtype: str) -> str:
    return f"{step.name} {'x'.join(map(str, shape))} {dtype}"


def machine(checks: Checks) -> None:
    def look() -> str:
        found = doctor.examine()
        for item in found["items"]:
            print(f"    {'ok' if item['ok'] else '--'} {item['name']}: {item['detail']}")
        require(found["ok"], f"missing: {[item['name'] for item in found['missing']]}")
        return "looked at"

    checks.attempt("doctor", look)


def right(checks: Checks, kernels: Sequence[Any], options: argparse.Namespace) -> None:
    rows: list[dict[str, Any]] = []
    small = [(s, shape, d) for s in kernels for shape in small_shapes(s) for d in options.dtypes]
    cubes = [
        (step, (n, n, n), dtype)
        for n in options.cubes
        for dtype in options.dtypes
        for step in kernels
        if step.number > 2
    ]
    ahead(options, [*small, *cubes])

    def note(step: Any, shape: Shape, dtype: str, verdict: verification.Comparison) -> None:
        rows.append(
            named(step, shape, dtype)
            | {"max_error": round(verdict.max_error, 4), "elements": verdict.elements}
            | {"source_sha256": benchmarking.source_sha256(step.name)}
        )

    def check(step: Any, shape: Shape, dtype: str) -> str:
        M, N, K = shape
        A, B = verification.gemm_inputs(M, N, K, dtype, seed=M + 7 * N + 31 * K)
        D = verification.poisoned((M, N), dtype)
        ran = launch.run_on_gpu(step.build(M, N, K, dtype), A, B, D)
        verdict = verification.compare_gemm(A, B, D)
        require(verdict.ok, str(verdict))
        note(step, shape, dtype, verdict)
        return f"{verdict}, {1e6 * (ran.seconds or 0):.1f} µs"

    for case in small:
        checks.attempt(label(*case), lambda case=case: check(*case))

    held: dict[tuple[Shape, str], Any] = {}

    def problem(shape: Shape, dtype: str) -> Any:
        """Inputs on the GPU and their product in float64, made there; one at a time."""
        import torch

        if (shape, dtype) not in held:
            held.clear()
            M, N, K = shape
            random = torch.Generator("cuda").manual_seed(M)
            A, B = (
                torch.randn(rows, K, generator=random, device="cuda").to(getattr(torch, dtype))
                for rows in (M, N)
            )
            held[shape, dtype] = A, B, verification.GemmReference(A, B)
        return held[shape, dtype]

    def check_cube(step: Any, shape: Shape, dtype: str) -> str:
        import torch

        A, B, reference = problem(shape, dtype)
        D = torch.full((shape[0], shape[1]), torch.nan, device="cuda").to(A.dtype)
        launch.compile_for_gpu(step.build(*shape, dtype))(A, B, D)
        verdict = reference.compare(D)
        require(verdict.ok, str(verdict))
        note(step, shape, dtype, verdict)
        return str(verdict)

    for case in cubes:
        checks.attempt(label(*case), lambda case=case: check_cube(*case))
    method = (
        "standard normal inputs, outputs poisoned before; every element against float64, by NumPy "
        "or, for cubes, by cuBLAS on the GPU"
    )
    write(options, "right.json", rows, method)


def refusals(checks: Checks, arch: str) -> None:
    import torch

    step = mg.gemm.steps(arch)[0]
    M, N, K = step.default_shape
    kernel = step.build(M, N, K)
    A = torch.randn(M, K, device="cuda").half()
    B = torch.randn(N, K, device="cuda").half()
    D = torch.full((M, N), torch.nan, device="cuda").half()

    def refused(error: type[Exception], words: str, *arguments: Any) -> str:
        try:
            mg.run(*arguments)
        except error as caught:
            require(words in str(caught), f"{words!r} is not in {caught}")
            return f"refused: {caught}"
        raise AssertionError("it was not refused")

    def other_architecture() -> str:
        other = next(name for name in device.ARCHITECTURES if name != arch)
        foreign = mg.gemm.step(step.number, arch=other).build(M, N, K)
        return refused(device.ArchitectureMismatch, "simulate", foreign, A, B, D)

    def odd_address() -> str:
        shifted = torch.zeros(A.numel() + 1, device="cuda").half()[1:].view(A.shape)
        return refused(launch.ArgumentError, "multiple of 16", kernel, shifted, B, D)

    def second_call() -> str:
        times = []
        for _ in range(3):
            began = time.perf_counter()
            print(f"    {mg.run(kernel, A, B, D)}")
            times.append(time.perf_counter() - began)
        verdict = verification.compare_gemm_tensors(A, B, D)
        require(verdict.ok, str(verdict))
        require(times[-1] < 0.01, f"the third call took {times[-1]:.4f} s")
        return ", ".join(f"{1e3 * t:.2f} ms" for t in times)

    def own_stream() -> str:
        stream = torch.cuda.Stream()
        out = torch.full_like(D, torch.nan)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            launch.compile_for_gpu(kernel)(A, B, out)
        stream.synchronize()
        verdict = verification.compare_gemm_tensors(A, B, out)
        require(verdict.ok, str(verdict))
        return "launched on torch's current stream"

    checks.attempt("another architecture", other_architecture)
    checks.attempt("an odd address", odd_address)
    checks.attempt(
        "mixed places",
        lambda: refused(launch.ArgumentError, "one place", kernel, A, B.cpu(), D),
    )
    checks.attempt(
        "a transposed tensor",
        lambda: refused(launch.ArgumentError, "contiguous", kernel, A, B, torch.zeros_like(D).t()),
    )
    checks.attempt("three calls of mg.run", second_call)
    checks.attempt("a stream of one's own", own_stream)


def simulator(checks: Checks, kernels: Sequence[Any], options: argparse.Namespace) -> None:
    rows: list[dict[str, Any]] = []
    cases = [(s, shape, d) for s in kernels for shape in small_shapes(s) for d in options.dtypes]
    ahead(options, cases)

    def compare(step: Any, shape: Shape, dtype: str) -> str:
        M, N, K = shape
        kernel = step.build(M, N, K, dtype)
        A, B = verification.gemm_inputs(M, N, K, dtype, seed=3 * M + 5 * N + K)
        D_gpu, D_sim = (verification.poisoned((M, N), dtype) for _ in range(2))
        launch.run_on_gpu(kernel, A, B, D_gpu)
        report = mg.simulate(kernel, A, B, D_sim)
        difference = verification.output_difference(A, B, D_sim, D_gpu)
        require(not report.findings, f"findings of the simulator: {report}")
        require(bool(np.isfinite(D_sim.astype(np.float64)).all()), "the simulator left NaN")
        rows.append(
            named(step, shape, dtype)
            | difference.to_dict()
            | {"source_sha256": benchmarking.source_sha256(step.name)}
        )
        return str(difference)

    for case in cases:
        checks.attempt(label(*case), lambda case=case: compare(*case))
    method = "the same inputs in the simulator (lazy schedule) and on the GPU"
    write(options, "simulator.json", rows, method)


class NoTimeLeft(Exception):
    """Raised where the next measurement would begin too late."""


def benchmarks(checks: Checks, kernels: Sequence[Any], options: argparse.Namespace) -> None:
    path = options.folder / "gemm.json"
    before = earlier(options, path)
    seen = [0, 0]

    def progress(number: int, total: int, what: str) -> None:
        if checks.left() <= 0:
            raise NoTimeLeft(f"{total - number} of {total} measurements, from {what} on")
        print(f"  [{number + 1}/{total}] {what}", flush=True)

    def after(made: benchmarking.Benchmark) -> None:
        for row in made.rows[seen[0] :]:
            print(f"    {benchmarking.line(row)}", flush=True)
            for name, other in row["baseline"].items():
                if "config" in other:
                    print(f"      {name}: {other['config']}", flush=True)
            for name, why in row.get("left_out", {}).items():
                print(f"      {name}: left out, {why}", flush=True)
        for failure in made.failures[seen[1] :]:
            what = f"{failure['kernel']} {[failure[k] for k in 'MNK']} {failure['dtype']}"
            print(f"    FAILED {what}: {failure['error']}", flush=True)
            checks.failures.append(f"{what}: {failure['error']}")
        seen[:] = len(made.rows), len(made.failures)
        if made.rows:
            (before.merged(made) if before.rows else made).save(path)

    mg.benchmark(
        kernels,
        [(n, n, n) for n in options.cubes],
        options.dtypes,
        seconds=options.seconds,
        together=options.together,
        timing=options.timing,
        processes=options.jobs,
        keep_going=True,
        progress=progress,
        after=after,
    )
    print(f"  wrote {path}")


def named(step: Any, shape: Shape, dtype: str) -> dict[str, Any]:
    M, N, K = shape
    return {"kernel": step.name, "M": M, "N": N, "K": K, "dtype": dtype}


def ahead(options: argparse.Namespace, cases: list[tuple[Any, Shape, str]]) -> None:
    """Compile in several processes what is going to be run."""
    began = time.monotonic()
    found = [c for step, shape, dtype in cases for c in benchmarking.cases(step, [shape], dtype)]
    measuring.compile_ahead(found, options.jobs)
    print(f"  compiled ahead: {len(found)} kernels  [{time.monotonic() - began:.1f} s]", flush=True)


def earlier(options: argparse.Namespace, path: Path) -> benchmarking.Benchmark:
    """What a file of this GPU holds already, unless it is to be made afresh."""
    if options.fresh:
        return benchmarking.Benchmark()
    try:
        return benchmarking.earlier(path, device.current(), timed=path.name == "gemm.json")
    except ValueError as error:
        raise ValueError(f"{error}: say --fresh, or another --output") from error


def write(options: argparse.Namespace, name: str, rows: list[Any], method: str) -> None:
    gpu = device.current()
    if not rows or gpu is None:
        return
    path = options.folder / name
    provenance = benchmarking.provenance(gpu, {r["kernel"]: r["source_sha256"] for r in rows})
    made = benchmarking.Benchmark(rows, provenance | {"method": method})
    before = earlier(options, path)
    (before.merged(made) if before.rows else made).save(path)
    print(f"  wrote {path}")


def positive(text: str) -> float:
    """A time of the command line."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a positive number, got {text!r}")
    return value


def cube(text: str) -> int:
    """A size of the command line: TMA wants rows that start multiples of 16 bytes apart."""
    value = int(text)
    if value <= 0 or value % 8:
        raise argparse.ArgumentTypeError(f"must be a positive multiple of 8, got {text!r}")
    return value


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--arch", choices=sorted(device.ARCHITECTURES))
    parser.add_argument("-o", "--output", type=Path, help="folder; book/results/<gpu> if left out")
    parser.add_argument(
        "--minutes", type=positive, default=9, help="no new measurement after these"
    )
    parser.add_argument(
        "--seconds", type=positive, default=1.5, help="samples of one benchmark row"
    )
    parser.add_argument("--steps", help="kernels: 3-9,dynamic,tuned; all if left out")
    parser.add_argument("--cubes", type=cube, nargs="*", default=CUBES, help="sizes of cubes")
    parser.add_argument("--dtype", nargs="+", dest="dtypes", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--timing", choices=measuring.TIMINGS, default="auto")
    parser.add_argument("--together", action="store_true", help="kernels take samples in turn")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at a time")
    parser.add_argument("--fresh", action="store_true", help="drop rows of earlier runs")
    parser.add_argument("--skip", action="append", default=[], choices=PARTS)
    parser.add_argument("--only", action="append", default=[], choices=PARTS)
    options = parser.parse_args()

    gpu = device.current()
    arch = options.arch or (gpu.family if gpu is not None else None) or "hopper"
    try:
        kernels = mg.gemm.selected(options.steps, arch)
        gpu = device.require(device.ARCHITECTURES[arch], "this check")
        launch.torch_with_cuda("this check")
    except (device.NeedsGpu, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    options.folder = options.output or ROOT / "book" / "results" / device.short_name(gpu.name)
    unwanted = [p for p in PARTS if p in options.skip or (options.only and p not in options.only)]
    try:
        for part, name in FILES.items():
            if part not in unwanted:  # before anything is measured that could not be kept
                earlier(options, options.folder / name)
        options.folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    checks = Checks(options.minutes, unwanted)
    checks.part("machine", machine)
    checks.part("right", lambda c: right(c, kernels, options))
    checks.part("refusals", lambda c: refusals(c, arch))
    checks.part("simulator", lambda c: simulator(c, kernels, options))
    checks.part("benchmarks", lambda c: benchmarks(c, kernels, options))

    print(f"\n== summary: {gpu.name}, {time.monotonic() - checks.began:.0f} s")
    for line in checks.lines:
        print(f"  {line}")
    for failure in checks.failures:
        print(f"  FAILED {failure}")
    print("ALL RIGHT" if not checks.failures else f"{len(checks.failures)} FAILURES")
    return 1 if checks.failures else 0


if __name__ == "__main__":
    sys.exit(main())
