"""Exercise 1.5 (debug): right today.

D[r, c] = A[r, N - 1 - c]: every row reversed, for A and D [M, N] in float32
and N a multiple of 128. A CTA of 128 threads takes 128 columns of a row,
puts them into shared memory, and writes them back in the opposite order.

This kernel has one fault. On many runs the numbers are right all the same.
Find the fault, mend it, and change nothing else.
"""

from tvm.script import tirx as T

from mlsys_gpu.kernels.common import finish

THREADS = 128


def build(M, N):
    """D = A with its rows reversed; N is a multiple of 128."""

    @T.prim_func
    def kernel(
        A: T.Buffer((M, N), "float32"),
        D: T.Buffer((M, N), "float32"),
    ):
        T.device_entry()
        r, part = T.cta_id([M, N // THREADS])
        warp_id = T.warp_id([THREADS // 32])
        tid = T.thread_id([THREADS])
        pool = T.SMEMPool()
        line = pool.alloc((THREADS,), "float32")
        pool.commit()

        line[tid] = A[r, part * THREADS + tid]
        # [solution]
        T.cuda.cta_sync()
        # [stub]
        # T.cuda.warp_sync()
        # [end]
        D[r, N - THREADS - part * THREADS + tid] = line[THREADS - 1 - tid]

    return finish(kernel, "reverse", "hopper")


if __name__ == "__main__":
    from pathlib import Path

    from mlsys_gpu import check

    print(check("1.5", Path(__file__)))
