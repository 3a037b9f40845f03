"""Step 7, Warp Specialization + Pipeline: each job has warps of its own.

Idea      Loads, MMAs and epilogue run at one time, in warps that meet only at
          mbarriers: a tile's epilogue even under the MMAs of the next tile.
Scope     New: a second warpgroup. Each role goes through the CTA's tiles.
Layout    New: six stages of SMEM, two accumulators in TMEM, used in turn.
Dispatch  Unchanged. Stages and phases go on from tile to tile: they follow
          from all K tiles that the CTA has done.

Data path A, B  GMEM -> SMEM (TMA load, 128B swizzle)
          D     tcgen05.mma: SMEM -> TMEM -> registers -> SMEM -> GMEM (TMA)
Roles     one thread of warp 4 issues TMA loads, one of warp 5 MMAs;
          warps 0-3 read the accumulator, write D's tile to SMEM and store it
Barriers  full[6]       one arrival and 32 KB: the tiles are in the stage
          empty[6]      one arrival: the MMAs have read the stage
          tmem_full[2]  one arrival: the tensor core has finished D's tile
          tmem_empty[2] 128 arrivals: warps 0-3 have read the accumulator
          named 1       warps 0-3: Ds is free / D's tile is written
          bulk group    the store has read SMEM

Shapes    any M; N and K multiples of 8: TMA wants rows 16 bytes apart
Limits    An SM loads 128 rows of A and of B for a tile: L2 can hardly bring
          them as fast as the tensor core multiplies them.
"""

from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx

from mlsys_gpu.kernels.common import (
    cdiv,
    check_dtype,
    check_tma,
    finish,
    mbarrier_init,
    tcgen05_commit,
    tma_load,
    tma_store,
    tmem_read,
)

SMS = 148  # of a B200; each runs one CTA
GROUP_M = 8  # rows of tiles that are worked through together
LOAD_WARP, MMA_WARP = 4, 5  # after the epilogue's warpgroup
PIPE_DEPTH = 6  # stages of SMEM
BM, BN, BK = 128, 128, 64  # 64 x 16 bit = 128 bytes: one row of the swizzle
BYTES = T.uint32((BM + BN) * BK * 2)  # of A's and B's tiles, zeros too
SWIZZLED = 64  # columns of one row of the swizzle: what one TMA store takes
TMEM_COLS = 512  # all of TMEM, so that it always starts at column 0


def check(M, N, K, dtype):
    """Raise ValueError, naming rule and value, for what build refuses."""
    check_tma("Step 7", M, N, K)
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
        wg_id = T.warpgroup_id([2])
        warp_id = T.warp_id([8])
        tid = T.thread_id([256])

        # --- Shared memory and tensor memory -------------------------------
        pool = T.SMEMPool()
        tmem = T.TMEMPool(pool, total_cols=TMEM_COLS)
        acc = tmem.alloc((BM, 2 * BN), "float32")
        full = pool.alloc((PIPE_DEPTH,), "uint64", align=8)
        empty = pool.alloc((PIPE_DEPTH,), "uint64", align=8)
        tmem_full = pool.alloc((2,), "uint64", align=8)
        tmem_empty = pool.alloc((2,), "uint64", align=8)
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
            mbarrier_init(tmem_full, 1)
            mbarrier_init(tmem_empty, 128)  # each thread of warps 0-3
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
            buf, turn = T.meta_var((t % 2, t // 2 % 2))  # accumulator, phase
            c0 = T.meta_var(buf * BN)  # the accumulator's first column

            # --- Load: GMEM -> SMEM -------------------------------------
            if warp_id == LOAD_WARP:
                if T.cuda.elect_sync():
                    for k in T.serial(K_TILES):
                        k0 = T.meta_var(k * BK)
                        s = T.meta_var((done + k) % PIPE_DEPTH)
                        bar = T.meta_var(full.ptr_to([s]))
                        A_box = T.meta_var(A[m0 : m0 + BM, k0 : k0 + BK])
                        B_box = T.meta_var(B[n0 : n0 + BN, k0 : k0 + BK])
                        # The load overwrites what MMAs must have read.
                        # At first all is free: waiting for phase 1 of
                        # a barrier that is in phase 0 ends at once.
                        used = T.meta_var((done + k) // PIPE_DEPTH)
                        freed = T.meta_var(used % 2 ^ 1)
                        T.cuda.mbarrier_wait(empty.ptr_to([s]), freed)
                        T.ptx.mbarrier.arrive.expect_tx.shared.b64(bar, BYTES)
                        tma_load(As[s, :, :], A_box, bar)
                        tma_load(Bs[s, :, :], B_box, bar)

            # --- MMA: SMEM -> TMEM --------------------------------------
            if warp_id == MMA_WARP:
                if T.cuda.elect_sync():
                    # The accumulator must have been read, like a stage.
                    T.cuda.mbarrier_wait(tmem_empty.ptr_to([buf]), turn ^ 1)
                    T.ptx.tcgen05.fence__after_thread_sync()
                    for k in T.serial(K_TILES):
                        # Each stage has its own barriers: a phase per
                        # PIPE_DEPTH K tiles, so 0, 0, 1, 1, 0, 0, …
                        stage = T.meta_var((done + k) % PIPE_DEPTH)
                        phase = T.meta_var((done + k) // PIPE_DEPTH % 2)
                        # TMA and MMA: both the async proxy, so no fence.
                        T.cuda.mbarrier_wait(full.ptr_to([stage]), phase)
                        T.ptx.tcgen05.fence__after_thread_sync()
                        Tx.gemm_async(
                            acc[:, c0 : c0 + BN],
                            As[stage, :, :],
                            Bs[stage, :, :],
                            accum=k != 0,
                            dispatch="tcgen05",
                        )
                        tcgen05_commit(empty.ptr_to([stage]))
                    tcgen05_commit(tmem_full.ptr_to([buf]))

            # --- Epilogue: TMEM -> registers -> SMEM -> GMEM ---------------
            if wg_id == 0:
                T.cuda.mbarrier_wait(tmem_full.ptr_to([buf]), turn)
                T.ptx.tcgen05.fence__after_thread_sync()
                out_wg = tmem_read(acc[:, c0 : c0 + BN], dtype)
                T.cuda.warpgroup_sync(1)
                Tx.wg.copy(Ds[:, :], out_wg[:, :])
                # TMA reads by another path, the async proxy: hence the fence.
                T.ptx.fence.proxy.async_.shared__cta()
                # TMEM is read: MMAs of the tile after the next overwrite it.
                T.ptx.tcgen05.fence__before_thread_sync()
                T.ptx.mbarrier.arrive.shared.b64(tmem_empty.ptr_to([buf]))
                T.cuda.warpgroup_sync(1)
                if tid == 0:
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

    return finish(kernel, "gemm_blackwell_step7", "blackwell")
