"""Step 1, Sequential Single-Tile GEMM: one 128x128 tile of D, K = 64.

Idea      The whole data path of a GEMM, once and in order: load two tiles,
          multiply them, store the result. Nothing overlaps.
Scope     One CTA of 128 threads, which is one warpgroup of four warps.
Layout    A and B tiles in SMEM, K-major, 128B swizzle. The accumulator in
          TMEM: row m of D in lane m, column n in column n. In registers:
          thread m holds row m.
Dispatch  Tx.cta.copy      128 threads, 16 bytes a thread at a time
          Tx.gemm_async    tcgen05.mma, issued by one thread
          Tx.wg.copy_async tcgen05.ld, each warp reads its own 32 lanes
          Tx.wg.copy       each thread stores its own row

Data path A, B  GMEM -> registers -> SMEM (synchronous copies, 128B swizzle)
          D     tcgen05.mma: SMEM -> TMEM, then TMEM -> registers -> GMEM
Roles     all 128 threads copy and write D; one thread of warp 0 issues MMAs
Barriers  CTA barrier   the tiles are in SMEM / everyone is done with TMEM
          mma_bar       one arrival: the tensor core has finished

Shapes    M = N = 128, K = 64
Limits    One tile of D and one tile of K: a smallest complete example.
"""

from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import wg_local_layout

from mlsys_gpu.kernels.common import (
    check_dtype,
    check_equal,
    finish,
    tcgen05_commit,
)

BM, BN, BK = 128, 128, 64  # 64 x 16 bit = 128 bytes: one row of the swizzle
TMEM_COLS = 512  # all of TMEM, so that it always starts at column 0


def check(M, N, K, dtype):
    """Raise ValueError, naming rule and value, for what build refuses."""
    check_equal("Step 1", M=(M, BM), N=(N, BN), K=(K, BK))
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

        # --- Load: GMEM -> SMEM --------------------------------------------
        Tx.cta.copy(As[:, :], A[:, :])
        Tx.cta.copy(Bs[:, :], B[:, :])
        # Threads wrote the tiles; the tensor core reads them by another
        # path (the async proxy), which sees them only after this fence.
        T.ptx.fence.proxy.async_.shared__cta()
        T.cuda.cta_sync()

        # --- MMA: SMEM -> TMEM ---------------------------------------------
        if warp_id == 0:
            if T.cuda.elect_sync():
                T.ptx.tcgen05.fence__after_thread_sync()
                Tx.gemm_async(
                    acc[:, :],
                    As[:, :],
                    Bs[:, :],
                    accum=False,
                    dispatch="tcgen05",
                )
                tcgen05_commit(mma_bar.ptr_to([0]))
        # Everyone waits for phase 0: then TMEM holds the result.
        T.cuda.mbarrier_wait(mma_bar.ptr_to([0]), 0)

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

    return finish(kernel, "gemm_blackwell_step1", "blackwell")
