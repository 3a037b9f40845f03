"""Where an element of a tile lies in shared memory: address, bank, swizzle; and what a warp pays.

Units: rows and columns in elements, offsets and swizzle widths in bytes from the start of a tile
that is aligned to 1,024 bytes (the alignment that the 128-byte swizzle asks for).
Sources: PTX ISA, "Shared memory swizzling modes" and "Tensor swizzling modes" (the 16-byte chunk
index within a span is XORed with the index of the 128-byte line); CUDA C++ Programming Guide,
"Shared memory" (32 banks, 4 bytes wide).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .figures import Figure, figure, table_html

CHUNK = 16  #: bytes that a swizzle moves as one piece
BANKS = 32
BANK_BYTES = 4
LINE = BANKS * BANK_BYTES
SWIZZLES = (0, 32, 64, 128)
ITEMSIZE = {
    "float32": 4,
    "tfloat32": 4,
    "int32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3": 1,
    "float8_e5m2": 1,
    "int8": 1,
}


def swizzle_offset(offset: int, swizzle: int) -> int:
    """Byte offset after swizzling.

    offset: byte offset in an unswizzled tile. swizzle: 0 (none), 32, 64 or 128, the width in bytes
    of the span within which 16-byte chunks trade places.
    Raises ValueError for another swizzle or a negative offset.
    """
    if swizzle not in SWIZZLES:
        raise ValueError(f"swizzle is {swizzle}; there are 0 (none), 32, 64 and 128 bytes")
    if offset < 0:
        raise ValueError(f"offset is {offset}; a byte offset in a tile starts at 0")
    if swizzle == 0:
        return offset
    # A span of `swizzle` bytes has swizzle/16 chunks; that many bits of the 128-byte line's index
    # (bits 7 and up) are XORed into the chunk's index (bits 4 and up).
    mask = swizzle // CHUNK - 1
    line = offset // LINE
    return offset ^ ((line & mask) * CHUNK)


def smem_offset(
    row: int, col: int, *, rows: int, cols: int, itemsize: int = 2, swizzle: int = 128
) -> int:
    """Byte offset of element (row, col) of a K-major tile in shared memory.

    Without swizzle the tile is row-major. With one, columns are cut into blocks as wide as the
    swizzle span; blocks follow one another, rows within a block lie one span apart, and the chunks
    are XORed by :func:`swizzle_offset`: what TMA writes and what the tensor core's matrix
    descriptor describes.
    Raises ValueError for an element outside the tile, or a tile whose rows are no whole spans.
    """
    if not (0 <= row < rows and 0 <= col < cols):
        raise ValueError(f"element ({row}, {col}) lies outside the tile of {rows} x {cols}")
    if swizzle == 0:
        return (row * cols + col) * itemsize
    if (cols * itemsize) % swizzle:
        raise ValueError(
            f"a row of {cols} elements has {cols * itemsize} bytes; with a {swizzle}-byte swizzle "
            f"it must be a multiple of {swizzle}"
        )
    width = swizzle // itemsize
    block, inner = divmod(col, width)
    return swizzle_offset((block * rows + row) * swizzle + inner * itemsize, swizzle)


def bank(offset: int) -> int:
    """Bank (0 to 31) that holds the byte at ``offset`` of shared memory."""
    return offset // BANK_BYTES % BANKS


@dataclass(frozen=True)
class Conflicts:
    """What one access of a warp costs in shared memory.

    ``wavefronts``: passes that the memory makes. ``ideal``: passes that this many bytes need at
    least. ``ways``: the largest number of different words that one bank had to serve in a pass.
    """

    wavefronts: int
    ideal: int
    ways: int


def bank_conflicts(offsets: Sequence[int], width: int) -> Conflicts:
    """Bank conflicts of one access by a warp.

    offsets: byte offset that each active lane reads or writes, in the order of lanes. width:
    bytes a lane, 1, 2, 4, 8 or 16. Lanes that touch the same 4-byte word share it. Accesses of 8
    bytes are served 16 lanes at a time, of 16 bytes 8 lanes at a time.
    Raises ValueError for another width, more than 32 lanes or a misaligned offset.
    """
    if width not in (1, 2, 4, 8, 16):
        raise ValueError(f"width is {width}; a lane accesses 1, 2, 4, 8 or 16 bytes")
    if len(offsets) > 32:
        raise ValueError(f"{len(offsets)} offsets; a warp has 32 lanes")
    for lane, offset in enumerate(offsets):
        if offset % width:
            raise ValueError(f"lane {lane}: offset {offset} is not aligned to {width} bytes")
    group = min(32, LINE // max(width, BANK_BYTES))
    wavefronts = ideal = ways = 0
    for start in range(0, len(offsets), group):
        words: dict[int, set[int]] = defaultdict(set)
        for offset in offsets[start : start + group]:
            for byte in range(offset, offset + max(width, 1), BANK_BYTES):
                words[bank(byte)].add(byte // BANK_BYTES)
        worst = max(len(w) for w in words.values())
        wavefronts += worst
        ideal += 1
        ways = max(ways, worst)
    return Conflicts(wavefronts, ideal, ways)


Access = tuple[str, str, list[tuple[int, int]]]


def default_accesses(rows: int, cols: int, itemsize: int) -> list[Access]:
    """Two accesses of a warp, 16 bytes a lane, as (name, explanation, [(row, col) per lane])."""
    per_chunk = CHUNK // itemsize
    chunks = cols // per_chunk
    tall = min(rows, 32)
    down = [(lane % tall, lane // tall % chunks * per_chunk) for lane in range(32)]
    along = [(lane // chunks % rows, lane % chunks * per_chunk) for lane in range(32)]
    return [
        (
            "down the rows",
            "Each lane reads 16 bytes of another row at the same column, as ldmatrix and the "
            "tensor core read an operand.",
            down,
        ),
        (
            "along the rows",
            "Neighbouring lanes take neighbouring 16-byte chunks, as a coalesced copy from global "
            "memory writes a tile.",
            along,
        ),
    ]


def layout_data(
    rows: int,
    cols: int,
    dtype: str = "float16",
    swizzle: int = 128,
    accesses: Iterable[Access] | None = None,
) -> dict:
    """What the ``layout`` figure draws: chunk offsets for each swizzle that fits, accesses, costs.

    Raises ValueError for an unknown dtype or swizzle, or rows that are no whole chunks or spans.
    """
    if dtype not in ITEMSIZE:
        raise ValueError(f"dtype is {dtype!r}; there are {', '.join(ITEMSIZE)}")
    if rows < 1 or cols < 1:
        raise ValueError(f"a tile of {rows} x {cols} has no elements")
    itemsize = ITEMSIZE[dtype]
    if cols * itemsize % CHUNK:
        raise ValueError(
            f"a row of {cols} {dtype} has {cols * itemsize} bytes; use a multiple of 16"
        )
    modes = [s for s in SWIZZLES if s == 0 or cols * itemsize % s == 0]
    if swizzle not in modes:
        raise ValueError(f"swizzle is {swizzle}; a row of {cols * itemsize} bytes allows {modes}")
    per_chunk = CHUNK // itemsize

    def at(row: int, col: int, mode: int) -> int:
        return smem_offset(row, col, rows=rows, cols=cols, itemsize=itemsize, swizzle=mode)

    listed = list(accesses) if accesses is not None else default_accesses(rows, cols, itemsize)
    out_accesses = []
    for name, text, lanes in listed:
        costs = {m: bank_conflicts([at(r, c, m) for r, c in lanes], CHUNK) for m in modes}
        out_accesses.append(
            {
                "name": name,
                "text": text,
                "lanes": [list(rc) for rc in lanes],
                "cost": {
                    str(m): {"wavefronts": c.wavefronts, "ideal": c.ideal, "ways": c.ways}
                    for m, c in costs.items()
                },
            }
        )
    return {
        "rows": rows,
        "cols": cols,
        "dtype": dtype,
        "itemsize": itemsize,
        "perChunk": per_chunk,
        "swizzle": swizzle,
        "modes": [
            {
                "swizzle": m,
                "offsets": [[at(r, c, m) for c in range(0, cols, per_chunk)] for r in range(rows)],
            }
            for m in modes
        ],
        "accesses": out_accesses,
    }


def layout(
    rows: int,
    cols: int,
    dtype: str = "float16",
    swizzle: int = 128,
    access: Iterable[Access] | None = None,
    *,
    title: str | None = None,
    alt: str | None = None,
    caption: str | None = None,
) -> Figure:
    """Interactive figure of a tile in shared memory.

    rows, cols: the tile's shape in elements (8 to 32 rows read best: the pattern repeats every 8).
    dtype: element type. swizzle: the mode shown first, 0, 32, 64 or 128 bytes; the reader can
    switch to each mode that the row's length allows. access: accesses to play through, as
    (name, explanation, [(row, col) for each lane]), 16 bytes a lane; two common ones by default.
    Raises ValueError as :func:`layout_data` and :func:`bank_conflicts` do.
    """
    data = layout_data(rows, cols, dtype, swizzle, access)
    itemsize, per_chunk = data["itemsize"], data["perChunk"]
    sample = [(r, c) for r in range(min(rows, 8)) for c in (0, per_chunk) if c < cols]
    table = []
    for r, c in sample:
        off = smem_offset(r, c, rows=rows, cols=cols, itemsize=itemsize, swizzle=swizzle)
        table.append([f"({r}, {c})", off, f"0x{off:04x}", bank(off)])
    name = f"{swizzle}-byte swizzle" if swizzle else "no swizzle"
    costs = "; ".join(
        f"{a['name']}: {a['cost'][str(swizzle)]['wavefronts']} passes"
        + (f", {a['cost']['0']['wavefronts']} without swizzle" if swizzle else "")
        for a in data["accesses"]
    )
    return figure(
        "layout",
        data,
        title=title or f"A {rows} × {cols} {dtype} tile in shared memory, {name}",
        alt=alt
        or (
            f"On one side the tile by rows and columns, on the other the same data as it lies in "
            f"shared memory, {LINE} bytes (32 banks) a line, in chunks of 16 bytes. With a swizzle "
            f"the chunk's place within its span is XORed with the line's number, so chunks of "
            f"one column spread over all banks. A warp reading 16 bytes a lane needs {costs}."
        ),
        caption=caption,
        fallback=table_html(
            ["element (row, column)", "byte offset", "hex", "first bank"],
            table,
            f"First elements, {name}",
        ),
    )
