"""Matrix and instruction descriptors, decoded bit by bit, and where an operand's elements lie.

Sources: PTX ISA, "Matrix Descriptor Format" of ``wgmma`` and "Shared memory descriptor" and
"Instruction descriptor" of ``tcgen05``; canonical layouts in the same sections.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

#: Swizzle width in bytes by the descriptor's field, for each generation's encoding.
WGMMA_SWIZZLE = {0: 0, 1: 128, 2: 64, 3: 32}
TCGEN05_SWIZZLE = {0: 0, 2: 128, 4: 64, 6: 32}


class DescriptorError(ValueError):
    """A descriptor that the instruction cannot take; the message says which field and why."""


@dataclass(frozen=True)
class Matrix:
    """A shared-memory operand: start address, leading and stride offsets, swizzle width (bytes)."""

    start: int
    leading: int
    stride: int
    swizzle: int

    def text(self) -> str:
        width = f"{self.swizzle}B swizzle" if self.swizzle else "no swizzle"
        offsets = f"leading offset {self.leading}, stride offset {self.stride}"
        return f"start {self.start}, {offsets}, {width}"


@lru_cache(maxsize=4096)
def wgmma_matrix(bits: int) -> Matrix:
    """Decode the 64-bit matrix descriptor of ``wgmma``."""
    base = bits >> 49 & 7
    if base:
        raise DescriptorError(f"matrix-base-offset {base} is not modelled: align the tile instead")
    return Matrix(
        start=(bits & 0x3FFF) << 4,
        leading=(bits >> 16 & 0x3FFF) << 4,
        stride=(bits >> 32 & 0x3FFF) << 4,
        swizzle=WGMMA_SWIZZLE[bits >> 62 & 3],
    )


@lru_cache(maxsize=4096)
def tcgen05_matrix(bits: int) -> Matrix:
    """Decode the 64-bit shared-memory descriptor of ``tcgen05.mma``."""
    constant, base, mode = bits >> 46 & 7, bits >> 49 & 7, bits >> 61 & 7
    if constant != 1:
        raise DescriptorError(
            f"the matrix descriptor has {constant} in its constant (bits 46 to 48); tcgen05 takes 1"
        )
    if bits >> 53 & 0xFF:
        raise DescriptorError("the matrix descriptor's bits 53 to 60 are not zero")
    if base:
        raise DescriptorError(f"matrix-base-offset {base} is not modelled: align the tile instead")
    if bits >> 52 & 1:
        raise DescriptorError("the absolute-address mode of the leading offset is not modelled")
    if mode not in TCGEN05_SWIZZLE:
        raise DescriptorError(f"swizzle mode {mode} (128B with 32B atoms) is not modelled")
    return Matrix(
        start=(bits & 0x3FFF) << 4,
        leading=(bits >> 16 & 0x3FFF) << 4,
        stride=(bits >> 32 & 0x3FFF) << 4,
        swizzle=TCGEN05_SWIZZLE[mode],
    )


@dataclass(frozen=True)
class Instruction:
    """The 32-bit instruction descriptor of ``tcgen05.mma`` with ``.kind::f16``."""

    m: int
    n: int
    a: str
    b: str
    d: str
    negate_a: bool
    negate_b: bool
    transpose_a: bool
    transpose_b: bool


@lru_cache(maxsize=256)
def instruction(bits: int) -> Instruction:
    """Decode an instruction descriptor of ``.kind::f16``."""
    if bits & 0b111:
        raise DescriptorError("sparse tcgen05.mma is not modelled")
    if bits & (1 << 3 | 1 << 6 | 1 << 23 | 1 << 29):
        raise DescriptorError(
            "the instruction descriptor has reserved bits set (3, 6, 23 or 29; saturation is for "
            "integers)"
        )
    if bits >> 30 & 3:
        raise DescriptorError("the instruction descriptor asks for a shift, which .ws alone has")
    formats = {0: "float16", 1: "bfloat16"}
    a, b, d = bits >> 7 & 7, bits >> 10 & 7, bits >> 4 & 3
    if a not in formats or b not in formats:
        raise DescriptorError(
            f"the instruction descriptor names formats {a} (A) and {b} (B); kind::f16 has 0 (F16) "
            "and 1 (BF16)"
        )
    if d not in (0, 1):
        raise DescriptorError(
            f"the instruction descriptor names accumulator format {d}; kind::f16 has 0 (F16) and 1 "
            "(F32)"
        )
    if d == 0 and (a or b):
        raise DescriptorError(
            "the instruction descriptor names BF16 operands and an F16 accumulator; F16 takes F16 "
            "operands"
        )
    return Instruction(
        m=(bits >> 24 & 0x1F) << 4,
        n=(bits >> 17 & 0x3F) << 3,
        a=formats[a],
        b=formats[b],
        d="float32" if d else "float16",
        negate_a=bool(bits >> 13 & 1),
        negate_b=bool(bits >> 14 & 1),
        transpose_a=bool(bits >> 15 & 1),
        transpose_b=bool(bits >> 16 & 1),
    )


@lru_cache(maxsize=1024)
def k_major_rows(
    rows: int, steps: tuple[int, ...], phase: int, leading: int, stride: int, swizzle: int
) -> np.ndarray:
    """Indices of the 16-byte rows that hold a K-major operand, shape ``[rows, 2 * len(steps)]``.

    ``steps`` are the start addresses of successive k16 steps less the tile's 1024-byte aligned
    base, ``phase`` is unused address bits above that (0); all offsets in bytes. A k16 step of a
    16-bit type is two 16-byte chunks. Without swizzle a core matrix is 8 rows of 16 contiguous
    bytes; with swizzle of width W a row of the 8-row atom is W bytes, and address bits 4-6 are
    XORed with bits 7-9 (as many as W has), on the address that the shared memory sees.
    """
    row = np.arange(rows, dtype=np.int64)[:, None]
    chunks = []
    for start in steps:
        for chunk in range(2):
            if swizzle:
                at = start + row % 8 * swizzle + row // 8 * stride + 16 * chunk
                at = at ^ (at >> 3 & (swizzle - 16))
            else:
                at = start + row % 8 * 16 + row // 8 * stride + leading * chunk
            chunks.append(at)
    return (np.concatenate(chunks, axis=1) + phase) >> 4


@lru_cache(maxsize=1024)
def mn_major_rows(
    rows: int, steps: tuple[int, ...], leading: int, stride: int, swizzle: int
) -> np.ndarray:
    """Indices of the 16-byte rows of an MN-major (transposed) operand, ``[rows / 8, 16 * steps]``.

    Each chunk holds 8 consecutive rows (M or N) of one k. With swizzle of width W the atom is W
    bytes of MN by 8 k; ``leading`` steps between atoms along MN and ``stride`` along k. Without
    swizzle the atom is one chunk wide, and the roles of the two offsets are exchanged
    (PTX ISA, canonical layouts of MN-major operands).
    """
    group = np.arange(rows // 8, dtype=np.int64)[:, None]
    columns = []
    for start in steps:
        for k in range(16):
            if swizzle:
                wide = swizzle // 16
                at = start + k % 8 * swizzle + k // 8 * stride
                at = at + group % wide * 16 + group // wide * leading
                at = at ^ (at >> 3 & (swizzle - 16))
            else:
                at = start + k % 8 * 16 + k // 8 * leading + group * stride
            columns.append(at)
    return np.concatenate(columns, axis=1) >> 4


def operand_rows(matrices: list[Matrix], rows: int, transposed: bool) -> tuple[np.ndarray, bool]:
    """The 16-byte rows of an operand over successive k16 steps, as row indices of shared memory."""
    pattern, base = _pattern_of(matrices, rows, transposed)
    return pattern + (base >> 4), transposed


def operand_block(matrices: list[Matrix], rows: int, transposed: bool) -> slice | None:
    """The same rows in the order of their addresses, where they are distinct and leave no gap."""
    pattern, base = _pattern_of(matrices, rows, transposed)
    known = _BLOCKS.get(id(pattern))
    if known is None or known[0] is not pattern:
        held = np.unique(pattern)
        dense = held.size == pattern.size == int(held[-1]) - int(held[0]) + 1
        if len(_BLOCKS) > 1024:
            _BLOCKS.clear()
        known = _BLOCKS[id(pattern)] = (pattern, int(held[0]) if dense else None)
    first = known[1]
    if first is None:
        return None
    first += base >> 4
    return slice(first, first + pattern.size)


#: For patterns (by identity; each is kept alive here) the first row where they leave no gap.
_BLOCKS: dict[int, tuple[np.ndarray, int | None]] = {}


def _pattern_of(matrices: list[Matrix], rows: int, transposed: bool) -> tuple[np.ndarray, int]:
    """An operand's rows from a multiple of 1024 bytes on, and that base in bytes."""
    first = matrices[0]
    base = first.start & ~1023
    steps = tuple(m.start - base for m in matrices)
    if transposed:
        index = mn_major_rows(rows, steps, first.leading, first.stride, first.swizzle)
    else:
        index = k_major_rows(rows, steps, 0, first.leading, first.stride, first.swizzle)
    return index, base
