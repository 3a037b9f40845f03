"""Checks of chapter 14: Steps 7 to 9 of the GEMM."""

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
    gemm_data,
    is_product,
    modelled_waits,
)

# --- 14.1 ------------------------------------------------------------------------------------


def _draw_phases(rng: np.random.Generator) -> list[Call]:
    calls = []
    for primed in (False, True):
        # Where the roles begin, in the first round of the ring, and far behind it.
        calls.append(Call("phases", [0, 0, int(rng.integers(2, 6)), 3, 2, primed]))
        # The second accumulator's first use: tile 1, but turn 0. And a stage's second use, turn 1.
        calls.append(Call("phases", [1, 0, int(rng.integers(2, 6)), 3, 2, primed]))
        calls.append(Call("phases", [1, 1, 3, 4, int(rng.integers(1, 4)), primed]))
        for _ in range(6):
            stages, buffers = int(rng.integers(2, 7)), int(rng.integers(2, 4))
            k_tiles = int(rng.integers(1, 9))
            t, k = int(rng.integers(1, 9)), int(rng.integers(0, k_tiles))
            calls.append(Call("phases", [t, k, k_tiles, stages, buffers, primed]))
    return calls


def _phases(
    _: str, t: int, k: int, k_tiles: int, stages: int, buffers: int, primed: bool
) -> tuple[int, int, int, int]:
    """Counts the phases that the barriers of the stage and the accumulator have completed."""
    empty, full = [int(primed)] * stages, [0] * stages
    tmem_empty, tmem_full = [int(primed)] * buffers, [0] * buffers
    count = 0
    for tile in range(t + 1):
        buffer = tile % buffers
        for part in range(k_tiles):
            stage = count % stages
            if (tile, part) == (t, k):
                # Filling phases are waited for before they are complete: the next one. Releases
                # are waited for when they are over: the last one.
                return (
                    (empty[stage] - 1) % 2,
                    full[stage] % 2,
                    (tmem_empty[buffer] - 1) % 2,
                    tmem_full[buffer] % 2,
                )
            full[stage] += 1
            empty[stage] += 1
            count += 1
        tmem_full[buffer] += 1
        tmem_empty[buffer] += 1
    raise AssertionError("k is below k_tiles")


def _explain_phases(call: Call, got: Any, want: Any) -> Explanation:
    t, k, k_tiles, stages, buffers, primed = call.args
    if not isinstance(got, list) or len(got) != 4:
        return None
    if got[0] != want[0] and got[0] == got[1] and not primed:
        return (
            "Before anything has been released, a wait for phase 0 at empty would last for ever; a "
            "wait for phase 1 of a barrier that is in phase 0 returns at once.",
            1,
        )
    if primed and got == list(_phases("", t, k, k_tiles, stages, buffers, False)):
        return (
            "Priming has completed phase 0 of empty and of tmem_empty: the first wait can name it.",
            2,
        )
    if got[:2] != list(want[:2]) and got[1] == k // stages % 2:
        return ("The ring does not begin anew with a tile of D: count all K tiles.", 3)
    if got[3] != want[3] and got[3] == t % 2:
        return (
            f"One tile of {buffers} uses an accumulator: its phases follow from that.",
            3,
        )
    if got[:2] == list(want[:2]) and got[2:] == [want[3], want[2]] != list(want[2:]):
        return (
            "The MMA warp waits for room in an accumulator, as the loads wait for room in a stage; "
            "the epilogue waits for data.",
            2,
        )
    if primed and got[2] != want[2] and got[:2] + got[3:] == [*want[:2], want[3]]:
        return ("Priming has completed phase 0 of tmem_empty as well.", 2)
    return None


phases = Predict(
    draw=_draw_phases,
    expected=_phases,
    explain=_explain_phases,
    fields=("load", "mma", "mma_acc", "epilogue"),
    page=Call("phases", [0, 0, 4, 6, 2, False]),
)

# --- 14.2 ------------------------------------------------------------------------------------


def _draw_pair(rng: np.random.Generator) -> list[Call]:
    calls = []
    for kind in ("multicast", "cta_group::2") * 4:
        bm, bn = int(rng.choice([64, 128])), int(rng.choice([96, 160, 192, 256]))
        calls.append(
            Call("pair_bytes", [kind, bm, bn, int(rng.choice([32, 64])), int(rng.choice([1, 2]))])
        )
    return calls


