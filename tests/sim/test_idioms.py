"""Kernels as others write them: idioms that the course does not use, and a fault in each.

Every kernel is right, and silent in all schedules; every fault is named with its line in each.
"""

# ruff: noqa: E501
# (The kernels are text, whose lines findings name.)

from typing import Any

import numpy as np
import pytest

import mlsys_gpu as mg
from mlsys_gpu import sim

from .sources import module_from

SCHEDULES = [("eager", 0), ("lazy", 0), ("seeded", 1), ("seeded", 2)]
HEAD = "from tvm.script import tirx as T\n\n\n"

#: By name: the kernel's source, its arguments (the output last), what the output must be, and
#: faults: what is replaced by what, the code of the first finding, and a part of its line.
IDIOMS: dict[str, Any] = {}


def whole(seed, *shape, dtype: Any = np.float32, low=-8, high=8):
    """Small whole numbers, whose sums and products are exact."""
    return np.random.default_rng(seed).integers(low, high + 1, shape).astype(dtype)


def blank(*shape, dtype: Any = np.float32):
    return np.full(shape, 99, dtype)


# Four stages of cp.async, of which three are under way.
IDIOMS["cp_async_ring"] = (
    """
@T.prim_func
def kernel(X: T.Buffer((16, 128, 4), "float32"), Y: T.Buffer((128,), "float32")):
    T.device_entry()
    cta = T.cta_id([1])
    tid = T.thread_id([128])
    ring = T.alloc_shared((4, 128, 4), "float32")
    for s in T.unroll(3):
        T.evaluate(T.ptx["cp.async.cg.shared.global"](T.cuda.cvta_generic_to_shared(ring.ptr_to([s, tid, 0])), X.ptr_to([s, tid, 0]), 16))
        T.ptx.cp.async_.commit_group()
    y: T.float32 = 0.0
    for k in T.serial(16):
        T.ptx.cp.async_.wait_group(2)
        T.cuda.cta_sync()
        if k + 3 < 16:
            T.evaluate(T.ptx["cp.async.cg.shared.global"](T.cuda.cvta_generic_to_shared(ring.ptr_to([(k + 3) % 4, tid, 0])), X.ptr_to([k + 3, tid, 0]), 16))
        T.ptx.cp.async_.commit_group()
        for j in T.serial(4):
            y = y + ring[k % 4, 127 - tid, j]
    Y[tid] = y
""",
    lambda: [whole(1, 16, 128, 4), blank(128)],
    lambda x, y: x.sum((0, 2))[::-1],
    [
        (
            "        T.ptx.cp.async_.wait_group(2)\n",
            "        T.ptx.cp.async_.wait_group(3)\n",
            "race-smem",
            "y = y + ring",
        ),
        ("        T.cuda.cta_sync()\n        if k + 3", "        if k + 3", "race-smem", "ring"),
        ("(k + 3) % 4", "(k + 3) % 3", "race-smem", "cp.async"),
        (
            "        T.ptx.cp.async_.commit_group()\n        for j",
            "        if k + 3 < 16:\n            T.ptx.cp.async_.commit_group()\n        for j",
            "race-smem",
            "ring",
        ),
    ],
)

# The CTA that comes last sums what all have stored (threadFenceReduction of CUDA's samples).
IDIOMS["last_block"] = (
    """
@T.prim_func
def kernel(X: T.Buffer((8, 128), "float32"), P: T.Buffer((8,), "float32"), C: T.Buffer((1,), "uint32"), Y: T.Buffer((1,), "float32")):
    T.device_entry()
    cta = T.cta_id([8])
    tid = T.thread_id([128])
    part = T.alloc_shared((4,), "float32")
    last = T.alloc_shared((1,), "uint32")
    x: T.float32 = X[cta, tid]
    for i in T.unroll(5):
        x = x + T.tvm_warp_shuffle_xor(T.uint32(0xFFFFFFFF), x, 16 >> i, 32, 32)
    if tid % 32 == 0:
        part[tid // 32] = x
    T.cuda.cta_sync()
    if tid == 0:
        P[cta] = part[0] + part[1] + part[2] + part[3]
        T.cuda.thread_fence()
        ticket: T.uint32
        T.evaluate(T.ptx["atom.relaxed.gpu.global.add.u32"](ticket, C.ptr_to([0]), T.uint32(1)))
        last[0] = ticket
    T.cuda.cta_sync()
    if last[0] == T.uint32(7):
        if tid == 0:
            T.cuda.thread_fence()
            y: T.float32 = 0.0
            for i in T.serial(8):
                y = y + P[i]
            Y[0] = y
""",
    lambda: [whole(2, 8, 128), blank(8), np.zeros(1, np.uint32), blank(1)],
    lambda x, p, c, y: x.sum(),
    [
        ("        T.cuda.thread_fence()\n        ticket", "        ticket", "race-global", "P["),
        ("            T.cuda.thread_fence()\n            y", "            y", "race-global", "P["),
        ("    T.cuda.cta_sync()\n    if last", "    if last", "race-smem", "last[0]"),
        ("last[0] == T.uint32(7)", "last[0] == T.uint32(6)", "race-global", "P["),
    ],
)

