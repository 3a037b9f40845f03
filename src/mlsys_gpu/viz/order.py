"""The order in which a GEMM's tiles are computed, and what the L2 cache has to hold for it.

The CTAs that run at one time compute one *round* of tiles: tiles ``r * ctas`` to ``(r + 1) * ctas -
1`` of the order. A tile needs one block row of A and one of B (which is a block column of D).
Units: tiles for places, bytes for traffic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .figures import Figure, figure, table_html
from .layouts import ITEMSIZE

Shape = tuple[int, int, int]


def tile_at(number: int, tiles_m: int, tiles_n: int, group: int) -> tuple[int, int]:
    """Row and column of the ``number``-th tile of D, in tiles.

    The order goes down ``group`` rows, then on to the next column, through all columns; then the
    next ``group`` rows (the last group may have fewer). ``group = tiles_m`` is column after column,
    ``group = 1`` row after row. Raises ValueError for a tile that does not exist.
    """
    if not 0 <= number < tiles_m * tiles_n:
        raise ValueError(f"tile {number} does not exist; there are {tiles_m * tiles_n}")
    if group < 1:
        raise ValueError(f"group is {group}; it must be at least 1 row of tiles")
    first = number // (group * tiles_n) * group
    rows = min(group, tiles_m - first)
    place = number - first * tiles_n
    return first + place % rows, place // rows


def _runs(numbers: set[int]) -> list[list[int]]:
    """A set of integers as ascending [first, one past the last]."""
    found: list[list[int]] = []
    for n in sorted(numbers):
        if found and found[-1][1] == n:
            found[-1][1] = n + 1
        else:
            found.append([n, n + 1])
    return found


def _boxes(tiles: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Tiles as rectangles [first row, end row, first column, end column]."""
    columns: dict[int, set[int]] = {}
    for m, n in tiles:
        columns.setdefault(n, set()).add(m)
    found: list[list[int]] = []
    open_: dict[tuple[int, int], list[int]] = {}  # (first row, end row) -> box that ends here
    for n in sorted(columns):
        now = {}
        for m0, m1 in _runs(columns[n]):
            box = open_.get((m0, m1))
            if box is not None and box[3] == n:
                box[3] = n + 1
            else:
                box = [m0, m1, n, n + 1]
                found.append(box)
            now[m0, m1] = box
        open_ = now
    return found


