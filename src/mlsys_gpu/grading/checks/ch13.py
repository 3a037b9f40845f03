"""Checks of chapter 13: Steps 4 to 6 of the GEMM."""

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
    modelled_waits,
)

# --- 13.1 ------------------------------------------------------------------------------------


def _draw_bytes(rng: np.random.Generator) -> list[Call]:
    calls = []
    for edges in ("mnk", "mn", "k", "m", "n", "mk", "nk", ""):
        bm, bn = draw_distinct(rng, [64, 128, 192, 256], 2)
        bk = int(rng.choice([32, 64, 128]))
        sizes, places = [], []
        for name, block in (("m", bm), ("n", bn), ("k", bk)):
            tiles = int(rng.integers(2, 6))
            rest = int(rng.integers(1, block)) if name == "m" else 8 * int(rng.integers(1, 4))
            sizes.append(block * tiles + rest)
            places.append(tiles if name in edges else int(rng.integers(0, tiles)))
        calls.append(Call("tile_bytes", [*sizes, bm, bn, bk, *places]))
    return calls


def _tile_bytes(
    _: str, m: int, n: int, k: int, bm: int, bn: int, bk: int, *place: int
) -> tuple[int, int, int]:
    inside = [
        len(range(block * at, min(block * (at + 1), size)))
        for size, block, at in zip((m, n, k), (bm, bn, bk), place, strict=True)
    ]
    rows, columns, depth = inside
    return 2 * bk * (bm + bn), 2 * depth * (rows + columns), 2 * rows * columns


def _explain_bytes(call: Call, got: Any, want: Any) -> Explanation:
    _, _, _, bm, bn, bk, *_ = call.args
    if not isinstance(got, list) or len(got) != 3:
        return None
    if got[0] == want[1] != want[0]:
        return (
            "What lies past an edge arrives too, as zeros, and counts. A barrier that expects less "
            "than arrives ends its phase before all of it is there.",
            1,
        )
    if got[0] == bm * bk * 2 or got[0] == bn * bk * 2:
        return ("Both loads count down the same barrier.", 1)
    if 2 * got[0] == want[0]:
        return "That is counted in elements; the answer is in bytes."
    if got[1] == want[0] != want[1]:
        return ("A part of the boxes lies past an edge.", 2)
    if isinstance(got[1], int | float) and got[1] < want[1]:
        return ("More of the boxes lies inside: only the last tile each way ends at an edge.", 2)
    if got[2] == 2 * bm * bn != want[2]:
        return ("What the store would write past an edge of D is dropped.", 3)
    return None


expected_bytes = Predict(
    draw=_draw_bytes,
    expected=_tile_bytes,
    explain=_explain_bytes,
    fields=("expected", "inside", "stored"),
    page=Call("tile_bytes", [1000, 840, 520, 128, 128, 64, 7, 6, 8]),
)

# --- 13.2 ------------------------------------------------------------------------------------


def _draw_ring(rng: np.random.Generator) -> list[Call]:
    # Rings that a tile of D goes round a whole number of times, and rings that it does not.
    cases = [(2, 3, 3), (3, 2, 6), (4, 3, 5), (3, 4, 4), (2, 2, 4), (5, 2, 3)]
    return [Call("waits", list(cases[i])) for i in rng.permutation(len(cases))]


def _ring(_: str, stages: int, tiles: int, k_tiles: int) -> list[tuple[int, int, int]]:
    """Follows the barriers themselves: each counts the phases that it has completed."""
    full, empty = [0] * stages, [0] * stages
    found, stage = [], 0
    for _tile in range(tiles):
        for _k in range(k_tiles):
            # The load may go ahead once the stage was read as often as it was filled. That was
            # phase empty - 1, or for an unused stage the phase before the first, parity 1.
            found.append((stage, (empty[stage] - 1) % 2, full[stage] % 2))
            full[stage] += 1
            empty[stage] += 1
            stage = stage + 1 if stage + 1 < stages else 0
    return found


