"""Step 3, Spatial Tiling (Multi-CTA): one CTA for every 128x128 tile of D.

Idea      The tiles of D are independent: give each its own CTA, and let the
          GPU run as many at a time as it has room for.
Scope     New: a grid of M/128 x N/128 CTAs. Inside a CTA nothing changes.
Layout    Unchanged. A CTA's tile of D starts at row m0 and column n0. It
          reads 128 rows of A from m0 on and 128 rows of B from n0 on.
Dispatch  Unchanged.

Data path A, B  GMEM -> registers -> SMEM (synchronous copies, 128B swizzle)
          D     wgmma: SMEM -> registers, then registers -> GMEM
Roles     all 128 threads copy, issue wgmma together and write D
Barriers  CTA barrier   the tiles are in SMEM / all warps have used them
          wgmma group   one per K tile: the tensor core has finished

Shapes    M and N multiples of 128, K a multiple of 64
Limits    CTAs that share rows of A or B each fetch their own copy. Copies and
          MMA still take turns inside a CTA.
"""

from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx

from mlsys_gpu.kernels.common import (
    check_dtype,
    check_multiple,
    finish,
    register_fence,
    wgmma,
    wgmma_fragment,
)

BM, BN, BK = 128, 128, 64  # 64 x 16 bit = 128 bytes: one row of the swizzle
MMA_M, MMA_K = 64, 16  # one wgmma: 64 rows of A, BN rows of B, 16 of K
REGS = BM * BN // 128  # accumulators a thread

# Descriptors count in units of 16 bytes. A group of 8 rows is 1024 bytes;
# the leading offset does not count under a swizzle; 3 is the 128B swizzle.
LEADING, STRIDE, SWIZZLE = 1, 1024 // 16, 3
ROWS_STEP = MMA_M * BK * 2 // 16  # to the next 64 rows
K_STEP = MMA_K * 2 // 16  # to the next 16 values of K


def check(M, N, K, dtype):
    """Raise ValueError, naming rule and value, for what build refuses."""
    check_multiple("Step 3", M=(M, BM), N=(N, BN), K=(K, BK))
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
        bm, bn = T.cta_id([M // BM, N // BN])
        wg_id = T.warpgroup_id([1])
        warp_id = T.warp_id([4])
        tid = T.thread_id([128])
        m0 = T.meta_var(bm * BM)
        n0 = T.meta_var(bn * BN)

        # --- Shared memory and registers -----------------------------------
        pool = T.SMEMPool()
        As = pool.alloc_tcgen05_mma_AB((BM, BK), dtype)
        Bs = pool.alloc_tcgen05_mma_AB((BN, BK), dtype)
        pool.commit()
        acc = T.alloc_local((REGS,), "float32")

        # --- Descriptors: how the tensor core finds the tiles --------------
        descA: T.uint64
        descB: T.uint64
        T.cuda.wgmma.encode_matrix_descriptor(
            T.address_of(descA), As.ptr_to([0, 0]), LEADING, STRIDE, SWIZZLE
        )
        T.cuda.wgmma.encode_matrix_descriptor(
            T.address_of(descB), Bs.ptr_to([0, 0]), LEADING, STRIDE, SWIZZLE
        )

        for k in T.serial(K // BK):
            k0 = T.meta_var(k * BK)

            # --- Load: GMEM -> SMEM ----------------------------------------
            Tx.cta.copy(As[:, :], A[m0 : m0 + BM, k0 : k0 + BK])
            Tx.cta.copy(Bs[:, :], B[n0 : n0 + BN, k0 : k0 + BK])
            # Threads wrote the tiles; the tensor core reads them by another
            # path (the async proxy), which sees them only after this fence.
            T.ptx.fence.proxy.async_.shared__cta()
            T.cuda.cta_sync()

            # --- MMA: SMEM -> registers ------------------------------------
            # wgmma writes acc behind the compiler's back: the two register
            # fences keep its other uses before the start or after the wait.
            register_fence(acc, REGS)
            T.ptx.wgmma.fence.sync.aligned()
            for i in T.unroll(BM // MMA_M):
                for j in T.unroll(BK // MMA_K):
                    wgmma(
                        acc,
                        i * BN // 2,
                        descA + T.uint64(i * ROWS_STEP + j * K_STEP),
                        descB + T.uint64(j * K_STEP),
                        k + j != 0,
                        BN,
                        dtype,
                    )
            T.ptx.wgmma.commit_group.sync.aligned()
            # The registers hold the result once the group has completed.
            T.ptx.wgmma.wait_group.sync.aligned(0)
            register_fence(acc, REGS)
            # All warps are done reading: the next copy overwrites the tiles.
            T.cuda.cta_sync()

        # --- Epilogue: registers -> GMEM -----------------------------------
        out = T.alloc_local((REGS,), dtype)
        out_wg = out.view(BM, BN, layout=wgmma_fragment(BM, BN))
        Tx.cast(out[:], acc[:])
        Tx.wg.copy(D[m0 : m0 + BM, n0 : n0 + BN], out_wg[:, :])

    return finish(kernel, "gemm_hopper_step3", "hopper")