def order_traffic(
    shape: Shape,
    *,
    ctas: int,
    group: int,
    tile: tuple[int, int] = (128, 128),
    dtype: str = "float16",
) -> dict[str, Any]:
    """What the rounds of an order read, for D[M, N] = A[M, K] · B[N, K]ᵀ.

    shape: (M, N, K), elements; M and N are rounded up to whole tiles. ctas: how many run at a time.
    group: rows of tiles that are worked through together. tile: (BM, BN). Returns a dict: ``m``
    and ``n`` (tiles), ``block_a`` and ``block_b`` (bytes of one block row, BM or BN rows by K),
    ``rounds`` (a dict each: ``tiles``, a count; ``boxes``, the rectangles that they fill; ``a`` and
    ``b``, the runs of block rows and columns that they read; ``rows`` and ``columns``, how many;
    ``loaded``, bytes that the CTAs load; ``distinct``, bytes of these that are different),
    ``loaded`` and ``distinct``, their sums, and ``least``: A and B once. ``distinct`` is what comes
    from memory if L2 serves all that a round has in common, and keeps nothing for the next.
    Raises ValueError for sizes below 1 or an unknown dtype.
    """
    M, N, K = shape
    BM, BN = tile
    for name, value in (("M", M), ("N", N), ("K", K), ("BM", BM), ("BN", BN), ("ctas", ctas)):
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
    if dtype not in ITEMSIZE:
        raise ValueError(f"dtype is {dtype!r}; there are {', '.join(ITEMSIZE)}")
    tiles_m, tiles_n = -(-M // BM), -(-N // BN)
    block_a, block_b = BM * K * ITEMSIZE[dtype], BN * K * ITEMSIZE[dtype]
    rounds = []
    count = tiles_m * tiles_n
    for start in range(0, count, ctas):
        numbers = range(start, min(start + ctas, count))
        tiles = [tile_at(i, tiles_m, tiles_n, group) for i in numbers]
        a, b = {m for m, _ in tiles}, {n for _, n in tiles}
        rounds.append(
            {
                "tiles": len(tiles),
                "boxes": _boxes(tiles),
                "a": _runs(a),
                "b": _runs(b),
                "rows": len(a),
                "columns": len(b),
                "loaded": len(tiles) * (block_a + block_b),
                "distinct": len(a) * block_a + len(b) * block_b,
            }
        )
    return {
        "m": tiles_m,
        "n": tiles_n,
        "block_a": block_a,
        "block_b": block_b,
        "rounds": rounds,
        "loaded": sum(r["loaded"] for r in rounds),
        "distinct": sum(r["distinct"] for r in rounds),
        "least": tiles_m * block_a + tiles_n * block_b,
    }


def tile_order(
    shapes: Sequence[Shape],
    *,
    ctas: int,
    groups: Sequence[int] = (1, 4, 8, 16),
    group: int = 8,
    tile: tuple[int, int] = (128, 128),
    dtype: str = "float16",
    title: str | None = None,
    alt: str | None = None,
    caption: str | None = None,
) -> Figure:
    """Interactive figure: the rounds of tiles of several orders, and what each of them reads.

    The reader chooses a shape and an order, and steps through the rounds. shapes: (M, N, K) each.
    ctas: how many run at a time. groups: rows of tiles that are worked through together; the order
    by whole columns is added. group: the one that is shown first. tile: (BM, BN). Raises ValueError
    for an empty choice, more than 64 tiles each way, or what :func:`order_traffic` refuses.
    """
    if not shapes or not groups:
        raise ValueError(f"there must be a shape and a group, got {shapes!r} and {groups!r}")
    choices = []
    for shape in shapes:
        columns = -(-shape[0] // tile[0])
        orders = []
        for rows_of in [*(g for g in dict.fromkeys(groups) if g < columns), columns]:
            found = order_traffic(shape, ctas=ctas, group=rows_of, tile=tile, dtype=dtype)
            orders.append({"group": rows_of, **found})
        if max(orders[0]["m"], orders[0]["n"]) > 64:
            raise ValueError(f"{shape} has {orders[0]['m']} × {orders[0]['n']} tiles; at most 64")
        choices.append({"shape": list(shape), "orders": orders})
    mib = 2**20
    words = {
        (c["shape"][0], o["group"]): "column after column"
        if o["group"] == o["m"]
        else f"by groups of {o['group']} rows"
        for c in choices
        for o in c["orders"]
    }
    rows = [
        [
            " × ".join(map(str, c["shape"])),
            words[c["shape"][0], o["group"]],
            len(o["rounds"]),
            f"{o['rounds'][0]['rows']} + {o['rounds'][0]['columns']}",
            f"{o['loaded'] / mib:,.0f} MiB",
            f"{o['distinct'] / mib:,.0f} MiB",
        ]
        for c in choices
        for o in c["orders"]
    ]
    said = "; ".join(
        f"{row[0]} {row[1]}: {row[3]} block rows of A and B in the first round, "
        f"{row[5]} different bytes in all rounds"
        for row in rows
    )
    return figure(
        "tile-order",
        {"ctas": ctas, "group": group, "choices": choices},
        title=title or f"{ctas} CTAs at a time: which tiles, and what they read",
        alt=alt or f"{ctas} CTAs compute a round of tiles at a time. {said}.",
        caption=caption,
        fallback=table_html(
            [
                "M × N × K",
                "order of tiles",
                "rounds",
                "block rows of A + B, first round",
                "loaded by all CTAs",
                "different, added over rounds",
            ],
            rows,
        ),
    )
