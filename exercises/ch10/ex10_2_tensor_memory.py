# Exercise 10.2. Stub 294ebe54a8fc: yours to edit; `mlsys-gpu reset 10.2` brings it back.
"""Exercise 10.2 (predict): where in tensor memory?

Tensor memory has 128 lanes and 512 columns of 32 bits. An address has the
lane in bits 16 to 31 and the column in bits 0 to 15. tcgen05.alloc returns
the address of the first column that the kernel got, in lane 0.

A 128-row tile lies there with row r in lane r. Elements of a row follow each
other from the first column on: one to a column where they have 32 bits, two
to a column where they have 16.

Write `place(base, row, col, bits)` for an element of `bits` bits (32 or 16)
of a tile that begins at the allocated address `base`. It returns

    address   the tensor memory address of the 32-bit word that holds it
    warp      which of the four warps of a warpgroup (0 to 3) may read it:
              warp w reaches lanes 32 w to 32 w + 31 only

On the page: element (70, 9) of a 32-bit tile allocated at column 128.
"""


def place(base, row, col, bits):
    """Returns (address, warp) of element (row, col)."""
    raise NotImplementedError("return (address, warp) of element (row, col)")


if __name__ == "__main__":
    from pathlib import Path

    from mlsys_gpu import check

    print(check("10.2", Path(__file__)))
