#!/usr/bin/env python3
"""Verify and benchmark this GPU's kernels, and compare the simulator with the GPU.

    python scripts/gpu_check.py                        all parts, results to book/results/<gpu>/
    python scripts/gpu_check.py --arch blackwell       refuse any other GPU (make verify-blackwell)
    python scripts/gpu_check.py --skip benchmarks      several may be skipped

Parts: what the machine has; every step against float64; arguments that must be refused; the
simulator's outputs against the GPU's on the same inputs (written to simulator.json); benchmarks
(written to gemm.json, row by row). A part that fails does not stop the next; the summary says what
failed, and the exit status is 1 then. Takes less than five minutes; --minutes sets where to stop.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

import numpy as np  # noqa: E402

import mlsys_gpu as mg  # noqa: E402
from mlsys_gpu import benchmarking, device, doctor, launch, verification  # noqa: E402

DTYPES = verification.DTYPES
SHAPES = {
    1: [(128, 128, 64)],
    2: [(128, 128, 64), (128, 128, 128), (128, 128, 448)],
    # M, N and K all different, and more than one tile each way
    3: [(256, 384, 192), (384, 256, 128), (512, 256, 320), (256, 640, 448)],
    # ragged M and N from Step 4 on: tiles that reach over the edges
    **{step: [(256, 384, 192), (200, 328, 512), (1000, 520, 448)] for step in (4, 5, 6)},
    # M of an odd number of tiles, so that a cluster's second CTA has none; many turns of the ring;
    # more tiles than CTAs, and 64 columns of which few are inside
    **{step: [(328, 264, 456), (136, 520, 2056), (4488, 2056, 200)] for step in (7, 8, 9)},
}
CUBES = [1024, 2048, 4096, 8192]


class Checks:
    """The parts of this run: what failed, and how much time is left."""

    def __init__(self, minutes: float, skip: list[str]):
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


def cases(arch: str) -> Iterator[tuple[Any, tuple[int, int, int], str]]:
    """Every step of the ladder at every shape and dtype that is looked at."""
    for step in mg.gemm.steps(arch):
        for shape in SHAPES.get(step.number, [step.default_shape]):
            for dtype in DTYPES:
                yield step, shape, dtype


def label(step: Any, shape: tuple[int, int, int], dtype: str) -> str:
    return f"{step.name} {'x'.join(map(str, shape))} {dtype}"


def machine(checks: Checks) -> None:
    def look() -> str:
        found = doctor.examine()
        for item in found["items"]:
            print(f"    {'ok' if item['ok'] else '--'} {item['name']}: {item['detail']}")
        require(found["ok"], f"missing: {[item['name'] for item in found['missing']]}")
        return "looked at"

    checks.attempt("doctor", look)


def right(checks: Checks, arch: str) -> None:
    def check(step: Any, shape: tuple[int, int, int], dtype: str) -> str:
        M, N, K = shape
        A, B = verification.gemm_inputs(M, N, K, dtype, seed=M + 7 * N + 31 * K)
        D = verification.poisoned((M, N), dtype)
        ran = launch.run_on_gpu(step.build(M, N, K, dtype), A, B, D)
        verdict = verification.compare_gemm(A, B, D)
        require(verdict.ok, str(verdict))
        return f"{verdict}, {1e6 * (ran.seconds or 0):.1f} µs"

    for case in cases(arch):
        checks.attempt(label(*case), lambda case=case: check(*case))


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


def simulator(checks: Checks, arch: str, folder: Path) -> None:
    rows: list[dict[str, Any]] = []

    def compare(step: Any, shape: tuple[int, int, int], dtype: str) -> str:
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
            {
                "kernel": step.name,
                "M": M,
                "N": N,
                "K": K,
                "dtype": dtype,
                **difference.to_dict(),
                "source_sha256": benchmarking.source_sha256(step.name),
            }
        )
        return str(difference)

    for case in cases(arch):
        checks.attempt(label(*case), lambda case=case: compare(*case))
    gpu = device.current()
    if rows and gpu is not None:
        sources = {row["kernel"]: row["source_sha256"] for row in rows}
        provenance = benchmarking.provenance(gpu, sources)
        provenance["method"] = "the same inputs in the simulator (lazy schedule) and on the GPU"
        content = {"provenance": provenance, "rows": rows}
        write(folder / "simulator.json", content)


def benchmarks(checks: Checks, arch: str, folder: Path, seconds: float) -> None:
    result = benchmarking.Benchmark()

    def measure(step: Any, shape: tuple[int, int, int], dtype: str) -> str:
        part = mg.benchmark(step, [shape], dtype, seconds=seconds)
        if not isinstance(part, benchmarking.Benchmark):
            raise AssertionError(str(part))
        result.add(part)
        result.save(folder / "gemm.json")
        row = part.rows[0]
        others = ", ".join(
            f"{name} {other['ms']:.4g} ms" for name, other in row["baseline"].items()
        )
        return (
            f"{row['ms']:.4g} ms ({row['ms_p20']:.4g}-{row['ms_p80']:.4g}), "
            f"{row['tflops']:.4g} TFLOP/s, {row['tflops_per_sm']:.3g} per SM on {row['sms']} SMs; "
            f"{others}; {row['samples']} samples of {row['launches_per_sample']}, "
            f"{row['sm_clock_mhz']} MHz, {row['power_w']} W"
        )

    for step in mg.gemm.steps(arch):
        own = [step.default_shape] if step.number < 3 else [(n, n, n) for n in CUBES]
        for shape in own:
            for dtype in DTYPES:
                what = label(step, shape, dtype)
                checks.attempt(what, lambda s=step, x=shape, d=dtype: measure(s, x, d))
    if result.rows:
        print(result)


def write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    print(f"  wrote {path}")


def short_name(gpu: device.Device) -> str:
    """``h200`` for ``NVIDIA H200``: the folder of a GPU's results."""
    words = re.findall(r"[A-Za-z]*\d+[A-Za-z]*", gpu.name)
    return (words[0] if words else gpu.name.replace(" ", "-")).lower()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--arch", choices=sorted(device.ARCHITECTURES))
    parser.add_argument("-o", "--output", type=Path, help="folder; book/results/<gpu> if left out")
    parser.add_argument("--minutes", type=float, default=5, help="no new measurement after these")
    parser.add_argument("--seconds", type=float, default=1.5, help="samples of one benchmark row")
    parser.add_argument(
        "--skip",
        action="append",
        default=[],
        choices=["machine", "right", "refusals", "simulator", "benchmarks"],
    )
    options = parser.parse_args()

    gpu = device.current()
    arch = options.arch or (gpu.family if gpu is not None else None) or "hopper"
    try:
        gpu = device.require(device.ARCHITECTURES[arch], "this check")
        launch.torch_with_cuda("this check")
    except device.NeedsGpu as error:
        print(error, file=sys.stderr)
        return 2
    folder = options.output or ROOT / "book" / "results" / short_name(gpu)
    checks = Checks(options.minutes, options.skip)
    checks.part("machine", machine)
    checks.part("right", lambda c: right(c, arch))
    checks.part("refusals", lambda c: refusals(c, arch))
    checks.part("simulator", lambda c: simulator(c, arch, folder))
    checks.part("benchmarks", lambda c: benchmarks(c, arch, folder, options.seconds))

    print(f"\n== summary: {gpu.name}, {time.monotonic() - checks.began:.0f} s")
    for line in checks.lines:
        print(f"  {line}")
    for failure in checks.failures:
        print(f"  FAILED {failure}")
    print("ALL RIGHT" if not checks.failures else f"{len(checks.failures)} FAILURES")
    return 1 if checks.failures else 0


if __name__ == "__main__":
    sys.exit(main())
