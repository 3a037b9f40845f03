"""Exercise 13.4 (debug): the store that sees too little.

D = max(A, 0) for A and D [M, N] in float16; M is any number, N a multiple of
8. A CTA takes a tile of 64 x 64: TMA loads it into shared memory, 128 threads
change it there, and TMA stores it. TMA takes care of the edges both ways.

Run it, and the numbers may well be right. Still, nothing makes sure that TMA
stores what the threads have written: one line stands in the wrong place. Find
it, move it, and change nothing else.
"""

from tvm.script import tirx as T

from mlsys_gpu.kernels.common import cdiv, finish, tma_load, tma_store

ROWS, COLS, THREADS = 64, 64, 128
BYTES = T.uint32(ROWS * COLS * 2)


def build(M, N):
    """D = max(A, 0); N is a multiple of 8."""

    @T.prim_func
    def kernel(
        A: T.Buffer((M, N), "float16"),
        D: T.Buffer((M, N), "float16"),
    ):
        T.device_entry()
        bx, by = T.cta_id([cdiv(N, COLS), cdiv(M, ROWS)])
        tid = T.thread_id([THREADS])
        pool = T.SMEMPool()
        full = pool.alloc((1,), "uint64", align=8)
        tile = pool.alloc((ROWS, COLS), "float16", align=128)
        pool.commit()
        m0 = T.meta_var(by * ROWS)
        n0 = T.meta_var(bx * COLS)
        bar = T.meta_var(full.ptr_to([0]))
        if tid == 0:
            T.ptx.mbarrier.init.shared.b64(bar, T.uint32(1))
            T.ptx.fence.mbarrier_init.release.cluster()
        T.cuda.cta_sync()

        if tid == 0:
            T.ptx.mbarrier.arrive.expect_tx.shared.b64(bar, BYTES)
            tma_load(tile[:, :], A[m0 : m0 + ROWS, n0 : n0 + COLS], bar)
        T.cuda.mbarrier_wait(bar, 0)
        # [solution]
        # [stub]
        # T.ptx.fence.proxy.async_.shared__cta()
        # [end]
        for i in T.serial(ROWS * COLS // THREADS):
            row = T.meta_var(i * (THREADS // COLS) + tid // COLS)
            col = T.meta_var(tid % COLS)
            tile[row, col] = T.max(tile[row, col], T.float16(0))
        # [solution]
        T.ptx.fence.proxy.async_.shared__cta()
        # [stub]
        # [end]
        T.cuda.cta_sync()
        if tid == 0:
            tma_store(D[m0 : m0 + ROWS, n0 : n0 + COLS], tile[:, :])
            T.ptx.cp.async_.bulk.commit_group()
            T.ptx.cp.async_.bulk.wait_group.read(0)

    return finish(kernel, "store", "hopper")


if __name__ == "__main__":
    from pathlib import Path

    from mlsys_gpu import check

    print(check("13.4", Path(__file__)))
