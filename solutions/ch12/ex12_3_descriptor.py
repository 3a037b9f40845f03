"""Exercise 12.3 (predict): a matrix descriptor, bit by bit.

The tensor core finds a tile in shared memory through a 64-bit descriptor.
For a K-major tile of 16-bit elements with a 128-byte swizzle (64 elements to
a row, groups of 8 rows that are 1,024 bytes apart):

    bits  0-13   start address, in units of 16 bytes
    bits 16-29   leading offset: does not count under this swizzle, put 1
    bits 32-45   stride offset: from one group of 8 rows to the next, in
                 units of 16 bytes
    Hopper       bits 62-63 are the swizzle: 1 stands for 128 bytes
    Blackwell    bits 46-48 are the constant 1, and bits 61-63 the swizzle:
                 2 stands for 128 bytes
    all others   0

An MMA reads 16 values of K. To reach the values that begin at column k of
the tile (a multiple of 16), the start address moves on by their bytes; the
swizzle is undone by the hardware.

Write `descriptor(arch, address, k)`: the descriptor of a tile at `address`
(a multiple of 1,024, in bytes) that begins at column k; arch is "hopper" or
"blackwell".

On the page: Hopper, address 2048, column 16.
"""


def descriptor(arch, address, k):
    """Returns the 64-bit descriptor as an integer."""
    # [solution]
    value = (address + k * 2) // 16
    value |= 1 << 16
    value |= (1024 // 16) << 32
    if arch == "hopper":
        return value | 1 << 62
    return value | 1 << 46 | 2 << 61
    # [stub]
    # raise NotImplementedError("return the descriptor as an integer")
    # [end]


if __name__ == "__main__":
    from pathlib import Path

    from mlsys_gpu import check

    print(check("12.3", Path(__file__)))
