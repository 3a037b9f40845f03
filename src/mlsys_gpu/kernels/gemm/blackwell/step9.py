"""Step 9, Multi-Consumer Warp Specialization: two MMA warps share B's tile.

Idea      One producer, two consumers: each multiplies rows of A of its own by
          the same rows of B, which are loaded half as often.
Scope     New: a second MMA warp and a second warpgroup of the epilogue.
Layout    New: tiles of 512 x 256. A CTA has 256 rows of A and D, 128 of B, so
          four stages fit; an accumulator for each consumer fills TMEM.
Dispatch  New: setmaxnreg moves registers to the epilogue, which takes all of
          an accumulator at once: the next tile's MMAs wait for that.

Data path A, B  GMEM -> SMEM (TMA load, 128B swizzle)
          D     tcgen05.mma: SMEM -> TMEM -> registers -> SMEM -> GMEM (TMA)
Roles     one thread of warp 10 issues TMA loads, one each of CTA 0's warps 8
          and 9 MMAs; warps 0-3 and 4-7 each read an accumulator and store it
Barriers  full[4]       CTA 0's: two arrivals and 96 KB, from both CTAs
          empty[4]      two arrivals: both consumers' MMAs have read the stage
          tmem_full[2]  one arrival: the tensor core has finished D's tile
          tmem_empty[2] CTA 0's: 256 arrivals, from four warps of both CTAs
          named 1, 2    four warps: their Ds is free / D's tile is written
          bulk group    the store has read SMEM

Shapes    any M; N and K multiples of 8: TMA wants rows 16 bytes apart
Limits    TMEM is full: the tensor core rests while an accumulator is read.
          Tiles are large: small matrices have too few for all SMs.
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
CONSUMERS = 2  # MMA warps, each with a warpgroup for the epilogue
MMA_WARP, LOAD_WARP = 8, 10  # after the epilogue's warpgroups
PIPE_DEPTH = 4  # stages of SMEM
BM, BN, BK = 128, 128, 64  # 64 x 16 bit = 128 bytes: one row of the swizzle
CM, PM, PN = 2 * BM, 4 * BM, 2 * BN  # rows of A in a CTA; the pair's tile
BYTES = T.uint32((CM + BN) * BK * 2)  # of A's and B's tiles, zeros too
SWIZZLED = 64  # columns of one row of the swizzle: what one TMA store takes
TMEM_COLS = 512  # all of TMEM, so that it always starts at column 0


def check(M, N, K, dtype):
    """Raise ValueError, naming rule and value, for what build refuses."""
    check_tma("Step 9", M, N, K)
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
        # One CTA for an SM: 168 registers a thread, for setmaxnreg to deal.
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": 1})
        # --- Who is who ----------------------------------------------------
        rank = T.cta_id_in_cluster([2])
        cta = T.cta_id([2 * PAIRS])
        wg_id = T.warpgroup_id([3])
        warp_id = T.warp_id([12])
        tid = T.thread_id([384])

        # --- Shared memory and tensor memory -------------------------------
        pool = T.SMEMPool()
        tmem = T.TMEMPool(pool, total_cols=TMEM_COLS, cta_group=2)
        acc = tmem.alloc((BM, 2 * PN), "float32")
        full = pool.alloc((PIPE_DEPTH,), "uint64", align=8)
        empty = pool.alloc((PIPE_DEPTH,), "uint64", align=8)
        tmem_full = pool.alloc((2,), "uint64", align=8)
        tmem_empty = pool.alloc((2,), "uint64", align=8)
        As = pool.alloc_tcgen05_mma_AB((PIPE_DEPTH, CM, BK), dtype)
        Bs = pool.alloc_tcgen05_mma_AB((PIPE_DEPTH, BN, BK), dtype)
        Ds = pool.alloc_tcgen05_mma_AB((2, BM, SWIZZLED), dtype)
        pool.commit()
        tmem.commit()

        # --- Barriers ------------------------------------------------------
        if tid == 0:
            # One arrival completes a phase; full's needs the BYTES too.
            mbarrier_init(full, 2)
            mbarrier_init(empty, CONSUMERS)
            mbarrier_init(tmem_full, 1)
            mbarrier_init(tmem_empty, 256)  # each thread of four warps
            T.ptx.fence.mbarrier_init.release.cluster()
        T.cuda.cluster_sync()

        # --- Schedule: which tile of D -------------------------------------
        m0: T.int32
        n0: T.int32

        @T.inline
        def schedule(t):
            tile = T.meta_var(t * PAIRS + cta // 2)
            first = T.meta_var(tile // (GROUP_M * N_TILES) * GROUP_M)
            rows = T.meta_var(T.min(M_TILES - first, GROUP_M))
            place = T.meta_var(tile % (GROUP_M * N_TILES))
            m0 = (first + place % rows) * PM + rank * CM
            n0 = place // rows * PN

        if wg_id == CONSUMERS:
            T.ptx.setmaxnreg.dec.sync.aligned.u32(72)
            for t in T.serial(cdiv(TILES - cta // 2, PAIRS)):
                schedule(t)
                done = T.meta_var(t * K_TILES)  # K tiles of the tiles before
                buf, turn = T.meta_var((warp_id - MMA_WARP, t % 2))
                c0 = T.meta_var(buf * PN)  # the accumulator's first column

                # --- Load: GMEM -> SMEM -------------------------------------
                if warp_id == LOAD_WARP:
                    if T.cuda.elect_sync():
                        for k in T.serial(K_TILES, unroll=False):
                            k0 = T.meta_var(k * BK)
                            s = T.meta_var((done + k) % PIPE_DEPTH)
                            b0 = T.meta_var(n0 + rank * BN)
                            bar = T.meta_var(at_cta(0, full.ptr_to([s])))
                            A_box = T.meta_var(A[m0 : m0 + CM, k0 : k0 + BK])
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
                if warp_id < MMA_WARP + CONSUMERS and rank == 0:
                    if T.cuda.elect_sync():
                        # The accumulator must have been read, like a stage.
                        bar = T.meta_var(tmem_empty.ptr_to([buf]))
                        T.cuda.mbarrier_wait(bar, turn ^ 1)
                        T.ptx.tcgen05.fence__after_thread_sync()
                        for k in T.serial(K_TILES, unroll=False):
                            # Each stage has its own barriers: a phase per
                            # PIPE_DEPTH K tiles, so 0, 0, 1, 1, 0, 0, …
                            stage = T.meta_var((done + k) % PIPE_DEPTH)
                            phase = T.meta_var((done + k) // PIPE_DEPTH % 2)
                            # TMA and MMA: both the async proxy, so no fence.
                            T.cuda.mbarrier_wait(full.ptr_to([stage]), phase)
                            T.ptx.tcgen05.fence__after_thread_sync()
                            Tx.gemm_async(
                                acc[:, c0 : c0 + PN],
                                As[stage, buf * BM : buf * BM + BM, :],
                                Bs[stage, :, :],
                                accum=k != 0,
                                dispatch="tcgen05",
                                cta_group=2,
                            )
                            tcgen05_commit(empty.ptr_to([stage]), cta_group=2)
                        tcgen05_commit(tmem_full.ptr_to([buf]), cta_group=2)

        # --- Epilogue: TMEM -> registers -> SMEM -> GMEM ---------------
        if wg_id < CONSUMERS:
            T.ptx.setmaxnreg.inc.sync.aligned.u32(216)
            for t in T.serial(cdiv(TILES - cta // 2, PAIRS)):
                schedule(t)
                buf, turn = T.meta_var((wg_id, t % 2))  # accumulator, phase
                c0 = T.meta_var(buf * PN)  # the accumulator's first column
                m1 = T.meta_var(m0 + wg_id * BM)
                T.cuda.mbarrier_wait(tmem_full.ptr_to([buf]), turn)
                T.ptx.tcgen05.fence__after_thread_sync()
                out_wg = tmem_read(acc[:, c0 : c0 + PN], dtype, SWIZZLED)
                # TMEM is read: the next tile's MMAs overwrite it.
                T.ptx.tcgen05.fence__before_thread_sync()
                arrive_at(at_cta(0, tmem_empty.ptr_to([buf])))
                for h in T.unroll(PN // SWIZZLED):
                    c = T.meta_var(h * SWIZZLED)
                    n1 = T.meta_var(n0 + c)
                    T.cuda.warpgroup_sync(1 + wg_id)
                    Tx.wg.copy(Ds[wg_id, :, :], out_wg[:, c : c + SWIZZLED])
                    # TMA reads by another path, the async proxy: so a fence.
                    T.ptx.fence.proxy.async_.shared__cta()
                    T.cuda.warpgroup_sync(1 + wg_id)
                    if tid % 128 == 0:
                        box = T.meta_var(D[m1 : m1 + BM, n1 : n1 + SWIZZLED])
                        tma_store(box, Ds[wg_id, :, :])
                        # TMA must have read SMEM before others write it.
                        T.ptx.cp.async_.bulk.commit_group()
                        T.ptx.cp.async_.bulk.wait_group.read(0)

        # --- Give TMEM back ------------------------------------------------
        # Warp 0 frees it, once no CTA of the pair uses the other any more.
        T.ptx.tcgen05.fence__before_thread_sync()
        T.cuda.cluster_sync()
        T.ptx.tcgen05.fence__after_thread_sync()
        tmem.dealloc()

    return finish(kernel, "gemm_blackwell_step9", "blackwell")
