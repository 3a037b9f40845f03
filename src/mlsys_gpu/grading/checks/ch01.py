"""Checks of chapter 1: threads, memories, clusters, roofs."""

from __future__ import annotations

from collections import Counter
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
)

# --- 1.1 -------------------------------------------------------------------------------------


def _draw_threads(rng: np.random.Generator) -> list[Call]:
    calls = []
    for _ in range(12):
        # Three different extents, each above 1, so that a wrong order of the axes shows.
        dim = [int(n) for n in rng.permutation([3, 4, 5, 6, 7, 9, 11])[:3]]
        thread = [int(rng.integers(1, n)) for n in dim]
        calls.append(Call("locate", [thread, dim]))
    return calls


def _locate(_: str, thread: Sequence[int], dim: Sequence[int]) -> tuple[int, int, int]:
    linear = int(np.ravel_multi_index(tuple(reversed(thread)), tuple(reversed(dim))))
    return (linear, *divmod(linear, 32))


def _explain_thread(call: Call, got: Any, want: Any) -> Explanation:
    thread, dim = call.args
    if not isinstance(got, list) or len(got) != 3:
        return None
    if got[0] == int(np.ravel_multi_index(tuple(thread), tuple(dim))):
        return ("This numbers z fastest; the hardware numbers x fastest.", 2)
    if got[0] == want[0] and [got[2], got[1]] == list(want[1:]):
        return "Warp and lane have changed places."
    if got[0] != want[0]:
        return ("Begin with the thread's number in its CTA: warp and lane follow from it.", 2)
    return ("A warp is 32 threads that follow each other in that numbering.", 3)


thread_index = Predict(
    draw=_draw_threads,
    expected=_locate,
    explain=_explain_thread,
    fields=("linear", "warp", "lane"),
    page=Call("locate", [[3, 2, 1], [8, 4, 4]]),
)

# --- 1.2 -------------------------------------------------------------------------------------

_CTA_SMEM = 227 * 1024  # per CTA, compute capability 9.0 and 10.0 (CUDA C++ Programming Guide)


def _draw_depth(rng: np.random.Generator) -> list[Call]:
    calls = []
    for _ in range(10):
        bm, bn = (int(n) for n in rng.permutation([64, 96, 128, 192, 256])[:2])
        bk = int(rng.choice([32, 64, 80, 128]))
        sizes = int(rng.choice([1, 2])), int(rng.choice([2, 4]))
        smem = int(rng.choice([_CTA_SMEM, 163 * 1024, 99 * 1024]))
        calls.append(Call("depth", [bm, bn, bk, *sizes, smem]))
    # One where the tile of D alone is too large, and one that fits without its barriers only.
    calls.append(Call("depth", [256, 256, 64, 2, 4, 163 * 1024]))
    calls.append(Call("depth", [128, 64, 64, 2, 2, 128 * 64 * 2 + 3 * (128 + 64) * 64 * 2]))
    return [calls[i] for i in rng.permutation(len(calls))]


def _depth(_: str, bm: int, bn: int, bk: int, size: int, out: int, smem: int) -> tuple[int, int]:
    a_tile, b_tile, d_tile = bm * bk * size, bn * bk * size, bm * bn * out
    stage = a_tile + b_tile + 16
    stages = 0
    while d_tile + (stages + 1) * stage <= smem:
        stages += 1
    return stage, stages


def _explain_depth(call: Call, got: Any, want: Any) -> Explanation:
    smem, stage = call.args[-1], want[0]
    if not isinstance(got, list) or len(got) != 2:
        return None
    if got[0] == stage - 16:
        return ("Every stage has two mbarriers of 8 bytes as well.", 2)
    if got[0] != stage:
        return ("Add up what one stage holds: a tile of A, a tile of B, two mbarriers.", 1)
    if got[1] == smem // stage:
        return ("The staged tile of D takes its part of shared memory first.", 3)
    if isinstance(got[1], int | float) and got[1] < 0:
        return ("Where the tile of D leaves no room, the answer is 0 stages.", 3)
    return None


