"""The tiles of a GEMM: which CTA computes which, what each step of the K loop moves.

D[M, N] = A[M, K] · B[N, K]ᵀ, the course's convention. Units: elements for shapes, bytes for
traffic, FLOP (a multiply-add is two) for work.
"""

from __future__ import annotations

from collections.abc import Callable

from .figures import Figure, figure, table_html
from .layouts import ITEMSIZE


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def tile_traffic(
    M: int, N: int, K: int, tile: tuple[int, int, int] = (128, 128, 64), dtype: str = "float16"
) -> dict:
    """Traffic and work of a tiled GEMM in which each CTA loads its own operand tiles.

    M, N, K: shape in elements. tile: (BM, BN, BK). dtype: of A, B and D.
    Returns a dict: ``ctas``, ``k_steps``; ``a_step``, ``b_step`` (bytes that one CTA loads in one
    step of the K loop, a full tile); ``loaded`` (bytes of A and B that all CTAs load together),
    ``stored`` (bytes of D), ``least`` (A, B and D once each), ``flop``, ``intensity``
    (FLOP per loaded or stored byte), ``a_reuse`` and ``b_reuse`` (how often each element of A and
    B is loaded). Raises ValueError for sizes below 1 or an unknown dtype.
    """
    BM, BN, BK = tile
    for name, value in (("M", M), ("N", N), ("K", K), ("BM", BM), ("BN", BN), ("BK", BK)):
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
    if dtype not in ITEMSIZE:
        raise ValueError(f"dtype is {dtype!r}; there are {', '.join(ITEMSIZE)}")
    size = ITEMSIZE[dtype]
    tiles_m, tiles_n, steps = _ceil(M, BM), _ceil(N, BN), _ceil(K, BK)
    # A tile at an edge loads only what exists, hence the exact M, N, K here.
    loaded = (M * K * tiles_n + N * K * tiles_m) * size
    stored = M * N * size
    flop = 2 * M * N * K
    return {
        "ctas": tiles_m * tiles_n,
        "tiles_m": tiles_m,
        "tiles_n": tiles_n,
        "k_steps": steps,
        "a_step": BM * BK * size,
        "b_step": BN * BK * size,
        "loaded": loaded,
        "stored": stored,
        "least": (M * K + N * K + M * N) * size,
        "flop": flop,
        "intensity": flop / (loaded + stored),
        "a_reuse": tiles_n,
        "b_reuse": tiles_m,
    }


def gemm_tiles_data(
    M: int,
    N: int,
    K: int,
    tile: tuple[int, int, int] = (128, 128, 64),
    dtype: str = "float16",
    cta_of: Callable[[int, int], tuple[int, ...]] | None = None,
) -> dict:
    """What the ``gemm-tiles`` figure draws. Parameters as :func:`gemm_tiles`."""
    traffic = tile_traffic(M, N, K, tile, dtype)
    BM, BN, BK = tile
    size = ITEMSIZE[dtype]
    if traffic["ctas"] > 256 or traffic["k_steps"] > 64:
        raise ValueError(
            f"{traffic['ctas']} tiles and {traffic['k_steps']} K steps; the figure shows at most "
            "256 tiles and 64 steps"
        )
    where = cta_of or (lambda m, n: (m, n))
    tiles = []
    for m in range(traffic["tiles_m"]):
        for n in range(traffic["tiles_n"]):
            rows = min(BM, M - m * BM)
            cols = min(BN, N - n * BN)
            steps, loaded, flop = [], 0, 0
            for k in range(traffic["k_steps"]):
                depth = min(BK, K - k * BK)
                loaded += (rows + cols) * depth * size
                flop += 2 * rows * cols * depth
                steps.append({"k0": k * BK, "depth": depth, "loaded": loaded, "flop": flop})
            tiles.append(
                {
                    "m": m,
                    "n": n,
                    "cta": list(where(m, n)),
                    "row0": m * BM,
                    "col0": n * BN,
                    "rows": rows,
                    "cols": cols,
                    "stored": rows * cols * size,
                    "steps": steps,
                }
            )
    return {"M": M, "N": N, "K": K, "tile": list(tile), "dtype": dtype, "tiles": tiles, **traffic}


def gemm_tiles(
    M: int,
    N: int,
    K: int,
    tile: tuple[int, int, int] = (128, 128, 64),
    dtype: str = "float16",
    cta_of: Callable[[int, int], tuple[int, ...]] | None = None,
    *,
    title: str | None = None,
    alt: str | None = None,
    caption: str | None = None,
) -> Figure:
    """Interactive figure of a tiled GEMM: D = A · Bᵀ with A [M, K] and B [N, K].

    The reader picks an output tile and walks the K loop. tile: (BM, BN, BK). dtype: of A, B and D.
    cta_of: (tile row, tile column) -> block index; (tile row, tile column) by default, which is
    what Step 3 does. Raises ValueError for sizes below 1, an unknown dtype, or more than 256 tiles
    or 64 steps.
    """
    data = gemm_tiles_data(M, N, K, tile, dtype, cta_of)
    BM, BN, BK = tile
    kib = 1024
    return figure(
        "gemm-tiles",
        data,
        title=title or f"{M} × {N} × {K} in tiles of {BM} × {BN} × {BK}",
        alt=alt
        or (
            f"The output has {data['tiles_m']} × {data['tiles_n']} tiles, one CTA each. In each of "
            f"{data['k_steps']} steps a CTA loads {BM} × {BK} of A ({data['a_step'] // kib} KiB) "
            f"and {BN} × {BK} of B ({data['b_step'] // kib} KiB) and adds their product to its "
            f"accumulator. All CTAs together load {data['loaded'] / kib:,.0f} KiB, each element "
            f"of A {data['a_reuse']} times and of B {data['b_reuse']} times, for "
            f"{data['flop'] / 1e6:,.1f} million FLOP: {data['intensity']:.1f} FLOP a byte."
        ),
        caption=caption,
        fallback=table_html(
            ["tile (row, column)", "CTA", "rows of A, D", "rows of B, columns of D"],
            [
                [
                    f"({t['m']}, {t['n']})",
                    tuple(t["cta"]),
                    f"{t['row0']}–{t['row0'] + t['rows'] - 1}",
                    f"{t['col0']}–{t['col0'] + t['cols'] - 1}",
                ]
                for t in data["tiles"][:16]
            ],
            "Output tiles" + (" (the first 16)" if len(data["tiles"]) > 16 else ""),
        ),
    )
