"""Step 2, K-Loop Accumulation: one 128x128 tile of D, any K.

Idea      Walk along K in tiles of 64 and let the tensor core add each product
          to the accumulator that stays in TMEM.
Scope     Unchanged: one CTA of 128 threads.
Layout    Unchanged. The two SMEM tiles are filled again for every K tile.
Dispatch  New: `accum` is off for the first K tile (TMEM holds garbage) and on
          for all others. The barrier completes a phase per K tile, so the
          phase to wait for flips each time.

Data path A, B  GMEM -> registers -> SMEM (synchronous copies, 128B swizzle)
          D     tcgen05.mma: SMEM -> TMEM, then TMEM -> registers -> GMEM
Roles     all 128 threads copy and write D; one thread of warp 0 issues MMAs
Barriers  CTA barrier   the tiles are in SMEM / everyone is done with TMEM
          mma_bar       one arrival per K tile: the tensor core has finished

Shapes    M = N = 128, K a multiple of 64
Limits    One tile of D, so one SM works. Copies and MMA take turns: while
          one runs, the other waits.
"""

from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import wg_local_layout

from mlsys_gpu.kernels.common import (
    check_dtype,
    check_equal,
    check_multiple,
    finish,
    tcgen05_commit,
)

BM, BN, BK = 128, 128, 64  # 64 x 16 bit = 128 bytes: one row of the swizzle
TMEM_COLS = 512  # all of TMEM, so that it always starts at column 0


def check(M, N, K, dtype):
    """Raise ValueError, naming rule and value, for what build refuses."""
    check_equal("Step 2", M=(M, BM), N=(N, BN))
    check_multiple("Step 2", K=(K, BK))
    check_dtype(dtype)


def build(M, N, K, dtype="float16"):
    """D = A @ B.T for A [M, K], B [N, K] and D [M, N] of one 16-bit dtype."""
    check(M, N, K, dtype)

    @T.prim_func
    def kernel(
        A: T.Buffer((M, K), dtype),
        B: T.Buffer((N, K), dtype),
        D: T.Buffer((M, N), dtype),
    ):
        T.device_entry()
        # --- Who is who ----------------------------------------------------
        cta = T.cta_id([1])
        wg_id = T.warpgroup_id([1])
        warp_id = T.warp_id([4])
        tid = T.thread_id([128])

        # --- Shared memory and tensor memory -------------------------------
        pool = T.SMEMPool()
        tmem = T.TMEMPool(pool, total_cols=TMEM_COLS)
        acc = tmem.alloc((BM, BN), "float32")
        mma_bar = pool.alloc((1,), "uint64", align=8)
        As = pool.alloc_tcgen05_mma_AB((BM, BK), dtype)
        Bs = pool.alloc_tcgen05_mma_AB((BN, BK), dtype)
        pool.commit()
        tmem.commit()

        # --- Barriers ------------------------------------------------------
        if tid == 0:
            # One arrival completes a phase: the commit after the MMAs.
            T.ptx.mbarrier.init.shared.b64(mma_bar.ptr_to([0]), T.uint32(1))
            T.ptx.fence.mbarrier_init.release.cluster()
        T.cuda.cta_sync()
        mma_phase: T.int32 = 0

        for k in T.serial(K // BK):
            k0 = T.meta_var(k * BK)

            # --- Load: GMEM -> SMEM ----------------------------------------
            Tx.cta.copy(As[:, :], A[:, k0 : k0 + BK])
            Tx.cta.copy(Bs[:, :], B[:, k0 : k0 + BK])
            # Threads wrote the tiles; the tensor core reads them by another
            # path (the async proxy), which sees them only after this fence.
            T.ptx.fence.proxy.async_.shared__cta()
            T.cuda.cta_sync()

            # --- MMA: SMEM -> TMEM -----------------------------------------
            if warp_id == 0:
                if T.cuda.elect_sync():
                    T.ptx.tcgen05.fence__after_thread_sync()
                    Tx.gemm_async(
                        acc[:, :],
                        As[:, :],
                        Bs[:, :],
                        accum=k != 0,
                        dispatch="tcgen05",
                    )
                    tcgen05_commit(mma_bar.ptr_to([0]))
            # Everyone waits: the next copy overwrites what the MMA reads.
            # The barrier's phases go 0, 1, 0, …: wait for each in turn.
            T.cuda.mbarrier_wait(mma_bar.ptr_to([0]), mma_phase)
            mma_phase = mma_phase ^ 1

        # --- Epilogue: TMEM -> registers -> GMEM ---------------------------
        T.ptx.tcgen05.fence__after_thread_sync()
        regs = T.alloc_local((BN,), "float32")
        regs_wg = regs.view(BM, BN, layout=wg_local_layout(BN))
        Tx.wg.copy_async(regs_wg[:, :], acc[:, :])
        T.ptx.tcgen05.wait__ld.sync.aligned()
        out = T.alloc_local((BN,), dtype)
        out_wg = out.view(BM, BN, layout=wg_local_layout(BN))
        Tx.cast(out[:], regs[:])
        Tx.wg.copy(D[:, :], out_wg[:, :])

        # --- Give TMEM back ------------------------------------------------
        # Warp 0 frees it for the next CTA, once all four warps have read it.
        T.ptx.tcgen05.fence__before_thread_sync()
        T.cuda.cta_sync()
        T.ptx.tcgen05.fence__after_thread_sync()
        tmem.dealloc()

    return finish(kernel, "gemm_blackwell_step2", "blackwell")
