# Exercise 10.7. Stub 8e98cb5df0c2: yours to edit; `mlsys-gpu reset 10.7` brings it back.
"""Exercise 10.7 (write): a layout says who holds what.

D[r, c] = A[r, c] - max over c of A[r, :] for A and D [M, N] in float32; M is
a multiple of 128. A warpgroup of 128 threads takes 128 rows, and each thread
holds one row in N registers.

`Tx.wg.copy` can load the whole 128 x N tile at once, if a layout tells it
which thread and which register hold element (r, c). `T.alloc_local` gives
every thread N registers; `regs.view(128, N, layout=...)` is the tile that
the warpgroup's registers make together. A layout is written

    TileLayout(S[(rows, cols) : (stride_of_rows, stride_of_cols)])

where a stride is a number of registers, or `1 @ tid_in_wg` for a step to the
next thread. Write the layout.
"""

from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import S, TileLayout, tid_in_wg

from mlsys_gpu.kernels.common import finish

ROWS = 128


def row_per_thread(N):
    """Layout of a 128 x N tile: thread r holds row r, register c column c."""
    raise NotImplementedError("return the layout: element (r, c) is register c of thread r")


def build(M, N):
    """D = A with the maximum of each row taken off; M is a multiple of 128."""

    @T.prim_func
    def kernel(
        A: T.Buffer((M, N), "float32"),
        D: T.Buffer((M, N), "float32"),
    ):
        T.device_entry()
        cta = T.cta_id([M // ROWS])
        wg_id = T.warpgroup_id([1])
        warp_id = T.warp_id([4])
        tid = T.thread_id([ROWS])
        r = cta * ROWS
        regs = T.alloc_local((N,), "float32")
        regs_wg = regs.view(ROWS, N, layout=row_per_thread(N))

        Tx.wg.copy(regs_wg[:, :], A[r : r + ROWS, :])
        largest: T.float32 = regs[0]
        for c in T.serial(1, N):
            largest = T.max(largest, regs[c])
        for c in T.serial(N):
            regs[c] = regs[c] - largest
        Tx.wg.copy(D[r : r + ROWS, :], regs_wg[:, :])

    return finish(kernel, "minus_max", "hopper")


if __name__ == "__main__":
    from pathlib import Path

    from mlsys_gpu import check

    print(check("10.7", Path(__file__)))
