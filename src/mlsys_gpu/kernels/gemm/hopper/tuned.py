"""Step 9, tuned: what a production kernel adds, each with a switch of its own.

Idea      No new way of computing: the kernel is Step 9. ADDITIONS names what
          is added, and build(without=…) leaves parts out, so that the gain of
          each can be measured.
Scope     New: a cluster only where a launch is long enough to be limited by
          L2. As few CTAs as take no more turns than all SMs would. The next
          launch may start before this one has ended.
Layout    New: tile and ring by shape. Columns of tiles alternate between down
          and up, so that the tiles loaded last are used again at once.
Dispatch  New: prefetched tensor maps; D does not push A and B out of L2.

Data path A, B  GMEM -> SMEM (TMA load, 128B swizzle), B's halves to both CTAs
          D     wgmma: SMEM -> registers, then -> SMEM -> GMEM (TMA store)
Roles     producer: one thread of warpgroup 0 issues TMA loads
          consumers: all threads of warpgroups 1 and 2 wait for the tiles; 128
          issue wgmma together and write to SMEM; one of them issues the store
Barriers  full[…]       one arrival and the bytes: the stage's tiles are in SMEM
          empty[…]      an arrival from each consumer that the CTA loads for
          wgmma group   one per K tile: the tensor core has finished
          named 1, 2    the consumer's threads may write / have written Ds
          bulk groups   the stores but the newest have read SMEM
          cluster       both CTAs have started

Shapes    any M; N and K multiples of 8: TMA wants rows 16 bytes apart
Limits    Large products run at the GPU's power limit: what makes an SM less
          idle also makes all of them slower.
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
    register_fence,
    tma_load,
    tma_store,
    wgmma,
    wgmma_fragment,
)

SMS = 132  # of an H200
SMEM = 227 * 1024 - 1024  # bytes of a CTA for tiles; 1 KB is for barriers
GROUP_M = 8  # rows of tiles that are worked through together
CONSUMERS = 2  # warpgroups that multiply, 64 rows each
BM, BK = 128, 64  # 64 x 16 bit = 128 bytes: one row of the swizzle
MMA_M, MMA_K = 64, 16  # one wgmma: 64 rows of A, BN rows of B, 16 of K
SWIZZLED = 64  # columns of one row of the swizzle: what one TMA store takes
LONG = 8  # turns from which on a cluster pays

# Descriptors count in units of 16 bytes. A group of 8 rows is 1024 bytes;
# the leading offset does not count under a swizzle; 3 is the 128B swizzle.
LEADING, STRIDE, SWIZZLE = 1, 1024 // 16, 3
ROWS_STEP = MMA_M * BK * 2 // 16  # to the next 64 rows
K_STEP = MMA_K * 2 // 16  # to the next 16 values of K

ADDITIONS = {
    "shape": "tile, ring and cluster by shape, instead of 128 x 256, 4 and 2",
    "balance": "as few CTAs as take no more turns than all would",
    "serpentine": "columns of tiles down and up in turn",
    "stream": "D marked as the first to leave L2",
    "prefetch": "tensor maps fetched at the start",
    "exit": "no release of stages that nobody loads again, so that no CTA "
    "waits for its peer at the end",
    "overlap": "the next launch starts while this one ends",
}


@dataclass(frozen=True)
class Plan:
    """How a product is cut: BN columns a tile, CTAs of a cluster (along M), stages, pieces of D
    that wait in SMEM for their store, and the number of CTAs."""

    BN: int
    cluster: int
    stages: int
    pieces: int
    ctas: int


def plan(M, N, ctas=SMS, without=()):
    """The plan for an M x N result on ``ctas`` CTAs.

    The time of a launch goes with the columns that its busiest CTA computes: turns times BN. The
    least of them wins; equals go to the wider tile. Narrow tiles load more for what they compute:
    they are for products that wide ones leave SMs idle on.
    """

    def turns(BN):
        return cdiv(cdiv(M, BM) * cdiv(N, BN), ctas)

    if "shape" in without:
        BN, cluster = 256, 2
    else:
        fit = [columns for columns in (256, 192, 128, 64) if columns > 128 or turns(columns) == 1]
        BN = min(fit, key=lambda columns: turns(columns) * columns)
        cluster = 2 if turns(BN) >= LONG and ctas > 1 else 1
    pieces = {256: 2, 192: 3, 128: 2, 64: 1}[BN]
    stages = (SMEM - pieces * BM * SWIZZLED * 2) // ((BM + BN) * BK * 2)
    tiles = cdiv(cdiv(M, BM), cluster) * cdiv(N, BN)  # of a cluster
    clusters = min(max(ctas // cluster, 1), tiles)
    if "balance" not in without:
        clusters = cdiv(tiles, cdiv(tiles, clusters))
    return Plan(BN, cluster, stages, pieces, clusters * cluster)


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
        raise ValueError(
            f"without takes names of {', '.join(ADDITIONS)}, got {sorted(unknown)[0]!r}"
        )
    P = plan(M, N, ctas, without)
    BN, CLUSTER, PIPE_DEPTH, PIECES = P.BN, P.cluster, P.stages, P.pieces
    M_TILES, N_TILES = cdiv(M, BM * CLUSTER), cdiv(N, BN)  # of a cluster
    K_TILES = cdiv(K, BK)
    TILES = M_TILES * N_TILES
    CLUSTERS = P.ctas // CLUSTER
    REGS = MMA_M * BN // 128  # accumulators a thread
    PART = BN // CLUSTER  # rows of B's tile that a CTA loads, for all
    EVERYONE = None if CLUSTER == 1 else (1 << CLUSTER) - 1  # multicast
    READERS = T.uint32(CLUSTER * CONSUMERS)  # consumers a CTA loads for
    BYTES = T.uint32((BM + BN) * BK * 2)  # of A's and B's tiles, zeros too
    A_STEP, B_STEP = BM * BK * 2 // 16, BN * BK * 2 // 16  # to the next stage
    SERPENTINE, EXIT, OVERLAP, MOVE_REGISTERS = (
        "serpentine" not in without,
        "exit" not in without,
        "overlap" not in without,
        REGS > 64,  # fewer accumulators fit into what a launch gives a thread
    )
    MAPS = {} if "prefetch" in without else {"prefetch_tensormap": True}
    STORE = MAPS if "stream" in without else MAPS | {"cache_hint": "evict_first"}

    @T.prim_func
    def kernel(
        A: T.Buffer((M, K), dtype),
        B: T.Buffer((N, K), dtype),
        D: T.Buffer((M, N), dtype),
    ):
        T.device_entry()
        # One CTA for an SM: 168 registers a thread for setmaxnreg to deal.
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": 1})
        # --- Who is who ----------------------------------------------------
        rank = T.cta_id_in_cluster([CLUSTER])
        cta = T.cta_id([CLUSTERS * CLUSTER])
        cluster = T.meta_var(cta // CLUSTER)
        wg_id = T.warpgroup_id([1 + CONSUMERS])
        warp_id = T.warp_id_in_wg([4])
        tid = T.thread_id([128 * (1 + CONSUMERS)])
        TURNS = T.meta_var(cdiv(TILES - cluster, CLUSTERS))

        # --- Shared memory and registers -----------------------------------
        pool = T.SMEMPool()
        full = pool.alloc((PIPE_DEPTH,), "uint64", align=8)
        empty = pool.alloc((PIPE_DEPTH,), "uint64", align=8)
        As = pool.alloc_tcgen05_mma_AB((PIPE_DEPTH, BM, BK), dtype)
        Bs = pool.alloc_tcgen05_mma_AB((PIPE_DEPTH, BN, BK), dtype)
        Ds = pool.alloc_tcgen05_mma_AB((PIECES, BM, SWIZZLED), dtype)
        pool.commit()
        acc = T.alloc_local((REGS,), "float32")

        # --- Descriptors: how the tensor core finds the tiles --------------
        descA: T.uint64
        descB: T.uint64
        T.cuda.wgmma.encode_matrix_descriptor(
            T.address_of(descA), As.ptr_to([0] * 3), LEADING, STRIDE, SWIZZLE
        )
        T.cuda.wgmma.encode_matrix_descriptor(
            T.address_of(descB), Bs.ptr_to([0] * 3), LEADING, STRIDE, SWIZZLE
        )

        # --- Barriers ------------------------------------------------------
        if tid == 0:
            # One arrival and BYTES complete a phase: the tiles are in SMEM.
            # One arrival for each consumer of the cluster: they are read.
            for s in T.unroll(PIPE_DEPTH):
                T.ptx.mbarrier.init.shared.b64(full.ptr_to([s]), T.uint32(1))
                T.ptx.mbarrier.init.shared.b64(empty.ptr_to([s]), READERS)
            T.ptx.fence.mbarrier_init.release.cluster()
        # A CTA's loads and arrivals reach its peer's barriers: after these.
        if CLUSTER > 1:
            T.cuda.cluster_sync()
        else:
            T.cuda.cta_sync()
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
            tile = T.meta_var(t * CLUSTERS + cluster)
            first = T.meta_var(tile // (GROUP_M * N_TILES) * GROUP_M)
            rows = T.meta_var(T.min(M_TILES - first, GROUP_M))
            place = T.meta_var(tile % (GROUP_M * N_TILES))
            column = T.meta_var(place // rows)
            m0 = ((first + place % rows) * CLUSTER + rank) * BM
            if SERPENTINE:
                # Every other group of rows goes through N from its end.
                back = T.meta_var(first // GROUP_M % 2)
                n0 = (column + back * (N_TILES - 1 - 2 * column)) * BN
            else:
                n0 = column * BN

        # --- Pipeline: which stage of SMEM, which phase of its barriers ----
        s: T.int32 = 0
        phase: T.int32 = 0

        @T.inline
        def advance():
            # Counted on, not divided: what is computed here stands between a
            # K tile's last wgmma and the next one's first.
            s = s + 1
            if s == PIPE_DEPTH:
                s = 0
                phase = phase ^ 1

        # --- Load: GMEM -> SMEM, the producer ------------------------------
        if wg_id == 0:
            if MOVE_REGISTERS:
                T.ptx.setmaxnreg.dec.sync.aligned.u32(40)
        if wg_id == 0 and warp_id == 0:
            if T.cuda.elect_sync():
                for t in T.serial(TURNS):
                    schedule(t)
                    for k in T.serial(K_TILES):
                        k0 = T.meta_var(k * BK)
                        bar = T.meta_var(full.ptr_to([s]))
                        A_box = T.meta_var(A[m0 : m0 + BM, k0 : k0 + BK])
                        r = T.meta_var(rank * PART)
                        n1 = T.meta_var(n0 + r)
                        B_box = T.meta_var(B[n1 : n1 + PART, k0 : k0 + BK])
                        # What the stage held has been read, in all CTAs. At
                        # first phase 1 of a new barrier counts as over.
                        T.cuda.mbarrier_wait(empty.ptr_to([s]), phase ^ 1)
                        T.ptx.mbarrier.arrive.expect_tx.shared.b64(bar, BYTES)
                        tma_load(As[s, :, :], A_box, bar, **MAPS)
                        B_part = T.meta_var(Bs[s, r : r + PART, :])
                        tma_load(B_part, B_box, bar, EVERYONE, **MAPS)
                        advance()

        # --- MMA: SMEM -> registers, the consumers -------------------------
        if wg_id > 0:
            if MOVE_REGISTERS:
                T.ptx.setmaxnreg.inc.sync.aligned.u32(232)
            row = T.meta_var((wg_id - 1) * MMA_M)  # the consumer's first
            own = T.meta_var(descA + T.uint64((wg_id - 1) * ROWS_STEP))

            @T.inline
            def release(i):
                # Stage of K tile i: thread r tells CTA r that it is read.
                again = T.meta_var(i + PIPE_DEPTH < TURNS * K_TILES)
                needed = T.meta_var(again if EXIT else T.bool(True))
                last = T.meta_var(T.Select(s > 0, s, PIPE_DEPTH) - 1)
                bar = T.meta_var(empty.ptr_to([last]))
                if needed and tid % 128 < CLUSTER:
                    if CLUSTER > 1:
                        arrive_at(at_cta(tid % 128, bar))
                    else:
                        T.ptx.mbarrier.arrive.shared.b64(bar, T.uint32(1))

            for t in T.serial(TURNS):
                schedule(t)
                done = T.meta_var(t * K_TILES)  # K tiles of the tiles before
                for k in T.serial(K_TILES):
                    A_s = T.meta_var(own + T.uint64(s * A_STEP))
                    B_s = T.meta_var(descB + T.uint64(s * B_STEP))
                    # TMA and wgmma: both the async proxy, so no fence.
                    T.cuda.mbarrier_wait(full.ptr_to([s]), phase)

                    # wgmma writes acc behind the compiler's back: the fences
                    # keep its other uses before the start or after the wait.
                    register_fence(acc, REGS)
                    T.ptx.wgmma.fence.sync.aligned()
                    for j in T.unroll(BK // MMA_K):
                        wgmma(
                            acc,
                            0,
                            A_s + T.uint64(j * K_STEP),
                            B_s + T.uint64(j * K_STEP),
                            k + j != 0,
                            BN,
                            dtype,
                        )
                    T.ptx.wgmma.commit_group.sync.aligned()
                    # The group before this one is done, and its stage read.
                    T.ptx.wgmma.wait_group.sync.aligned(1)
                    if done + k > 0:
                        release(done + k - 1)
                    advance()
                # The registers hold the result once the group is done.
                T.ptx.wgmma.wait_group.sync.aligned(0)
                register_fence(acc, REGS)

                # --- Epilogue: registers -> SMEM -> GMEM -------------------
                out = T.alloc_local((REGS,), dtype)
                layout = T.meta_var(wgmma_fragment(MMA_M, BN))
                out_wg = out.view(MMA_M, BN, layout=layout)
                Tx.cast(out[:], acc[:])
                for h in T.unroll(BN // SWIZZLED):
                    c = T.meta_var(h * SWIZZLED)
                    Dh = T.meta_var(Ds[h % PIECES, row : row + MMA_M, :])
                    # TMA has read this buffer, if not yet the others.
                    if warp_id == 0:
                        if T.cuda.elect_sync():
                            T.ptx.cp.async_.bulk.wait_group.read(PIECES - 1)
                    T.cuda.warpgroup_sync(wg_id)
                    Tx.wg.copy(Dh, out_wg[:, c : c + SWIZZLED])
                    # Written by threads, read by TMA (the async proxy).
                    T.ptx.fence.proxy.async_.shared__cta()
                    T.cuda.warpgroup_sync(wg_id)
                    if warp_id == 0:
                        if T.cuda.elect_sync():
                            m1 = T.meta_var(m0 + row)
                            n1 = T.meta_var(n0 + c)
                            box = D[m1 : m1 + MMA_M, n1 : n1 + SWIZZLED]
                            tma_store(box, Dh, **STORE)
                            T.ptx.cp.async_.bulk.commit_group()
            # A CTA must not end, and free SMEM, before TMA has read it.
            if warp_id == 0:
                if T.cuda.elect_sync():
                    T.ptx.cp.async_.bulk.wait_group.read(0)

        # --- The end: the peer may still arrive at this CTA's barriers -----
        if CLUSTER > 1 and not EXIT:
            T.cuda.cluster_sync()

    return finish(kernel, "gemm_hopper_tuned", "hopper")
