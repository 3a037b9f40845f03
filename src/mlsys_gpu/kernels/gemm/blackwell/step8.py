"""Step 8, 2-CTA Cluster: two SMs compute one tile of D.

Idea      An MMA of a pair of CTAs reads the SMEM of both: each CTA loads what
          it did before, and its tensor core does twice the work with it.
Scope     New: clusters of two CTAs. A thread of CTA 0 issues MMAs for both.
Layout    New: tiles of 256 x 256. A CTA has half of the rows of A, B and D.
Dispatch  New: cta_group::2, for loads, MMAs and commits. D leaves in pieces.

Data path A, B  GMEM -> SMEM (TMA load, 128B swizzle)
          D     tcgen05.mma: SMEM -> TMEM -> registers -> SMEM -> GMEM (TMA)
Roles     one thread of warp 4 issues TMA loads, one of CTA 0's warp 5 MMAs;
          warps 0-3 read the accumulator, write D's tile to SMEM and store it
Barriers  full[6]       CTA 0's: two arrivals and 64 KB, from both CTAs
          empty[6]      one arrival: the MMAs have read the stage
          tmem_full[2]  one arrival: the tensor core has finished D's tile
          tmem_empty[2] CTA 0's: 256 arrivals, from warps 0-3 of both CTAs
          named 1       warps 0-3: Ds is free / D's tile is written
          bulk group    the store has read SMEM

Shapes    any M; N and K multiples of 8: TMA wants rows 16 bytes apart
Limits    Each 256 rows of A come with their own copy of B's 256.
"""

from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx

