#!/usr/bin/env python3
"""Every kernel of the ladder under NVIDIA's compute-sanitizer, on this machine's GPU.

    python scripts/h200/sanitize.py                        all kernels, all tools
    python scripts/h200/sanitize.py --steps 7-9,tuned --tools memcheck racecheck -o FILE

Each kernel runs once in a process of its own under each tool: memcheck (accesses out of bounds),
racecheck (hazards in shared memory), synccheck (barriers). Its output is compared with float64.
Shapes are small: the tools make a kernel slower by orders of magnitude. From Step 4 on they are
ragged, and from Step 6 on few CTAs share the tiles, so that each of them computes several.

What the tools said goes to book/results/<gpu>/sanitizer.json; rows of other kernels stay there. A
tool that does not run on this machine, or that does not see a fault planted for it, counts as not
available, and is no failure; a finding, a wrong output or a crash is one, and the exit status is 1
then.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

from mlsys_gpu import benchmarking, device, gemm, launch, verification  # noqa: E402

TOOLS = ("memcheck", "racecheck", "synccheck")
#: The last line of a report: how many findings there are.
SUMMARY = re.compile(
    r"ERROR SUMMARY: (\d+) errors?"
    r"|RACECHECK SUMMARY: (\d+) hazards? displayed \((\d+) errors?, (\d+) warnings?\)"
)
#: What it says of a machine that it does not run on.
UNSUPPORTED = re.compile(r"Device not supported|not supported on|Failed to initialize", re.I)
RIGHT = "output: right"

#: For each tool a kernel with the fault that it is for: a tool that finds nothing here is blind.
PLANTED = {
    "memcheck": "out[threadIdx.x + 4096] = 1;",
    "racecheck": """
        __shared__ int shared[128];
        shared[threadIdx.x] = out[threadIdx.x];
        out[threadIdx.x] = shared[127 - threadIdx.x];""",
    "synccheck": """
        if (threadIdx.x < 48) __syncthreads();
        out[threadIdx.x] = 1;""",
}
PLANTED_NAME = "planted_fault"

FEW_CTAS = 4
RAGGED = (328, 264, 456)


def shape_of(step: Any) -> tuple[int, int, int]:
    """A small shape that shows what the step does."""
    return step.default_shape if step.number <= 3 else RAGGED


def options_of(step: Any) -> dict[str, int]:
    """Few CTAs, for steps that let them share the tiles."""
    takes = inspect.signature(step.module.build).parameters
    return {"ctas": FEW_CTAS} if "ctas" in takes else {}


def run_one(name: str, dtype: str) -> int:
    """In the process that is watched: run a kernel and compare its output."""
    step = benchmarking.step_of_name(name)
    if step is None:
        raise SystemExit(f"no kernel is called {name}")
    M, N, K = shape_of(step)
    A, B = verification.gemm_inputs(M, N, K, dtype, seed=M + N + K)
    D = verification.poisoned((M, N), dtype)
    launch.run_on_gpu(step.build(M, N, K, dtype, **options_of(step)), A, B, D)
    verdict = verification.compare_gemm(A, B, D)
    print(RIGHT if verdict.ok else f"output: {verdict}")
    return 0 if verdict.ok else 3


def run_planted(tool: str) -> int:
    """In the process that is watched: run the kernel with the tool's fault."""
    import ctypes

    from mlsys_gpu.artifacts import compile_cuda
    from mlsys_gpu.calibration.gpu import DriverError, Gpu, u32, u64

    here = device.current()
    assert here is not None
    code = f'extern "C" __global__ void {PLANTED_NAME}(int *out) {{ {PLANTED[tool]} }}'
    cubin = compile_cuda(code, here.arch).cubin
    gpu = Gpu()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    gpu.call("cuModuleLoadData", ctypes.byref(module), cubin)
    gpu.call("cuModuleGetFunction", ctypes.byref(function), module, PLANTED_NAME.encode())
    argument = u64(gpu.allocate(512))
    one, threads, pointer = u32(1), u32(128), ctypes.c_void_p(ctypes.addressof(argument))
    with contextlib.suppress(DriverError):  # what an access out of bounds may end in
        gpu.call(
            "cuLaunchKernel", function, one, one, one, threads, one, one, u32(0), None,
            (ctypes.c_void_p * 1)(pointer), None,
        )  # fmt: skip
        gpu.call("cuCtxSynchronize")
    print(RIGHT)
    return 0