def _explain_ring(call: Call, got: Any, want: Any) -> Explanation:
    stages, tiles, k_tiles = call.args
    if not isinstance(got, list):
        return None
    if len(got) != len(want):
        return f"There are {len(want)} K tiles, not {len(got)}."
    if not all(isinstance(entry, list) and len(entry) == 3 for entry in got):
        return None
    by_tile = [(k % stages, 1 - k // stages % 2, k // stages % 2) for k in range(k_tiles)]
    if [tuple(e) for e in got] == by_tile * tiles:
        return (
            "This begins anew with every tile of D. Nobody initialises the barriers again: they go "
            "on from where the tile before left them.",
            3,
        )
    if [e[0] for e in got] != [e[0] for e in want]:
        return ("The K tiles use the stages in turn, across the tiles of D.", 3)
    if [e[2] for e in got] == [count % 2 for count in range(len(want))] and stages > 1:
        return (
            "Each stage has barriers of its own: they move on once a round, not once a tile.",
            1,
        )
    if [e[1] for e in got] == [e[2] for e in want]:
        return (
            "At first no phase of empty has been completed: a wait for phase 0 would last for "
            "ever. A wait for phase 1 of a barrier that is still in phase 0 returns at once.",
            2,
        )
    return None


ring = Predict(
    draw=_draw_ring,
    expected=_ring,
    explain=_explain_ring,
    page=Call("waits", [2, 1, 5]),
)

# --- 13.3 ------------------------------------------------------------------------------------


def _draw_load(rng: np.random.Generator) -> list[dict[str, Any]]:
    # Odd and even numbers of K tiles, edges both ways.
    odd, even = 64 * int(rng.choice([2, 4])), 64 * int(rng.choice([3, 5]))
    return [
        {"M": 64 + int(rng.integers(1, 64)), "K": k + 8 * int(rng.integers(1, 8))}
        for k in (odd, even)
    ]


def _rows_data(rng: np.random.Generator, M: int, K: int) -> list[Input | Output]:
    a = rng.standard_normal((M, K)).astype(np.float16)
    b = rng.standard_normal((M, K)).astype(np.float16)
    products = a.astype(np.float64) * b.astype(np.float64)
    bound = 2.0**-23 * np.sqrt(K) * np.abs(products).sum(axis=1)
    return [Input("A", a), Input("B", b), Output("D", "float32", products.sum(axis=1), bound)]


def _explain_load(ran: Ran, findings: Sequence[Any], problem: str) -> Explanation:
    codes = {f.code for f in findings}
    first = findings[0].code if findings else ""
    if first in ("tx-count", "barrier-overarrival"):
        return (
            "Two tiles of 64 x 64 elements of 2 bytes arrive for each K tile, and one arrival is "
            "needed: by arrive.expect_tx, once.",
            2,
        )
    if first == "barrier-parity":
        return ("One barrier completes a phase for each K tile: 0, 1, 0, 1, …", 3)
    if "race-smem" in codes:
        return (
            "Threads read a tile while TMA may write it. Are the bytes of both tiles expected, "
            "which phase has to be over before threads read, and what before the next load?",
            3,
        )
    if "uninitialised-read" in codes:
        return ("The threads read before anything has arrived.", 1)
    if "deadlock" in codes:
        return (
            "Two tiles of 64 x 64 elements of 2 bytes arrive for each K tile, and one arrival is "
            "needed: by arrive.expect_tx, once.",
            2,
        )
    return None


tma_load = Kernel(draw=_draw_load, data=_rows_data, explain=_explain_load, arch="hopper")

# --- 13.4 ------------------------------------------------------------------------------------


def _draw_store(rng: np.random.Generator) -> list[dict[str, Any]]:
    return [{"M": int(rng.integers(70, 200)), "N": 8 * int(rng.integers(10, 25))}]


def _relu_data(rng: np.random.Generator, M: int, N: int) -> list[Input | Output]:
    a = rng.standard_normal((M, N)).astype(np.float16)
    return [Input("A", a), Output("D", "float16", np.maximum(a, 0).astype(np.float64))]


def _explain_store(ran: Ran, findings: Sequence[Any], problem: str) -> Explanation:
    codes = {f.code for f in findings}
    if "race-smem" in codes:
        return ("The barrier of the CTA has to stay: all warps write a part of the tile.", 3)
    if "missing-proxy-fence" in codes:
        return ("Which writes does the fence cover where it stands?", 2)
    return None


store = Kernel(draw=_draw_store, data=_relu_data, explain=_explain_store, arch="hopper")

# --- 13.5 ------------------------------------------------------------------------------------


def _draw_tail(rng: np.random.Generator) -> list[dict[str, Any]]:
    """Tiles that the CTAs share evenly, tiles that they do not, and fewer tiles than CTAs."""
    k = 64 * int(rng.integers(1, 4)) + 8
    m, n = draw_distinct(rng, [3, 5, 7], 2)
    uneven = int(rng.choice([c for c in (2, 4, 6) if m * n % c]))
    return [
        {"M": 64 * m, "N": 64 * n, "K": k, "ctas": uneven},
        {"M": 128, "N": 192, "K": k, "ctas": int(rng.choice([2, 3]))},
        {"M": 64, "N": 128, "K": k, "ctas": 4},
    ]


def _tail_data(rng: np.random.Generator, M: int, N: int, K: int, ctas: int) -> list[Input | Output]:
    return gemm_data(rng, M, N, K)


def _explain_tail(ran: Ran, findings: Sequence[Any], problem: str) -> Explanation:
    codes = {f.code for f in findings}
    tiles = ran.shape["M"] // 64 * (ran.shape["N"] // 64)
    ctas = min(ran.shape["ctas"], tiles)
    last = tiles % ctas
    if "out-of-bounds" in codes:
        return (
            f"There are {tiles} tiles: in the last turn only {last} of {ctas} CTAs may take one.",
            2,
        )
    if "race-global" in codes:
        return ("Two CTAs compute the same tile.", 2)
    if problem and last:
        return (f"{tiles} tiles for {ctas} CTAs: {last} of them must take one more than others.", 1)
    return None


tail = Kernel(draw=_draw_tail, data=_tail_data, explain=_explain_tail, arch="hopper")

# --- 13.6 ------------------------------------------------------------------------------------


def _draw_second(rng: np.random.Generator) -> list[dict[str, Any]]:
    return [
        {"N": 64 * int(rng.integers(2, 5)), "K": 64 * k - 8 * int(rng.integers(0, 8))}
        for k in (int(rng.choice([3, 5])), int(rng.choice([2, 6])), 4)
    ]


def _second_data(rng: np.random.Generator, N: int, K: int) -> list[Input | Output]:
    return gemm_data(rng, 128, N, K)


def _explain_second(ran: Ran, findings: Sequence[Any], problem: str) -> Explanation:
    k_tiles = -(-ran.shape["K"] // 64)
    if findings or problem:
        return (
            f"A tile of D has {k_tiles} tiles of K here. In which stage does the first load of the "
            "second tile of D go, and how often has that stage been used before?",
            1,
        )
    return None


second_tile = Kernel(
    draw=_draw_second, data=_second_data, explain=_explain_second, arch="blackwell"
)

# --- 13.7 ------------------------------------------------------------------------------------


def _draw_order(rng: np.random.Generator) -> list[Call]:
    calls = []
    for m in (int(rng.choice([13, 14, 15, 18])), int(rng.choice([12, 17, 20]))):
        n, ctas = int(rng.integers(15, 21)), int(rng.integers(24, 41))
        calls += [Call("place", [tile, m, n, ctas]) for tile in range(m * n)]
    return calls


def step6_order(m_tiles: int, n_tiles: int) -> list[tuple[int, int]]:
    """The places in the order in which Step 6 takes them: 8 rows at a time, down each column."""
    return [
        (row, column)
        for first in range(0, m_tiles, 8)
        for column in range(n_tiles)
        for row in range(first, min(first + 8, m_tiles))
    ]


def fetched(order: Sequence[tuple[int, int]], ctas: int) -> int:
    """Rows of tiles of A and of B that the waves of an order fetch."""
    waves = [order[i : i + ctas] for i in range(0, len(order), ctas)]
    return sum(len({m for m, _ in wave}) + len({n for _, n in wave}) for wave in waves)


def _judge_order(calls: Sequence[Call], answers: Sequence[Any]) -> Explanation:
    orders: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for call, got in zip(calls, answers, strict=True):
        tile, m, n, ctas = call.args
        if (
            not isinstance(got, list)
            or len(got) != 2
            or not all(isinstance(x, int) and not isinstance(x, bool) for x in got)
        ):
            return f"{call} returned {got!r}; it should be two integers (bm, bn)."
        row, column = got
        if not (0 <= row < m and 0 <= column < n):
            return (f"{call} returned {(row, column)}, which is no place of {m} x {n}.", 2)
        taken = orders.setdefault((m, n, ctas), [])
        if (row, column) in taken:
            return (
                f"With {m} x {n} tiles, place {(row, column)} has two numbers, "
                f"{taken.index((row, column))} and {tile}; so another place has none.",
                2,
            )
        taken.append((row, column))
    for (m, n, ctas), order in orders.items():
        mine, target = fetched(order, ctas), fetched(step6_order(m, n), ctas)
        if mine > target:
            wave = order[:ctas]
            return (
                f"Every place has one number. But with {m} x {n} tiles and {ctas} CTAs the waves "
                f"fetch {mine} rows of tiles, and Step 6's order {target}. The tiles of the first "
                f"wave lie in {len({m for m, _ in wave})} rows and "
                f"{len({n for _, n in wave})} columns.",
                1,
            )
    return None


order = Predict(draw=_draw_order, judge_all=_judge_order)

# --- 13.8 ------------------------------------------------------------------------------------

#: The shape that is timed, and the modelled speed to reach there.
_TIMED = {"M": 256, "N": 256, "K": 1024}
PIPELINE_TFLOPS = 17.0


def _draw_pipeline(rng: np.random.Generator) -> list[dict[str, Any]]:
    # Fewer K tiles than stages, and a number that the ring does not divide.
    k = int(rng.choice([5, 7, 11]))
    return [
        {"M": 128, "N": 64 * int(rng.integers(2, 4)), "K": 64},
        {"M": 128 * int(rng.integers(1, 3)), "N": 64, "K": 64 * k},
        dict(_TIMED),
    ]


def _pipeline_target(ran: Ran) -> Explanation:
    if ran.shape != _TIMED:
        return None
    timing = ran.report.timing
    held = timing.occupancy
    if held.ctas < 2:
        return (
            f"an SM has room for one CTA alone: it takes {held.shared_bytes:,} bytes of shared "
            "memory.",
            3,
        )
    reached = timing.tflops(2 * ran.shape["M"] * ran.shape["N"] * ran.shape["K"])
    if reached < PIPELINE_TFLOPS:
        return (
            f"it reaches {reached:.1f} modelled TFLOP/s, in {timing.microseconds:.1f} modelled µs; "
            f"the target is {PIPELINE_TFLOPS:g}. {modelled_waits(ran, 'wgmma')}".strip(),
            1 if reached < PIPELINE_TFLOPS / 2 else 2,
        )
    return None


def _explain_pipeline(ran: Ran, findings: Sequence[Any], problem: str) -> Explanation:
    codes = {f.code for f in findings}
    if "race-smem" in codes:
        return ("Which stage does a load overwrite, and who may still be reading it?", 2)
    if "deadlock" in codes:
        return ("A stage's barrier completes one phase for every PIPE_DEPTH K tiles.", 2)
    return None


pipeline = Kernel(
    draw=_draw_pipeline,
    data=gemm_data,
    target=_pipeline_target,
    explain=_explain_pipeline,
    arch="hopper",
    timed=True,
)