pipeline_depth = Predict(
    draw=_draw_depth,
    expected=_depth,
    explain=_explain_depth,
    fields=("stage_bytes", "stages"),
    page=Call("depth", [128, 128, 64, 2, 2, _CTA_SMEM]),
)

# --- 1.3 -------------------------------------------------------------------------------------


def _draw_roofline(rng: np.random.Generator) -> list[Call]:
    calls = []
    while len(calls) < 10:
        m, n, k = (int(x) for x in rng.permutation([16, 48, 200, 512, 1024, 3072, 8192])[:3])
        peak = round(float(rng.uniform(100, 2500)), 1)
        bandwidth = round(float(rng.uniform(1, 8)), 2)
        args = [m, n, k, int(rng.choice([1, 2, 4])), peak, bandwidth]
        # Both roofs in turn: an answer that knows one only must not pass by luck.
        if _roofline("roofline", *args)[2] == ("memory", "compute")[len(calls) % 2]:
            calls.append(Call("roofline", args))
    return calls


def _roofline(
    _: str, m: int, n: int, k: int, size: int, peak: float, bandwidth: float
) -> tuple[float, float, str]:
    seconds_moving = size * (m * k + n * k + m * n) / (bandwidth * 1e12)
    seconds_computing = 2 * m * n * k / (peak * 1e12)
    longest = max(seconds_moving, seconds_computing)
    return (
        2 * m * n * k / (size * (m * k + n * k + m * n)),
        2 * m * n * k / longest / 1e12,
        "memory" if seconds_moving > seconds_computing else "compute",
    )


def _explain_roofline(call: Call, got: Any, want: Any) -> Explanation:
    m, n, k, size, peak, bandwidth = call.args
    if not isinstance(got, list) or len(got) != 3:
        return None
    if not isinstance(got[0], int | float) or not isinstance(got[1], int | float):
        return None

    def near(a: float, b: float) -> bool:
        return abs(a - b) <= 1e-6 * abs(b)

    if near(2 * got[0], want[0]):
        return ("A multiply and an add are two FLOPs.", 1)
    if size > 1 and near(got[0], want[0] * size):
        return ("That is FLOPs for each element; the bus moves bytes.", 1)
    if near(got[0], 2 * m * n * k / (size * (m * k + n * k))):
        return ("D crosses the bus as well.", 1)
    if near(got[0], want[0]) and near(got[1], got[0] * bandwidth) and want[2] == "compute":
        return ("No GEMM is faster than the peak, however high its intensity.", 3)
    if near(got[0], want[0]) and near(got[1], peak):
        return ("At this intensity the bus cannot feed that many TFLOP/s.", 2)
    return None


roofline = Predict(
    draw=_draw_roofline,
    expected=_roofline,
    explain=_explain_roofline,
    fields=("intensity", "attainable", "bound"),
    page=Call("roofline", [1024, 1024, 1024, 2, 989.0, 4.8]),
)

# --- 1.4 -------------------------------------------------------------------------------------


def _draw_transpose(rng: np.random.Generator) -> list[dict[str, Any]]:
    m, n = draw_distinct(rng, [64, 96, 128, 160], 2)
    return [{"M": m, "N": n}]


def _transpose_data(rng: np.random.Generator, M: int, N: int) -> list[Input | Output]:
    a = rng.standard_normal((M, N), dtype=np.float32)
    return [Input("A", a), Output("D", "float32", a.T.astype(np.float64), bound=0.0)]


