# Exercise 10.3. Stub a3d4eef90c5a: yours to edit; `mlsys-gpu reset 10.3` brings it back.
"""Exercise 10.3 (predict): what does a copy become?

    Tx.cta.copy(tile[:, :], A[r : r + rows, 0:cols])

copies a tile from global memory into a plain row-major tile in shared
memory. Scope cta says that all `threads` threads of the CTA share the work
evenly. The dispatch picks the widest access that works, out of 16, 8, 4, 2
and 1 bytes (and not below one element of `size` bytes):

  * a row of the tile is a whole number of accesses;
  * every row of A begins at a multiple of the access: a row of A has
    `row_length` elements, at least cols;
  * the accesses share out evenly among the threads.

Write `copy_plan(rows, cols, row_length, size, threads)`, which returns

    width   bytes of one access
    loads   how many loads from global memory each thread executes

(cols is a power of two; every thread gets at least one element.)

On the page: a 128 x 64 tile of 2-byte elements of an A with rows of 1,000,
copied by 128 threads.
"""


def copy_plan(rows, cols, row_length, size, threads):
    """Returns (width in bytes, loads per thread)."""
    raise NotImplementedError("return (width, loads)")


if __name__ == "__main__":
    from pathlib import Path

    from mlsys_gpu import check

    print(check("10.3", Path(__file__)))
