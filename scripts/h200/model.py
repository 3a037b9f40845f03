#!/usr/bin/env python3
"""Modelled against measured time, for the kernels that judge the model (tests/sim/judged.py).

    python scripts/h200/model.py                    # all of them, a line each, mean and largest
    python scripts/h200/model.py step3 copy_tma     # those whose name has one of these in it
    python scripts/h200/model.py -o FILE            # also into a file, as the book's tables take it
    python scripts/h200/model.py --ladder           # Steps 3 and up of the GEMM ladder instead

Measured times are those of book/results/h200/judges.json, and for the ladder of gemm.json, as
``mlsys-gpu bench`` and scripts/gpu_check.py write it. No GPU is needed: a few of each launch's
clusters run in the simulator. The compiler (NVRTC, nvdisasm) says how many registers a kernel has.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import types
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
# This checkout's tests, whatever else is installed under that name.
sys.modules["tests"] = types.ModuleType("tests")
sys.modules["tests"].__path__ = [str(ROOT / "tests")]

from mlsys_gpu import benchmarking, sim  # noqa: E402
from tests.sim import judged  # noqa: E402

MEASURED = ROOT / "book" / "results" / "h200" / "judges.json"
LADDER = MEASURED.with_name("gemm.json")


def compared(row: dict[str, Any]) -> dict[str, Any] | None:
    """A measured row beside the modelled time of the same launch; None if it is no judge any
    more."""
    case = judged.of_row(row)
    if case is None:
        return None
    shape = {"kernel": case.name, **case.shape, "dtype": case.dtype}
    return shape | beside(case.build(), row) | {"source_sha256": case.source_sha256}


def step_compared(row: dict[str, Any]) -> dict[str, Any] | None:
    """A row of the ladder's benchmark beside the modelled time; None below Step 3."""
    step = benchmarking.step_of_name(row["kernel"])
    if step is None or step.number < 3:
        return None
    shape = {k: row[k] for k in ("M", "N", "K")}
    kernel = step.build(**shape, dtype=row["dtype"])
    named = {"kernel": row["kernel"], **shape, "dtype": row["dtype"]}
    return named | beside(kernel, row) | {"source_sha256": row["source_sha256"]}


def beside(kernel: Any, row: dict[str, Any]) -> dict[str, Any]:
    timing = sim.model(kernel, gpu="h200")
    measured = 1e3 * row["ms"]
    return {
        "measured_us": round(measured, 3),
        "modelled_us": round(timing.microseconds, 3),
        "error": round(timing.microseconds / measured - 1, 4),
        "bound": timing.bound,
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean, median and largest of the absolute errors, and how many are within 10 and 25 %."""
    errors = [abs(row["error"]) for row in rows]
    return {
        "pairs": len(rows),
        "mean": round(statistics.fmean(errors), 4),
        "median": round(statistics.median(errors), 4),
        "largest": max(errors),
        "within_10_percent": sum(e <= 0.10 for e in errors),
        "within_25_percent": sum(e <= 0.25 for e in errors),
    }


def line(row: dict[str, Any]) -> str:
    known = {"kernel", "dtype", "measured_us", "modelled_us", "error", "bound", "source_sha256"}
    shape = " ".join(f"{k}={v}" for k, v in row.items() if k not in known)
    return (
        f"{row['kernel'] + ' ' + shape:<66}{row['measured_us']:>10.2f}{row['modelled_us']:>10.2f}"
        f"{100 * row['error']:>+8.1f} %  {row['bound']}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="parts of names; all kernels by default")
    parser.add_argument("-o", "--output", type=Path, help="a file for the rows")
    parser.add_argument("--ladder", action="store_true", help="the GEMM ladder's benchmark")
    given = parser.parse_args()
    source = LADDER if given.ladder else MEASURED
    rows = []
    print(f"{'kernel':<66}{'measured':>10}{'modelled':>10}    error  (us)")
    for row in json.loads(source.read_text())["rows"]:
        case = None if given.ladder else judged.of_row(row)
        name = row["kernel"] if case is None else case.id
        if given.names and not any(n in name for n in given.names):
            continue
        found = step_compared(row) if given.ladder else compared(row)
        if found is not None:
            rows.append(found)
            print(line(found), flush=True)
    if not rows:
        parser.error(f"no kernel has {' or '.join(given.names)} in its name")
    total = summary(rows)
    print(
        f"{total['pairs']} pairs: mean {100 * total['mean']:.1f} %, median "
        f"{100 * total['median']:.1f} %, largest {100 * total['largest']:.1f} %; "
        f"{total['within_10_percent']} within 10 %, {total['within_25_percent']} within 25 %"
    )
    if given.output is not None:
        record = {"measured": str(source.relative_to(ROOT)), "summary": total, "launches": rows}
        given.output.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
