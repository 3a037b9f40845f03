"""Operands of matrix products in shared memory: how they are read, decoded and reported."""

from __future__ import annotations

import numpy as np

from mlsys_gpu.sim.machine import memory
from mlsys_gpu.sim.machine.core import (
    Cta,
    Stop,
    Warp,
)
from mlsys_gpu.sim.machine.numerics import F16_VALUES, bf16_to_f32


def operand_bits(cta: Cta, index: np.ndarray, transposed: bool) -> np.ndarray:
    """An operand's bit patterns ``[rows, k]`` (uint16), from the 16-byte rows that hold it."""
    bits = cta.shared.rows.take(index).view(np.uint16)
    if transposed:  # the chunks of a row of the index hold 8 rows of the operand each
        return bits.reshape(*index.shape, 8).transpose(0, 2, 1).reshape(-1, index.shape[1])
    return bits


def decode(cta: Cta, index: np.ndarray, transposed: bool, dtype: str) -> np.ndarray:
    """An operand as float32 ``[rows, k]``, from the 16-byte rows that hold it."""
    bits = operand_bits(cta, index, transposed)
    if dtype == "bfloat16":
        return bf16_to_f32(bits)
    return F16_VALUES.take(bits)


def out_of_shared(w: Warp, cta: Cta, index: np.ndarray | slice, what: str, site: int) -> None:
    """Stop where an operand's 16-byte rows (their indices, or a slice) leave shared memory."""
    if isinstance(index, slice):
        low, high = index.start, index.stop - 1
    else:
        low, high = int(index.min()), int(index.max())
    if low * 16 >= memory.RESERVED_SHARED and (high + 1) * 16 <= cta.shared.size:
        return
    w.machine.report(
        "out-of-bounds",
        w,
        f"{what} reaches shared memory bytes {low * 16 - memory.RESERVED_SHARED} to "
        f"{(high + 1) * 16 - memory.RESERVED_SHARED}, outside the CTA's "
        f"{cta.shared.size - memory.RESERVED_SHARED}",
        memory="shared memory",
        fix="check the descriptor's start address, and how far each K step advances it",
        site=site,
    )
    raise Stop


def bad_descriptor(w: Warp, error: Exception, site: int) -> Stop:
    w.machine.report(
        "descriptor",
        w,
        str(error),
        memory="",
        fix="encode the descriptor with T.cuda.tcgen05.encode_… or T.cuda.wgmma.encode_…",
        site=site,
    )
    return Stop()


def note(w: Warp, site: int, what: str, accumulator, accumulate, ctas, left, right) -> None:
    """Note a product for :mod:`.provenance`; an operand is its 16-byte rows, major and dtype.

    An operand from registers is its bit patterns ``[rows, k]``, None and dtype.
    """
    from mlsys_gpu.sim.machine.provenance import Product

    a, b = (
        rows
        if transposed is None
        else np.concatenate([operand_bits(cta, rows, transposed) for cta in ctas])
        for rows, transposed, _ in (left, right)
    )
    rows_a, rows_b = (
        None
        if transposed is None
        else np.concatenate([rows + (cta.rank << memory.RANK_BITS) for cta in ctas])
        for rows, transposed, _ in (left, right)
    )
    transposed, dtypes = (left[1], right[1]), (left[2], right[2])
    assert w.machine.trace is not None
    w.machine.trace.append(
        Product(w, site, what, accumulator, accumulate, a, b, (rows_a, rows_b), transposed, dtypes)
    )


def count_product(w: Warp, m: int, n: int, steps: int, registers: bool = False) -> None:
    """Count k16 steps of 16-bit operands: a multiply-add is 2 FLOP.

    Operands are in shared memory, and their bytes count; with ``registers``, A is not: it lies in
    registers or in tensor memory.
    """
    w.machine.count("mma_flop", 2 * m * n * 16 * steps)
    w.machine.count("mma_operand_bytes", (n if registers else m + n) * 16 * 2 * steps)


def discarded(w: Warp, before: int, what: str, site: int) -> None:
    """Report a product that overwrites another one that nothing has read."""
    place = w.machine.program.location(before)
    w.machine.report(
        "discarded-product",
        w,
        f"{what} overwrites a product ({place}) that nothing has read: it is lost",
        memory="accumulator",
        fix=(
            "let every product of a tile but the first add to the accumulator (accum=True, "
            "scale-d true)"
        ),
        site=site,
        related=[("the lost product", place)],
    )
