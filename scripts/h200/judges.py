#!/usr/bin/env python3
"""Measure the kernels that judge the simulator's model of time (tests/sim/judged.py).

    python scripts/h200/judges.py list                        # names, shapes, bytes, operations
    python scripts/h200/judges.py measure -o FILE             # on an H200, with TVM and PyTorch
    python scripts/h200/judges.py measure -o FILE copy_tma    # those whose name has this in it

Each kernel's outputs are checked against float64 first, on the tensors that are timed. Times are
taken as mlsys_gpu.benchmarking takes them: every launch on the next set of arrays, which together
exceed twice the L2 cache; samples of launches back to back between CUDA events; medians. The file
is written row by row; --minutes sets when no new row is begun.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import multiprocessing
import os
import sys
import time
import traceback
import types
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
# This checkout's tests, whatever else is installed under that name.
sys.modules["tests"] = types.ModuleType("tests")
sys.modules["tests"].__path__ = [str(ROOT / "tests")]

from mlsys_gpu import benchmarking, device, launch, measuring  # noqa: E402
from mlsys_gpu.device import Device  # noqa: E402
from tests.sim.judged import JUDGES, Judge, judge  # noqa: E402

METHOD = (
    "outputs checked against float64 on the tensors that are timed; every launch takes the next "
    "of the sets of arrays, which together exceed twice the L2 cache and hold the same numbers; "
    "samples of back-to-back launches between CUDA events, queued before the GPU starts on them; "
    "median, 20th and 80th percentile of samples; ctas_per_sm from the driver's occupancy "
    "calculator; sm_clock_mhz and power_w from nvidia-smi while the kernel runs back to back"
)
PAD = 256  # bytes that each set's arrays start at a multiple of


# -------------------------------------------------------------------------------------- compiling


def compiled(identity: str) -> dict[str, Any]:
    """Compile a judge's kernel into the cache on disk: its machine code, and how it is launched."""
    from mlsys_gpu import artifacts

    made = artifacts.inspect(judge(identity).build())
    return {
        "cubin": made.cubin,
        "function": str(made.lowered.device.attrs["global_symbol"]),
        "launch": {
            "grid": list(made.launch.grid),
            "cluster": list(made.launch.cluster),
            "threads": made.launch.threads,
            "dynamic_shared_bytes": made.launch.shared_bytes,
        },
    }


def resources(made: dict[str, Any]) -> dict[str, int]:
    """What a thread and a CTA take, and CTAs that fit on an SM, as the driver says.

    Needs a CUDA context. Raises RuntimeError with the driver's error.
    """
    driver: Any = importlib.import_module("cuda.bindings.driver")

    def value(answer: tuple[Any, ...]) -> Any:
        if answer[0] != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"the driver says {answer[0].name}")
        return answer[1] if len(answer) > 1 else None

    threads, dynamic = made["launch"]["threads"], made["launch"]["dynamic_shared_bytes"]
    module = value(driver.cuModuleLoadData(made["cubin"]))
    try:
        function = value(driver.cuModuleGetFunction(module, made["function"].encode()))
        of = driver.CUfunction_attribute

        def attribute(name: str) -> int:
            which = getattr(of, f"CU_FUNC_ATTRIBUTE_{name}")
            return int(value(driver.cuFuncGetAttribute(which, function)))

        most = of.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        value(driver.cuFuncSetAttribute(function, most, dynamic))
        count = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, dynamic)
        return {
            "registers": attribute("NUM_REGS"),
            "local_bytes": attribute("LOCAL_SIZE_BYTES"),
            "static_shared_bytes": attribute("SHARED_SIZE_BYTES"),
            "ctas_per_sm": int(value(count)),
        }
    finally:
        value(driver.cuModuleUnload(module))


# -------------------------------------------------------------------------------------- measuring


