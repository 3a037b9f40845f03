#!/usr/bin/env python3
"""What the model of time says that a B200 takes, beside what others have published.

    python scripts/b200/model.py [-o FILE]

Kernels are those of tirx-kernels (in requirements-dev.txt); nothing of this ran on a B200 here.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

import mlsys_gpu as mg  # noqa: E402

#: Size, published microseconds, and who says so.
GEMM = [
    (4096, 93.4, "tirx-kernels, gemm/fp16_bf16_gemm on a B200"),
    (8192, 689.0, "tirx-kernels, gemm/fp16_bf16_gemm on a B200"),
]


def rows() -> list[dict[str, Any]]:
    from tirx_kernels.gemm import fp16_bf16_gemm

    found = []
    for size, published, source in GEMM:
        kernel = fp16_bf16_gemm.get_kernel(M=size, N=size, K=size, dtype="fp16")
        timing = mg.model(kernel, gpu="b200", clusters=4)
        found.append(
            {
                "kernel": "tirx-kernels gemm/fp16_bf16_gemm",
                "M": size,
                "N": size,
                "K": size,
                "dtype": "float16",
                "modelled_us": round(timing.microseconds, 1),
                "published_us": published,
                "published_by": source,
                "clock_mhz": round(timing.clock_mhz),
                "bound": timing.bound,
            }
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, help="a file for the rows")
    given = parser.parse_args()
    table = rows()
    for row in table:
        apart = row["modelled_us"] / row["published_us"] - 1
        print(
            f"{row['kernel']} {row['M']}³: modelled {row['modelled_us']:.1f} us, published "
            f"{row['published_us']:.1f} us ({100 * apart:+.1f} %); {row['bound']}"
        )
    if given.output is not None:
        note = "modelled, not measured; published figures are others'"
        given.output.write_text(json.dumps({"note": note, "launches": table}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
