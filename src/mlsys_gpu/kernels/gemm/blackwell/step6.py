"""Step 6, Persistent Kernel + Tile Scheduler: a CTA takes tile after tile.

Idea      Start as many CTAs as there are SMs, and let each compute a list of
          tiles. It sets up TMEM and barriers once, and the order of tiles is
          the kernel's choice.
Scope     New: a grid of at most 148 CTAs. CTA c takes tiles c, c + CTAS, …
Layout    New: the order of tiles, down 8 rows, then on to the next column.
          CTAs that work at one time share rows of A and B, so L2 serves them.
Dispatch  Unchanged. Stages and phases go on from tile to tile: they follow
          from all K tiles that the CTA has done.

Data path A, B  GMEM -> SMEM (TMA load, 128B swizzle)
          D     tcgen05.mma: SMEM -> TMEM -> registers -> SMEM -> GMEM (TMA)
Roles     one thread of warp 0 issues TMA and MMAs; all 128 threads read the
          accumulator and write D's tile to SMEM
Barriers  full[2]       one arrival and 32 KB: the tiles are in the stage
          empty[2]      one arrival: the MMAs have read the stage
          mma_bar       one arrival: the tensor core has finished D's tile
          CTA barrier   D's tile is written, and TMEM read / all is done
          bulk group    the store has read SMEM

Shapes    any M; N and K multiples of 8: TMA wants rows 16 bytes apart
Limits    Two stages still hide only part of a load, and one thread does one
          thing at a time: nothing loads or multiplies while D leaves.
"""

from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import wg_local_layout

from mlsys_gpu.kernels.common import (
    cdiv,
    check_dtype,
    check_tma,
    finish,
    mbarrier_init,
    tcgen05_commit,
    tma_load,
    tma_store,
)

SMS = 148  # of a B200; each runs one CTA
GROUP_M = 8  # rows of tiles that are worked through together
PIPE_DEPTH = 2  # stages of SMEM
BM, BN, BK = 128, 128, 64  # 64 x 16 bit = 128 bytes: one row of the swizzle
BYTES = T.uint32((BM + BN) * BK * 2)  # of A's and B's tiles, zeros too
SWIZZLED = 64  # columns of one row of the swizzle: what one TMA store takes
TMEM_COLS = 512  # all of TMEM, so that it always starts at column 0


def check(M, N, K, dtype):
    """Raise ValueError, naming rule and value, for what build refuses."""
    check_tma("Step 6", M, N, K)
    check_dtype(dtype)


