# Exercise 14.7. Stub a6983af062fa: yours to edit; `mlsys-gpu reset 14.7` brings it back.
"""Exercise 14.7 (debug): standstill.

D = A @ B.T for A [M, K], B [N, K] and D [M, N] in float16 on Blackwell, with
tiles of 128 x 64: M is a multiple of 128, N of 64, K of 8. It is the kernel
of exercise 14.5, complete: warp 4 loads, warp 5 issues MMAs, warps 0 to 3 are
the epilogue, two accumulators are used in turn.

A CTA that has one tile of D to compute is done in no time. One that has more
comes to a standstill in its second tile, and the simulator lists who waits
for which phase of which barrier. Who waits for whom, and which of the waits
asks for the wrong phase? One line is at fault. Mend it, and change nothing
else.
"""

from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import wg_local_layout

from mlsys_gpu.kernels.common import cdiv, finish, tcgen05_commit, tma_load

PIPE_DEPTH = 3
BM, BN, BK = 128, 64, 64
LOAD_WARP, MMA_WARP = 4, 5
BYTES = T.uint32((BM + BN) * BK * 2)


def build(M, N, K, ctas):
    """D = A @ B.T; M a multiple of 128, N of 64, K of 8; at most ctas CTAs share it."""
    N_TILES, K_TILES = N // BN, cdiv(K, BK)
    TILES = M // BM * N_TILES
    CTAS = min(ctas, TILES)

    @T.prim_func
    def kernel(
        A: T.Buffer((M, K), "float16"),
        B: T.Buffer((N, K), "float16"),
        D: T.Buffer((M, N), "float16"),
    ):
        T.device_entry()
        cta = T.cta_id([CTAS])
        wg_id = T.warpgroup_id([2])
        warp_id = T.warp_id([8])
        tid = T.thread_id([256])
        pool = T.SMEMPool()
        tmem = T.TMEMPool(pool, total_cols=512)
        acc = tmem.alloc((BM, 2 * BN), "float32")
        full = pool.alloc((PIPE_DEPTH,), "uint64", align=8)
        empty = pool.alloc((PIPE_DEPTH,), "uint64", align=8)
        tmem_full = pool.alloc((2,), "uint64", align=8)
        tmem_empty = pool.alloc((2,), "uint64", align=8)
        As = pool.alloc_tcgen05_mma_AB((PIPE_DEPTH, BM, BK), "float16")
        Bs = pool.alloc_tcgen05_mma_AB((PIPE_DEPTH, BN, BK), "float16")
        pool.commit()
        tmem.commit()
        if tid == 0:
            for s in T.unroll(PIPE_DEPTH):
                T.ptx.mbarrier.init.shared.b64(full.ptr_to([s]), T.uint32(1))
                T.ptx.mbarrier.init.shared.b64(empty.ptr_to([s]), T.uint32(1))
            for b in T.unroll(2):
                T.ptx.mbarrier.init.shared.b64(tmem_full.ptr_to([b]), T.uint32(1))
                T.ptx.mbarrier.init.shared.b64(tmem_empty.ptr_to([b]), T.uint32(128))
            T.ptx.fence.mbarrier_init.release.cluster()
        T.cuda.cta_sync()

        for t in T.serial(cdiv(TILES - cta, CTAS)):
            tile = T.meta_var(t * CTAS + cta)
            m0: T.int32 = tile // N_TILES * BM
            n0: T.int32 = tile % N_TILES * BN
            done = T.meta_var(t * K_TILES)  # K tiles of the tiles before
            buf, turn = T.meta_var((t % 2, t // 2))  # accumulator, how often used
            c0 = T.meta_var(buf * BN)  # its first column

            # --- Load ------------------------------------------------------
            if warp_id == LOAD_WARP:
                if T.cuda.elect_sync():
                    for k in T.serial(K_TILES):
                        k0 = T.meta_var(k * BK)
                        s = T.meta_var((done + k) % PIPE_DEPTH)
                        used = T.meta_var((done + k) // PIPE_DEPTH)
                        bar = T.meta_var(full.ptr_to([s]))
                        T.cuda.mbarrier_wait(empty.ptr_to([s]), used % 2 ^ 1)
                        T.ptx.mbarrier.arrive.expect_tx.shared.b64(bar, BYTES)
                        tma_load(As[s, :, :], A[m0 : m0 + BM, k0 : k0 + BK], bar)
                        tma_load(Bs[s, :, :], B[n0 : n0 + BN, k0 : k0 + BK], bar)

            # --- MMA -------------------------------------------------------
            if warp_id == MMA_WARP:
                if T.cuda.elect_sync():
                    T.cuda.mbarrier_wait(tmem_empty.ptr_to([buf]), t % 2 ^ 1)
                    T.ptx.tcgen05.fence__after_thread_sync()
                    for k in T.serial(K_TILES):
                        s = T.meta_var((done + k) % PIPE_DEPTH)
                        used = T.meta_var((done + k) // PIPE_DEPTH)
                        T.cuda.mbarrier_wait(full.ptr_to([s]), used % 2)
                        T.ptx.tcgen05.fence__after_thread_sync()
                        Tx.gemm_async(
                            acc[:, c0 : c0 + BN],
                            As[s, :, :],
                            Bs[s, :, :],
                            accum=k != 0,
                            dispatch="tcgen05",
                        )
                        tcgen05_commit(empty.ptr_to([s]))
                    tcgen05_commit(tmem_full.ptr_to([buf]))

            # --- Epilogue --------------------------------------------------
            if wg_id == 0:
                T.cuda.mbarrier_wait(tmem_full.ptr_to([buf]), turn % 2)
                T.ptx.tcgen05.fence__after_thread_sync()
                regs = T.alloc_local((BN,), "float32")
                regs_wg = regs.view(BM, BN, layout=wg_local_layout(BN))
                Tx.wg.copy_async(regs_wg[:, :], acc[:, c0 : c0 + BN])
                T.ptx.tcgen05.wait__ld.sync.aligned()
                T.ptx.tcgen05.fence__before_thread_sync()
                T.ptx.mbarrier.arrive.shared.b64(tmem_empty.ptr_to([buf]), T.uint32(1))
                out = T.alloc_local((BN,), "float16")
                out_wg = out.view(BM, BN, layout=wg_local_layout(BN))
                Tx.cast(out[:], regs[:])
                Tx.wg.copy(D[m0 : m0 + BM, n0 : n0 + BN], out_wg[:, :])

        T.ptx.tcgen05.fence__before_thread_sync()
        T.cuda.cta_sync()
        T.ptx.tcgen05.fence__after_thread_sync()
        tmem.dealloc()

    return finish(kernel, "standstill", "blackwell")


if __name__ == "__main__":
    from pathlib import Path

    from mlsys_gpu import check

    print(check("14.7", Path(__file__)))
