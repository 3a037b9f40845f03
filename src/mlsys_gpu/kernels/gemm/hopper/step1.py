"""Step 1, Sequential Single-Tile GEMM: one 128x128 tile of D, K = 64.

Idea      The whole data path of a GEMM, once and in order: load two tiles,
          multiply them, store the result. Nothing overlaps.
Scope     One CTA of 128 threads, which is one warpgroup of four warps.
Layout    A and B tiles in SMEM, K-major, 128B swizzle. The accumulator in
          registers, 128 a thread: wgmma's fragment, which scatters each
          row over four threads.
Dispatch  Tx.cta.copy  128 threads, 16 bytes a thread at a time
          wgmma        wgmma.mma_async m64n128k16, issued by all four warps
          Tx.wg.copy   each thread stores its pairs of neighbours

Data path A, B  GMEM -> registers -> SMEM (synchronous copies, 128B swizzle)
          D     wgmma: SMEM -> registers, then registers -> GMEM
Roles     all 128 threads copy, issue wgmma together and write D
Barriers  CTA barrier   the tiles are in SMEM
          wgmma group   committed and waited for: the tensor core has finished

Shapes    M = N = 128, K = 64
Limits    One tile of D and one tile of K: a smallest complete example.
"""

from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx

from mlsys_gpu.kernels.common import (
    check_dtype,
    check_equal,
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
    check_equal("Step 1", M=(M, BM), N=(N, BN), K=(K, BK))
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
        cta = T.cta_id([1])
        wg_id = T.warpgroup_id([1])
        warp_id = T.warp_id([4])
        tid = T.thread_id([128])

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

        # --- Load: GMEM -> SMEM --------------------------------------------
        Tx.cta.copy(As[:, :], A[:, :])
        Tx.cta.copy(Bs[:, :], B[:, :])
        # Threads wrote the tiles; the tensor core reads them by another
        # path (the async proxy), which sees them only after this fence.
        T.ptx.fence.proxy.async_.shared__cta()
        T.cuda.cta_sync()

        # --- MMA: SMEM -> registers ----------------------------------------
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
                    j != 0,
                    BN,
                    dtype,
                )
        T.ptx.wgmma.commit_group.sync.aligned()
        # The registers hold the result once the group has completed.
        T.ptx.wgmma.wait_group.sync.aligned(0)
        register_fence(acc, REGS)

        # --- Epilogue: registers -> GMEM -----------------------------------
        out = T.alloc_local((REGS,), dtype)
        out_wg = out.view(BM, BN, layout=wgmma_fragment(BM, BN))
        Tx.cast(out[:], acc[:])
        Tx.wg.copy(D[:, :], out_wg[:, :])

    return finish(kernel, "gemm_hopper_step1", "hopper")
