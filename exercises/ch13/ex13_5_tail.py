# Exercise 13.5. Stub 6f23282268c1: yours to edit; `mlsys-gpu reset 13.5` brings it back.
"""Exercise 13.5 (debug): tiles that nobody takes.

D = A @ B.T for A [M, K], B [N, K] and D [M, N] in float16 on Hopper, with
tiles of 64 x 64: M and N are multiples of 64, K of 8. The kernel is a small
Step 6: a fixed number of CTAs share the tiles of D, tile after tile, and a
ring of two stages goes on from one tile to the next.

With four CTAs and eight tiles it is right. With four CTAs and nine tiles a
part of D is never written. One line is at fault. Find it, mend it for any
number of tiles and CTAs, and change nothing else.
"""

from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx

from mlsys_gpu.kernels.common import (
    cdiv,
    finish,
    register_fence,
    tma_load,
    wgmma,
    wgmma_fragment,
)

PIPE_DEPTH = 2
BM, BN, BK = 64, 64, 64
REGS = BM * BN // 128  # accumulators a thread
BYTES = T.uint32((BM + BN) * BK * 2)
LEADING, STRIDE, SWIZZLE = 1, 1024 // 16, 3
K_STEP = 16 * 2 // 16  # to the next 16 values of K
STAGE_STEP = BM * BK * 2 // 16  # to the next stage (BM = BN)


def build(M, N, K, ctas):
    """D = A @ B.T; M and N are multiples of 64, K of 8; at most ctas CTAs share it."""
    N_TILES, K_TILES = N // BN, cdiv(K, BK)
    TILES = M // BM * N_TILES
    CTAS = min(ctas, TILES)

    @T.prim_func
    def kernel(
        A: T.Buffer((M, K), "float16"),
        B: T.Buffer((N, K), "float16"),
        D: T.Buffer((M, N), "float16"),
    ):
        T.device_entry()
        cta = T.cta_id([CTAS])
        wg_id = T.warpgroup_id([1])
        warp_id = T.warp_id([4])
        tid = T.thread_id([128])
        pool = T.SMEMPool()
        full = pool.alloc((PIPE_DEPTH,), "uint64", align=8)
        As = pool.alloc_tcgen05_mma_AB((PIPE_DEPTH, BM, BK), "float16")
        Bs = pool.alloc_tcgen05_mma_AB((PIPE_DEPTH, BN, BK), "float16")
        pool.commit()
        acc = T.alloc_local((REGS,), "float32")
        descA: T.uint64
        descB: T.uint64
        T.cuda.wgmma.encode_matrix_descriptor(
            T.address_of(descA), As.ptr_to([0, 0, 0]), LEADING, STRIDE, SWIZZLE
        )
        T.cuda.wgmma.encode_matrix_descriptor(
            T.address_of(descB), Bs.ptr_to([0, 0, 0]), LEADING, STRIDE, SWIZZLE
        )
        if tid == 0:
            for s in T.unroll(PIPE_DEPTH):
                T.ptx.mbarrier.init.shared.b64(full.ptr_to([s]), T.uint32(1))
            T.ptx.fence.mbarrier_init.release.cluster()
        T.cuda.cta_sync()

        # This CTA takes the tiles cta, cta + CTAS, cta + 2 * CTAS, …
        turns = T.meta_var(TILES // CTAS)
        for t in T.serial(turns):
            tile = T.meta_var(t * CTAS + cta)
            m0: T.int32 = tile // N_TILES * BM
            n0: T.int32 = tile % N_TILES * BN
            done = T.meta_var(t * K_TILES)  # K tiles of the tiles before

            for k in T.serial(1 - PIPE_DEPTH, K_TILES):
                ahead = T.meta_var(k + PIPE_DEPTH - 1)
                if ahead < K_TILES and tid == 0:
                    k0 = T.meta_var(ahead * BK)
                    s = T.meta_var((done + ahead) % PIPE_DEPTH)
                    bar = T.meta_var(full.ptr_to([s]))
                    T.ptx.mbarrier.arrive.expect_tx.shared.b64(bar, BYTES)
                    tma_load(As[s, :, :], A[m0 : m0 + BM, k0 : k0 + BK], bar)
                    tma_load(Bs[s, :, :], B[n0 : n0 + BN, k0 : k0 + BK], bar)
                if k >= 0:
                    s = T.meta_var((done + k) % PIPE_DEPTH)
                    phase = T.meta_var((done + k) // PIPE_DEPTH % 2)
                    A_s = T.meta_var(descA + T.uint64(s * STAGE_STEP))
                    B_s = T.meta_var(descB + T.uint64(s * STAGE_STEP))
                    T.cuda.mbarrier_wait(full.ptr_to([s]), phase)
                    register_fence(acc, REGS)
                    T.ptx.wgmma.fence.sync.aligned()
                    for j in T.unroll(BK // 16):
                        wgmma(
                            acc,
                            0,
                            A_s + T.uint64(j * K_STEP),
                            B_s + T.uint64(j * K_STEP),
                            k + j != 0,
                            BN,
                            "float16",
                        )
                    T.ptx.wgmma.commit_group.sync.aligned()
                    T.ptx.wgmma.wait_group.sync.aligned(0)
                    register_fence(acc, REGS)
                    T.cuda.cta_sync()

            out = T.alloc_local((REGS,), "float16")
            out_wg = out.view(BM, BN, layout=wgmma_fragment(BM, BN))
            Tx.cast(out[:], acc[:])
            Tx.wg.copy(D[m0 : m0 + BM, n0 : n0 + BN], out_wg[:, :])

    return finish(kernel, "tail", "hopper")


if __name__ == "__main__":
    from pathlib import Path

    from mlsys_gpu import check

    print(check("13.5", Path(__file__)))
