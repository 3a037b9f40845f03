"""Checks of chapter 12: Steps 1 to 3 of the GEMM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mlsys_gpu.grading.checks.base import (
    Call,
    Explanation,
    Input,
    Kernel,
    Output,
    Predict,
    Ran,
    draw_distinct,
    gemm_data,
    is_product,
)

# --- 12.1 ------------------------------------------------------------------------------------


def _draw_waits(rng: np.random.Generator) -> list[Call]:
    # Odd and even numbers of K tiles; with an odd one, every second tile of D begins at phase 1.
    shapes = [(int(rng.integers(2, 6)), int(k)) for k in rng.permutation([1, 2, 3, 4, 5, 7])]
    return [Call("waits", [tiles, k_tiles]) for tiles, k_tiles in shapes]


def _waits(_: str, tiles: int, k_tiles: int) -> list[int]:
    phase, found = 0, []
    for _tile in range(tiles):
        for _k in range(k_tiles):
            found.append(phase)
            phase ^= 1
    return found


def _explain_waits(call: Call, got: Any, want: Any) -> Explanation:
    tiles, k_tiles = call.args
    if not isinstance(got, list):
        return None
    if len(got) != len(want):
        return f"There are {len(want)} waits, not {len(got)}."
    if got == [k % 2 for k in range(k_tiles)] * tiles:
        return (
            "This begins every tile of D at phase 0, but with an odd number of K tiles the barrier "
            "stands at phase 1 there: the wait would return at once, for the phase before.",
            2,
        )
    if got == [1 - phase for phase in want]:
        return ("The first phase that completes is phase 0.", 1)
    if all(phase == 0 for phase in got):
        return ("Phases alternate: a wait for a phase that is over returns at once.", 1)
    return None


phases = Predict(
    draw=_draw_waits,
    expected=_waits,
    explain=_explain_waits,
    page=Call("waits", [2, 3]),
)

# --- 12.2 ------------------------------------------------------------------------------------


def _draw_traffic(rng: np.random.Generator) -> list[Call]:
    calls = []
    for _ in range(10):
        bm, bn = draw_distinct(rng, [64, 96, 128, 192, 256], 2)
        m, n = bm * int(rng.integers(2, 7)), bn * int(rng.integers(2, 7))
        k = 64 * int(rng.integers(1, 20))
        calls.append(Call("traffic", [m, n, k, bm, bn, int(rng.choice([1, 2, 4]))]))
    return calls


def _traffic(_: str, m: int, n: int, k: int, bm: int, bn: int, size: int) -> tuple[int, int, int]:
    # Every element of A is loaded once for each column of tiles, of B once for each row of tiles.
    loaded = size * (m * k * (n // bn) + n * k * (m // bm))
    return 2 * m * n * k, loaded, size * m * n


def _explain_traffic(call: Call, got: Any, want: Any) -> Explanation:
    m, n, k, bm, bn, size = call.args
    if not isinstance(got, list) or len(got) != 3:
        return None
    if got[0] != want[0]:
        return (
            "Each of the M N K products is a multiply and an add." if got[0] == m * n * k else None
        )
    if got[1] == size * k * (m + n):
        return ("That loads A and B once. Each CTA loads its own copy of what it needs.", 1)
    if got[1] == size * (m * k * (m // bm) + n * k * (n // bn)):
        return ("A is loaded once for each column of tiles: there are N / BN of them.", 2)
    if got[1] == size * (bm + bn) * k:
        return ("That is what one CTA loads.", 2)
    if got[1] * size == want[1] or got[2] * size == want[2]:
        return "That is counted in elements; the answer is in bytes."
    return None


traffic = Predict(
    draw=_draw_traffic,
    expected=_traffic,
    explain=_explain_traffic,
    fields=("flops", "loaded", "stored"),
    page=Call("traffic", [1024, 1024, 1024, 128, 128, 2]),
)

# --- 12.3 ------------------------------------------------------------------------------------

# PTX ISA: matrix descriptor of wgmma (asynchronous warpgroup level) and of tcgen05.
_FIELDS = {
    "hopper": {"start": (0, 14), "leading": (16, 14), "stride": (32, 14), "swizzle": (62, 2)},
    "blackwell": {
        "start": (0, 14),
        "leading": (16, 14),
        "stride": (32, 14),
        "constant": (46, 3),
        "swizzle": (61, 3),
    },
}


def _draw_descriptor(rng: np.random.Generator) -> list[Call]:
    calls = []
    for arch in ("hopper", "blackwell"):
        for k in (0, 16, 32, 48):
            calls.append(Call("descriptor", [arch, int(1024 * rng.integers(1, 200)), k]))
    return [calls[i] for i in rng.permutation(len(calls))]


def _descriptor(_: str, arch: str, address: int, k: int) -> int:
    values = {"start": (address + 2 * k) >> 4, "leading": 1, "stride": 1024 >> 4}
    values |= {"swizzle": 1} if arch == "hopper" else {"constant": 1, "swizzle": 2}
    return sum(values[name] << low for name, (low, _) in _FIELDS[arch].items())


def _explain_descriptor(call: Call, got: Any, want: Any) -> Explanation:
    arch, address, k = call.args
    if isinstance(got, bool) or not isinstance(got, int) or not 0 <= got < 1 << 64:
        return "A descriptor is an integer of 64 bits."
    rest = got
    for name, (low, width) in _FIELDS[arch].items():
        mask = (1 << width) - 1
        mine, right = got >> low & mask, want >> low & mask
        rest &= ~(mask << low)
        if mine == right:
            continue
        text = (
            f"Its field {name} (bits {low} to {low + width - 1}) is {mine} and should be {right}."
        )
        if name == "start" and mine == (address >> 4) + k:
            return (f"{text} A value of K has 2 bytes, and the unit is 16 bytes.", 2)
        if name == "start" and mine == address >> 4 and k:
            return (f"{text} Column {k} begins {2 * k} bytes further on.", 2)
        if name == "stride" and mine == 1024:
            return (f"{text} The unit is 16 bytes.", 3)
        return (text, {"start": 2, "stride": 3, "leading": 3}.get(name, 1))
    return f"Bits that belong to no field are set: {rest:#x}." if rest else None


descriptor = Predict(
    draw=_draw_descriptor,
    expected=_descriptor,
    explain=_explain_descriptor,
    page=Call("descriptor", ["hopper", 2048, 16]),
)

# --- 12.4, 12.6 ------------------------------------------------------------------------------


def _draw_k(rng: np.random.Generator) -> list[dict[str, Any]]:
    odd, even = (int(n) for n in (rng.choice([3, 5]), rng.choice([4, 6])))
    return [{"K": 64 * k} for k in (odd, even)]


def _k_data(rng: np.random.Generator, K: int) -> list[Input | Output]:
    return gemm_data(rng, 128, 64, K)


def _explain_k(ran: Ran, findings: Sequence[Any], problem: str) -> Explanation:
    a, b, got = (ran.arrays[name] for name in "ABD")
    codes = {f.code for f in findings}
    if "deadlock" in codes:
        return ("Which phase has been completed when the second wait begins?", 3)
    if "uninitialised-read" in codes:
        return ("On the first K tile there is nothing to add to: tensor memory holds garbage.", 2)
    if not problem:
        return None
    if is_product(got, a[:, :64], b[:, :64]):
        return ("D holds the product of the first K tile alone.", 1)
    if is_product(got, a[:, -64:], b[:, -64:]):
        return ("D holds the product of the last K tile alone: the others were not kept.", 2)
    tiles = a.shape[1] // 64
    if is_product(got, np.tile(a[:, :64], tiles), np.tile(b[:, :64], tiles)):
        return ("Every pass of the loop multiplies the first K tile again.", 1)
    return None


k_loop = Kernel(draw=_draw_k, data=_k_data, explain=_explain_k, arch="blackwell")
phase = Kernel(draw=_draw_k, data=_k_data, explain=_explain_k, arch="blackwell")

# --- 12.5, 12.7 ------------------------------------------------------------------------------


def _draw_tiles(rng: np.random.Generator) -> list[dict[str, Any]]:
    # Never as many tiles along N as along M: exchanging the two would go unnoticed.
    m, n = 128 * int(rng.choice([2, 4])), 64 * int(rng.choice([3, 5]))
    return [{"M": m, "N": n, "K": int(rng.choice([128, 384]))}]


def _explain_tiles(ran: Ran, findings: Sequence[Any], problem: str) -> Explanation:
    a, b, got = (ran.arrays[name] for name in "ABD")
    codes = {f.code for f in findings}
    if "out-of-bounds" in codes:
        return ("The first dimension of the grid counts columns of tiles, the second rows.", 2)
    if "race-global" in codes:
        return ("Two CTAs write the same part of D.", 3)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    corner = np.tile(exact[:128, :64], (got.shape[0] // 128, got.shape[1] // 64))
    if np.allclose(got.astype(np.float64), corner, rtol=1e-2, atol=5e-2):
        return ("Every CTA computes the same tile: it loads the same rows of A and B.", 1)
    return None


tiles = Kernel(draw=_draw_tiles, data=gemm_data, explain=_explain_tiles, arch="hopper")


def _explain_k_step(ran: Ran, findings: Sequence[Any], problem: str) -> Explanation:
    a, b, got = (ran.arrays[name] for name in "ABD")
    k = a.shape[1]
    for first in (0, 16, 32, 48):
        keep = [i for i in range(k) if i % 64 // 16 == first // 16]
        same = [i // 64 * 64 + first + i % 16 for i in range(k)]
        if is_product(got, a[:, same], b[:, same]):
            return (f"All four MMAs of a K tile read its columns {first} to {first + 15}.", 2)
        if is_product(got, a[:, keep], b[:, keep]):
            return (f"Only columns {first} to {first + 15} of each K tile were multiplied.", 2)
    return ("Follow one MMA: which bytes of the tile does its descriptor point at?", 1)


k_step = Kernel(draw=_draw_tiles, data=gemm_data, explain=_explain_k_step, arch="hopper")

# --- 12.8 ------------------------------------------------------------------------------------

_CTA_SMEM = 227 * 1024


def _possible(m: int, n: int, stages: int, smem: int, bm: int, bn: int) -> str | None:
    """The rule that a tile breaks, ``None`` where it breaks none."""
    if bm not in (64, 128, 192, 256):
        return f"BM = {bm} is none of 64, 128, 192, 256."
    if bn % 16 or not 16 <= bn <= 256:
        return f"BN = {bn} is no multiple of 16 from 16 to 256."
    if m % bm or n % bn:
        return f"the tile {bm} x {bn} does not divide {m} x {n}."
    if stages * (bm + bn) * 128 > smem:
        return (
            f"{stages} stages of the tile {bm} x {bn} take {stages * (bm + bn) * 128} bytes of "
            f"shared memory; there are {smem}."
        )
    if bm * bn * 4 > 128 * 512 * 4:
        return f"the accumulators of {bm} x {bn} do not fit into tensor memory."
    return None


def _draw_shapes(rng: np.random.Generator) -> list[Call]:
    calls = []
    for _ in range(12):
        m = 64 * int(rng.choice([6, 8, 10, 12, 16, 20, 24]))
        n = 16 * int(rng.choice([12, 20, 28, 36, 45, 64, 96]))
        k = 64 * int(rng.integers(2, 64))
        stages = int(rng.choice([2, 3, 4, 5, 6]))
        smem = int(rng.choice([_CTA_SMEM, 163 * 1024, 99 * 1024]))
        calls.append(Call("best_tile", [m, n, k, stages, smem]))
    # 256 x 256 is possible here, and would be the best if its stages fitted; nearly square wins.
    calls.append(Call("best_tile", [4096, 4096, 4096, 4, _CTA_SMEM]))
    calls.append(Call("best_tile", [3072, 768, 1024, 3, 163 * 1024]))
    return calls


def _judge_tile(call: Call, got: Any) -> Explanation:
    m, n, k, stages, smem = call.args
    if (
        not isinstance(got, list)
        or len(got) != 2
        or not all(isinstance(x, int) and not isinstance(x, bool) and x > 0 for x in got)
    ):
        return f"{call} returned {got!r}; it should be two positive integers (BM, BN)."
    broken = _possible(m, n, stages, smem, *got)
    if broken:
        return (f"{call} returned {tuple(got)}, which is not possible: {broken}", 2)

    def loaded(bm: int, bn: int) -> int:
        return 2 * k * (m * (n // bn) + n * (m // bm))

    best = min(
        loaded(bm, bn)
        for bm in (64, 128, 192, 256)
        for bn in range(16, 257, 16)
        if _possible(m, n, stages, smem, bm, bn) is None
    )
    if loaded(*got) > best:
        return (
            f"{call} returned {tuple(got)}, which loads {loaded(*got):,} bytes; a possible tile "
            f"loads {best:,}.",
            1 if tuple(got) == (64, 16) else 3,
        )
    return None


tile_shape = Predict(
    draw=_draw_shapes,
    judge=_judge_tile,
    fields=("BM", "BN"),
    page=Call("best_tile", [4096, 4096, 4096, 4, _CTA_SMEM]),
)

# --- 12.9 ------------------------------------------------------------------------------------


def _draw_load_once(rng: np.random.Generator) -> list[dict[str, Any]]:
    m, n = int(rng.choice([2, 4])), int(rng.choice([2, 3]))
    return [{"M": 128 * m, "N": 192 * n, "K": 64 * int(rng.integers(2, 4))}]


def _load_once_target(ran: Ran) -> Explanation:
    m, n, k = (ran.shape[name] for name in "MNK")
    least = (m // 128) * (n // 192) * (128 + 192) * k * 2
    loaded = ran.report.counters.get("global_load_bytes", 0)
    if loaded > least:
        return (
            f"it loads {loaded:,} bytes from global memory; {m // 128} x {n // 192} tiles that "
            f"load their rows of A and B once need {least:,}.",
            1,
        )
    return None


load_once = Kernel(draw=_draw_load_once, data=gemm_data, target=_load_once_target, arch="hopper")
