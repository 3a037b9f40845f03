"""A warp's own matrix instructions: ``mma.sync``, ``ldmatrix``, ``stmatrix`` and ``movmatrix``.

A register of 32 bits holds two 16-bit elements, the first in its lower half. Below, lane 4r + c is
the thread of row r and pair c, h says which eight rows, k which eight of K, and e which half. Where
a loop runs as a slice its turns are a second axis, behind the lanes: ``loop`` is how many there
are.

Numerics: products are exact in float32, and are added in float32, in no documented order; fp16
results are rounded once per instruction. The reading ``accumulation: aligned`` adds them as an H200
does, bit for bit (:mod:`.sums`).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from mlsys_gpu.sim.machine import access, memory, sums
from mlsys_gpu.sim.machine.core import Cta, Stop, Warp, op
from mlsys_gpu.sim.machine.numerics import INTEGER_POISON, POISON, bf16_to_f32

_WORD_POISON = int.from_bytes(INTEGER_POISON * 4, "little")

# --------------------------------------------------------------------------------------- mma.sync


@op
def mma_sync(
    w: Warp, a, b, c, k: int, dtype: str, half: bool, loop: int | None = None
) -> np.ndarray:
    """``mma.sync.aligned.m16n8kK.row.col``: ``A @ B + C``, as the words of D's fragment.

    ``a``, ``b``, ``c``: words of the fragments, ``[32, R]`` or ``[32, loop, R]`` (``[R]`` where all
    lanes have the same). ``dtype``: of A and B; C and D are float32, or fp16 where ``half``.

    Fragments (PTX ISA, "Matrix Fragments for mma.m16n8k16" and "... for mma.m16n8k8"): register
    2k + h of A holds row 8h + r, columns 8k + 2c + e; register k of B rows 8k + 2c + e of column
    r; element 2h + e of C and D is row 8h + r, column 2c + e.
    """
    turns = 1 if loop is None else loop
    a, b, c = (_lanes(words, loop) for words in (a, b, c))
    w.machine.count("mma_sync_instructions", turns)
    w.machine.count("mma_flop", 2 * 16 * 8 * k * turns)
    addend = c.view(np.float16 if half else np.float32)
    if w.machine.aligned_sums:
        total = _aligned(a, b, addend, k, dtype, half, loop)
    elif loop is None:
        left = _floats(a, dtype).reshape(-1).take(_rows_of_a(k))
        product = left @ _floats(b, dtype).reshape(8, k).T
        total = product.reshape(-1).take(_FRAGMENT_OF_D) + addend
    else:
        total = _products(a, b, k, dtype) + addend
    if half:
        total = total.astype(np.float16)
    if total.shape[-2] != turns and loop is not None:
        total = np.repeat(total, loop, axis=1)
    if w.checks:
        _check_written(w, (a, b), c, total, half)
    return total.view(np.uint32)


@lru_cache(maxsize=2)
def _rows_of_a(k: int) -> np.ndarray:
    """Where the elements of A, ``[16, k]``, stand in its fragment, columns in the order (c, k, e).

    The order of K does not matter, as long as B has it too: B's fragment has it as it is.
    """
    pairs = k // 8
    places = np.arange(16 * k).reshape(8, 4, pairs, 2, 2)  # r, c, k, h, e
    return np.ascontiguousarray(places.transpose(3, 0, 1, 2, 4)).reshape(16, k)


#: Where the elements of a fragment of D, ``[32, 4]``, stand in the matrix ``[16, 8]``.
_FRAGMENT_OF_D = np.arange(128).reshape(2, 8, 4, 2).transpose(1, 2, 0, 3).reshape(32, 4)


def _aligned(a, b, addend, k: int, dtype: str, half: bool, loop: int | None) -> np.ndarray:
    """``A @ B + C`` added as an H200 does, as fragments."""
    turns = 1 if loop is None else loop
    left = _floats(a, dtype).reshape(32, -1, k // 2)
    right = _floats(b, dtype).reshape(32, -1, k // 4)
    held = addend.reshape(32, -1, 4)
    result = np.empty((32, turns, 4), np.float16 if half else np.float32)
    of = "bfloat16" if dtype == "bfloat16" else "float16"
    for turn in range(turns):
        x, y, z = (v[:, turn if v.shape[1] > 1 else 0] for v in (left, right, held))
        matrix = np.empty(128, np.float32)
        matrix[_FRAGMENT_OF_D] = z
        one = np.ascontiguousarray(x).reshape(-1).take(_rows_of_a(k))
        product = sums.step(one, y.reshape(8, k).T, matrix.reshape(16, 8), of, half)
        result[:, turn] = product.reshape(-1).take(_FRAGMENT_OF_D)
    return result[:, 0] if loop is None else result


def _products(a: np.ndarray, b: np.ndarray, k: int, dtype: str) -> np.ndarray:
    """``A @ B`` for each turn of a slice, as fragments ``[32, turns, 4]``."""
    pairs = k // 8
    left = _floats(a, dtype).reshape(8, 4, -1, pairs, 2, 2).transpose(2, 4, 0, 1, 3, 5)
    left = left.reshape(-1, 16, k)
    right = _floats(b, dtype).reshape(8, 4, -1, pairs, 2).transpose(2, 0, 1, 3, 4)
    if left.shape[0] == 1:  # one matrix for all turns
        product = left[0] @ right.reshape(-1, k).T  # [16, 8 * turns]
        product = product.reshape(2, 8, -1, 4, 2).transpose(1, 3, 2, 0, 4)
    else:
        product = left @ right.reshape(-1, 8, k).transpose(0, 2, 1)  # [turns, 16, 8]
        product = product.reshape(-1, 2, 8, 4, 2).transpose(2, 3, 0, 1, 4)
    return product.reshape(32, -1, 4)


def _lanes(words, loop: int | None) -> np.ndarray:
    """An operand's words with the axes of lanes and, in a slice, of turns; the last contiguous."""
    words = np.ascontiguousarray(words)
    if words.ndim == 1:  # the same for all lanes
        words = np.broadcast_to(words, (32, words.size))
        words = np.ascontiguousarray(words[:, None] if loop is not None else words)
    return words


