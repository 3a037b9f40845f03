"""Step 4, TMA Async Load: one thread asks, the TMA engine copies the tiles.

Idea      A copy is one instruction of one thread. The TMA engine knows the
          matrix from a tensor map: it computes addresses, swizzles, fills
          what lies past an edge with zeros, and counts the bytes down on an
          mbarrier. D leaves the same way: from SMEM, clipped at the edges.
Scope     New: one thread runs the K loop, and the others wait for the tile
          of D. The grid rounds up: tiles may hang over the edges.
Layout    New: a tile of D in SMEM with the 128B swizzle. A row of the swizzle
          holds 64 values, so two halves of 64 columns follow each other.
Dispatch  New: Tx.copy_async  cp.async.bulk.tensor, issued by one thread
               Tx.wg.copy     to SMEM now, 16 bytes a thread at a time

Data path A, B  GMEM -> SMEM (TMA load, 128B swizzle)
          D     tcgen05.mma: SMEM -> TMEM -> registers -> SMEM -> GMEM (TMA)
Roles     one thread of warp 0 issues TMA and MMAs; all 128 threads read the
          accumulator and write D's tile to SMEM
Barriers  full          one arrival and 32 KB: the tiles are in SMEM
          empty         one arrival: the MMAs have read the tiles
          mma_bar       one arrival: the tensor core has finished D's tile
          CTA barrier   D's tile is written / everyone is done with TMEM
          bulk group    the store has read SMEM

Shapes    any M; N and K multiples of 8: TMA wants rows 16 bytes apart
Limits    The threads' hands are free, but they only wait: the next load
          starts when the MMA has finished, and the MMA when it has landed.
"""

from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import wg_local_layout

from mlsys_gpu.kernels.common import (
    cdiv,
    check_dtype,
    check_tma,
    finish,
    tcgen05_commit,
    tma_load,
    tma_store,
)

BM, BN, BK = 128, 128, 64  # 64 x 16 bit = 128 bytes: one row of the swizzle
BYTES = T.uint32((BM + BN) * BK * 2)  # of A's and B's tiles, zeros too
SWIZZLED = 64  # columns of one row of the swizzle: what one TMA store takes
TMEM_COLS = 512  # all of TMEM, so that it always starts at column 0


def check(M, N, K, dtype):
    """Raise ValueError, naming rule and value, for what build refuses."""
    check_tma("Step 4", M, N, K)
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
        bm, bn = T.cta_id([cdiv(M, BM), cdiv(N, BN)])
        wg_id = T.warpgroup_id([1])
        warp_id = T.warp_id([4])
        tid = T.thread_id([128])
        m0 = T.meta_var(bm * BM)
        n0 = T.meta_var(bn * BN)

        # --- Shared memory and tensor memory -------------------------------
        pool = T.SMEMPool()
        tmem = T.TMEMPool(pool, total_cols=TMEM_COLS)
        acc = tmem.alloc((BM, BN), "float32")
        full = pool.alloc((1,), "uint64", align=8)
        empty = pool.alloc((1,), "uint64", align=8)
        mma_bar = pool.alloc((1,), "uint64", align=8)
        As = pool.alloc_tcgen05_mma_AB((BM, BK), dtype)
        Bs = pool.alloc_tcgen05_mma_AB((BN, BK), dtype)
        Ds = pool.alloc_tcgen05_mma_AB((BM, BN), dtype)
        pool.commit()
        tmem.commit()

        # --- Barriers ------------------------------------------------------
        if tid == 0:
            # One arrival completes a phase; full's needs the BYTES too.
            T.ptx.mbarrier.init.shared.b64(full.ptr_to([0]), T.uint32(1))
            T.ptx.mbarrier.init.shared.b64(empty.ptr_to([0]), T.uint32(1))
            T.ptx.mbarrier.init.shared.b64(mma_bar.ptr_to([0]), T.uint32(1))
            T.ptx.fence.mbarrier_init.release.cluster()
        T.cuda.cta_sync()
        phase: T.int32 = 0

        if warp_id == 0:
            if T.cuda.elect_sync():
                for k in T.serial(cdiv(K, BK)):
                    k0 = T.meta_var(k * BK)

                    # --- Load: GMEM -> SMEM --------------------------------
                    bar = T.meta_var(full.ptr_to([0]))
                    A_box = T.meta_var(A[m0 : m0 + BM, k0 : k0 + BK])
                    B_box = T.meta_var(B[n0 : n0 + BN, k0 : k0 + BK])
                    T.ptx.mbarrier.arrive.expect_tx.shared.b64(bar, BYTES)
                    tma_load(As[:, :], A_box, bar)
                    tma_load(Bs[:, :], B_box, bar)
                    # TMA and MMA: both the async proxy, so no fence.
                    T.cuda.mbarrier_wait(full.ptr_to([0]), phase)

                    # --- MMA: SMEM -> TMEM ---------------------------------
                    T.ptx.tcgen05.fence__after_thread_sync()
                    Tx.gemm_async(
                        acc[:, :],
                        As[:, :],
                        Bs[:, :],
                        accum=k != 0,
                        dispatch="tcgen05",
                    )
                    tcgen05_commit(empty.ptr_to([0]))
                    # The next load overwrites what the MMAs read.
                    T.cuda.mbarrier_wait(empty.ptr_to([0]), phase)
                    phase = phase ^ 1
                tcgen05_commit(mma_bar.ptr_to([0]))
        # Everyone waits for phase 0: then TMEM holds the result.
        T.cuda.mbarrier_wait(mma_bar.ptr_to([0]), 0)

        # --- Epilogue: TMEM -> registers -> SMEM -> GMEM -------------------
        T.ptx.tcgen05.fence__after_thread_sync()
        regs = T.alloc_local((BN,), "float32")
        regs_wg = regs.view(BM, BN, layout=wg_local_layout(BN))
        Tx.wg.copy_async(regs_wg[:, :], acc[:, :])
        T.ptx.tcgen05.wait__ld.sync.aligned()
        out = T.alloc_local((BN,), dtype)
        out_wg = out.view(BM, BN, layout=wg_local_layout(BN))
        Tx.cast(out[:], regs[:])
        Tx.wg.copy(Ds[:, :], out_wg[:, :])
        # Threads wrote the tile; TMA reads it by another path (the async
        # proxy), which sees it only after this fence.
        T.ptx.fence.proxy.async_.shared__cta()
        T.cuda.cta_sync()
        if warp_id == 0:
            if T.cuda.elect_sync():
                for h in T.unroll(BN // SWIZZLED):
                    c = T.meta_var(h * SWIZZLED)
                    n1 = T.meta_var(n0 + c)
                    box = T.meta_var(D[m0 : m0 + BM, n1 : n1 + SWIZZLED])
                    tma_store(box, Ds[:, c : c + SWIZZLED])
                # The CTA must not end, and free SMEM, before TMA has read it.
                T.ptx.cp.async_.bulk.commit_group()
                T.ptx.cp.async_.bulk.wait_group.read(0)

        # --- Give TMEM back ------------------------------------------------
        # Warp 0 frees it for the next CTA, once all four warps have read it.
        T.ptx.tcgen05.fence__before_thread_sync()
        T.cuda.cta_sync()
        T.ptx.tcgen05.fence__after_thread_sync()
        tmem.dealloc()

    return finish(kernel, "gemm_blackwell_step4", "blackwell")