from mlsys_gpu.kernels.common import (
    arrive_at,
    at_cta,
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
PM, PN = 2 * BM, 2 * BN  # the pair's tile of D; a CTA loads half of each
BYTES = T.uint32((BM + BN) * BK * 2)  # of A's and B's tiles, zeros too
SWIZZLED = 64  # columns of one row of the swizzle: what one TMA store takes
TMEM_COLS = 512  # all of TMEM, so that it always starts at column 0


def check(M, N, K, dtype):
    """Raise ValueError, naming rule and value, for what build refuses."""
    check_tma("Step 8", M, N, K)
    check_dtype(dtype)


def build(M, N, K, dtype="float16", ctas=SMS):
    """D = A @ B.T for A [M, K], B [N, K], D [M, N]; at most ctas share it."""
    check(M, N, K, dtype)
    M_TILES, N_TILES, K_TILES = cdiv(M, PM), cdiv(N, PN), cdiv(K, BK)
    TILES = M_TILES * N_TILES
    PAIRS = max(1, min(ctas // 2, TILES))

    @T.prim_func
    def kernel(
        A: T.Buffer((M, K), dtype),
        B: T.Buffer((N, K), dtype),
        D: T.Buffer((M, N), dtype),
    ):
        T.device_entry()
        # --- Who is who ----------------------------------------------------
        rank = T.cta_id_in_cluster([2])
        cta = T.cta_id([2 * PAIRS])
        wg_id = T.warpgroup_id([2])
        warp_id = T.warp_id([8])
        tid = T.thread_id([256])

        # --- Shared memory and tensor memory -------------------------------
        pool = T.SMEMPool()
        tmem = T.TMEMPool(pool, total_cols=TMEM_COLS, cta_group=2)
        acc = tmem.alloc((BM, 2 * PN), "float32")
        full = pool.alloc((PIPE_DEPTH,), "uint64", align=8)
        empty = pool.alloc((PIPE_DEPTH,), "uint64", align=8)
        tmem_full = pool.alloc((2,), "uint64", align=8)
        tmem_empty = pool.alloc((2,), "uint64", align=8)
        As = pool.alloc_tcgen05_mma_AB((PIPE_DEPTH, BM, BK), dtype)
        Bs = pool.alloc_tcgen05_mma_AB((PIPE_DEPTH, BN, BK), dtype)
        Ds = pool.alloc_tcgen05_mma_AB((BM, SWIZZLED), dtype)
        pool.commit()
        tmem.commit()

        # --- Barriers ------------------------------------------------------
        if tid == 0:
            # One arrival completes a phase; full's needs the BYTES too.
            mbarrier_init(full, 2)
            mbarrier_init(empty, 1)
            mbarrier_init(tmem_full, 1)
            mbarrier_init(tmem_empty, 256)  # each thread of warps 0-3
            T.ptx.fence.mbarrier_init.release.cluster()
        T.cuda.cluster_sync()

        for t in T.serial(cdiv(TILES - cta // 2, PAIRS)):
            # --- Schedule: which tile of D ---------------------------------
            tile = T.meta_var(t * PAIRS + cta // 2)
            first = T.meta_var(tile // (GROUP_M * N_TILES) * GROUP_M)
            rows = T.meta_var(T.min(M_TILES - first, GROUP_M))
            place = T.meta_var(tile % (GROUP_M * N_TILES))
            m0: T.int32 = (first + place % rows) * PM + rank * BM
            n0: T.int32 = place // rows * PN
            done = T.meta_var(t * K_TILES)  # K tiles of the tiles before
            buf, turn = T.meta_var((t % 2, t // 2 % 2))  # accumulator, phase
            c0 = T.meta_var(buf * PN)  # the accumulator's first column

            # --- Load: GMEM -> SMEM -------------------------------------
            if warp_id == LOAD_WARP:
                if T.cuda.elect_sync():
                    for k in T.serial(K_TILES):
                        k0 = T.meta_var(k * BK)
                        s = T.meta_var((done + k) % PIPE_DEPTH)
                        b0 = T.meta_var(n0 + rank * BN)
                        bar = T.meta_var(at_cta(0, full.ptr_to([s])))
                        A_box = T.meta_var(A[m0 : m0 + BM, k0 : k0 + BK])
                        B_box = T.meta_var(B[b0 : b0 + BN, k0 : k0 + BK])
                        # The load overwrites what MMAs must have read.
                        # At first all is free: waiting for phase 1 of
                        # a barrier that is in phase 0 ends at once.
                        used = T.meta_var((done + k) // PIPE_DEPTH)
                        freed = T.meta_var(used % 2 ^ 1)
                        T.cuda.mbarrier_wait(empty.ptr_to([s]), freed)
                        arrive_at(bar, BYTES)
                        tma_load(As[s, :, :], A_box, bar, cta_group=2)
                        tma_load(Bs[s, :, :], B_box, bar, cta_group=2)

            # --- MMA: SMEM -> TMEM --------------------------------------
            if warp_id == MMA_WARP and rank == 0:
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
                            acc[:, c0 : c0 + PN],
                            As[stage, :, :],
                            Bs[stage, :, :],
                            accum=k != 0,
                            dispatch="tcgen05",
                            cta_group=2,
                        )
                        tcgen05_commit(empty.ptr_to([stage]), cta_group=2)
                    tcgen05_commit(tmem_full.ptr_to([buf]), cta_group=2)

            # --- Epilogue: TMEM -> registers -> SMEM -> GMEM ---------------
            if wg_id == 0:
                T.cuda.mbarrier_wait(tmem_full.ptr_to([buf]), turn)
                T.ptx.tcgen05.fence__after_thread_sync()
                out_wg = tmem_read(acc[:, c0 : c0 + PN], dtype, SWIZZLED)
                # TMEM is read: MMAs of the tile after the next overwrite it.
                T.ptx.tcgen05.fence__before_thread_sync()
                arrive_at(at_cta(0, tmem_empty.ptr_to([buf])))
                for h in T.unroll(PN // SWIZZLED):
                    c = T.meta_var(h * SWIZZLED)
                    n1 = T.meta_var(n0 + c)
                    T.cuda.warpgroup_sync(1)
                    Tx.wg.copy(Ds[:, :], out_wg[:, c : c + SWIZZLED])
                    # TMA reads by another path, the async proxy: so a fence.
                    T.ptx.fence.proxy.async_.shared__cta()
                    T.cuda.warpgroup_sync(1)
                    if tid == 0:
                        box = T.meta_var(D[m0 : m0 + BM, n1 : n1 + SWIZZLED])
                        tma_store(box, Ds[:, :])
                        # TMA must have read SMEM before others write it.
                        T.ptx.cp.async_.bulk.commit_group()
                        T.ptx.cp.async_.bulk.wait_group.read(0)

        # --- Give TMEM back ------------------------------------------------
        # Warp 0 frees it, once no CTA of the pair uses the other any more.
        T.ptx.tcgen05.fence__before_thread_sync()
        T.cuda.cluster_sync()
        T.ptx.tcgen05.fence__after_thread_sync()
        tmem.dealloc()

    return finish(kernel, "gemm_blackwell_step8", "blackwell")
