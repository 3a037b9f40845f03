"""Step 5, Software Pipeline with PIPE_DEPTH=2: load the next tiles meanwhile.

Idea      Two stages of SMEM: while the tensor core reads one, TMA fills the
          other. The loads run one K tile ahead of the MMAs.
Scope     Unchanged.
Layout    New: A's and B's tiles twice, one after the other. A stage is used
          by every second K tile.
Dispatch  Unchanged. A turn of the loop issues the load of K tile k + 1, then
          multiplies K tile k. The first turn, k = -1, only loads.

Data path A, B  GMEM -> SMEM (TMA load, 128B swizzle)
          D     wgmma: SMEM -> registers, then -> SMEM -> GMEM (TMA store)
Roles     one thread of warp 0 issues TMA; all 128 threads wait for the tiles,
          issue wgmma together and write D's tile to SMEM
Barriers  full[2]       one arrival and 32 KB: the stage's tiles are in SMEM
          wgmma group   one per K tile: the tensor core has finished
          CTA barrier   all warps have used the stage / have written D's tile
          bulk group    the store has read SMEM

Shapes    any M; N and K multiples of 8: TMA wants rows 16 bytes apart
Limits    A tile of D ends as before: no loads in flight, the tensor core idle
          while it is stored, and the next CTA starts from nothing.
"""

from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx

from mlsys_gpu.kernels.common import (
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

PIPE_DEPTH = 2  # stages of SMEM
BM, BN, BK = 128, 128, 64  # 64 x 16 bit = 128 bytes: one row of the swizzle
MMA_M, MMA_K = 64, 16  # one wgmma: 64 rows of A, BN rows of B, 16 of K
REGS = BM * BN // 128  # accumulators a thread
BYTES = T.uint32((BM + BN) * BK * 2)  # of A's and B's tiles, zeros too
SWIZZLED = 64  # columns of one row of the swizzle: what one TMA store takes

# Descriptors count in units of 16 bytes. A group of 8 rows is 1024 bytes;
# the leading offset does not count under a swizzle; 3 is the 128B swizzle.
LEADING, STRIDE, SWIZZLE = 1, 1024 // 16, 3
ROWS_STEP = MMA_M * BK * 2 // 16  # to the next 64 rows
K_STEP = MMA_K * 2 // 16  # to the next 16 values of K
STAGE_STEP = BM * BK * 2 // 16  # to the next stage (BM = BN)


def check(M, N, K, dtype):
    """Raise ValueError, naming rule and value, for what build refuses."""
    check_tma("Step 5", M, N, K)
    check_dtype(dtype)


def build(M, N, K, dtype="float16"):
    """D = A @ B.T for A [M, K], B [N, K] and D [M, N] of one 16-bit dtype."""
    check(M, N, K, dtype)
    K_TILES = cdiv(K, BK)

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

        # --- Shared memory and registers -----------------------------------
        pool = T.SMEMPool()
        full = pool.alloc((PIPE_DEPTH,), "uint64", align=8)
        As = pool.alloc_tcgen05_mma_AB((PIPE_DEPTH, BM, BK), dtype)
        Bs = pool.alloc_tcgen05_mma_AB((PIPE_DEPTH, BN, BK), dtype)
        Ds = pool.alloc_tcgen05_mma_AB((BM, BN), dtype)
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
            T.ptx.fence.mbarrier_init.release.cluster()
        T.cuda.cta_sync()

        for k in T.serial(1 - PIPE_DEPTH, K_TILES):
            # --- Load: GMEM -> SMEM, ahead of the MMA ----------------------
            # Its stage is free: all warps used it in the turn before.
            ahead = T.meta_var(k + PIPE_DEPTH - 1)
            if ahead < K_TILES and warp_id == 0:
                if T.cuda.elect_sync():
                    k0 = T.meta_var(ahead * BK)
                    s = T.meta_var(ahead % PIPE_DEPTH)
                    bar = T.meta_var(full.ptr_to([s]))
                    A_box = T.meta_var(A[m0 : m0 + BM, k0 : k0 + BK])
                    B_box = T.meta_var(B[n0 : n0 + BN, k0 : k0 + BK])
                    T.ptx.mbarrier.arrive.expect_tx.shared.b64(bar, BYTES)
                    tma_load(As[s, :, :], A_box, bar)
                    tma_load(Bs[s, :, :], B_box, bar)

            # --- MMA: SMEM -> registers ------------------------------------
            if k >= 0:
                # A stage's barrier has a phase for every PIPE_DEPTH K tiles:
                # wait for 0, 0, 1, 1, 0, 0, …, each on its own barrier.
                s = T.meta_var(k % PIPE_DEPTH)
                phase = T.meta_var(k // PIPE_DEPTH % 2)
                A_s = T.meta_var(descA + T.uint64(s * STAGE_STEP))
                B_s = T.meta_var(descB + T.uint64(s * STAGE_STEP))
                # TMA writes by the path that the tensor core reads by (the
                # async proxy): no fence between the two.
                T.cuda.mbarrier_wait(full.ptr_to([s]), phase)

                # wgmma writes acc behind the compiler's back: the two fences
                # keep its other uses before the start or after the wait.
                register_fence(acc, REGS)
                T.ptx.wgmma.fence.sync.aligned()
                for i in T.unroll(BM // MMA_M):
                    for j in T.unroll(BK // MMA_K):
                        wgmma(
                            acc,
                            i * BN // 2,
                            A_s + T.uint64(i * ROWS_STEP + j * K_STEP),
                            B_s + T.uint64(j * K_STEP),
                            k + j != 0,
                            BN,
                            dtype,
                        )
                T.ptx.wgmma.commit_group.sync.aligned()
                # The registers hold the result once the group has completed.
                T.ptx.wgmma.wait_group.sync.aligned(0)
                register_fence(acc, REGS)
                # All warps are done reading: a load overwrites the stage.
                T.cuda.cta_sync()

        # --- Epilogue: registers -> SMEM -> GMEM ---------------------------
        out = T.alloc_local((REGS,), dtype)
        out_wg = out.view(BM, BN, layout=wgmma_fragment(BM, BN))
        Tx.cast(out[:], acc[:])
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

    return finish(kernel, "gemm_hopper_step5", "hopper")