def command(sanitizer: str, tool: str, symbol: str, *arguments: str) -> list[str]:
    """The command line of one run; only the kernel itself is instrumented."""
    return [
        sanitizer, "--tool", tool, "--kernel-name", f"kernel_substring={symbol}",
        "--report-api-errors", "no", "--print-limit", "20",
        sys.executable, str(Path(__file__).resolve()), *arguments,
    ]  # fmt: skip


def verdict(text: str, status: int) -> dict[str, Any]:
    """What a report says: ``clean``, ``findings``, ``wrong output``, ``not available``, ``failed``.

    text: all that the tool and the program printed. status: the exit status.
    """
    said = [line for line in text.splitlines() if line.startswith("=========")]
    found = SUMMARY.search(text)
    counts = {"errors": 0}
    if found is not None:
        if found[1] is not None:
            counts = {"errors": int(found[1])}
        else:
            counts = {"errors": int(found[3]), "warnings": int(found[4])}
    if UNSUPPORTED.search(text) and RIGHT not in text:
        return {"verdict": "not available", "said": said[:5]}
    if found is None:
        return {"verdict": "failed", "status": status, "said": text.splitlines()[-12:]}
    if any(counts.values()):
        return {"verdict": "findings", **counts, "said": said[:40]}
    if RIGHT not in text:
        return {"verdict": "wrong output", **counts, "said": text.splitlines()[-12:]}
    return {"verdict": "clean", **counts}


def watched(line: list[str], seconds: float) -> dict[str, Any]:
    """Run one command line, and say what came of it."""
    began = time.monotonic()
    try:
        done = subprocess.run(
            line,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            # Each tensor is an allocation of its own, so that what lies behind it is out of bounds.
            env=os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        )
    except subprocess.TimeoutExpired:
        return {"verdict": "timeout", "seconds": seconds}
    took = round(time.monotonic() - began, 1)
    return verdict(done.stdout, done.returncode) | {"seconds": took}


