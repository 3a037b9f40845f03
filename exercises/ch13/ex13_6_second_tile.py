# Exercise 13.6. Stub 6cd1ec5329ca: yours to edit; `mlsys-gpu reset 13.6` brings it back.
"""Exercise 13.6 (debug): the second tile of D.

D = A @ B.T for A [128, K], B [N, K] and D [128, N] in float16 on Blackwell: a
small Step 6 with a single CTA, which computes all tiles of 128 x 64, one after
the other. N is a multiple of 64, K of 8.

For one tile of D it is right. For several it is right if a tile of D has four
tiles of K, or eight. With three, or five, it is not. One line is at fault.
Find it, mend it, and change nothing else.
"""

from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import wg_local_layout

from mlsys_gpu.kernels.common import cdiv, finish, tcgen05_commit, tma_load

PIPE_DEPTH = 2
BM, BN, BK = 128, 64, 64
BYTES = T.uint32((BM + BN) * BK * 2)


def build(N, K):
    """D = A @ B.T for A [128, K], B [N, K]; N is a multiple of 64, K of 8."""
    K_TILES = cdiv(K, BK)

    @T.prim_func
    def kernel(
        A: T.Buffer((BM, K), "float16"),
        B: T.Buffer((N, K), "float16"),
        D: T.Buffer((BM, N), "float16"),
    ):
        T.device_entry()
        cta = T.cta_id([1])
        wg_id = T.warpgroup_id([1])
        warp_id = T.warp_id([4])
        tid = T.thread_id([128])
        pool = T.SMEMPool()
        tmem = T.TMEMPool(pool, total_cols=512)
        acc = tmem.alloc((BM, BN), "float32")
        full = pool.alloc((PIPE_DEPTH,), "uint64", align=8)
        empty = pool.alloc((PIPE_DEPTH,), "uint64", align=8)
        mma_bar = pool.alloc((1,), "uint64", align=8)
        As = pool.alloc_tcgen05_mma_AB((PIPE_DEPTH, BM, BK), "float16")
        Bs = pool.alloc_tcgen05_mma_AB((PIPE_DEPTH, BN, BK), "float16")
        pool.commit()
        tmem.commit()
        if tid == 0:
            for s in T.unroll(PIPE_DEPTH):
                T.ptx.mbarrier.init.shared.b64(full.ptr_to([s]), T.uint32(1))
                T.ptx.mbarrier.init.shared.b64(empty.ptr_to([s]), T.uint32(1))
            T.ptx.mbarrier.init.shared.b64(mma_bar.ptr_to([0]), T.uint32(1))
            T.ptx.fence.mbarrier_init.release.cluster()
        T.cuda.cta_sync()

        for t in T.serial(N // BN):
            n0 = T.meta_var(t * BN)
            done = T.meta_var(t * K_TILES)  # K tiles of the tiles before
            if warp_id == 0:
                if T.cuda.elect_sync():
                    for k in T.serial(1 - PIPE_DEPTH, K_TILES):
                        # --- Load, ahead of the MMA ------------------------
                        ahead = T.meta_var(k + PIPE_DEPTH - 1)
                        if ahead < K_TILES:
                            k0 = T.meta_var(ahead * BK)
                            s = T.meta_var((done + ahead) % PIPE_DEPTH)
                            bar = T.meta_var(full.ptr_to([s]))
                            turn = T.meta_var(ahead // PIPE_DEPTH)
                            T.cuda.mbarrier_wait(empty.ptr_to([s]), turn % 2 ^ 1)
                            T.ptx.mbarrier.arrive.expect_tx.shared.b64(bar, BYTES)
                            tma_load(As[s, :, :], A[:, k0 : k0 + BK], bar)
                            tma_load(Bs[s, :, :], B[n0 : n0 + BN, k0 : k0 + BK], bar)

                        # --- MMA -------------------------------------------
                        if k >= 0:
                            s = T.meta_var((done + k) % PIPE_DEPTH)
                            phase = T.meta_var((done + k) // PIPE_DEPTH % 2)
                            T.cuda.mbarrier_wait(full.ptr_to([s]), phase)
                            T.ptx.tcgen05.fence__after_thread_sync()
                            Tx.gemm_async(
                                acc[:, :],
                                As[s, :, :],
                                Bs[s, :, :],
                                accum=k != 0,
                                dispatch="tcgen05",
                            )
                            tcgen05_commit(empty.ptr_to([s]))
                    tcgen05_commit(mma_bar.ptr_to([0]))
            T.cuda.mbarrier_wait(mma_bar.ptr_to([0]), t % 2)

            # --- Epilogue --------------------------------------------------
            T.ptx.tcgen05.fence__after_thread_sync()
            regs = T.alloc_local((BN,), "float32")
            regs_wg = regs.view(BM, BN, layout=wg_local_layout(BN))
            Tx.wg.copy_async(regs_wg[:, :], acc[:, :])
            T.ptx.tcgen05.wait__ld.sync.aligned()
            out = T.alloc_local((BN,), "float16")
            out_wg = out.view(BM, BN, layout=wg_local_layout(BN))
            Tx.cast(out[:], regs[:])
            Tx.wg.copy(D[:, n0 : n0 + BN], out_wg[:, :])
            # All warps have read TMEM: the next tile's MMAs overwrite it.
            T.ptx.tcgen05.fence__before_thread_sync()
            T.cuda.cta_sync()
            T.ptx.tcgen05.fence__after_thread_sync()
        tmem.dealloc()

    return finish(kernel, "second_tile", "blackwell")


if __name__ == "__main__":
    from pathlib import Path

    from mlsys_gpu import check

    print(check("13.6", Path(__file__)))