def _floats(words: np.ndarray, dtype: str) -> np.ndarray:
    """The 16-bit elements of words as float32, two for each along the last axis."""
    if dtype == "bfloat16":
        return bf16_to_f32(words.view(np.uint16))
    return words.view(np.float16).astype(np.float32)


def _check_written(w: Warp, operands, c: np.ndarray, total: np.ndarray, half: bool) -> None:
    """Report fragments that hold what registers hold before they are written."""
    for name, words in zip("AB", operands, strict=True):
        if _never_written(words):
            _unwritten(w, f"mma.sync reads operand {name} from", "write the fragment first")
    if half:
        bad = _never_written(c)
    else:
        flat = total.reshape(-1)
        norm = flat.dot(flat)  # not a number where an element is none; the poison is none
        bad = norm != norm and bool((c == POISON).any())
        if bad:
            total[np.broadcast_to(c == POISON, total.shape)] = np.nan  # once is enough
    if bad:
        fix = "clear the accumulators before a tile's first product"
        _unwritten(w, "mma.sync adds to accumulators (operand C) in", fix)


def _never_written(words: np.ndarray) -> bool:
    """Whether all lanes of a register hold the integers' poison."""
    first = words[0].ravel().tolist()
    return _WORD_POISON in first and bool((words == _WORD_POISON).all(axis=0).any())


def _unwritten(w: Warp, said: str, fix: str) -> None:
    w.machine.report(
        "uninitialised-read",
        w,
        f"{said} registers that nothing has written",
        memory="registers",
        fix=fix,
    )


# ------------------------------------------------------------------------- ldmatrix and stmatrix


@op
def ldmatrix(
    w: Warp, address, count: int, trans: bool, generic: bool, loop: int | None = None
) -> np.ndarray:
    """``ldmatrix.m8n8.xCOUNT.b16``: words of 8x8 matrices, ``[32, count]``.

    Lane 8i + r gives the address of row r of matrix i, 16 bytes. Register i of lane 4r + c gets
    columns 2c + e of row r; with ``trans``, rows 2c + e of column r (PTX ISA, ldmatrix).
    """
    cta, offsets = _rows(w, address, count, generic, loop, "ldmatrix")
    index = offsets >> 4
    if w.checks:
        lanes = _owners(count, trans, w.machine.program.grain)
        access.generic_read(w, cta, index, True, lanes)
    w.machine.count("shared_load_bytes", 16 * index.size)
    rows = cta.shared.view(4, 4)[index]  # [8 * count, turns, 4]
    turns = index.shape[1]
    if trans:
        elements = rows.view(np.uint16).reshape(count, 4, 2, turns, 8)  # i, c, e, turn, r
        elements = np.ascontiguousarray(elements.transpose(4, 1, 3, 0, 2))
        words = elements.view(np.uint32).reshape(32, turns, count)
    else:
        words = rows.reshape(count, 8, turns, 4).transpose(1, 3, 2, 0).reshape(32, turns, count)
    return words[:, 0] if loop is None else words