def _explain_transpose(ran: Ran, findings: Sequence[Any], problem: str) -> Explanation:
    codes = {f.code for f in findings}
    if "race-smem" in codes:
        return ("Some thread reads an element before the thread that loads it has done so.", 2)
    got, a = ran.arrays["D"], ran.arrays["A"]
    tiles = a.reshape(a.shape[0] // 32, 32, a.shape[1] // 32, 32)
    if not findings and np.array_equal(got, tiles.transpose(2, 1, 0, 3).reshape(got.shape)):
        return ("Every tile is in its place but not transposed in itself.", 3)
    return None


def _transpose_target(ran: Ran) -> Explanation:
    counters, size = ran.report.counters, ran.arrays["A"].nbytes
    if min(counters.get(f"shared_{what}_bytes", 0) for what in ("store", "load")) < size:
        return (
            "not every element goes through the tile in shared memory, which is what lets the "
            "warps read rows of A and write rows of D.",
            1,
        )
    for what, array in (("load", "A"), ("store", "D")):
        scattered = counters.get(f"global_{what}_scattered", 0)
        if scattered:
            return (
                f"{scattered} {what} instructions of its warps touch {array} in places that are "
                "not next to each other; neighbouring threads should touch neighbouring columns.",
                1 if what == "load" else 3,
            )
    return None


transpose = Kernel(
    draw=_draw_transpose,
    data=_transpose_data,
    target=_transpose_target,
    explain=_explain_transpose,
    arch="hopper",
)

# --- 1.5 -------------------------------------------------------------------------------------


def _draw_reverse(rng: np.random.Generator) -> list[dict[str, Any]]:
    return [{"M": int(rng.integers(2, 5)), "N": int(128 * rng.integers(2, 5))}]


def _reverse_data(rng: np.random.Generator, M: int, N: int) -> list[Input | Output]:
    a = rng.standard_normal((M, N), dtype=np.float32)
    return [Input("A", a), Output("D", "float32", a[:, ::-1].astype(np.float64), bound=0.0)]


reverse = Kernel(draw=_draw_reverse, data=_reverse_data, arch="hopper")

# --- 1.6 -------------------------------------------------------------------------------------


def _draw_neighbour(rng: np.random.Generator) -> list[dict[str, Any]]:
    return [{"M": int(rng.integers(2, 5)), "N": int(256 * rng.integers(2, 4))}]


def _neighbour_data(rng: np.random.Generator, M: int, N: int) -> list[Input | Output]:
    a = rng.standard_normal((M, N), dtype=np.float32)
    exact = a.astype(np.float64) + np.roll(a, N // 2, axis=1).astype(np.float64)
    return [Input("A", a), Output("D", "float32", exact)]


neighbour = Kernel(draw=_draw_neighbour, data=_neighbour_data, arch="hopper")

# --- 1.7 -------------------------------------------------------------------------------------


def _all_slots(rng: np.random.Generator) -> list[Call]:
    order = rng.permutation(1024)
    return [Call("slot", [int(i) // 32, int(i) % 32]) for i in order]


def _judge_slots(calls: Sequence[Call], answers: Sequence[Any]) -> Explanation:
    words: dict[tuple[int, int], int] = {}
    for call, got in zip(calls, answers, strict=True):
        if isinstance(got, bool) or not isinstance(got, int) or not 0 <= got <= 1055:
            return f"{call} returned {got!r}; a word is an integer from 0 to 1055."
        words[call.args[0], call.args[1]] = got
    owner: dict[int, tuple[int, int]] = {}
    for at in sorted(words):
        word = words[at]
        if word in owner:
            return (
                f"elements {owner[word]} and {at} both lie in word {word}: one overwrites the "
                "other.",
                1,
            )
        owner[word] = at
    for name, cells in (
        *((f"row {r}", [(r, c) for c in range(32)]) for r in range(32)),
        *((f"column {c}", [(r, c) for r in range(32)]) for c in range(32)),
    ):
        bank, times = Counter(words[cell] % 32 for cell in cells).most_common(1)[0]
        if times > 1:
            return (
                f"{name} has {times} of its 32 elements in bank {bank}: a warp that touches the "
                f"{name.split()[0]} takes {times} passes where one would do.",
                2,
            )
    return None


bank_conflicts = Predict(draw=_all_slots, judge_all=_judge_slots)
