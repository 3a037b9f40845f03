"""Exercise 10.5 (debug): whose copy is it?

D[r] is the sum of row r of A [M, N] in float32; M is a multiple of 128. A
CTA copies 128 rows into shared memory; then each of its 128 threads adds up
one row.

The numbers come out right, and the kernel is wrong all the same: look at how
much it loads, and at what the simulator says. One word is at fault.
"""

from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx

from mlsys_gpu.kernels.common import finish

ROWS = 128


def build(M, N):
    """D[r] = sum of A[r, :]; M is a multiple of 128."""

    @T.prim_func
    def kernel(
        A: T.Buffer((M, N), "float32"),
        D: T.Buffer((M,), "float32"),
    ):
        T.device_entry()
        cta = T.cta_id([M // ROWS])
        wg_id = T.warpgroup_id([1])
        warp_id = T.warp_id([4])
        tid = T.thread_id([ROWS])
        pool = T.SMEMPool()
        tile = pool.alloc((ROWS, N), "float32")
        pool.commit()
        r = cta * ROWS

        # [solution]
        Tx.cta.copy(tile[:, :], A[r : r + ROWS, :])
        # [stub]
        # Tx.warp.copy(tile[:, :], A[r : r + ROWS, :])
        # [end]
        T.cuda.cta_sync()

        total: T.float32 = 0.0
        for c in T.serial(N):
            total = total + tile[tid, c]
        D[r + tid] = total

    return finish(kernel, "row_sums", "hopper")


if __name__ == "__main__":
    from pathlib import Path

    from mlsys_gpu import check

    print(check("10.5", Path(__file__)))
