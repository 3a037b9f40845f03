"""Exercise 13.7 (optimise): an order that L2 likes.

A GEMM has m_tiles x n_tiles tiles of D. The persistent CTAs take them in
order: the first `ctas` tiles at one time, then the next `ctas`, and so on.
Call each such group a wave. A tile of D in row bm and column bn needs row bm
of tiles of A, and row bn of tiles of B. Tiles of a wave that need the same
row share it in L2, so a wave fetches as many rows of A as its tiles have
different bm, and as many rows of B as they have different bn.

Write `place(tile, m_tiles, n_tiles, ctas)`, which returns (bm, bn) of tile
number `tile`, so that each place has exactly one number. m_tiles and n_tiles
need not be multiples of anything.

Target: over all waves together, fetch no more rows than Step 6 does, which
goes down 8 rows, on to the next column, and begins with the next 8 rows when
the columns are done. (Better is possible.) The stub goes along the rows: each
place has its number, and far too much is fetched.
"""


def place(tile, m_tiles, n_tiles, ctas):
    """Returns (bm, bn), the row and the column of tile number `tile`."""
    # [solution]
    group = 8
    first = tile // (group * n_tiles) * group
    rows = min(m_tiles - first, group)  # the last group may have fewer
    inside = tile % (group * n_tiles)
    return first + inside % rows, inside // rows
    # [stub]
    # return tile // n_tiles, tile % n_tiles
    # [end]


if __name__ == "__main__":
    from pathlib import Path

    from mlsys_gpu import check

    print(check("13.7", Path(__file__)))
