"""Step 9, tuned: what a production kernel adds, each with its own switch.

Idea      No new way of computing: without ADDITIONS the kernel is Step 9.
          build(without=…) leaves some of them out, to tell their gains. What
          the model of time says of those is in the results (modelled,
          additions_b200.json); of the last three it knows nothing.
Scope     New: one consumer again, as in Step 8. As few pairs of CTAs as take
          no more turns than all would. The next launch may start before this
          one has ended.
Layout    New: tile and ring by shape. The consumer has both accumulators, in
          turn, and a tile's columns of D wait for their store in two buffers.
Dispatch  New: with two buffers a piece of D is read, written and stored while
          the one before leaves. Prefetched tensor maps; D does not push A and
          B out of L2.

Data path A, B  GMEM -> SMEM (TMA load, 128B swizzle)
          D     tcgen05.mma: SMEM -> TMEM -> registers -> SMEM -> GMEM (TMA)
Roles     one thread of the last warpgroup's third warp issues TMA loads; in
          CTA 0 one of its first warp issues MMAs, and for a second consumer
          one of its second; the other warpgroups read accumulators and store
Barriers  full[…]       CTA 0's: two arrivals and the bytes, from both CTAs
          empty[…]      an arrival for each consumer: its MMAs have read it
          tmem_full[2]  one arrival: the tensor core has finished D's tile
          tmem_empty[2] CTA 0's: 256 arrivals, from four warps of both CTAs
          named 1, 2    four warps: their Ds is free / is written
          bulk groups   the stores but the newest have read SMEM

Shapes    any M; N and K multiples of 8: TMA wants rows 16 bytes apart
Limits    Large products run at the GPU's power limit: what makes a tensor
          core less idle also makes all of them slower.
"""

from dataclasses import dataclass

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
SMEM = 227 * 1024 - 1024  # bytes of a CTA for tiles; 1 KB is for barriers
L2_BYTES = 72  # an SM's share of L2, a cycle: of 20.5 TB/s at 1.92 GHz
GROUP_M = 8  # rows of tiles that are worked through together
BM, BK = 128, 64  # 64 x 16 bit = 128 bytes: one row of the swizzle
SWIZZLED = 64  # columns of one row of the swizzle: what one TMA store takes
READ = 32  # columns that one instruction reads from TMEM
TMEM_COLS = 512  # all of TMEM, so that it always starts at column 0

ADDITIONS = {
    "shape": "tile and ring by shape and one consumer, whose second "
    "accumulator hides the epilogue, instead of 512 x 256, 4 and 2",
    "balance": "as few pairs as take no more turns than all would",
    "pieces": "columns of D are read while those before are stored",
    "stream": "D marked as the first to leave L2",
    "prefetch": "tensor maps fetched at the start",
    "overlap": "the next launch starts while this one ends",
}


@dataclass(frozen=True)
class Plan:
    """How a product is cut: consumers, each with 256 rows of a pair's tile,
    columns of that tile, stages, pieces of D that wait in SMEM for their
    store, and pairs of CTAs."""

    consumers: int
    columns: int
    stages: int
    pieces: int
    pairs: int


