"""Checks of chapter 10: scope, layout, dispatch."""

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
)

# --- 10.1 ------------------------------------------------------------------------------------


def _draw_swizzle(rng: np.random.Generator) -> list[Call]:
    calls = []
    for size in (1, 2, 4):
        for _ in range(4):
            # Not row 0 of a group of eight, where the swizzle changes nothing.
            row = int(8 * rng.integers(0, 16) + rng.integers(1, 8))
            calls.append(Call("offset", [row, int(rng.integers(0, 128 // size)), size]))
    return [calls[i] for i in rng.permutation(len(calls))]


def _swizzle(_: str, row: int, col: int, size: int) -> int:
    plain = row * 128 + col * size
    return plain ^ ((plain >> 7 & 7) << 4)  # address bits 4-6 take the XOR of bits 7-9


def _explain_swizzle(call: Call, got: Any, want: Any) -> Explanation:
    row, col, size = call.args
    if got == row * 128 + col * size:
        return ("That is the place without a swizzle.", 2)
    if got == row * 128 + ((col * size // 16) ^ (row % 8)) * 16:
        return ("That is where the chunk begins; the element lies further on in it.", 3)
    if isinstance(got, int) and got * size == want:
        return "That is counted in elements; the answer is in bytes."
    if isinstance(got, int) and got // 128 != row:
        return ("The swizzle never leaves the row: row r begins at byte 128 r.", 1)
    return None


swizzle = Predict(
    draw=_draw_swizzle,
    expected=_swizzle,
    explain=_explain_swizzle,
    page=Call("offset", [5, 20, 2]),
)

# --- 10.2 ------------------------------------------------------------------------------------


def _draw_tmem(rng: np.random.Generator) -> list[Call]:
    calls = []
    for bits in (32, 16) * 5:
        columns = int(rng.choice([32, 64, 128]))
        base = int(rng.choice([32, 64, 128, 256]))
        row = int(rng.integers(1, 128))
        col = int(rng.integers(1, columns * 32 // bits))
        calls.append(Call("place", [base, row, col, bits]))
    return calls


def _tmem(_: str, base: int, row: int, col: int, bits: int) -> tuple[int, int]:
    lane, column = row, (base & 0xFFFF) + (col if bits == 32 else col // 2)
    return lane * 65536 + column, lane // 32


def _explain_tmem(call: Call, got: Any, want: Any) -> Explanation:
    base, row, col, bits = call.args
    if not isinstance(got, list) or len(got) != 2 or not isinstance(got[0], int):
        return None
    lane, column = got[0] >> 16, got[0] & 0xFFFF
    if got[0] == (row << 16) + want[0] % 65536 - base:
        return ("The tile begins at the allocated address, not at column 0.", 3)
    if bits == 16 and column == base + col:
        return ("Two 16-bit elements share a column.", 2)
    if lane == want[0] & 0xFFFF and column == row:
        return ("Lane and column have changed places in the address.", 1)
    if got[0] == want[0]:
        return ("Warp w reaches lanes 32 w to 32 w + 31.", 3)
    return f"Your address is lane {lane}, column {column}."


tensor_memory = Predict(
    draw=_draw_tmem,
    expected=_tmem,
    explain=_explain_tmem,
    fields=("address", "warp"),
    page=Call("place", [128, 70, 9, 32]),
)

# --- 10.3 ------------------------------------------------------------------------------------


def _draw_plan(rng: np.random.Generator) -> list[Call]:
    calls = []
    while len(calls) < 14:
        rows = int(rng.choice([32, 64, 128, 256]))
        cols = int(rng.choice([8, 16, 32, 64]))
        size = int(rng.choice([2, 4]))
        threads = int(rng.choice([128, 256]))
        # Rows of A that begin at multiples of 16, 8, 4 or 2 bytes.
        row_length = cols + int(rng.choice([0, 8, 12, 2, 1]))
        if rows * cols >= threads:
            calls.append(Call("copy_plan", [rows, cols, row_length, size, threads]))
    # One that each rule decides.
    calls[0] = Call("copy_plan", [128, 8, 24, 2, 256])  # too few accesses for all threads
    calls[1] = Call("copy_plan", [128, 64, 66, 2, 128])  # rows of A at multiples of 4 bytes
    calls[2] = Call("copy_plan", [64, 64, 65, 2, 128])  # rows of A at multiples of 2 bytes
    return [calls[i] for i in rng.permutation(len(calls))]


def _plan(
    _: str, rows: int, cols: int, row_length: int, size: int, threads: int
) -> tuple[int, int]:
    total = rows * cols * size
    widths = [
        width
        for width in (16, 8, 4, 2, 1)
        if width >= size
        and (cols * size) % width == 0
        and (row_length * size) % width == 0
        and total % (width * threads) == 0
    ]
    return widths[0], total // (widths[0] * threads)


def _explain_plan(call: Call, got: Any, want: Any) -> Explanation:
    rows, cols, row_length, size, threads = call.args
    if not isinstance(got, list) or len(got) != 2 or not isinstance(got[0], int):
        return None
    width, total = got[0], rows * cols * size
    if width == want[0]:
        if got[1] == want[1] * threads:
            return ("That is how many loads all threads execute together.", 3)
        return ("The bytes of the tile, over the threads, over the bytes of one access.", 3)
    if width > want[0] > 0 and row_length * size % width:
        return (
            f"A row of A has {row_length * size} bytes, so that not every row begins at a multiple "
            f"of {width}.",
            2,
        )
    if width > want[0] and total % (width * threads):
        return (
            f"{total} bytes in accesses of {width} are {total // width}, which {threads} threads "
            "cannot share evenly.",
            2,
        )
    if 0 < width < want[0]:
        return (f"A wider access works too: {want[0]} bytes.", 1)
    return None


dispatch = Predict(
    draw=_draw_plan,
    expected=_plan,
    explain=_explain_plan,
    fields=("width", "loads"),
    page=Call("copy_plan", [128, 64, 1000, 2, 128]),
)

# --- 10.4 ------------------------------------------------------------------------------------


def _draw_first(rng: np.random.Generator) -> list[dict[str, Any]]:
    # Never a multiple of 128, more than one CTA, and one smaller than a CTA.
    return [
        {"n": int(128 * rng.integers(2, 5) + rng.integers(1, 128))},
        {"n": int(rng.integers(1, 128))},
    ]


def _first_data(rng: np.random.Generator, n: int) -> list[Input | Output]:
    a, b = rng.standard_normal((2, n), dtype=np.float32)
    exact = 3.0 * a.astype(np.float64) + b
    # Two roundings (or one, where multiply and add are fused).
    bound = 2.0**-24 * np.abs(3.0 * a.astype(np.float64))
    return [Input("A", a), Input("B", b), Output("D", "float32", exact, bound=bound)]


def _explain_first(ran: Ran, findings: Sequence[Any], problem: str) -> Explanation:
    if any(f.code == "out-of-bounds" for f in findings):
        return ("Threads of the last CTA have no element: they must not touch memory.", 2)
    return None


first_kernel = Kernel(draw=_draw_first, data=_first_data, explain=_explain_first, arch="hopper")

# --- 10.5 ------------------------------------------------------------------------------------


def _draw_sums(rng: np.random.Generator) -> list[dict[str, Any]]:
    return [{"M": int(128 * rng.integers(2, 4)), "N": int(rng.choice([16, 32]))}]


def _sums_data(rng: np.random.Generator, M: int, N: int) -> list[Input | Output]:
    a = rng.standard_normal((M, N), dtype=np.float32)
    exact = a.astype(np.float64).sum(axis=1)
    return [
        Input("A", a),
        Output("D", "float32", exact, bound=N * 2.0**-24 * np.abs(a).sum(axis=1)),
    ]


def _sums_target(ran: Ran) -> Explanation:
    a = ran.arrays["A"]
    loaded = ran.report.counters.get("global_load_bytes", 0)
    if loaded > a.nbytes:
        return (
            f"the CTAs load {loaded} bytes of A, which has {a.nbytes}: each byte is fetched "
            f"{loaded / a.nbytes:.0f} times.",
            2,
        )
    return None


def _explain_sums(ran: Ran, findings: Sequence[Any], problem: str) -> Explanation:
    said = _sums_target(ran)
    if not problem and isinstance(said, tuple):
        return (f"Besides, {said[0]}", 1)
    return None


scope = Kernel(
    draw=_draw_sums,
    data=_sums_data,
    target=_sums_target,
    explain=_explain_sums,
    arch="hopper",
)

# --- 10.6 ------------------------------------------------------------------------------------

_WIDEST = 16 * 32  # bytes that one load or store of a warp can move


def _draw_double(rng: np.random.Generator) -> list[dict[str, Any]]:
    return [{"n": int(1024 * rng.integers(2, 6))}]


def _double_data(rng: np.random.Generator, n: int) -> list[Input | Output]:
    a = rng.standard_normal(n).astype(np.float16)
    return [Input("A", a), Output("D", "float16", 2.0 * a.astype(np.float64))]


def _double_target(ran: Ran) -> Explanation:
    counters = ran.report.counters
    needed = ran.arrays["A"].nbytes // _WIDEST
    for what, array in (("load", "A"), ("store", "D")):
        count = counters.get(f"global_{what}_instructions", 0)
        if count > needed:
            moved = counters.get(f"global_{what}_bytes", 0)
            return (
                f"its warps execute {count} {what} instructions on {array}, "
                f"{moved / count / 32:.0f} bytes a thread each; {needed} are enough for these "
                f"{ran.arrays[array].nbytes} bytes.",
                2 if what == "load" else 3,
            )
    return None


wide_accesses = Kernel(draw=_draw_double, data=_double_data, target=_double_target, arch="hopper")

# --- 10.7 ------------------------------------------------------------------------------------


def _draw_minus_max(rng: np.random.Generator) -> list[dict[str, Any]]:
    # No power of two: TVM would take a layout with rows and columns exchanged for another one.
    return [{"M": 128 * int(rng.integers(2, 4)), "N": int(rng.choice([12, 20, 24]))}]


def _minus_max_data(rng: np.random.Generator, M: int, N: int) -> list[Input | Output]:
    a = rng.standard_normal((M, N), dtype=np.float32)
    exact = a.astype(np.float64) - a.max(axis=1, keepdims=True)
    return [Input("A", a), Output("D", "float32", exact)]


layout = Kernel(
    draw=_draw_minus_max,
    data=_minus_max_data,
    arch="hopper",
    refused="The layout describes a tile of 128 rows and N columns, and its rows go to threads.",
)