# CTAs that add to one tile in turn, by a semaphore.
IDIOMS["semaphore"] = (
    """
@T.prim_func
def kernel(X: T.Buffer((6, 64), "float32"), S: T.Buffer((1,), "uint32"), Y: T.Buffer((64,), "float32")):
    T.device_entry()
    cta = T.cta_id([6])
    tid = T.thread_id([64])
    if tid == 0:
        turn: T.uint32 = T.uint32(99)
        while turn != T.uint32(cta):
            T.evaluate(T.ptx["ld.acquire.gpu.global.u32"](turn, S.ptr_to([0])))
    T.cuda.cta_sync()
    if cta == 0:
        Y[tid] = X[cta, tid]
    else:
        Y[tid] = Y[tid] * T.float32(2) + X[cta, tid]
    T.cuda.cta_sync()
    if tid == 0:
        T.evaluate(T.ptx["red.release.gpu.global.add.u32"](S.ptr_to([0]), T.uint32(1)))
""",
    lambda: [whole(3, 6, 64), np.zeros(1, np.uint32), blank(64)],
    lambda x, s, y: sum(x[i] * 2.0 ** (5 - i) for i in range(6)),
    [
        ("ld.acquire.gpu", "ld.relaxed.gpu", "race-global", "Y[tid]"),
        ("red.release.gpu", "red.relaxed.gpu", "race-global", "Y[tid]"),
        ("ld.acquire.gpu", "ld.acquire.cta", "race-global", "Y[tid]"),
        (
            '    T.cuda.cta_sync()\n    if tid == 0:\n        T.evaluate(T.ptx["red',
            '    if tid == 0:\n        T.evaluate(T.ptx["red',
            "race-global",
            "Y[tid]",
        ),
    ],
)

# A prefix sum of a CTA, by shuffles.
IDIOMS["scan"] = (
    """
@T.prim_func
def kernel(X: T.Buffer((256,), "int32"), Y: T.Buffer((256,), "int32")):
    T.device_entry()
    cta = T.cta_id([1])
    warp = T.warp_id([8])
    lane = T.lane_id([32])
    tid = T.thread_id([256])
    sums = T.alloc_shared((8,), "int32")
    x: T.int32 = X[tid]
    for i in T.unroll(5):
        up: T.int32 = T.tvm_warp_shuffle_up(T.uint32(0xFFFFFFFF), x, 1 << i, 32, 32)
        if lane >= 1 << i:
            x = x + up
    if lane == 31:
        sums[warp] = x
    T.cuda.cta_sync()
    if warp == 0:
        s: T.int32 = 0
        if lane < 8:
            s = sums[lane]
        for i in T.unroll(3):
            up: T.int32 = T.tvm_warp_shuffle_up(T.uint32(0xFFFFFFFF), s, 1 << i, 32, 32)
            if lane >= 1 << i:
                s = s + up
        if lane < 8:
            sums[lane] = s
    T.cuda.cta_sync()
    if warp > 0:
        x = x + sums[warp - 1]
    Y[tid] = x
""",
    lambda: [whole(4, 256, dtype=np.int32), blank(256, dtype=np.int32)],
    lambda x, y: np.cumsum(x),
    [
        (
            "            sums[lane] = s\n    T.cuda.cta_sync()\n",
            "            sums[lane] = s\n",
            "race-smem",
            "sums[",
        ),
        (
            "T.tvm_warp_shuffle_up(T.uint32(0xFFFFFFFF), s",
            "T.tvm_warp_shuffle_up(T.uint32(0xFF), s",
            "divergent-collective",
            "T.uint32(0xFF)",
        ),
    ],
)

# Sums over a cluster through distributed shared memory, barriers split in arrive and wait.
IDIOMS["dsmem"] = (
    """
@T.prim_func
def kernel(X: T.Buffer((4, 64), "float32"), Y: T.Buffer((64,), "float32")):
    T.device_entry()
    rank = T.cta_id_in_cluster([4])
    cta = T.cta_id([4])
    tid = T.thread_id([64])
    mine = T.alloc_shared((64,), "float32")
    mine[tid] = X[cta, tid]
    T.ptx.barrier.cluster.arrive.release.aligned()
    y: T.float32 = 0.0
    T.ptx.barrier.cluster.wait.acquire.aligned()
    if rank == 0:
        for r in T.serial(4):
            there: T.uint32
            v: T.float32
            T.evaluate(T.ptx.mapa.shared__cluster.u32(there, T.cuda.cvta_generic_to_shared(mine.ptr_to([63 - tid])), T.uint32(r)))
            T.evaluate(T.ptx["ld.shared::cluster.f32"](v, there))
            y = y + v
        Y[tid] = y
    T.ptx.barrier.cluster.arrive.relaxed.aligned()
    T.ptx.barrier.cluster.wait.aligned()
""",
    lambda: [whole(5, 4, 64), blank(64)],
    lambda x, y: x.sum(0)[::-1],
    [
        ("arrive.release", "arrive.relaxed", "race-smem", "ld.shared::cluster"),
        (
            "    T.ptx.barrier.cluster.arrive.relaxed.aligned()\n    T.ptx.barrier.cluster.wait.aligned()\n",
            "",
            "cluster-exit",
            "",
        ),
    ],
)

# Two groups of warps that pass a buffer to and fro by named barriers.
IDIOMS["pingpong"] = (
    """
@T.prim_func
def kernel(X: T.Buffer((8, 64), "int32"), Y: T.Buffer((8, 64), "int32")):
    T.device_entry()
    cta = T.cta_id([1])
    warp = T.warp_id([4])
    tid = T.thread_id([128])
    buf = T.alloc_shared((2, 64), "int32")
    if warp < 2:
        for i in T.serial(8):
            if i >= 2:
                T.ptx.bar.sync(T.uint32(3 + i % 2), T.uint32(128))
            buf[i % 2, tid] = X[i, tid] * 2
            T.ptx.bar.arrive(T.uint32(1 + i % 2), T.uint32(128))
    else:
        for i in T.serial(8):
            T.ptx.bar.sync(T.uint32(1 + i % 2), T.uint32(128))
            Y[i, tid - 64] = buf[i % 2, 127 - tid]
            if i < 6:
                T.ptx.bar.arrive(T.uint32(3 + i % 2), T.uint32(128))
""",
    lambda: [whole(6, 8, 64, dtype=np.int32), blank(8, 64, dtype=np.int32)],
    lambda x, y: 2 * x[:, ::-1],
    [
        (
            "            if i >= 2:\n                T.ptx.bar.sync(T.uint32(3 + i % 2), T.uint32(128))\n",
            "",
            "barrier-mixed",
            "T.ptx.bar.arrive(T.uint32(1",
        ),
        (
            "T.uint32(1 + i % 2), T.uint32(128))\n            Y",
            "T.uint32(2 - i % 2), T.uint32(128))\n            Y",
            "barrier-mixed",
            "T.ptx.bar.arrive(T.uint32(1",
        ),
        (
            "T.ptx.bar.arrive(T.uint32(1 + i % 2), T.uint32(128))",
            "T.ptx.bar.arrive(T.uint32(1 + i % 2), T.uint32(96))",
            "barrier-init",
            "",
        ),
    ],
)