class Sets:
    """A judge's arrays on the GPU, often enough to exceed twice the L2 cache."""

    def __init__(self, case: Judge, l2_bytes: int, seed: int = 1):
        import torch

        self.outputs = case.outputs
        first = [torch.from_numpy(array) for array in case.arrays(seed=seed)]
        self.bytes_per_set = sum(t.nbytes for t in first)
        self.count = measuring.input_sets(self.bytes_per_set, l2_bytes)
        rows = [self._copies(tensor) for tensor in first]
        self.fresh = [tensor.cuda() for tensor in first[-self.outputs :]]
        self.sets = [list(tensors) for tensors in zip(*rows, strict=True)]
        self._next = 0

    def _copies(self, tensor: Any) -> list[Any]:
        import torch

        length = -(-tensor.nbytes // PAD) * PAD // tensor.element_size()
        room = torch.empty((self.count, length), dtype=tensor.dtype, device="cuda")
        room[:, : tensor.numel()] = tensor.reshape(1, -1).cuda()
        return [row[: tensor.numel()].view(tensor.shape) for row in room.unbind()]

    def launch(self, contender: Callable[..., None], times: int) -> None:
        for _ in range(times):
            contender(*self.sets[self._next])
            self._next = (self._next + 1) % self.count

    def poison(self) -> None:
        """Outputs as the judge hands them over."""
        for tensors in self.sets:
            for tensor, fresh in zip(tensors[-self.outputs :], self.fresh, strict=True):
                tensor.copy_(fresh)

    def error(self, case: Judge, contender: Callable[..., None]) -> float:
        """Launch once on every set; the largest error over its bound, of three of the sets."""
        self.poison()
        self.launch(contender, self.count)
        looked_at = sorted({0, self.count // 2, self.count - 1})
        errors = [case.error(*self.sets[i]) for i in looked_at]
        return max(errors, key=lambda e: (e != e, e))  # NaN is the largest


def measure_one(case: Judge, made: dict[str, Any], gpu: Device, seconds: float) -> dict[str, Any]:
    """A row. Raises MeasurementError where the outputs are wrong."""
    sets = Sets(case, gpu.l2_bytes)
    run = launch.compile_for_gpu(case.build())
    error = sets.error(case, run)
    if not error <= 1:
        raise measuring.MeasurementError(f"{case.id}: outputs are {error:.3g} of their bound")
    timer = measuring.Timer(sets, run, gpu.clock_khz)  # pyright: ignore[reportArgumentType]
    measuring.take_samples([timer], seconds)
    state = measuring.under_load(timer, 0.2)
    figures = measuring.figures(timer.samples, case.flop or 0)
    tflops = figures.pop("tflops")
    if gpu.peak_tflops is not None and tflops > gpu.peak_tflops:
        raise measuring.MeasurementError(f"{case.id}: {tflops:.0f} TFLOP/s cannot be")
    return {
        "kernel": case.name,
        **case.shape,
        "dtype": case.dtype,
        **figures,
        "tflops": tflops if case.flop else None,
        "gb_per_s": case.bytes / figures["ms"] / 1e6,
        "max_error": round(error, 4),
        **made["launch"],
        **resources(made),
        "samples": len(timer.samples),
        "launches_per_sample": timer.launches,
        "input_sets": sets.count,
        "working_set_bytes": sets.count * sets.bytes_per_set,
        **state,
        "source_sha256": case.source_sha256,
    }


def measure(chosen: list[Judge], output: Path, minutes: float, seconds: float) -> int:
    """Measure all that there is time for; the exit status."""
    began = time.monotonic()
    try:
        gpu = device.require(device.ARCHITECTURES["hopper"], "measuring the judges")
        launch.torch_with_cuda("measuring the judges")
    except device.NeedsGpu as error:
        print(error, file=sys.stderr)
        return 2
    import torch

    failures: list[str] = []
    rows: list[dict[str, Any]] = []
    context = multiprocessing.get_context("spawn")
    workers = max(1, (os.cpu_count() or 2) - 2)
    with ProcessPoolExecutor(min(workers, len(chosen)), mp_context=context) as pool:
        waiting: list[Future[dict[str, Any]]] = [pool.submit(compiled, c.id) for c in chosen]
        ready: list[tuple[Judge, dict[str, Any]]] = []
        for case, future in zip(chosen, waiting, strict=True):
            try:
                ready.append((case, future.result()))
            except Exception as error:
                failures.append(f"{case.id}: {type(error).__name__}: {error}")
    print(f"compiled {len(ready)} kernels, {time.monotonic() - began:.0f} s", flush=True)
    folder = f"{output.parent}{os.sep}"
    command = benchmarking.this_command().replace(folder, "")  # it means nothing elsewhere
    sources = {case.name: case.source_sha256 for case in chosen}
    provenance = benchmarking.provenance(gpu, sources, command)
    provenance |= {"method": METHOD, "inputs": "random, as tests/sim/judged.py makes them"}
    for case, made in ready:
        if time.monotonic() - began > 60 * minutes:
            failures.append(f"{case.id}: no time left")
            continue
        try:
            row = measure_one(case, made, gpu, seconds)
        except Exception as error:
            traceback.print_exc()
            failures.append(f"{case.id}: {type(error).__name__}: {' '.join(str(error).split())}")
            continue
        rows.append(row)
        output.parent.mkdir(parents=True, exist_ok=True)
        content = {"provenance": provenance, "rows": rows}
        output.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        print(line(row, case), flush=True)
        torch.cuda.empty_cache()
    print(f"{len(rows)} rows, {time.monotonic() - began:.0f} s")
    for failure in failures:
        print(f"FAILED {failure}"[:400])
    return 1 if failures else 0


def line(row: dict[str, Any], case: Judge) -> str:
    """A row for a reader: microseconds, rate, registers, CTAs an SM, clock."""
    spread = 100 * (row["ms_p80"] - row["ms_p20"]) / row["ms"]
    rate = f"{row['gb_per_s']:7.0f} GB/s"
    if row["tflops"] is not None:
        rate += f" {row['tflops']:6.1f} TFLOP/s"
    return (
        f"{case.id:58} {1e3 * row['ms']:9.2f} µs ±{spread / 2:4.1f} % {rate}; "
        f"{row['registers']} regs, {row['ctas_per_sm']} CTAs/SM, {row['sm_clock_mhz']} MHz"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="what would be measured")
    of_measure = commands.add_parser("measure", help="measure on this machine's GPU")
    of_measure.add_argument("-o", "--output", type=Path, required=True)
    of_measure.add_argument("--minutes", type=float, default=4, help="no new row after these")
    of_measure.add_argument("--seconds", type=float, default=0.6, help="samples of one row")
    of_measure.add_argument("names", nargs="*", help="parts of names; all kernels if left out")
    options = parser.parse_args()
    if options.command == "list":
        with contextlib.suppress(BrokenPipeError):
            for case in JUDGES:
                flop = "" if case.flop is None else f"{case.flop / 1e9:12.3f} GFLOP"
                print(f"{case.id:58} {case.bytes / 2**20:10.3f} MiB {flop}".rstrip())
        return 0
    chosen = [c for c in JUDGES if not options.names or any(n in c.id for n in options.names)]
    if not chosen:
        parser.error("no kernel has such a name")
    return measure(chosen, options.output, options.minutes, options.seconds)


if __name__ == "__main__":
    sys.exit(main())