def build(M, N, K, dtype="float16", ctas=SMS):
    """D = A @ B.T for A [M, K], B [N, K], D [M, N]; at most ctas share it."""
    check(M, N, K, dtype)
    M_TILES, N_TILES, K_TILES = cdiv(M, BM), cdiv(N, BN), cdiv(K, BK)
    TILES = M_TILES * N_TILES
    CTAS = min(ctas, TILES)

    @T.prim_func
    def kernel(
        A: T.Buffer((M, K), dtype),
        B: T.Buffer((N, K), dtype),
        D: T.Buffer((M, N), dtype),
    ):
        T.device_entry()
        # --- Who is who ----------------------------------------------------
        cta = T.cta_id([CTAS])
        wg_id = T.warpgroup_id([1])
        warp_id = T.warp_id([4])
        tid = T.thread_id([128])

        # --- Shared memory and tensor memory -------------------------------
        pool = T.SMEMPool()
        tmem = T.TMEMPool(pool, total_cols=TMEM_COLS)
        acc = tmem.alloc((BM, BN), "float32")
        full = pool.alloc((PIPE_DEPTH,), "uint64", align=8)
        empty = pool.alloc((PIPE_DEPTH,), "uint64", align=8)
        mma_bar = pool.alloc((1,), "uint64", align=8)
        As = pool.alloc_tcgen05_mma_AB((PIPE_DEPTH, BM, BK), dtype)
        Bs = pool.alloc_tcgen05_mma_AB((PIPE_DEPTH, BN, BK), dtype)
        Ds = pool.alloc_tcgen05_mma_AB((BM, BN), dtype)
        pool.commit()
        tmem.commit()

        # --- Barriers ------------------------------------------------------
        if tid == 0:
            # One arrival completes a phase; full's needs the BYTES too.
            mbarrier_init(full, 1)
            mbarrier_init(empty, 1)
            mbarrier_init(mma_bar, 1)
            T.ptx.fence.mbarrier_init.release.cluster()
        T.cuda.cta_sync()

        for t in T.serial(cdiv(TILES - cta, CTAS)):
            # --- Schedule: which tile of D ---------------------------------
            tile = T.meta_var(t * CTAS + cta)
            first = T.meta_var(tile // (GROUP_M * N_TILES) * GROUP_M)
            rows = T.meta_var(T.min(M_TILES - first, GROUP_M))
            place = T.meta_var(tile % (GROUP_M * N_TILES))
            m0: T.int32 = (first + place % rows) * BM
            n0: T.int32 = place // rows * BN
            done = T.meta_var(t * K_TILES)  # K tiles of the tiles before

            if warp_id == 0:
                if T.cuda.elect_sync():
                    for k in T.serial(1 - PIPE_DEPTH, K_TILES):
                        # --- Load: GMEM -> SMEM, ahead of the MMA ----------
                        ahead = T.meta_var(k + PIPE_DEPTH - 1)
                        if ahead < K_TILES:
                            k0 = T.meta_var(ahead * BK)
                            s = T.meta_var((done + ahead) % PIPE_DEPTH)
                            bar = T.meta_var(full.ptr_to([s]))
                            A_box = T.meta_var(A[m0 : m0 + BM, k0 : k0 + BK])
                            B_box = T.meta_var(B[n0 : n0 + BN, k0 : k0 + BK])
                            # The load overwrites what MMAs must have read.
                            # At first all is free: waiting for phase 1 of
                            # a barrier that is in phase 0 ends at once.
                            used = T.meta_var((done + ahead) // PIPE_DEPTH)
                            freed = T.meta_var(used % 2 ^ 1)
                            T.cuda.mbarrier_wait(empty.ptr_to([s]), freed)
                            T.ptx.mbarrier.arrive.expect_tx.shared.b64(
                                bar,
                                BYTES,
                            )
                            tma_load(As[s, :, :], A_box, bar)
                            tma_load(Bs[s, :, :], B_box, bar)

                        # --- MMA: SMEM -> TMEM -----------------------------
                        if k >= 0:
                            # Each stage has its own barriers: a phase per
                            # PIPE_DEPTH K tiles, so 0, 0, 1, 1, 0, 0, …
                            stage = T.meta_var((done + k) % PIPE_DEPTH)
                            phase = T.meta_var((done + k) // PIPE_DEPTH % 2)
                            # TMA and MMA: both the async proxy, so no fence.
                            T.cuda.mbarrier_wait(full.ptr_to([stage]), phase)
                            T.ptx.tcgen05.fence__after_thread_sync()
                            Tx.gemm_async(
                                acc[:, :],
                                As[stage, :, :],
                                Bs[stage, :, :],
                                accum=k != 0,
                                dispatch="tcgen05",
                            )
                            tcgen05_commit(empty.ptr_to([stage]))
                    tcgen05_commit(mma_bar.ptr_to([0]))
            # Everyone waits for the tile's phase: then TMEM holds the result.
            T.cuda.mbarrier_wait(mma_bar.ptr_to([0]), t % 2)

            # --- Epilogue: TMEM -> registers -> SMEM -> GMEM ---------------
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
            # All warps have read TMEM: the next tile's MMAs overwrite it.
            T.ptx.tcgen05.fence__before_thread_sync()
            T.cuda.cta_sync()
            if warp_id == 0:
                if T.cuda.elect_sync():
                    for h in T.unroll(BN // SWIZZLED):
                        c = T.meta_var(h * SWIZZLED)
                        n1 = T.meta_var(n0 + c)
                        box = T.meta_var(D[m0 : m0 + BM, n1 : n1 + SWIZZLED])
                        tma_store(box, Ds[:, c : c + SWIZZLED])
                    # TMA must have read SMEM before others write it again.
                    T.ptx.cp.async_.bulk.commit_group()
                    T.ptx.cp.async_.bulk.wait_group.read(0)

        # --- Give TMEM back ------------------------------------------------
        # Warp 0 frees it for the next CTA, once all four warps have read it.
        T.ptx.tcgen05.fence__before_thread_sync()
        T.cuda.cta_sync()
        T.ptx.tcgen05.fence__after_thread_sync()
        tmem.dealloc()

    return finish(kernel, "gemm_blackwell_step6", "blackwell")