# A ring whose stages' parities are bits of one register.
IDIOMS["mbar_ring_bits"] = (
    """
@T.prim_func
def kernel(X: T.Buffer((12, 32), "int32"), Y: T.Buffer((12, 32), "int32")):
    T.device_entry()
    cta = T.cta_id([1])
    warp = T.warp_id([2])
    lane = T.lane_id([32])
    tid = T.thread_id([64])
    ring = T.alloc_shared((3, 32), "int32")
    full = T.alloc_shared((3,), "uint64")
    empty = T.alloc_shared((3,), "uint64")
    if tid < 3:
        T.ptx.mbarrier.init.shared.b64(full.ptr_to([tid]), T.uint32(32))
        T.ptx.mbarrier.init.shared.b64(empty.ptr_to([tid]), T.uint32(1))
    T.cuda.cta_sync()
    phases: T.uint32 = T.uint32(0)
    if warp == 0:
        for k in T.serial(12):
            if k >= 3:
                T.cuda.mbarrier_wait(empty.ptr_to([k % 3]), (phases >> T.uint32(k % 3)) & T.uint32(1))
                phases = phases ^ (T.uint32(1) << T.uint32(k % 3))
            ring[k % 3, lane] = X[k, lane]
            T.ptx.mbarrier.arrive.shared.b64(full.ptr_to([k % 3]))
    else:
        for k in T.serial(12):
            T.cuda.mbarrier_wait(full.ptr_to([k % 3]), (phases >> T.uint32(k % 3)) & T.uint32(1))
            phases = phases ^ (T.uint32(1) << T.uint32(k % 3))
            Y[k, lane] = ring[k % 3, 31 - lane]
            T.cuda.warp_sync()
            if lane == 0:
                T.ptx.mbarrier.arrive.shared.b64(empty.ptr_to([k % 3]))
""",
    lambda: [whole(7, 12, 32, dtype=np.int32), blank(12, 32, dtype=np.int32)],
    lambda x, y: x[:, ::-1],
    [
        ("            if k >= 3:\n", "            if k >= 4:\n", "barrier-lapped", ""),
        (
            "                phases = phases ^ (T.uint32(1) << T.uint32(k % 3))\n            ring",
            "            ring",
            "barrier-parity",
            "empty.ptr_to",
        ),
        ("            T.cuda.warp_sync()\n", "", "race-smem", "ring["),
    ],
)

# Bulk copies of rows into and out of two stages each.
IDIOMS["bulk_1d"] = (
    """
@T.prim_func
def kernel(X: T.Buffer((8, 256), "float32"), Y: T.Buffer((8, 256), "float32")):
    T.device_entry()
    cta = T.cta_id([1])
    tid = T.thread_id([128])
    pool = T.SMEMPool()
    tin = pool.alloc((2, 256), "float32", align=128)
    tout = pool.alloc((2, 256), "float32", align=128)
    bar = pool.alloc((2,), "uint64")
    pool.commit()
    if tid == 0:
        for s in T.unroll(2):
            T.ptx.mbarrier.init.shared.b64(bar.ptr_to([s]), T.uint32(1))
        T.ptx.fence.mbarrier_init.release.cluster()
    T.cuda.cta_sync()
    if tid == 0:
        for s in T.unroll(2):
            T.ptx.mbarrier.arrive.expect_tx.shared.b64(bar.ptr_to([s]), T.uint32(1024))
            T.evaluate(T.ptx["cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"](T.cuda.cvta_generic_to_shared(tin.ptr_to([s, 0])), X.ptr_to([s, 0]), T.uint32(1024), T.cuda.cvta_generic_to_shared(bar.ptr_to([s]))))
    for k in T.serial(8):
        T.cuda.mbarrier_wait(bar.ptr_to([k % 2]), k // 2 % 2)
        if tid == 0:
            T.ptx.cp.async_.bulk.wait_group.read(1)
        T.cuda.cta_sync()
        for j in T.serial(2):
            tout[k % 2, j * 128 + tid] = tin[k % 2, j * 128 + tid] * T.float32(3)
        T.ptx.fence.proxy.async_.shared__cta()
        T.cuda.cta_sync()
        if tid == 0:
            T.evaluate(T.ptx["cp.async.bulk.global.shared::cta.bulk_group"](Y.ptr_to([k, 0]), T.cuda.cvta_generic_to_shared(tout.ptr_to([k % 2, 0])), T.uint32(1024)))
            T.ptx.cp.async_.bulk.commit_group()
            if k + 2 < 8:
                T.ptx.mbarrier.arrive.expect_tx.shared.b64(bar.ptr_to([k % 2]), T.uint32(1024))
                T.evaluate(T.ptx["cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"](T.cuda.cvta_generic_to_shared(tin.ptr_to([k % 2, 0])), X.ptr_to([k + 2, 0]), T.uint32(1024), T.cuda.cvta_generic_to_shared(bar.ptr_to([k % 2]))))
    if tid == 0:
        T.ptx.cp.async_.bulk.wait_group(0)
""",
    lambda: [whole(8, 8, 256), blank(8, 256)],
    lambda x, y: 3 * x,
    [
        (
            "            T.ptx.cp.async_.bulk.wait_group.read(1)\n",
            "            T.ptx.cp.async_.bulk.wait_group.read(2)\n",
            "race-smem",
            "tout[",
        ),
        (
            "        T.ptx.fence.proxy.async_.shared__cta()\n",
            "",
            "missing-proxy-fence",
            "cp.async.bulk",
        ),
        (
            "    if tid == 0:\n        T.ptx.cp.async_.bulk.wait_group(0)\n",
            "",
            "in-flight-at-exit",
            "",
        ),
    ],
)

