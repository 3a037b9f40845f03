# Exercise 10.1. Stub d8b2d5326778: yours to edit; `mlsys-gpu reset 10.1` brings it back.
"""Exercise 10.1 (predict): where does an element lie under a 128-byte swizzle?

`pool.alloc_tcgen05_mma_AB((rows, cols), dtype)` places a tile whose rows are
128 bytes long: cols = 128 / size for elements of `size` bytes (1, 2 or 4).
Rows follow each other. Within a row, the eight 16-byte chunks have changed
places: chunk c of row r stands where chunk (c XOR (r mod 8)) would stand.

Write `offset(row, col, size)`, which returns the byte, counted from the
start of the tile, at which element (row, col) begins.

On the page: element (5, 20) of a tile of 2-byte elements.
"""


def offset(row, col, size):
    """Returns the byte offset of element (row, col)."""
    raise NotImplementedError("return the byte at which element (row, col) begins")


if __name__ == "__main__":
    from pathlib import Path

    from mlsys_gpu import check

    print(check("10.1", Path(__file__)))
