"""Step 9 with Cluster Launch Control: the GPU deals out the tiles.

Idea      Launch a pair of CTAs for each tile. A pair that is done takes over
          the tile of one that has not started yet: no list says in advance
          who computes what, so a pair that is slower computes less.
Scope     New: a grid of two CTAs a tile. Those that run take over the others.
Layout    New: 16 bytes of SMEM for the response, at one place in both CTAs.
Dispatch  New: clusterlaunchcontrol.try_cancel asks, one tile ahead; all warps
          of the pair read the response when they are done with a tile.

Data path A, B  GMEM -> SMEM (TMA load, 128B swizzle)
          D     tcgen05.mma: SMEM -> TMEM -> registers -> SMEM -> GMEM (TMA)
Roles     one thread of warp 10 issues TMA loads, one each of CTA 0's warps 8
          and 9 MMAs; warps 0-3 and 4-7 each read an accumulator and store it;
          one thread of warp 11 expects the response, in CTA 0 it asks, too
Barriers  full[4]       CTA 0's: two arrivals and 96 KB, from both CTAs
          empty[4]      two arrivals: both consumers' MMAs have read the stage
          tmem_full[2]  one arrival: the tensor core has finished D's tile
          tmem_empty[2] CTA 0's: 256 arrivals, from four warps of both CTAs
          clc_full      one arrival and 16 bytes: the response is there
          clc_empty     CTA 0's: 24 arrivals: all warps have read it
          named 1, 2    four warps: their Ds is free / D's tile is written
          bulk group    the store has read SMEM

Shapes    any M; N and K multiples of 8: TMA wants rows 16 bytes apart
Limits    One response at a time: the next is asked for when all warps have
          read the last. Where all SMs are alike, a fixed list is as good.
"""

from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx

from mlsys_gpu.kernels.common import (
    arrive_at,
    at_cta,
    cdiv,
    check_dtype,
    check_tma,
    clc_cluster,
    clc_try_cancel,
    finish,
    mbarrier_init,
    tcgen05_commit,
    tma_load,
    tma_store,
    tmem_read,
)

GROUP_M = 8  # rows of tiles that are worked through together
CONSUMERS = 2  # MMA warps, each with a warpgroup for the epilogue
MMA_WARP, LOAD_WARP, CLC_WARP = 8, 10, 11  # after the epilogue's
PIPE_DEPTH = 4  # stages of SMEM
BM, BN, BK = 128, 128, 64  # 64 x 16 bit = 128 bytes: one row of the swizzle
CM, PM, PN = 2 * BM, 4 * BM, 2 * BN  # rows of A in a CTA; the pair's tile
BYTES = T.uint32((CM + BN) * BK * 2)  # of A's and B's tiles, zeros too
SWIZZLED = 64  # columns of one row of the swizzle: what one TMA store takes
TMEM_COLS = 512  # all of TMEM, so that it always starts at column 0


def check(M, N, K, dtype):
    """Raise ValueError, naming rule and value, for what build refuses."""
    check_tma("Step 9, clc,", M, N, K)
    check_dtype(dtype)


def build(M, N, K, dtype="float16"):
    """D = A @ B.T for A [M, K], B [N, K] and D [M, N] of one 16-bit dtype."""
    check(M, N, K, dtype)
    M_TILES, N_TILES, K_TILES = cdiv(M, PM), cdiv(N, PN), cdiv(K, BK)
    TILES = M_TILES * N_TILES

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
        cta = T.cta_id([2 * TILES])
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
        clc_full = pool.alloc((1,), "uint64", align=8)
        clc_empty = pool.alloc((1,), "uint64", align=8)
        response = pool.alloc((4,), "uint32", align=16)
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
            mbarrier_init(clc_full, 1)
            mbarrier_init(clc_empty, 24)  # each warp of both CTAs
            T.ptx.fence.mbarrier_init.release.cluster()
        T.cuda.cluster_sync()

        # --- Schedule: which tile of D -------------------------------------
        t: T.int32 = 0  # tiles so far
        tile: T.int32 = cta // 2
        m0: T.int32
        n0: T.int32

        @T.inline
        def schedule():
            first = T.meta_var(tile // (GROUP_M * N_TILES) * GROUP_M)
            rows = T.meta_var(T.min(M_TILES - first, GROUP_M))
            place = T.meta_var(tile % (GROUP_M * N_TILES))
            m0 = (first + place % rows) * PM + rank * CM
            n0 = place // rows * PN

        @T.inline
        def next_tile():
            T.cuda.mbarrier_wait(clc_full.ptr_to([0]), t % 2)
            tile = clc_cluster(response.ptr_to([0]), 2)  # or -1: none is left
            # One arrival a warp, when all of its lanes have read.
            T.cuda.warp_sync()
            if T.cuda.elect_sync():
                arrive_at(at_cta(0, clc_empty.ptr_to([0])))

        if wg_id == CONSUMERS:
            T.ptx.setmaxnreg.dec.sync.aligned.u32(72)
            while tile >= 0:
                schedule()
                done = T.meta_var(t * K_TILES)  # K tiles of the tiles before
                buf, turn = T.meta_var((warp_id - MMA_WARP, t % 2))
                c0 = T.meta_var(buf * PN)  # the accumulator's first column

                # --- Ask: for the tile of a pair that has not started -------
                if warp_id == CLC_WARP:
                    if T.cuda.elect_sync():
                        bar = T.meta_var(clc_full.ptr_to([0]))
                        arrive_at(at_cta(rank, bar), T.uint32(16))
                        if rank == 0:
                            # All have read what the response overwrites.
                            read = T.meta_var(clc_empty.ptr_to([0]))
                            T.cuda.mbarrier_wait(read, turn ^ 1)
                            clc_try_cancel(response.ptr_to([0]), bar)

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
                next_tile()
                t = t + 1

        # --- Epilogue: TMEM -> registers -> SMEM -> GMEM ---------------
        if wg_id < CONSUMERS:
            T.ptx.setmaxnreg.inc.sync.aligned.u32(216)
            while tile >= 0:
                schedule()
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
                next_tile()
                t = t + 1

        # --- Give TMEM back ------------------------------------------------
        # Warp 0 frees it, once no CTA of the pair uses the other any more.
        T.ptx.tcgen05.fence__before_thread_sync()
        T.cuda.cluster_sync()
        T.ptx.tcgen05.fence__after_thread_sync()
        tmem.dealloc()

    return finish(kernel, "gemm_blackwell_step9_clc", "blackwell")