# Pairs of floats in one register.
IDIOMS["f32x2"] = (
    """
@T.prim_func
def kernel(X: T.Buffer((256,), "float32"), Y: T.Buffer((256,), "float32")):
    T.device_entry()
    cta = T.cta_id([1])
    tid = T.thread_id([128])
    a = T.alloc_local((2,), "float32")
    p = a.view("uint64")
    c = T.alloc_local((2,), "float32")
    q = c.view("uint64")
    for i in T.unroll(2):
        a[i] = X[tid * 2 + i]
        c[i] = T.float32(i + 1)
    T.evaluate(T.ptx["fma.rn.f32x2"](p[0], p[0], p[0], q[0]))
    T.evaluate(T.ptx["mul.rn.f32x2"](p[0], p[0], q[0]))
    for i in T.unroll(2):
        Y[tid * 2 + i] = a[i]
""",
    lambda: [whole(9, 256), blank(256)],
    lambda x, y: ((x.reshape(-1, 2) ** 2 + [1, 2]) * [1, 2]).reshape(-1),
    [],
)

# A GEMM of warps with B row by row, transposed by ldmatrix.
IDIOMS["mma_trans"] = (
    """
M = 64; N = 64; K = 64
@T.prim_func
def kernel(A: T.Buffer((M, K), "float16"), B: T.Buffer((K, N), "float16"), D: T.Buffer((M, N), "float32")):
    T.device_entry()
    cta = T.cta_id([1])
    warp = T.warp_id([4])
    lane = T.lane_id([32])
    tid = T.thread_id([128])
    As = T.alloc_shared((M, 72), "float16")
    Bs = T.alloc_shared((K, 72), "float16")
    for i in T.serial(4):
        T.evaluate(T.ptx["cp.async.ca.shared.global"](T.cuda.cvta_generic_to_shared(As.ptr_to([i * 16 + tid // 8, tid % 8 * 8])), A.ptr_to([i * 16 + tid // 8, tid % 8 * 8]), 16))
        T.evaluate(T.ptx["cp.async.ca.shared.global"](T.cuda.cvta_generic_to_shared(Bs.ptr_to([i * 16 + tid // 8, tid % 8 * 8])), B.ptr_to([i * 16 + tid // 8, tid % 8 * 8]), 16))
    T.ptx.cp.async_.wait_all()
    T.cuda.cta_sync()
    acc = T.alloc_local((8, 4), "float32")
    for j in T.unroll(8):
        for i in T.unroll(4):
            acc[j, i] = T.float32(0)
    a = T.alloc_local((4,), "uint32")
    b = T.alloc_local((4,), "uint32")
    for k in T.serial(4):
        T.ptx.ldmatrix.sync.aligned.m8n8.x4.shared.b16(a[0], a[1], a[2], a[3], T.cuda.cvta_generic_to_shared(As.ptr_to([warp * 16 + lane % 16, k * 16 + lane // 16 * 8])))
        for j in T.unroll(4):
            T.ptx.ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16(b[0], b[1], b[2], b[3], T.cuda.cvta_generic_to_shared(Bs.ptr_to([k * 16 + lane % 16, j * 16 + lane // 16 * 8])))
            for h in T.unroll(2):
                T.ptx.mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32(acc[2 * j + h, 0], acc[2 * j + h, 1], acc[2 * j + h, 2], acc[2 * j + h, 3], a[0], a[1], a[2], a[3], b[2 * h], b[2 * h + 1], acc[2 * j + h, 0], acc[2 * j + h, 1], acc[2 * j + h, 2], acc[2 * j + h, 3])
    for j in T.unroll(8):
        for i in T.unroll(4):
            D[warp * 16 + lane // 4 + i // 2 * 8, j * 8 + lane % 4 * 2 + i % 2] = acc[j, i]
""",
    lambda: [
        whole(10, 64, 64, dtype=np.float16, low=-3, high=3),
        whole(11, 64, 64, dtype=np.float16, low=-3, high=3),
        blank(64, 64),
    ],
    lambda a, b, d: a.astype(float) @ b.astype(float),
    [
        (
            "    T.ptx.cp.async_.wait_all()\n    T.cuda.cta_sync()\n",
            "    T.ptx.cp.async_.wait_all()\n",
            "race-smem",
            "ldmatrix",
        ),
        ("    T.ptx.cp.async_.wait_all()\n", "", "race-smem", "ldmatrix"),
    ],
)

# cp.async that arrives at an mbarrier when it is done.
IDIOMS["cp_async_mbar"] = (
    """
@T.prim_func
def kernel(X: T.Buffer((64, 4), "float32"), Y: T.Buffer((64, 4), "float32")):
    T.device_entry()
    cta = T.cta_id([1])
    warp = T.warp_id([4])
    tid = T.thread_id([128])
    s = T.alloc_shared((64, 4), "float32")
    bar = T.alloc_shared((1,), "uint64")
    if tid == 0:
        T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), T.uint32(64))
    T.cuda.cta_sync()
    if warp < 2:
        T.evaluate(T.ptx["cp.async.cg.shared.global"](T.cuda.cvta_generic_to_shared(s.ptr_to([tid, 0])), X.ptr_to([tid, 0]), 16))
        T.ptx.cp.async_.mbarrier.arrive.noinc.shared.b64(bar.ptr_to([0]))
    else:
        T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
        for j in T.serial(4):
            Y[tid - 64, j] = s[127 - tid, j]
""",
    lambda: [whole(12, 64, 4), blank(64, 4)],
    lambda x, y: x[::-1],
    [
        (
            "        T.ptx.cp.async_.mbarrier.arrive.noinc.shared.b64(",
            "        T.ptx.mbarrier.arrive.shared.b64(",
            "race-smem",
            "s[127",
        ),
        ("arrive.noinc.", "arrive.", "deadlock", ""),
    ],
)

