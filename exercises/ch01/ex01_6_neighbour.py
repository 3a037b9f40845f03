# Exercise 1.6. Stub 148b7b4aff1e: yours to edit; `mlsys-gpu reset 1.6` brings it back.
"""Exercise 1.6 (debug): a neighbour's shared memory.

D[r, c] = A[r, c] + A[r, (c + N / 2) mod N] for A and D [M, N] in float32 and
N a multiple of 256. A cluster of two CTAs takes one row: each CTA loads its
half of the row into its own shared memory, and then reads the other half
from the shared memory of its peer (distributed shared memory: `mapa` turns
an address of one's own into the same address of the peer).

This kernel has one fault; it may show on some runs only. Find it, mend it,
and change nothing else.
"""

from tvm.script import tirx as T

from mlsys_gpu.kernels.common import finish

THREADS = 128


def build(M, N):
    """D = A plus A with the halves of its rows swapped; N is a multiple of 256."""
    half = N // 2

    @T.prim_func
    def kernel(
        A: T.Buffer((M, N), "float32"),
        D: T.Buffer((M, N), "float32"),
    ):
        T.device_entry()
        cta = T.cta_id([2 * M])
        rank = T.cta_id_in_cluster([2])
        tid = T.thread_id([THREADS])
        pool = T.SMEMPool()
        mine = pool.alloc((half,), "float32")
        pool.commit()
        r = cta // 2

        for i in T.serial(half // THREADS):
            c = i * THREADS + tid
            mine[c] = A[r, rank * half + c]
        T.cuda.cta_sync()
        for i in T.serial(half // THREADS):
            c = i * THREADS + tid
            peer: T.uint32
            T.ptx.mapa.shared__cluster.u32(
                peer,
                T.cuda.cvta_generic_to_shared(mine.ptr_to([c])),
                T.uint32(1 - rank),
            )
            other: T.float32
            T.ptx.ld.shared__cluster.f32(other, peer)
            D[r, rank * half + c] = mine[c] + other
        # A CTA must not end while its peer still reads its shared memory.
        T.cuda.cluster_sync()

    return finish(kernel, "neighbour", "hopper")


if __name__ == "__main__":
    from pathlib import Path

    from mlsys_gpu import check

    print(check("1.6", Path(__file__)))
