"""Step 9, Multi-Consumer Warp Specialization: two warpgroups multiply.

Idea      The more columns a wgmma has, the less SMEM it reads for what it
          computes. 64 x 256 sums are 128 registers a thread, so that two
          warpgroups share a tile of 128 rows, and with it the tile of B.
Scope     New: three warpgroups. A cluster takes 256 x 256 of D at a time.
Layout    New: four stages of 48 KB. A consumer's half of D leaves by 64
          columns at a time, through two buffers in turn.
Dispatch  New: wgmma m64n256k16. setmaxnreg moves registers from the producer
          to the consumers.

Data path A, B  GMEM -> SMEM (TMA load, 128B swizzle), B's halves to both CTAs
          D     wgmma: SMEM -> registers, then -> SMEM -> GMEM (TMA store)
Roles     producer: one thread of warpgroup 0 issues TMA loads
          consumers: warpgroups 1 and 2 issue wgmma and write 64 rows of D's
          tile to SMEM each, one thread of each issues the TMA stores
Barriers  full[4]       one arrival and 48 KB: the stage's tiles are in SMEM
          empty[4]      four arrivals: two consumers in each of two CTAs
          wgmma group   one per K tile: the tensor core has finished
          named 1, 2    the consumer's threads may write / have written Ds
          bulk groups   the stores but the newest have read SMEM
          cluster       both CTAs have started / have finished

Shapes    any M; N and K multiples of 8: TMA wants rows 16 bytes apart
Limits    Tiles are dealt out beforehand, and the last turn may leave SMs
          idle. Both consumers end a tile together, and nothing multiplies.
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
    register_fence,
    tma_load,
    tma_store,
    wgmma,
    wgmma_fragment,
)

SMS, CLUSTER = 132, 2  # of an H200; CTAs of a cluster, along M
GROUP_M = 8  # rows of tiles that are worked through together
CONSUMERS = 2  # warpgroups that multiply, 64 rows each
PIPE_DEPTH = 4  # stages of SMEM
BM, BN, BK = 128, 256, 64  # 64 x 16 bit = 128 bytes: one row of the swizzle
MMA_M, MMA_K = 64, 16  # one wgmma: 64 rows of A, BN rows of B, 16 of K
REGS = MMA_M * BN // 128  # accumulators a thread
HALF = BN // CLUSTER  # rows of B's tile that a CTA loads, for both
READERS = T.uint32(CLUSTER * CONSUMERS)  # consumers that a CTA loads for
BYTES = T.uint32((BM + BN) * BK * 2)  # of A's and B's tiles, zeros too
SWIZZLED = 64  # columns of one row of the swizzle: what one TMA store takes

# Descriptors count in units of 16 bytes. A group of 8 rows is 1024 bytes;
# the leading offset does not count under a swizzle; 3 is the 128B swizzle.
LEADING, STRIDE, SWIZZLE = 1, 1024 // 16, 3
ROWS_STEP = MMA_M * BK * 2 // 16  # to the next 64 rows
K_STEP = MMA_K * 2 // 16  # to the next 16 values of K
A_STEP, B_STEP = BM * BK * 2 // 16, BN * BK * 2 // 16  # to the next stage


def check(M, N, K, dtype):
    """Raise ValueError, naming rule and value, for what build refuses."""
    check_tma("Step 9", M, N, K)
    check_dtype(dtype)


def build(M, N, K, dtype="float16", ctas=SMS):
    """D = A @ B.T for A [M, K], B [N, K], D [M, N]; at most ctas share it."""
    check(M, N, K, dtype)
    M_TILES, N_TILES = cdiv(M, BM * CLUSTER), cdiv(N, BN)  # of a cluster
    K_TILES = cdiv(K, BK)
    TILES = M_TILES * N_TILES
    CLUSTERS = max(1, min(ctas // CLUSTER, TILES))

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

        # --- Shared memory and registers -----------------------------------
        pool = T.SMEMPool()
        full = pool.alloc((PIPE_DEPTH,), "uint64", align=8)
        empty = pool.alloc((PIPE_DEPTH,), "uint64", align=8)
        As = pool.alloc_tcgen05_mma_AB((PIPE_DEPTH, BM, BK), dtype)
        Bs = pool.alloc_tcgen05_mma_AB((PIPE_DEPTH, BN, BK), dtype)
        Ds = pool.alloc_tcgen05_mma_AB((2, BM, SWIZZLED), dtype)
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
            for s in T.unroll(PIPE_DEPTH):
                T.ptx.mbarrier.init.shared.b64(full.ptr_to([s]), T.uint32(1))
                T.ptx.mbarrier.init.shared.b64(empty.ptr_to([s]), READERS)
            T.ptx.fence.mbarrier_init.release.cluster()
        # A CTA's loads and arrivals reach its peer's barriers: after these.
        T.cuda.cluster_sync()

        # --- Schedule: which tile of D -------------------------------------
        m0: T.int32
        n0: T.int32

        @T.inline
        def schedule(t):
            tile = T.meta_var(t * CLUSTERS + cluster)
            first = T.meta_var(tile // (GROUP_M * N_TILES) * GROUP_M)
            rows = T.meta_var(T.min(M_TILES - first, GROUP_M))
            place = T.meta_var(tile % (GROUP_M * N_TILES))
            m0 = ((first + place % rows) * CLUSTER + rank) * BM
            n0 = place // rows * BN

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
            T.ptx.setmaxnreg.dec.sync.aligned.u32(40)
        if wg_id == 0 and warp_id == 0:
            if T.cuda.elect_sync():
                for t in T.serial(cdiv(TILES - cluster, CLUSTERS)):
                    schedule(t)
                    for ahead in T.serial(K_TILES):
                        k0 = T.meta_var(ahead * BK)
                        bar = T.meta_var(full.ptr_to([s]))
                        A_box = T.meta_var(A[m0 : m0 + BM, k0 : k0 + BK])
                        r = T.meta_var(rank * HALF)
                        n1 = T.meta_var(n0 + r)
                        B_box = T.meta_var(B[n1 : n1 + HALF, k0 : k0 + BK])
                        # What the stage held has been read, in both CTAs. At
                        # first phase 1 of a new barrier counts as over.
                        T.cuda.mbarrier_wait(empty.ptr_to([s]), phase ^ 1)
                        T.ptx.mbarrier.arrive.expect_tx.shared.b64(bar, BYTES)
                        tma_load(As[s, :, :], A_box, bar)
                        B_half = T.meta_var(Bs[s, r : r + HALF, :])
                        tma_load(B_half, B_box, bar, cta_mask=3)
                        advance()

        # --- MMA: SMEM -> registers, the consumers -------------------------
        if wg_id > 0:
            T.ptx.setmaxnreg.inc.sync.aligned.u32(232)
            row = T.meta_var((wg_id - 1) * MMA_M)  # the consumer's first
            own = T.meta_var(descA + T.uint64((wg_id - 1) * ROWS_STEP))
            for t in T.serial(cdiv(TILES - cluster, CLUSTERS)):
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
                    # The group before this one is done, and its stage read:
                    # thread i tells CTA i.
                    T.ptx.wgmma.wait_group.sync.aligned(1)
                    if done + k > 0 and tid % 128 < CLUSTER:
                        last = T.meta_var(T.Select(s > 0, s, PIPE_DEPTH) - 1)
                        bar = T.meta_var(empty.ptr_to([last]))
                        arrive_at(at_cta(tid % 128, bar))
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
                    Dh = T.meta_var(Ds[h % 2, row : row + MMA_M, :])
                    # TMA has read this buffer, if not yet the other: others
                    # may write, a barrier on.
                    if warp_id == 0:
                        if T.cuda.elect_sync():
                            T.ptx.cp.async_.bulk.wait_group.read(1)
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
                            tma_store(box, Dh)
                            T.ptx.cp.async_.bulk.commit_group()
            # The CTA must not end, and free SMEM, before TMA has read it.
            if warp_id == 0:
                if T.cuda.elect_sync():
                    T.ptx.cp.async_.bulk.wait_group.read(0)

        # --- The end: the peer may still arrive at this CTA's barriers -----
        T.cuda.cluster_sync()

    return finish(kernel, "gemm_hopper_step9", "hopper")