# st.async into the peer's shared memory, which counts bytes there.
IDIOMS["st_async"] = (
    """
@T.prim_func
def kernel(X: T.Buffer((2, 32), "uint32"), Y: T.Buffer((2, 32), "uint32")):
    T.device_entry()
    rank = T.cta_id_in_cluster([2])
    cta = T.cta_id([2])
    tid = T.thread_id([32])
    s = T.alloc_shared((32,), "uint32")
    bar = T.alloc_shared((1,), "uint64")
    if tid == 0:
        T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), T.uint32(1))
        T.ptx.fence.mbarrier_init.release.cluster()
        T.ptx.mbarrier.arrive.expect_tx.shared.b64(bar.ptr_to([0]), T.uint32(128))
    T.cuda.cluster_sync()
    there: T.uint32
    tbar: T.uint32
    T.evaluate(T.ptx.mapa.shared__cluster.u32(there, T.cuda.cvta_generic_to_shared(s.ptr_to([31 - tid])), T.uint32(1 - rank)))
    T.evaluate(T.ptx.mapa.shared__cluster.u32(tbar, T.cuda.cvta_generic_to_shared(bar.ptr_to([0])), T.uint32(1 - rank)))
    T.evaluate(T.ptx["st_async.shared::cluster.mbarrier::complete_tx::bytes.u32"](there, X[cta, tid], tbar))
    T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
    Y[cta, tid] = s[tid]
""",
    lambda: [whole(13, 2, 32, dtype=np.uint32, low=0), blank(2, 32, dtype=np.uint32)],
    lambda x, y: x[::-1, ::-1],
    [
        ("T.uint32(128))", "T.uint32(124))", "tx-count", ""),
    ],
)

# A lock by compare-and-swap.
IDIOMS["spinlock"] = (
    """
@T.prim_func
def kernel(X: T.Buffer((6, 32), "int32"), L: T.Buffer((1,), "uint32"), Y: T.Buffer((32,), "int32")):
    T.device_entry()
    cta = T.cta_id([6])
    tid = T.thread_id([32])
    if tid == 0:
        old: T.uint32 = T.uint32(1)
        while old != T.uint32(0):
            T.evaluate(T.ptx["atom.acquire.gpu.global.cas.b32"](old, L.ptr_to([0]), T.uint32(0), T.uint32(1)))
    T.cuda.warp_sync()
    Y[tid] = Y[tid] + X[cta, tid]
    T.cuda.warp_sync()
    if tid == 0:
        prev: T.uint32
        T.evaluate(T.ptx["atom.release.gpu.global.exch.b32"](prev, L.ptr_to([0]), T.uint32(0)))
""",
    lambda: [whole(14, 6, 32, dtype=np.int32), np.zeros(1, np.uint32), np.zeros(32, np.int32)],
    lambda x, lock, y: x.sum(0),
    [
        ("atom.release.gpu", "atom.relaxed.gpu", "race-global", "Y["),
        ("atom.acquire.gpu", "atom.relaxed.gpu", "race-global", "Y["),
    ],
)

# Counts in shared memory, then in global memory.
IDIOMS["histogram"] = (
    """
@T.prim_func
def kernel(X: T.Buffer((512,), "int32"), H: T.Buffer((16,), "int32"), Y: T.Buffer((16,), "int32")):
    T.device_entry()
    cta = T.cta_id([4])
    tid = T.thread_id([128])
    h = T.alloc_shared((16,), "int32")
    if tid < 16:
        h[tid] = 0
    T.cuda.cta_sync()
    T.evaluate(T.ptx["red.shared.add.s32"](T.cuda.cvta_generic_to_shared(h.ptr_to([X[cta * 128 + tid] % 16])), 1))
    T.cuda.cta_sync()
    if tid < 16:
        T.evaluate(T.ptx["red.global.add.s32"](Y.ptr_to([tid]), h[tid]))
        T.cuda.atomic_add(H.ptr_to([tid]), h[tid])
""",
    lambda: [
        whole(15, 512, dtype=np.int32, low=0, high=999),
        np.zeros(16, np.int32),
        np.zeros(16, np.int32),
    ],
    lambda x, h, y: np.bincount(x % 16, minlength=16),
    [
        ("        h[tid] = 0\n    T.cuda.cta_sync()\n", "        h[tid] = 0\n", "race-smem", ""),
        ('red.global.add.s32"](Y', 'st.global.s32"](Y', "race-global", "st.global"),
    ],
)

# Steps of a stencil between barriers of the whole grid.
IDIOMS["grid_sync"] = (
    """
@T.prim_func
def kernel(X: T.Buffer((256,), "float32"), W: T.Buffer((2, 256), "float32"), Y: T.Buffer((256,), "float32")):
    T.device_entry()
    cta = T.cta_id([4])
    tid = T.thread_id([64])
    i: T.int32 = cta * 64 + tid
    W[0, i] = X[i]
    T.cuda.grid_sync()
    for k in T.serial(3):
        W[(k + 1) % 2, i] = W[k % 2, (i + 1) % 256] + W[k % 2, (i + 255) % 256]
        T.cuda.grid_sync()
    Y[i] = W[1, i]
""",
    lambda: [whole(16, 256), blank(2, 256), blank(256)],
    lambda x, w, y: stencil(stencil(stencil(x))),
    [
        ("        T.cuda.grid_sync()\n", "        T.cuda.cta_sync()\n", "race-global", "W["),
    ],
)

