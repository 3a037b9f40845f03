"""Exercise 13.3 (write): let TMA bring the tiles.

D[m] = sum of A[m, k] * B[m, k] over k, for A and B [M, K] in float16 and D
[M] in float32; M is any number, K a multiple of 8. A CTA of 64 threads takes
64 rows and walks along K in tiles of 64 x 64; thread t adds up row t. All is
there but what brings the tiles: nothing is ever loaded.

For each K tile, in this order:

    one thread (`tid == 0` will do) says how many bytes are to come, with
        T.ptx.mbarrier.arrive.expect_tx.shared.b64(bar, BYTES)
    and issues the two loads, tma_load(tile, box, bar), for the boxes
        A[m0 : m0 + ROWS, k0 : k0 + BK]  and the same of B
    all threads wait for the right phase, T.cuda.mbarrier_wait(bar, phase)

where bar is full.ptr_to([0]), the address of the barrier. `BYTES` is yours to
fill in as well, and one thing more has to be said once a tile has been used:
the next load overwrites it.

M and K need not be multiples of 64. TMA fills up with zeros.
"""

from tvm.script import tirx as T

from mlsys_gpu.kernels.common import cdiv, finish, tma_load

ROWS, BK = 64, 64
# [solution]
BYTES = T.uint32(2 * ROWS * BK * 2)  # both tiles, 2 bytes an element, zeros too
# [stub]
# BYTES = T.uint32(0)
# [end]


def build(M, K):
    """D[m] = sum over k of A[m, k] * B[m, k]; K is a multiple of 8."""

    @T.prim_func
    def kernel(
        A: T.Buffer((M, K), "float16"),
        B: T.Buffer((M, K), "float16"),
        D: T.Buffer((M,), "float32"),
    ):
        T.device_entry()
        cta = T.cta_id([cdiv(M, ROWS)])
        tid = T.thread_id([ROWS])
        pool = T.SMEMPool()
        full = pool.alloc((1,), "uint64", align=8)
        At = pool.alloc((ROWS, BK), "float16", align=128)
        Bt = pool.alloc((ROWS, BK), "float16", align=128)
        pool.commit()
        m0 = T.meta_var(cta * ROWS)
        if tid == 0:
            T.ptx.mbarrier.init.shared.b64(full.ptr_to([0]), T.uint32(1))
            T.ptx.fence.mbarrier_init.release.cluster()
        T.cuda.cta_sync()

        total: T.float32 = 0.0
        for k in T.serial(cdiv(K, BK)):
            # [solution]
            k0 = T.meta_var(k * BK)
            bar = T.meta_var(full.ptr_to([0]))
            if tid == 0:
                T.ptx.mbarrier.arrive.expect_tx.shared.b64(bar, BYTES)
                tma_load(At[:, :], A[m0 : m0 + ROWS, k0 : k0 + BK], bar)
                tma_load(Bt[:, :], B[m0 : m0 + ROWS, k0 : k0 + BK], bar)
            T.cuda.mbarrier_wait(bar, k % 2)
            # [stub]
            # # Your code: one thread expects the bytes and issues two loads;
            # # everyone waits for the phase.
            # [end]
            for c in T.serial(BK):
                total = total + T.Cast("float32", At[tid, c]) * T.Cast("float32", Bt[tid, c])
            # [solution]
            # All threads have read the tiles before the next load overwrites them.
            T.cuda.cta_sync()
            # [stub]
            # # Your code: what has to be over before the next load?
            # [end]
        if m0 + tid < M:
            D[m0 + tid] = total

    return finish(kernel, "tma_load", "hopper")


if __name__ == "__main__":
    from pathlib import Path

    from mlsys_gpu import check

    print(check("13.3", Path(__file__)))
