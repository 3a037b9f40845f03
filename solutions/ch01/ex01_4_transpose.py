"""Exercise 1.4 (write): a transpose through shared memory.

D = A.T for A [M, N] and D [N, M] in float32; M and N are multiples of 32.
One CTA of 256 threads moves one 32 x 32 tile. Neighbouring threads should
touch neighbouring addresses in global memory, both when they read A (its
rows) and when they write D (its rows). A tile in shared memory makes that
possible: it is written by rows and read by columns.

The tile, the grid and the thread's place (`row` is 0 to 7, `col` is 0 to 31)
are given. Each thread moves 4 elements. Write what is missing: the loads
into the tile, the stores from it, and what has to stand between them.
"""

from tvm.script import tirx as T

from mlsys_gpu.kernels.common import finish

TILE, ROWS = 32, 8  # a tile is 32 x 32; 256 threads cover 8 of its rows


def build(M, N):
    """D = A.T for A [M, N], M and N multiples of 32."""

    @T.prim_func
    def kernel(
        A: T.Buffer((M, N), "float32"),
        D: T.Buffer((N, M), "float32"),
    ):
        T.device_entry()
        bm, bn = T.cta_id([M // TILE, N // TILE])
        tid = T.thread_id([TILE * ROWS])
        pool = T.SMEMPool()
        tile = pool.alloc((TILE, TILE), "float32")
        pool.commit()
        row = tid // TILE
        col = tid % TILE
        # The CTA's tile of A starts at row bm * TILE and column bn * TILE.
        # [solution]
        for i in T.serial(TILE // ROWS):
            r = i * ROWS + row
            tile[r, col] = A[bm * TILE + r, bn * TILE + col]
        # Every thread reads what other warps wrote.
        T.cuda.cta_sync()
        for i in T.serial(TILE // ROWS):
            r = i * ROWS + row
            D[bn * TILE + r, bm * TILE + col] = tile[col, r]
        # [stub]
        # for i in T.serial(TILE // ROWS):
        #     r = i * ROWS + row
        #     # Your code: load one element of A into the tile.
        # # Your code: what makes the tile safe to read?
        # for i in T.serial(TILE // ROWS):
        #     r = i * ROWS + row
        #     # Your code: store one element of D from the tile.
        # [end]

    return finish(kernel, "transpose", "hopper")


if __name__ == "__main__":
    from pathlib import Path

    from mlsys_gpu import check

    print(check("1.4", Path(__file__)))