# A flag in shared memory that another warp polls.
IDIOMS["smem_flag"] = (
    """
@T.prim_func
def kernel(X: T.Buffer((32,), "int32"), Y: T.Buffer((32,), "int32")):
    T.device_entry()
    cta = T.cta_id([1])
    warp = T.warp_id([2])
    lane = T.lane_id([32])
    s = T.alloc_shared((32,), "int32")
    flag = T.alloc_shared((1,), "uint32")
    if T.tvm_thread_invariant(warp) == 0 if False else warp == 0:
        if lane == 0:
            flag[0] = T.uint32(0)
    T.cuda.cta_sync()
    if warp == 0:
        s[lane] = X[lane] * 2
        T.cuda.warp_sync()
        if lane == 0:
            T.evaluate(T.ptx["st.release.cta.shared.u32"](T.cuda.cvta_generic_to_shared(flag.ptr_to([0])), T.uint32(1)))
    else:
        f: T.uint32 = T.uint32(0)
        while f == T.uint32(0):
            T.evaluate(T.ptx["ld.acquire.cta.shared.u32"](f, T.cuda.cvta_generic_to_shared(flag.ptr_to([0]))))
        Y[lane] = s[31 - lane]
""",
    lambda: [whole(17, 32, dtype=np.int32), blank(32, dtype=np.int32)],
    lambda x, y: 2 * x[::-1],
    [
        ("ld.acquire.cta", "ld.relaxed.cta", "race-smem", "s["),
        ("st.release.cta", "st.relaxed.cta", "race-smem", "s["),
    ],
)

# A transposition through a padded tile, on a grid of two dimensions.
IDIOMS["block2d"] = (
    """
@T.prim_func
def kernel(X: T.Buffer((32, 48), "float32"), Y: T.Buffer((48, 32), "float32")):
    T.device_entry()
    bx, by = T.cta_id([3, 2])
    tid = T.thread_id([256])
    tx: T.int32 = tid % 16
    ty: T.int32 = tid // 16
    t = T.alloc_shared((16, 17), "float32")
    t[ty, tx] = X[by * 16 + ty, bx * 16 + tx]
    T.cuda.cta_sync()
    Y[bx * 16 + ty, by * 16 + tx] = t[tx, ty]
""",
    lambda: [whole(18, 32, 48), blank(48, 32)],
    lambda x, y: x.T,
    [
        ("    T.cuda.cta_sync()\n", "", "race-smem", "t["),
    ],
)

# Positive values moved together: a ballot, and counts of its bits.
IDIOMS["compact"] = (
    """
@T.prim_func
def kernel(X: T.Buffer((64,), "int32"), C: T.Buffer((1,), "int32"), Y: T.Buffer((64,), "int32")):
    T.device_entry()
    cta = T.cta_id([1])
    warp = T.warp_id([2])
    lane = T.lane_id([32])
    tid = T.thread_id([64])
    counts = T.alloc_shared((2,), "int32")
    x: T.int32 = X[tid]
    b: T.uint32
    T.ptx.vote_sync.ballot.b32(b, x > 0, T.uint32(0xFFFFFFFF))
    before: T.uint32 = b & ((T.uint32(1) << T.cast(lane, "uint32")) - T.uint32(1))
    n: T.int32 = T.cast(T.popcount(before), "int32")
    if lane == 0:
        counts[warp] = T.cast(T.popcount(b), "int32")
    T.cuda.cta_sync()
    base: T.int32 = 0
    if warp == 1:
        base = counts[0]
    if x > 0:
        Y[base + n] = x
    if tid == 0:
        C[0] = counts[0] + counts[1]
""",
    lambda: [whole(19, 64, dtype=np.int32), blank(1, dtype=np.int32), np.zeros(64, np.int32)],
    lambda x, c, y: np.concatenate([x[x > 0], np.zeros(64 - (x > 0).sum())]),
    [],
)

# Each thread sorts its own registers: indices and trip counts of each lane.
IDIOMS["insertion"] = (
    """
@T.prim_func
def kernel(X: T.Buffer((64, 9), "int32"), Y: T.Buffer((64, 9), "int32")):
    T.device_entry()
    cta = T.cta_id([1])
    tid = T.thread_id([64])
    r = T.alloc_local((9,), "int32")
    for i in T.serial(9):
        r[i] = X[tid, i]
    for i in T.serial(1, 9):
        key: T.int32 = r[i]
        j: T.int32 = i - 1
        while j >= 0 and r[j] > key:
            r[j + 1] = r[j]
            j = j - 1
        r[j + 1] = key
    for i in T.serial(9):
        Y[tid, i] = r[i]
""",
    lambda: [whole(20, 64, 9, dtype=np.int32), blank(64, 9, dtype=np.int32)],
    lambda x, y: np.sort(x, 1),
    [
        ("r[j + 1] = key", "r[j + 2] = key", "out-of-bounds", "r[j + 2]"),
    ],
)

# Each CTA of a cluster reads what the next one holds.
IDIOMS["cluster2d"] = (
    """
@T.prim_func
def kernel(X: T.Buffer((4, 32), "int32"), Y: T.Buffer((4, 32), "int32")):
    T.device_entry()
    rank = T.cta_id_in_cluster([4])
    cta = T.cta_id([4])
    tid = T.thread_id([32])
    s = T.alloc_shared((32,), "int32")
    s[tid] = X[cta, tid]
    T.cuda.cluster_sync()
    there: T.uint32
    v: T.int32
    T.evaluate(T.ptx.mapa.shared__cluster.u32(there, T.cuda.cvta_generic_to_shared(s.ptr_to([tid])), T.uint32((rank + 1) % 4)))
    T.evaluate(T.ptx["ld.shared::cluster.s32"](v, there))
    T.cuda.cluster_sync()
    Y[cta, tid] = v
""",
    lambda: [whole(21, 4, 32, dtype=np.int32), blank(4, 32, dtype=np.int32)],
    lambda x, y: np.roll(x, -1, 0),
    [
        ("    T.cuda.cluster_sync()\n    Y", "    Y", "cluster-exit", ""),
    ],
)