def _pair_bytes(_: str, kind: str, bm: int, bn: int, bk: int, size: int) -> tuple[int, ...]:
    """Goes through the four loads: who issues each, and where its bytes go and complete."""
    loaded, held, completed = [0, 0], [0, 0], [0, 0]
    for rank in (0, 1):
        a, b = bm * bk * size, bn // 2 * bk * size
        loaded[rank] += a + b
        held[rank] += a
        completed[0 if kind == "cta_group::2" else rank] += a
        for target in (0, 1) if kind == "multicast" else (rank,):
            held[target] += b
            completed[0 if kind == "cta_group::2" else target] += b
    return loaded[0], held[0], completed[0], completed[1]


def _explain_pair(call: Call, got: Any, want: Any) -> Explanation:
    kind, bm, bn, bk, size = call.args
    if not isinstance(got, list) or len(got) != 4:
        return None
    whole, part = (bm + bn) * bk * size, (bm + bn // 2) * bk * size
    if got[0] == 2 * want[0]:
        return ("That is what both ask for together; the answer is what each of them asks for.", 1)
    if got[0] == whole:
        return ("Each CTA asks for half of B's rows only: that is what the pair is good for.", 1)
    if kind == "cta_group::2" and got[1] == whole:
        return ("The MMA reads each half of B where it lies: no CTA holds both.", 2)
    if kind == "multicast" and got[1] == part:
        return ("A CTA multiplies with all rows of B, so both halves arrive in its memory.", 2)
    if kind == "cta_group::2" and got[2] == part:
        return ("The loads of both CTAs complete on the barrier of rank 0.", 3)
    if kind == "cta_group::2" and got[3]:
        return ("Nobody waits for the barrier of rank 1: no load completes on it.", 3)
    if kind == "multicast" and got[2] == part:
        return ("The peer's half of B completes on this CTA's barrier as well.", 3)
    if all(2 * a == b for a, b in zip(got, want, strict=True)) and size == 2:
        return "That is counted in elements; the answer is in bytes."
    return None


pair_bytes = Predict(
    draw=_draw_pair,
    expected=_pair_bytes,
    explain=_explain_pair,
    fields=("loaded", "stage", "rank0", "rank1"),
    page=Call("pair_bytes", ["cta_group::2", 128, 256, 64, 2]),
)

# --- 14.3 ------------------------------------------------------------------------------------

FAULTS = ("none", "phase", "count", "last", "late")


def _draw_stuck(rng: np.random.Generator) -> list[Call]:
    calls = []
    for fault in FAULTS:
        for longer in (True, True, False):  # more K tiles than stages, or fewer
            stages = int(rng.integers(2, 6))
            tiles, k_tiles = int(rng.integers(2, 4)), stages + int(rng.integers(1, 8))
            if not longer:
                tiles, k_tiles = 1, int(rng.integers(1, stages + 1))
            calls.append(Call("stuck", [stages, tiles, k_tiles, fault]))
    return [calls[i] for i in rng.permutation(len(calls))]


def _stuck(
    _: str, stages: int, tiles: int, k_tiles: int, fault: str
) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """Which use of a stage is never released, and with it the K tile that cannot be loaded."""
    kept = {"none": tiles * k_tiles, "phase": -stages, "count": 0, "last": k_tiles - 1, "late": 0}
    n = kept[fault] + stages  # needs the stage that K tile kept[fault] keeps
    if n >= tiles * k_tiles:
        return None, None
    s, turn = n % stages, n // stages
    return (s, turn % 2 if fault == "phase" else (turn + 1) % 2), (s, turn % 2)


def _explain_stuck(call: Call, got: Any, want: Any) -> Explanation:
    stages, tiles, k_tiles, fault = call.args
    if not isinstance(got, list) or len(got) != 2:
        return None
    if want == (None, None):
        text = (
            "Both get to their end here."
            if fault == "none"
            else f"Both get to their end here: {tiles * k_tiles} K tiles for {stages} stages, and "
            "the release that is amiss is needed by nobody."
        )
        return (text, 1)
    if got == [None, None]:
        return ("Here they do stop. Which K tile is the first whose stage nobody releases?", 1)
    if got[0] is None:
        return (
            "The consumer waits for a K tile that is never loaded: so the producer waits, too.",
            2,
        )
    if got[1] is None:
        return ("The producer cannot load any more: so the consumer does not get to its end.", 2)
    if [got[0][0], got[1][0]] != [want[0][0], want[1][0]]:
        return (
            "The producer stops at the first K tile whose stage was not released: `stages` K tiles "
            "behind the one that should have released it. The consumer stops at the same K tile.",
            3,
        )
    return ("The stage is right. How often has it been used before, and which phase is next?", 3)


deadlock = Predict(
    draw=_draw_stuck,
    expected=_stuck,
    explain=_explain_stuck,
    fields=("producer", "consumer"),
    page=Call("stuck", [4, 3, 6, "last"]),
)

# --- 14.4 ------------------------------------------------------------------------------------

_LAUNCHES = ((3, 1), (4, 1), (5, 1), (2, 2), (3, 2), (4, 2), (2, 3))


def _draw_budget(rng: np.random.Generator) -> list[Call]:
    calls = []
    for warpgroups, ctas in _LAUNCHES:
        calls.append(Call("budget", [warpgroups, ctas, int(rng.choice([24, 32, 40, 48, 56]))]))
    return [calls[i] for i in rng.permutation(len(calls))]


def _budget(_: str, warpgroups: int, ctas: int, producer: int) -> tuple[int, int]:
    threads = 128 * warpgroups
    launch = max(r for r in range(8, 256, 8) if r * threads * ctas <= 65536)
    consumer = max(
        r for r in range(8, 257, 8) if 128 * producer + (threads - 128) * r <= threads * launch
    )
    return launch, consumer


def _explain_budget(call: Call, got: Any, want: Any) -> Explanation:
    warpgroups, ctas, producer = call.args
    if not isinstance(got, list) or len(got) != 2:
        return None
    launch, consumer = got
    if launch == 65536 // (warpgroups * 128) // 8 * 8 != want[0]:
        return (f"{ctas} CTAs share the registers of the SM.", 1)
    if launch != want[0] and launch == 65536 // (ctas * warpgroups * 128):
        return ("Registers are handed out in multiples of 8.", 1)
    if launch != want[0]:
        return None
    if isinstance(consumer, int) and consumer % 8:
        return ("setmaxnreg takes multiples of 8.", 3)
    if isinstance(consumer, int) and consumer > want[1]:
        return (
            f"With {consumer} the consumers would hold {(warpgroups - 1) * 128 * consumer:,} "
            f"registers and the producer {128 * producer:,}; the CTA was launched with "
            f"{warpgroups * 128 * launch:,}. The last warpgroup would wait for ever.",
            2,
        )
    return ("There is room for more.", 2)


registers = Predict(
    draw=_draw_budget,
    expected=_budget,
    explain=_explain_budget,
    fields=("launch", "consumer"),
    page=Call("budget", [3, 1, 40]),
)

# --- 14.5, 14.7 ------------------------------------------------------------------------------


def _draw_roles(rng: np.random.Generator) -> list[dict[str, Any]]:
    # Three tiles and more a CTA: each accumulator is used again. Odd numbers of K tiles, too.
    return [
        {"M": 256, "N": 64 * int(rng.choice([3, 5])), "K": 64 * k - 8, "ctas": ctas}
        for k, ctas in ((int(rng.choice([2, 4])), 2), (int(rng.choice([3, 5])), 1))
    ]


def _roles_data(
    rng: np.random.Generator, M: int, N: int, K: int, ctas: int
) -> list[Input | Output]:
    return gemm_data(rng, M, N, K)


def _explain_mma(ran: Ran, findings: Sequence[Any], problem: str) -> Explanation:
    a, b, got = (ran.arrays[name] for name in "ABD")
    codes = {f.code for f in findings}
    if "uninitialised-read" in codes:
        return ("The epilogue reads an accumulator that nothing has been written to.", 1)
    if codes & {"race-tmem", "missing-tcgen05-fence"}:
        return ("What has to be over before the first MMA of a tile overwrites its accumulator?", 2)
    if codes & {"race-smem", "barrier-lapped", "barrier-overarrival"}:
        return ("What does the MMA wait for, and when may the load overwrite what it reads?", 2)
    if "deadlock" in codes:
        return (
            "For each wait: who arrives there, in which phase is the barrier by then, and is that "
            "the phase that the wait names?",
            3,
        )
    if problem and is_product(
        got, a[:, -(a.shape[1] % 64 or 64) :], b[:, -(b.shape[1] % 64 or 64) :]
    ):
        return (
            "D holds the product of the last K tile alone: add to what is there from k = 1 on.",
            3,
        )
    return None


mma_role = Kernel(draw=_draw_roles, data=_roles_data, explain=_explain_mma, arch="blackwell")


def _explain_standstill(ran: Ran, findings: Sequence[Any], problem: str) -> Explanation:
    codes = {f.code for f in findings}
    if codes == {"deadlock"}:
        return (
            "The epilogue waits for MMAs, the MMAs for an accumulator, the loads for stages. One "
            "of them waits for a phase that nobody is there to complete yet.",
            1,
        )
    if findings:
        return (
            "A wait that returns too early lets MMAs overwrite an accumulator that the epilogue "
            "may still be reading, or lets the epilogue read what is not there yet.",
            3,
        )
    return None


standstill = Kernel(
    draw=_draw_roles, data=_roles_data, explain=_explain_standstill, arch="blackwell"
)

# --- 14.6 ------------------------------------------------------------------------------------


def _draw_multicast(rng: np.random.Generator) -> list[dict[str, Any]]:
    # A wide cluster and a tall one: exchanging the two would go unnoticed in a square one. One of
    # them is a single row or column (where TIRx takes the constant mask 1 for no multicast).
    whole, thin = (2, 4), (int(rng.choice([2, 4])), 1)
    if rng.integers(2):
        whole, thin = whole[::-1], thin[::-1]
    return [
        {"M": 64 * cm * m, "N": 64 * cn * n, "K": 128, "CM": cm, "CN": cn}
        for (cm, cn), (m, n) in ((whole, (1, 1)), (thin, (2, 1)))
    ]


def _multicast_data(
    rng: np.random.Generator, M: int, N: int, K: int, CM: int, CN: int
) -> list[Input | Output]:
    return gemm_data(rng, M, N, K)


def _explain_multicast(ran: Ran, findings: Sequence[Any], problem: str) -> Explanation:
    codes = {f.code for f in findings}
    cm, cn = ran.shape["CM"], ran.shape["CN"]
    row = ", ".join(str(r) for r in range(cn))
    column = ", ".join(str(r * cn) for r in range(cm))
    if codes & {"tx-count", "deadlock"}:
        return (
            f"In this cluster of {cm} x {cn} the CTAs of row 0 have the ranks {row}, those of "
            f"column 0 the ranks {column}. What each loads of A has to get to its whole row, what "
            "it loads of B to its whole column.",
            2,
        )
    if findings or problem:
        return (f"Row 0 has the ranks {row}, column 0 the ranks {column}. Who needs which tile?", 1)
    return None


multicast = Kernel(
    draw=_draw_multicast, data=_multicast_data, explain=_explain_multicast, arch="hopper"
)

# --- 14.8 ------------------------------------------------------------------------------------


def _draw_empty(rng: np.random.Generator) -> list[dict[str, Any]]:
    return [
        {"M": 128 * int(rng.integers(1, 3)), "N": 64 * int(rng.integers(1, 3)), "K": 64 * k}
        for k in (int(rng.choice([5, 7])), 4)
    ]


def _explain_empty(ran: Ran, findings: Sequence[Any], problem: str) -> Explanation:
    codes = {f.code for f in findings}
    if codes == {"deadlock"}:
        return ("How many threads arrive at one CTA's empty barrier for one K tile?", 2)
    if codes:
        return (
            "A stage is written from both CTAs. Who must have read it, in which CTA, before either "
            "of the producers may load into it again?",
            1,
        )
    return None


empty = Kernel(draw=_draw_empty, data=gemm_data, explain=_explain_empty, arch="hopper")

# --- 14.9 ------------------------------------------------------------------------------------

#: The shape that is timed, and the modelled speed to reach there.
OVERLAP_SHAPE = {"M": 512, "N": 256, "K": 512, "ctas": 2}
OVERLAP_TFLOPS = 15.9


def _draw_overlap(rng: np.random.Generator) -> list[dict[str, Any]]:
    m, n = int(rng.integers(130, 380)), 8 * int(rng.integers(17, 48))
    return [
        {"M": m, "N": n, "K": 64 * int(rng.choice([1, 3])) + 8, "ctas": 1},
        dict(OVERLAP_SHAPE),
    ]


def _overlap_target(ran: Ran) -> Explanation:
    if ran.shape != OVERLAP_SHAPE:
        return None
    timing = ran.report.timing
    reached = timing.tflops(2 * ran.shape["M"] * ran.shape["N"] * ran.shape["K"])
    if reached >= OVERLAP_TFLOPS:
        return None
    return (
        f"it reaches {reached:.1f} modelled TFLOP/s, in {timing.microseconds:.1f} modelled µs; the "
        f"target is {OVERLAP_TFLOPS:g}. {modelled_waits(ran, 'tcgen05.mma')}".strip(),
        1 if reached < 0.8 * OVERLAP_TFLOPS else 2,
    )


overlap = Kernel(
    draw=_draw_overlap,
    data=_roles_data,
    target=_overlap_target,
    explain=_explain_mma,
    arch="blackwell",
    timed=True,
)
