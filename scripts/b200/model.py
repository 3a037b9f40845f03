#!/usr/bin/env python3
"""What the model of time says that a B200 takes, beside what others have published.

    python scripts/b200/model.py [-o FILE]            # kernels of tirx-kernels
    python scripts/b200/model.py --ladder [-o FILE]   # the GEMM ladder: Steps 3 to 9, variants
    python scripts/b200/model.py --ladder clc --sizes 4096 8192
    python scripts/b200/model.py --additions [-o FILE]  # tuned, whole and without each addition

tirx-kernels is in requirements-dev.txt. Nothing of this ran on a B200 here.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

import mlsys_gpu as mg  # noqa: E402
from mlsys_gpu import benchmarking  # noqa: E402

#: Size, published microseconds, and who says so.
GEMM = [
    (4096, 93.4, "tirx-kernels, gemm/fp16_bf16_gemm on a B200"),
    (8192, 689.0, "tirx-kernels, gemm/fp16_bf16_gemm on a B200"),
]

#: FlashAttention-4, batch 1, 32 query and 8 key heads of 128: length, causal, published TFLOP/s.
ATTENTION = [
    (2048, False, 1225.0),
    (4096, False, 1325.0),
    (2048, True, 969.0),
    (4096, True, 1227.0),
]
HEADS, KV_HEADS, WIDTH = 32, 8, 128


def attention() -> list[dict[str, Any]]:
    """Times of FlashAttention-4; causal counts half of the operations."""
    import torch
    from tirx_kernels.ported.flashattention import flash_attention4

    found = []
    for length, causal, published in ATTENTION:
        q = torch.zeros(1, length, HEADS, WIDTH, dtype=torch.float16)
        k, v = (torch.zeros(1, length, KV_HEADS, WIDTH, dtype=torch.float16) for _ in range(2))
        maps = flash_attention4.build_tensor_maps(
            q, k, v, torch.empty_like(q), batch_size=1, seq_len_q=length, seq_len_kv=length,
            num_qo_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=WIDTH, is_causal=causal,
        )  # fmt: skip
        kernel = flash_attention4.get_kernel(1, length, HEADS, KV_HEADS, WIDTH, causal)
        timing = mg.model(kernel, *[m.ptr for m in maps], gpu="b200")
        flops = 4 * length * length * HEADS * WIDTH / (2 if causal else 1)
        found.append(
            {
                "kernel": "tirx-kernels flash_attention4" + ", causal" * causal,
                "shape": f"{length}, {HEADS}/{KV_HEADS} heads of {WIDTH}",
                "dtype": "float16",
                "modelled_us": round(timing.microseconds, 1),
                "published_us": round(flops / published / 1e6, 1),
                "published_by": f"tirx-kernels on a B200 ({published:.0f} TFLOP/s)",
                "clock_mhz": round(timing.clock_mhz),
                "bound": timing.bound,
            }
        )
    return found


def rows() -> list[dict[str, Any]]:
    """All of them: GEMM first."""
    return [*gemm(), *attention()]


def gemm() -> list[dict[str, Any]]:
    """Times of the GEMM with pairs of CTAs and launch control."""
    from tirx_kernels.gemm import fp16_bf16_gemm

    found = []
    for size, published, source in GEMM:
        kernel = fp16_bf16_gemm.get_kernel(M=size, N=size, K=size, dtype="fp16")
        timing = mg.model(kernel, gpu="b200", clusters=4)
        found.append(
            {
                "kernel": "tirx-kernels gemm/fp16_bf16_gemm",
                "shape": f"{size} x {size} x {size}",
                "dtype": "float16",
                "modelled_us": round(timing.microseconds, 1),
                "published_us": published,
                "published_by": source,
                "clock_mhz": round(timing.clock_mhz),
                "bound": timing.bound,
            }
        )
    return found


#: Sizes of the ladder's square products.
SIZES = (1024, 2048, 4096, 8192)

#: So many clusters of a launch stand for all: enough that the part of those with a tile more than
#: the others, which decides how busy the chip is, comes out within a few hundredths.
CLUSTERS = 25


def ladder(names: list[str], sizes: Iterable[int]) -> Iterator[dict[str, Any]]:
    """Times of the ladder's steps from 3 on and of their variants; ``names``: parts of names."""
    for size in sizes:
        for step in mg.gemm.everything("blackwell"):
            if step.number < 3 or (names and not any(n in step.name for n in names)):
                continue
            yield {"kernel": step.name, **of_step(step, size, {})}


def additions(sizes: Iterable[int]) -> Iterator[dict[str, Any]]:
    """Times of the tuned kernel whole, without each addition, and without all of them."""
    tuned = mg.gemm.tuned("blackwell")
    names = list(tuned.module.ADDITIONS)
    for size in sizes:
        for without in ([], *([name] for name in names), names):
            row = {"kernel": tuned.name, "without": without}
            yield row | of_step(tuned, size, {"without": without})


def of_step(step: Any, size: int, options: dict[str, Any]) -> dict[str, Any]:
    """The time of a step, built with ``options``, for a square product of float16."""
    kernel = step.build(size, size, size, **options)
    timing = mg.model(kernel, gpu="b200", clusters=CLUSTERS)
    return {
        "M": size,
        "N": size,
        "K": size,
        "dtype": "float16",
        "modelled_us": round(timing.microseconds, 3),
        "clock_mhz": round(timing.clock_mhz),
        "bound": timing.bound,
        "busy": {
            "tensor cores": round(timing.tensor_busy, 3),
            "L2": round(timing.l2_busy, 3),
            "device memory": round(timing.memory_busy, 3),
        },
        # of A and of B: what comes from memory, and the part of the different bytes that CTAs ask
        # for at a time that L2 does not hold by then
        "reads": {
            row.name: {"memory_bytes": round(row.memory), "cold": round(row.cold, 3)}
            for row in timing.traffic
            if not row.write
        },
        "source_sha256": benchmarking.source_sha256(step.name),
    }


def line(row: dict[str, Any]) -> str:
    flops = 2.0 * row["M"] * row["N"] * row["K"]
    left_out = row.get("without", ())
    name = row["kernel"] + (f" without {', '.join(left_out)}" if left_out else "")
    return (
        f"{name + ' ' + str(row['M']):<56}{row['modelled_us']:>10.2f} us"
        f"{flops / row['modelled_us'] / 1e6:>8.0f} TFLOP/s  {row['bound']}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, help="a file for the rows")
    parser.add_argument("--ladder", nargs="*", metavar="NAME", help="the GEMM ladder, or a part")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="of the ladder")
    parser.add_argument("--additions", action="store_true", help="what each of tuned's gives")
    given = parser.parse_args()
    if given.ladder is not None or given.additions:
        table = []
        asked = (
            additions(given.sizes) if given.additions else ladder(given.ladder or [], given.sizes)
        )
        for row in asked:
            table.append(row)
            print(line(row), flush=True)
        write(given.output, "modelled for a B200, not measured", table)
        return 0
    table = rows()
    for row in table:
        apart = row["modelled_us"] / row["published_us"] - 1
        print(
            f"{row['kernel']} {row['shape']}: modelled {row['modelled_us']:.1f} us, published "
            f"{row['published_us']:.1f} us ({100 * apart:+.1f} %); {row['bound']}"
        )
    write(given.output, "modelled, not measured; published figures are others'", table)
    return 0


def write(path: Path | None, note: str, table: list[dict[str, Any]]) -> None:
    if path is not None:
        path.write_text(json.dumps({"note": note, "launches": table}, indent=1) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