def plan(M, N, ctas=SMS, without=()):
    """The plan for an M x N result on ``ctas`` CTAs, two at least.

    A K tile takes as long as its MMAs do, 2 cycles a column, or as L2 takes
    for the rows that a CTA loads. The tile with the least of that, times
    turns, wins. A second consumer would load less, but takes no fewer cycles
    and has no accumulator to spare.
    """
    most = max(ctas // 2, 1)

    def tiles(consumers, columns):
        return cdiv(M, 2 * consumers * BM) * cdiv(N, columns)

    def cost(columns):
        loads = (BM + columns // 2) * BK * 2
        turns = cdiv(tiles(1, columns), most)
        return turns * max(2 * columns, loads / L2_BYTES)

    if "shape" in without:
        consumers, columns = 2, 256
    else:
        consumers, columns = 1, min((256, 192, 128, 64), key=cost)
    # Two consumers leave no room for two pieces; 64 columns are one.
    several = consumers == 1 and columns > SWIZZLED
    pieces = 2 if several and "pieces" not in without else 1
    left = SMEM - consumers * pieces * BM * SWIZZLED * 2
    stages = left // ((consumers * BM + columns // 2) * BK * 2)
    count = tiles(consumers, columns)
    pairs = min(most, count)
    if "balance" not in without:
        pairs = cdiv(count, cdiv(count, pairs))
    return Plan(consumers, columns, stages, pieces, pairs)


def check(M, N, K, dtype):
    """Raise ValueError, naming rule and value, for what build refuses."""
    check_tma("Step 9, tuned,", M, N, K)
    check_dtype(dtype)


def build(M, N, K, dtype="float16", ctas=SMS, without=()):
    """D = A @ B.T for A [M, K], B [N, K], D [M, N]; at most ctas share it.

    ``without`` leaves out additions by name (ADDITIONS).
    """
    check(M, N, K, dtype)
    if unknown := set(without) - set(ADDITIONS):
        known, first = ", ".join(ADDITIONS), sorted(unknown)[0]
        raise ValueError(f"without takes names of {known}, got {first!r}")
    P = plan(M, N, ctas, without)
    CONSUMERS, PIPE_DEPTH = P.consumers, P.stages
    PIECES, PAIRS = P.pieces, P.pairs
    CM, BN = CONSUMERS * BM, P.columns // 2  # rows of A and of B in a CTA
    PM, PN = 2 * CM, 2 * BN  # the pair's tile of D
    MMA_WARP, LOAD_WARP = 4 * CONSUMERS, 4 * CONSUMERS + 2
    M_TILES, N_TILES, K_TILES = cdiv(M, PM), cdiv(N, PN), cdiv(K, BK)
    TILES = M_TILES * N_TILES
    BYTES = T.uint32((CM + BN) * BK * 2)  # of A's and B's tiles, zeros too
    TWO = CONSUMERS == 2  # each has an accumulator, else one has both
    AT_ONCE = SWIZZLED if PIECES == 2 else PN  # columns that leave TMEM
    OVERLAP = "overlap" not in without
    MAPS = {} if "prefetch" in without else {"prefetch_tensormap": True}
    LOAD = MAPS | {"cta_group": 2}
    HINT = {} if "stream" in without else {"cache_hint": "evict_first"}
    STORE = MAPS | HINT

    @T.prim_func
    def kernel(
        A: T.Buffer((M, K), dtype),
        B: T.Buffer((N, K), dtype),
        D: T.Buffer((M, N), dtype),
    ):
        T.device_entry()
        # One CTA for an SM: setmaxnreg can deal all registers.
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": 1})
        # --- Who is who ----------------------------------------------------
        rank = T.cta_id_in_cluster([2])
        cta = T.cta_id([2 * PAIRS])
        wg_id = T.warpgroup_id([CONSUMERS + 1])
        warp_id = T.warp_id([4 * CONSUMERS + 4])
        tid = T.thread_id([128 * CONSUMERS + 128])
        TURNS = T.meta_var(cdiv(TILES - cta // 2, PAIRS))

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
        Ds = pool.alloc_tcgen05_mma_AB((PIECES, CM, SWIZZLED), dtype)
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
        if OVERLAP:
            # The next launch may take SMs as they fall free. This one has
            # touched no tensor yet: now it waits for the launch before it.
            T.ptx.griddepcontrol.launch_dependents()
            T.ptx.griddepcontrol.wait()

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
            if TWO:
                T.ptx.setmaxnreg.dec.sync.aligned.u32(72)
            for t in T.serial(TURNS):
                schedule(t)
                done = T.meta_var(t * K_TILES)  # K tiles of the tiles before
                i = T.meta_var(warp_id - MMA_WARP)  # which consumer
                buf = T.meta_var(i if TWO else t % 2)  # its accumulator
                turn = T.meta_var(t % 2 if TWO else t // 2 % 2)
                c0 = T.meta_var(buf * PN)  # the accumulator's first column

                # --- Load: GMEM -> SMEM ------------------------------------
                if warp_id == LOAD_WARP:
                    if T.cuda.elect_sync():
                        for k in T.serial(K_TILES, unroll=False):
                            k0 = T.meta_var(k * BK)
                            s = T.meta_var((done + k) % PIPE_DEPTH)
                            b0 = T.meta_var(n0 + rank * BN)
                            bar = T.meta_var(at_cta(0, full.ptr_to([s])))
                            A_box = T.meta_var(A[m0 : m0 + CM, k0 : k0 + BK])
                            B_box = T.meta_var(B[b0 : b0 + BN, k0 : k0 + BK])
                            # The load overwrites what MMAs must have read. At
                            # first phase 1 of a new barrier counts as over.
                            used = T.meta_var((done + k) // PIPE_DEPTH)
                            freed = T.meta_var(used % 2 ^ 1)
                            T.cuda.mbarrier_wait(empty.ptr_to([s]), freed)
                            arrive_at(bar, BYTES)
                            tma_load(As[s, :, :], A_box, bar, **LOAD)
                            tma_load(Bs[s, :, :], B_box, bar, **LOAD)

                # --- MMA: SMEM -> TMEM -------------------------------------
                if warp_id < MMA_WARP + CONSUMERS and rank == 0:
                    if T.cuda.elect_sync():
                        # The accumulator must have been read, like a stage.
                        bar = T.meta_var(tmem_empty.ptr_to([buf]))
                        T.cuda.mbarrier_wait(bar, turn ^ 1)
                        T.ptx.tcgen05.fence__after_thread_sync()
                        for k in T.serial(K_TILES, unroll=False):
                            stage = T.meta_var((done + k) % PIPE_DEPTH)
                            phase = T.meta_var((done + k) // PIPE_DEPTH % 2)
                            # TMA and MMA: both the async proxy, so no fence.
                            T.cuda.mbarrier_wait(full.ptr_to([stage]), phase)
                            T.ptx.tcgen05.fence__after_thread_sync()
                            Tx.gemm_async(
                                acc[:, c0 : c0 + PN],
                                As[stage, i * BM : i * BM + BM, :],
                                Bs[stage, :, :],
                                accum=k != 0,
                                dispatch="tcgen05",
                                cta_group=2,
                            )
                            tcgen05_commit(empty.ptr_to([stage]), cta_group=2)
                        tcgen05_commit(tmem_full.ptr_to([buf]), cta_group=2)

        # --- Epilogue: TMEM -> registers -> SMEM -> GMEM -------------------
        if wg_id < CONSUMERS:
            if TWO:
                T.ptx.setmaxnreg.inc.sync.aligned.u32(216)
            r0 = T.meta_var(wg_id * BM)  # the warpgroup's rows
            for t in T.serial(TURNS):
                schedule(t)
                buf = T.meta_var(wg_id if TWO else t % 2)  # the accumulator
                turn = T.meta_var(t % 2 if TWO else t // 2 % 2)
                m1 = T.meta_var(m0 + r0)
                T.cuda.mbarrier_wait(tmem_full.ptr_to([buf]), turn)
                T.ptx.tcgen05.fence__after_thread_sync()
                for g in T.unroll(PN // AT_ONCE):
                    c0 = T.meta_var(buf * PN + g * AT_ONCE)
                    columns = T.meta_var(acc[:, c0 : c0 + AT_ONCE])
                    out_wg = tmem_read(columns, dtype, READ)
                    if g == PN // AT_ONCE - 1:
                        # All of it is read: a later tile's MMAs overwrite it.
                        T.ptx.tcgen05.fence__before_thread_sync()
                        arrive_at(at_cta(0, tmem_empty.ptr_to([buf])))
                    for h in T.unroll(AT_ONCE // SWIZZLED):
                        c = T.meta_var(h * SWIZZLED)
                        n1 = T.meta_var(n0 + g * AT_ONCE + c)
                        piece = T.meta_var(t * (PN // SWIZZLED) + g + h)
                        Dh = T.meta_var(Ds[piece % PIECES, r0 : r0 + BM, :])
                        # TMA has read this buffer, if not yet the other.
                        if tid % 128 == 0:
                            T.ptx.cp.async_.bulk.wait_group.read(PIECES - 1)
                        T.cuda.warpgroup_sync(1 + wg_id)
                        Tx.wg.copy(Dh, out_wg[:, c : c + SWIZZLED])
                        # TMA reads by another path, the async proxy: a fence.
                        T.ptx.fence.proxy.async_.shared__cta()
                        T.cuda.warpgroup_sync(1 + wg_id)
                        if tid % 128 == 0:
                            box = D[m1 : m1 + BM, n1 : n1 + SWIZZLED]
                            tma_store(box, Dh, **STORE)
                            T.ptx.cp.async_.bulk.commit_group()
            # A CTA must not end, and free SMEM, before TMA has read it.
            if tid % 128 == 0:
                T.ptx.cp.async_.bulk.wait_group.read(0)

        # --- Give TMEM back ------------------------------------------------
        # Warp 0 frees it, once no CTA of the pair uses the other any more.
        T.ptx.tcgen05.fence__before_thread_sync()
        T.cuda.cluster_sync()
        T.ptx.tcgen05.fence__after_thread_sync()
        tmem.dealloc()

    return finish(kernel, "gemm_blackwell_tuned", "blackwell")