# Persistent CTAs that draw their work from a counter.
IDIOMS["queue"] = (
    """
@T.prim_func
def kernel(X: T.Buffer((13, 64), "float32"), Q: T.Buffer((1,), "int32"), Y: T.Buffer((13, 64), "float32")):
    T.device_entry()
    cta = T.cta_id([3])
    tid = T.thread_id([64])
    nxt = T.alloc_shared((1,), "int32")
    work: T.int32 = 0
    while work < 13:
        if tid == 0:
            got: T.int32
            T.evaluate(T.ptx["atom.relaxed.gpu.global.add.s32"](got, Q.ptr_to([0]), 1))
            nxt[0] = got
        T.cuda.cta_sync()
        work = nxt[0]
        T.cuda.cta_sync()
        if work < 13:
            Y[work, tid] = X[work, tid] * T.float32(2)
""",
    lambda: [whole(22, 13, 64), np.zeros(1, np.int32), blank(13, 64)],
    lambda x, q, y: 2 * x,
    [
        (
            "        work = nxt[0]\n        T.cuda.cta_sync()\n",
            "        work = nxt[0]\n",
            "race-smem",
            "nxt[0]",
        ),
        ("        T.cuda.cta_sync()\n        work", "        work", "race-smem", "nxt[0]"),
    ],
)

# A sum by halves in shared memory; the last steps are one warp's.
IDIOMS["tree"] = (
    """
@T.prim_func
def kernel(X: T.Buffer((4, 256), "float32"), Y: T.Buffer((4,), "float32")):
    T.device_entry()
    cta = T.cta_id([4])
    tid = T.thread_id([256])
    s = T.alloc_shared((256,), "float32")
    s[tid] = X[cta, tid]
    T.cuda.cta_sync()
    n: T.int32 = 128
    while n >= 32:
        if tid < n:
            s[tid] = s[tid] + s[tid + n]
        T.cuda.cta_sync()
        n = n // 2
    if tid < 32:
        n = 16
        while n > 0:
            v: T.float32 = s[(tid + n) % 256]
            T.cuda.warp_sync()
            if tid < n:
                s[tid] = s[tid] + v
            T.cuda.warp_sync()
            n = n // 2
        if tid == 0:
            Y[cta] = s[0]
""",
    lambda: [whole(23, 4, 256), blank(4)],
    lambda x, y: x.sum(1),
    [
        (
            "        T.cuda.cta_sync()\n        n = n // 2\n    if",
            "        n = n // 2\n    if",
            "race-smem",
            "s[tid]",
        ),
    ],
)

# Bulk reductions of several CTAs into one row.
IDIOMS["bulk_reduce"] = (
    """
@T.prim_func
def kernel(X: T.Buffer((4, 128), "float32"), Y: T.Buffer((128,), "float32")):
    T.device_entry()
    cta = T.cta_id([4])
    tid = T.thread_id([128])
    pool = T.SMEMPool()
    s = pool.alloc((128,), "float32", align=128)
    pool.commit()
    s[tid] = X[cta, tid]
    T.ptx.fence.proxy.async_.shared__cta()
    T.cuda.cta_sync()
    if tid == 0:
        T.evaluate(T.ptx["cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32"](Y.ptr_to([0]), T.cuda.cvta_generic_to_shared(s.ptr_to([0])), T.uint32(512)))
        T.ptx.cp.async_.bulk.commit_group()
        T.ptx.cp.async_.bulk.wait_group(0)
""",
    lambda: [whole(24, 4, 128), np.zeros(128, np.float32)],
    lambda x, y: x.sum(0),
    [
        ("    T.ptx.fence.proxy.async_.shared__cta()\n", "", "missing-proxy-fence", "cp.reduce"),
    ],
)


# A commit for several K tiles, each of which has been waited for on its own.
IDIOMS["one_commit_for_a_tile"] = (
    """
from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import wg_local_layout
from mlsys_gpu.kernels.common import finish, tcgen05_commit, tma_load


def build():
    @T.prim_func
    def kernel(A: T.Buffer((128, 192), "float16"), B: T.Buffer((64, 192), "float16"), D: T.Buffer((128, 64), "float32")):
        T.device_entry()
        cta = T.cta_id([1])
        wg_id = T.warpgroup_id([1])
        warp_id = T.warp_id([4])
        tid = T.thread_id([128])
        pool = T.SMEMPool()
        tmem = T.TMEMPool(pool, total_cols=512)
        acc = tmem.alloc((128, 64), "float32")
        full = pool.alloc((3,), "uint64", align=8)
        done = pool.alloc((1,), "uint64", align=8)
        As = pool.alloc_tcgen05_mma_AB((3, 128, 64), "float16")
        Bs = pool.alloc_tcgen05_mma_AB((3, 64, 64), "float16")
        pool.commit()
        tmem.commit()
        if tid == 0:
            for s in T.unroll(3):
                T.ptx.mbarrier.init.shared.b64(full.ptr_to([s]), T.uint32(1))
            T.ptx.mbarrier.init.shared.b64(done.ptr_to([0]), T.uint32(1))
            T.ptx.fence.mbarrier_init.release.cluster()
        T.cuda.cta_sync()
        if tid == 32:
            for s in T.serial(3):
                T.ptx.mbarrier.arrive.expect_tx.shared.b64(full.ptr_to([s]), T.uint32(192 * 128))
                tma_load(As[s, :, :], A[:, s * 64 : s * 64 + 64], full.ptr_to([s]))
                tma_load(Bs[s, :, :], B[:, s * 64 : s * 64 + 64], full.ptr_to([s]))
        if tid == 0:
            for k in T.serial(3):
                T.cuda.mbarrier_wait(full.ptr_to([k]), 0)
                T.ptx.tcgen05.fence__after_thread_sync()
                Tx.gemm_async(acc[:, :], As[k, :, :], Bs[k, :, :], accum=k != 0, dispatch="tcgen05")
            tcgen05_commit(done.ptr_to([0]))
        T.cuda.mbarrier_wait(done.ptr_to([0]), 0)
        T.ptx.tcgen05.fence__after_thread_sync()
        regs = T.alloc_local((64,), "float32")
        regs_wg = regs.view(128, 64, layout=wg_local_layout(64))
        Tx.wg.copy_async(regs_wg[:, :], acc[:, :])
        T.ptx.tcgen05.wait__ld.sync.aligned()
        Tx.wg.copy(D[:, :], regs_wg[:, :])
        T.ptx.tcgen05.fence__before_thread_sync()
        T.cuda.cta_sync()
        T.ptx.tcgen05.fence__after_thread_sync()
        tmem.dealloc()
    return finish(kernel, "one_commit", "blackwell")


kernel = build()
""",
    lambda: [
        whole(25, 128, 192, dtype=np.float16, low=-3, high=3),
        whole(26, 64, 192, dtype=np.float16, low=-3, high=3),
        blank(128, 64),
    ],
    lambda a, b, d: a.astype(float) @ b.astype(float).T,
    [
        (
            "T.cuda.mbarrier_wait(full.ptr_to([k]), 0)",
            "T.cuda.mbarrier_wait(full.ptr_to([0]), 0)",
            "race-smem",
            "gemm_async",
        ),
    ],
)