def find_sanitizer() -> str | None:
    """The program, on the path or where CUDA installs it."""
    found = shutil.which("compute-sanitizer")
    if found is None:
        places = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer")
        found = shutil.which("compute-sanitizer", path=os.pathsep.join(places))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--arch", choices=sorted(device.ARCHITECTURES), default="hopper")
    parser.add_argument("--steps", help="kernels: 3-9,dynamic,tuned; all if left out")
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument(
        "--dtype", nargs="+", choices=verification.DTYPES, default=[verification.DTYPES[0]]
    )
    parser.add_argument("--jobs", type=int, default=4, help="processes on the GPU at a time")
    parser.add_argument("--timeout", type=float, default=240, help="seconds of one run")
    parser.add_argument("-o", "--output", type=Path, help="file; book/results/<gpu>/sanitizer.json")
    parser.add_argument("--run", metavar="KERNEL", help=argparse.SUPPRESS)
    parser.add_argument("--planted", choices=TOOLS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.planted is not None:
        return run_planted(given.planted)
    if given.run is not None:
        return run_one(given.run, given.dtype[0])

    sanitizer = find_sanitizer()
    try:
        kernels = gemm.selected(given.steps, given.arch)
        gpu = device.require(device.ARCHITECTURES[given.arch], "the sanitizer")
    except (device.NeedsGpu, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    if sanitizer is None:
        print("compute-sanitizer is not installed: it comes with CUDA's toolkit", file=sys.stderr)
        return 2
    folder = ROOT / "book" / "results" / device.short_name(gpu.name)
    path = given.output or folder / "sanitizer.json"
    try:  # before anything is looked at that could not be kept
        benchmarking.earlier(path, gpu, timed=False)
        path.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    controls = {tool: control(sanitizer, tool, given.timeout) for tool in given.tools}
    rows = look(kernels, given, sanitizer, controls)
    save(path, rows, gpu, sanitizer, controls)
    bad = [
        f"{row['kernel']} {row['dtype']} {tool}: {row[tool]['verdict']}"
        for row in rows
        for tool in given.tools
        if row[tool]["verdict"] not in ("clean", "not available")
    ]
    for line in bad:
        print(f"FAILED {line}")
    print("CLEAN" if not bad else f"{len(bad)} FAILURES")
    return 1 if bad else 0


def control(sanitizer: str, tool: str, seconds: float) -> dict[str, Any]:
    """Whether a tool sees the fault that is planted for it: ``findings`` is what it should say."""
    found = watched(command(sanitizer, tool, PLANTED_NAME, "--planted", tool), seconds)
    print(f"planted fault, {tool}: {found['verdict']}", flush=True)
    return found


def look(
    kernels: Sequence[Any],
    given: argparse.Namespace,
    sanitizer: str,
    controls: dict[str, dict[str, Any]],
) -> list[dict[str, Any]]:
    """A row for each kernel and dtype, with a verdict for each tool."""
    cases = [(step, dtype) for step in kernels for dtype in given.dtype]
    seeing = [tool for tool in given.tools if controls[tool]["verdict"] == "findings"]

    def warm(case: tuple[Any, str]) -> None:
        """Fill the compiler's cache: a compiler under the sanitizer takes its time."""
        line = [sys.executable, str(Path(__file__).resolve()), "--run", case[0].name]
        subprocess.run([*line, "--dtype", case[1]], capture_output=True, check=False)

    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(warm, cases))
        futures = {
            (step.name, dtype, tool): pool.submit(
                watched,
                command(sanitizer, tool, step.symbol, "--run", step.name, "--dtype", dtype),
                given.timeout,
            )
            for step, dtype in cases
            for tool in seeing
        }
        rows = []
        for step, dtype in cases:
            M, N, K = shape_of(step)
            row = {"kernel": step.name, "M": M, "N": N, "K": K, "dtype": dtype}
            row |= options_of(step)
            for tool in given.tools:
                row[tool] = found = (
                    futures[step.name, dtype, tool].result()
                    if tool in seeing
                    else {"verdict": "not available", "why": "a planted fault was not found"}
                )
                print(f"{step.name} {dtype} {tool}: {json.dumps(found)}", flush=True)
            rows.append(row | {"source_sha256": benchmarking.source_sha256(step.name)})
    return rows


def save(
    path: Path,
    rows: list[dict[str, Any]],
    gpu: device.Device,
    sanitizer: str,
    controls: dict[str, dict[str, Any]],
) -> None:
    """Write the rows over those of the same kernels."""
    version = subprocess.run([sanitizer, "--version"], capture_output=True, text=True, check=False)
    sources = {row["kernel"]: row["source_sha256"] for row in rows}
    facts = benchmarking.provenance(gpu, sources) | {
        "method": "each kernel once under each tool, in a process of its own; only the kernel is "
        "instrumented; outputs compared with float64",
        "compute_sanitizer": version.stdout.strip().splitlines()[-1:],
        "planted_faults": {tool: found["verdict"] for tool, found in controls.items()},
    }
    made = benchmarking.Benchmark(rows, facts)
    before = benchmarking.earlier(path, gpu, timed=False)
    (before.merged(made) if before.rows else made).save(path)
    print(f"wrote {path}")


if __name__ == "__main__":
    sys.exit(main())