@op
def stmatrix(
    w: Warp, address, words, count: int, trans: bool, generic: bool, loop: int | None = None
) -> None:
    """``stmatrix.m8n8.xCOUNT.b16``: the reverse of :func:`ldmatrix` (PTX ISA, stmatrix)."""
    cta, offsets = _rows(w, address, count, generic, loop, "stmatrix")
    words = _lanes(words, loop)
    index = offsets >> 4
    turns = index.shape[1]
    words = np.broadcast_to(words.reshape(32, -1, count), (32, turns, count))
    if trans:
        elements = np.ascontiguousarray(words).view(np.uint16).reshape(8, 4, turns, count, 2)
        rows = np.ascontiguousarray(elements.transpose(3, 1, 4, 2, 0)).view(np.uint32)
        rows = rows.reshape(8 * count, turns, 4)
    else:
        rows = words.reshape(8, 4, turns, count).transpose(3, 0, 2, 1).reshape(8 * count, turns, 4)
    if w.open is not None:
        w.open.flush()
    if w.checks:
        lanes = _owners(count, trans, w.machine.program.grain)
        access.generic_write(w, cta, index, True, lanes)
    w.machine.count("shared_store_bytes", 16 * index.size)
    cta.shared.view(4, 4)[index] = rows
    cta.version += 1
    if w.checks:
        mask = np.arange(32) < 8 * count
        access._overwritten(w, cta.shared.view(4, 4), offsets, 16, rows, mask, cta)


def _rows(
    w: Warp, address, count: int, generic: bool, loop: int | None, what: str
) -> tuple[Cta, np.ndarray]:
    """The CTA and byte offsets ``[8 * count, turns]`` of the rows that lanes address.

    Addresses of the other lanes are ignored. Raises Stop where a row is out of bounds, misaligned,
    or not in the CTA's own shared memory: the state space is ``.shared::cta``.
    """
    known = w.plans.get((w.s, what))
    if known is not None and known[0] is address and known[1] == count:
        return known[2], known[3]
    at = np.asarray(address)
    if at.ndim < 2:
        at = at.reshape(-1, 1)
    at = np.broadcast_to(at, (32, 1 if loop is None else loop))[: 8 * count]
    if generic:
        space = at >> memory.SPACE_BITS
        if (space != memory.SHARED_SPACE).any():
            _elsewhere(w, what, "a generic address that is not in shared memory")
        at = at - memory.SHARED_TAG
    rank = int(at.max()) >> memory.RANK_BITS
    if rank != w.rank and 0 <= rank < w.cluster.size:
        _elsewhere(w, what, f"shared memory of CTA rank {rank}")
    mask = None if count == 4 else np.arange(32) < 8 * count
    cta, offsets = access._shared(w, at, 16, mask, f"{what} row")
    offsets = np.asarray(offsets)
    if isinstance(address, np.ndarray):
        w.plans[w.s, what] = (address, count, cta, offsets)
    return cta, offsets


def _elsewhere(w: Warp, what: str, where: str) -> None:
    w.machine.report(
        "out-of-bounds",
        w,
        f"{what} is given {where}; it takes rows of the CTA's own shared memory",
        memory="shared memory",
        fix="give it the shared::cta address of a row in this CTA",
    )
    raise Stop


@lru_cache(maxsize=32)
def _owners(count: int, trans: bool, grain: int) -> np.ndarray:
    """Which lane reads or writes each word of the rows, ``[8 * count, 1, 16 / grain]``.

    The thread that gives a row's address need not be one that gets its elements.
    """
    row = np.arange(8 * count)[:, None] % 8
    at = np.arange(0, 16, grain)[None, :]
    if not trans:
        lanes = np.broadcast_to(4 * row + at // 4, (8 * count, 16 // grain))
    elif grain < 4:
        lanes = 4 * (at // 2) + row // 2
    else:  # a word holds elements of two threads
        lanes = np.full((8 * count, 16 // grain), access.SEVERAL)
    return lanes.astype(np.int8)[:, None]


@op
def movmatrix(w: Warp, words, loop: int | None = None) -> np.ndarray:
    """``movmatrix.m8n8.trans.b16``: an 8x8 matrix of registers, transposed (PTX ISA, movmatrix).

    Words ``[32]`` or ``[32, loop]``: lane 4r + c holds columns 2c + e of row r.
    """
    words = np.asarray(words, dtype=np.uint32)
    if words.ndim < 2:
        words = words.reshape(-1, 1)
    words = np.ascontiguousarray(np.broadcast_to(words, (32, words.shape[1])))
    elements = words[..., None].view(np.uint16).reshape(8, 4, -1, 2)  # r, c, turn, e
    turns = elements.shape[2]
    square = elements.transpose(2, 0, 1, 3).reshape(turns, 8, 8).transpose(0, 2, 1)
    moved = np.ascontiguousarray(square).view(np.uint32).reshape(turns, 32).T
    return moved[:, 0] if loop is None else np.broadcast_to(moved, (32, loop))