def stencil(x):
    return np.roll(x, -1) + np.roll(x, 1)


def program(text: str, tmp_path) -> sim.Program:
    return sim.compile(module_from(tmp_path / "kernel.py", HEAD + text.strip() + "\n").kernel)


@pytest.mark.parametrize("name", IDIOMS)
def test_right_and_silent(name, tmp_path):
    text, arrays, expected, _ = IDIOMS[name]
    kernel = program(text, tmp_path)
    for schedule, seed in SCHEDULES:
        given = arrays()
        wanted = expected(*(x.copy() for x in given))
        report = sim.simulate(kernel, *given, schedule=schedule, schedule_seed=seed)
        assert not report.findings, report
        np.testing.assert_array_equal(given[-1], np.broadcast_to(wanted, given[-1].shape))


FAULTS = [(name, i) for name, idiom in IDIOMS.items() for i in range(len(idiom[3]))]


@pytest.mark.parametrize(("name", "which"), FAULTS)
def test_fault_is_named(name, which, tmp_path):
    text, arrays, _, faults = IDIOMS[name]
    find, replace, code, line = faults[which]
    assert find in text
    kernel = program(text.replace(find, replace, 1), tmp_path)
    for schedule, seed in SCHEDULES:
        report = sim.simulate(kernel, *arrays(), schedule=schedule, schedule_seed=seed)
        assert report.findings, (schedule, seed)
        assert report.findings[0].code == code, report
        places = [f.location.text for f in report.findings if f.location]
        assert not line or any(line in place for place in places), report


# ------------------------------------------------------------------------ boxes of tensor maps

BOXES = {  # dimensions: the tensor's shape, the box (innermost first), the swizzle in bytes
    1: ((300,), (64,), 0),
    3: ((5, 6, 64), (32, 4, 3), 64),
    5: ((2, 3, 4, 3, 64), (16, 2, 3, 2, 2), 32),
}


@pytest.mark.parametrize("dims", BOXES)
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_a_box_of_any_dimensions(dims, schedule, seed, tmp_path):
    """Loaded by one thread, unswizzled by all; outside of the tensor there are zeros."""
    shape, box, swizzle = BOXES[dims]
    rows, inner = int(np.prod(box[1:])), box[0]
    coordinates = ", ".join(f"c{i}" for i in range(dims))
    scalars = ", ".join(f"c{i}: T.int32" for i in range(dims))
    load = f"cp.async.bulk.tensor.{dims}d.shared::cluster.global.mbarrier::complete_tx::bytes"
    text = f"""
@T.prim_func
def kernel(src: T.TensorMap(), {scalars}, Y: T.Buffer(({rows}, {inner}), "float16")):
    T.device_entry()
    cta = T.cta_id([1])
    tid = T.thread_id([64])
    pool = T.SMEMPool()
    s = pool.alloc(({rows}, {inner}), "float16", align=1024)
    bar = pool.alloc((1,), "uint64", align=8)
    pool.commit()
    if tid == 0:
        T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), T.uint32(1))
        T.ptx.fence.mbarrier_init.release.cluster()
    T.cuda.cta_sync()
    if tid == 0:
        T.ptx.mbarrier.arrive.expect_tx.shared.b64(bar.ptr_to([0]), T.uint32({rows * inner * 2}))
        T.ptx["{load}"](s.ptr_to([0, 0]), T.address_of(src), {coordinates}, bar.ptr_to([0]))
    T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
    i: T.int32 = tid
    while i < {rows * inner}:
        byte: T.int32 = i * 2
        byte = byte ^ ((byte >> 7) % {max(1, swizzle // 16)} << 4)
        Y[i // {inner}, i % {inner}] = s[byte // 2 // {inner}, byte // 2 % {inner}]
        i = i + 64
"""
    x = (np.arange(np.prod(shape)) % 2048).reshape(shape).astype(np.float16)
    start = [248 if dims == 1 else 0, 1, 1, 1, 1][:dims]  # innermost: 16 bytes or a multiple
    made = mg.TensorMap(x, box=box, swizzle=f"{swizzle}B" if swizzle else "none")
    y = blank(rows, inner, dtype=np.float16)
    kernel = program(text, tmp_path)
    report = sim.simulate(kernel, made, *start, y, schedule=schedule, schedule_seed=seed)
    assert not report.findings, report
    wanted = np.zeros(tuple(reversed(box)))
    for place in np.ndindex(wanted.shape):
        at = tuple(a + b for a, b in zip(place, reversed(start), strict=True))
        if all(a < n for a, n in zip(at, shape, strict=True)):
            wanted[place] = x[at]
    np.testing.assert_array_equal(y, wanted.reshape(rows, inner))
