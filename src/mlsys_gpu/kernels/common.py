"""What every kernel shares: shape and dtype rules, targets, and a few spellings of this release.

A helper here saves typing; it never hides the idea that a step teaches. Everything that depends on
how TIRx 0.27 spells things, and that more than one kernel needs, is in this file.
"""

from tvm.ir import PointerType, PrimType
from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx
from tvm.target import Target
from tvm.tirx import PrimFunc
from tvm.tirx.layout import S, TileLayout, tid_in_wg, wg_local_layout

ARCH = {"blackwell": "sm_100a", "hopper": "sm_90a"}
DTYPES = ("float16", "bfloat16")


def check_dtype(dtype: str) -> None:
    """Raise ``ValueError`` unless ``dtype`` is ``float16`` or ``bfloat16``."""
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be 'float16' or 'bfloat16', got {dtype!r}")


def check_equal(step: str, **dims: tuple[int, int]) -> None:
    """Raise ``ValueError`` unless each named dimension has its one value: ``M=(M, 128)``."""
    for name, (value, wanted) in dims.items():
        if not _is_int(value) or value != wanted:
            raise ValueError(
                f"{step} computes one tile and takes {name} = {wanted}, got {name} = {value!r}"
            )


def check_multiple(step: str, **dims: tuple[int, int]) -> None:
    """Raise ``ValueError`` unless each named dimension is a positive multiple: ``K=(K, 64)``."""
    for name, (value, of) in dims.items():
        if not _is_int(value) or value <= 0 or value % of:
            raise ValueError(
                f"{step} needs {name} to be a positive multiple of {of}, got {name} = {value!r}"
            )


def check_tma(step: str, M: int, N: int, K: int) -> None:
    """Raise ``ValueError`` unless TMA can address 16-bit A [M, K], B [N, K] and D [M, N].

    Rows must start multiples of 16 bytes apart, which is 8 elements (CUDA driver API,
    ``cuTensorMapEncodeTiled``): that binds N and K. M is the length of no row.
    """
    if not _is_int(M) or M <= 0:
        raise ValueError(f"{step} needs M to be a positive number, got M = {M!r}")
    for name, value in (("N", N), ("K", K)):
        if not _is_int(value) or value <= 0 or value % 8:
            raise ValueError(
                f"{step} needs {name} to be a positive multiple of 8 (TMA wants rows that start "
                f"multiples of 16 bytes apart), got {name} = {value!r}"
            )


def cdiv(a: int, b: int) -> int:
    """How many tiles of ``b`` it takes to cover ``a``."""
    return (a + b - 1) // b


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def finish(kernel: PrimFunc, name: str, arch: str, workspace: tuple[str, ...] = ()) -> PrimFunc:
    """Name the kernel and say which architecture it is for: what lowering and inspection read.

    ``workspace`` names parameters that the launch provides, not its caller: tensors that hold
    zeros before the first launch and that the kernel leaves so.
    """
    target = Target({"kind": "cuda", "arch": ARCH[arch]})
    attrs = {"global_symbol": name, "target": target}
    return kernel.with_attrs(attrs | ({"mlsys_gpu.workspace": workspace} if workspace else {}))


def mbarrier_init(bars, count):
    """Emit ``mbarrier.init`` of all ``bars``, an array in shared memory: ``count`` arrivals each.

    One thread does it; ``fence.mbarrier_init`` and a barrier of the CTA (or the cluster) let others
    use them. PTX ISA: mbarrier.init.
    """
    for i in range(int(bars.shape[0])):
        T.evaluate(T.ptx.mbarrier.init.shared.b64(bars.ptr_to([i]), T.uint32(count)))


# --- TMA -----------------------------------------------------------------------------------------
# "tma_explicit" makes the tensor map of the matrix as declared. "tma_auto" refuses M = 1 in 0.27.


def tma_load(tile, box, bar, cta_mask=None, **how):
    """Emit a TMA load of ``box``, a slice of a matrix in global memory, into ``tile`` in SMEM.

    What lies past an edge of the matrix becomes zeros. All bytes of the tile, those too, count
    down the mbarrier at the address ``bar``. ``cta_mask`` multicasts: each CTA of the cluster
    whose bit is set gets the tile at the same place, and its bytes on its own mbarrier there.
    ``how`` are TIRx's own options: with ``cta_group=2`` the mbarrier may be that of either CTA of
    a pair, at an address of ``at_cta``; ``cache_hint``; ``prefetch_tensormap``. PTX ISA:
    cp.async.bulk.tensor.
    """
    if cta_mask is not None:
        how["cta_mask"] = cta_mask
    if str(bar.ty) == "uint32":
        bar = _generic(bar)  # TIRx's copy takes no address but a pointer
    Tx.copy_async(tile, box, dispatch="tma_explicit", mbar=bar, **how)


def tma_store(box, tile, **how):
    """Emit a TMA store of ``tile`` in SMEM into ``box``, a slice of a matrix in global memory.

    What lies past an edge of the matrix is dropped. The store belongs to the bulk group that this
    thread commits next. ``how``: as in :func:`tma_load`. PTX ISA: cp.async.bulk.tensor.
    """
    Tx.copy_async(box, tile, dispatch="tma_explicit", **how)


# --- Clusters ------------------------------------------------------------------------------------


def at_cta(rank, bar):
    """Emit ``mapa``: where CTA ``rank`` of the cluster has what is here at ``bar``.

    ``bar`` is the address of an mbarrier, or of something else in shared memory. What comes back
    is for instructions that take an address in ``shared::cluster``: a uint32, since a generic
    address of 64 bits would take more instructions to compute. PTX ISA: mapa.
    """
    address = T.alloc_local((1,), "uint32")
    here = T.cuda.cvta_generic_to_shared(bar)
    T.evaluate(T.ptx.mapa.shared__cluster.u32(address[0], here, T.uint32(rank)))
    return address[0]


def _generic(address):
    """Emit ``cvta``: the generic address, a pointer, of an address of ``at_cta``."""
    generic = T.alloc_local((1,), "uint64")
    T.evaluate(T.ptx["cvta.shared::cluster.u64"](generic[0], T.Cast("uint64", address)))
    return T.reinterpret(PointerType(PrimType("uint64"), "shared"), generic[0])


def arrive_at(bar, expect_tx=None):
    """Emit one arrival at the mbarrier at ``bar``, an address of ``at_cta``.

    With ``expect_tx`` the phase waits for so many bytes more. Like CUTLASS's, the arrival does not
    name the cluster's scope: ``.release.cluster`` would first wait until the GPU sees all that the
    thread has stored, and those who only read tiles have stored nothing. PTX ISA: mbarrier.arrive.
    """
    if expect_tx is None:
        T.evaluate(T.ptx.mbarrier.arrive.shared__cluster.b64(bar))
    else:
        T.evaluate(T.ptx.mbarrier.arrive.expect_tx.shared__cluster.b64(bar, expect_tx))


def st_async(there, value, bar):
    """Emit a store of ``value``, an int32, to another CTA that ``bar`` there waits for.

    ``there`` and ``bar`` are addresses of ``at_cta`` for the same CTA; the 4 bytes count down the
    mbarrier once they are written. PTX ISA: st.async.
    """
    kind = "st_async.shared::cluster.mbarrier::complete_tx::bytes.s32"
    T.evaluate(T.ptx[kind](there, value, bar))


def draw(number, counter, count):
    """Emit ``number = counter; counter = (counter + 1) % count`` as one atomic step.

    ``counter`` is an address in global memory, ``number`` a uint32. PTX ISA: atom, inc.
    """
    kind = "atom.relaxed.gpu.global.inc.u32"
    T.evaluate(T.ptx[kind](number, counter, T.uint32(count - 1)))


# --- tcgen05 (Blackwell) -------------------------------------------------------------------------


def tcgen05_commit(bar, cta_group=1):
    """Emit ``tcgen05.commit``: ``bar`` gets one arrival when this thread's MMAs are all done.

    ``bar`` is the address of an mbarrier in shared memory; with ``cta_group=2`` the MMAs are those
    of a pair, and the mbarrier there in either CTA gets one. PTX ISA: tcgen05.commit.
    """
    kind = f"tcgen05.commit.cta_group::{cta_group}.mbarrier::arrive::one.shared::cluster"
    if cta_group == 1:
        T.evaluate(T.ptx[f"{kind}.b64"](bar))
    else:
        T.evaluate(T.ptx[f"{kind}.multicast::cluster.b64"](bar, T.uint16(3)))


def tmem_read(acc, dtype, at_once=None):
    """Emit reads of ``acc``, fp32 in TMEM, and their rounding to 16 bits: what a warpgroup holds.

    ``acc`` is a slice of 128 lanes. ``at_once`` columns are read at a time, or all of them: that
    many fp32 registers it takes besides. What comes back is a buffer of the same shape in
    registers: thread i of the warpgroup has row i. PTX ISA: tcgen05.ld, tcgen05.wait.
    """
    rows, columns = (int(dim.extent) for dim in acc.region)
    at_once = columns if at_once is None else at_once
    out = T.alloc_local((columns,), dtype)
    for c in range(0, columns, at_once):
        first = acc.region[1].min + c
        regs = T.alloc_local((at_once,), "float32")
        regs_wg = regs.view(rows, at_once, layout=wg_local_layout(at_once))
        Tx.wg.copy_async(regs_wg[:, :], acc.source[:, first : first + at_once])
        T.evaluate(T.ptx.tcgen05.wait__ld.sync.aligned())
        Tx.cast(out[c : c + at_once], regs[:])
    return out.view(rows, columns, layout=wg_local_layout(columns))


# --- Cluster Launch Control (Blackwell) ----------------------------------------------------------


def clc_try_cancel(response, bar):
    """Emit a request to cancel the launch of a cluster that has not started.

    The answer is 16 bytes at the address ``response`` of every CTA of this cluster, and counts
    down the mbarrier that each has at ``bar``. PTX ISA: clusterlaunchcontrol.try_cancel.
    """
    kind = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"
    T.evaluate(T.ptx[f"{kind}.multicast::cluster::all.b128"](response, bar))


def clc_cluster(response, ctas):
    """Emit what reads a response: the number of the cluster whose launch it cancelled, or -1.

    ``response`` is its address; clusters have ``ctas`` CTAs along x. The fence is for the response
    that comes next, through the async proxy. PTX ISA: clusterlaunchcontrol.query_cancel.
    """
    answer = T.alloc_local((1,), "uint128")
    found, first = (T.alloc_local((1,), "uint32") for _ in range(2))
    query = "clusterlaunchcontrol.query_cancel"
    T.evaluate(T.ptx.ld.shared.b128(answer[0], response))
    T.evaluate(T.ptx[f"{query}.is_canceled.pred.b128"](found[0], answer[0]))
    T.buffer_store(first, T.uint32(0xFFFFFFFF), [0])
    T.evaluate(T.ptx[f"{query}.get_first_ctaid::x.b32.b128"](first[0], answer[0], pred=found[0]))
    T.evaluate(T.ptx.fence.proxy.async_.shared__cta())
    return T.Cast("int32", first[0]) // ctas


# --- wgmma (Hopper) ------------------------------------------------------------------------------

_PTX_TYPE = {"float16": "f16", "bfloat16": "bf16"}


def wgmma(acc, first, descA, descB, accumulate, N, dtype):
    """Emit one ``wgmma.mma_async.m64nNk16``: ``acc[first : first + N // 2] (+)= A @ B.T``.

    ``acc`` is a local float32 buffer (each thread of the warpgroup holds N // 2 of the 64 x N
    results), ``descA`` and ``descB`` are 64-bit shared-memory descriptors of K-major operands,
    ``accumulate`` is 0 where the old contents of ``acc`` do not count. PTX ISA: wgmma.mma_async.
    """
    regs = [acc[first + i] for i in range(N // 2)]
    kind = f"wgmma.mma_async.sync.aligned.m64n{N}k16.f32.{_PTX_TYPE[dtype]}.{_PTX_TYPE[dtype]}"
    # The four constants: A and B are not negated (1, 1), and both are K-major (0, 0).
    T.evaluate(T.ptx[kind](*regs, descA, descB, accumulate, 1, 1, 0, 0))


_REGISTER_FENCE = """
__forceinline__ __device__ void mlsys_register_fence(float* regs, int count) {
  #pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(regs[i]));
}
"""


def register_fence(acc, count):
    """Emit a compiler fence on ``acc[0:count]``: no access to these registers moves across it.

    wgmma writes its accumulators behind the compiler's back, between the instruction and the wait.
    The fence costs no instruction. (TIRx's own ``wgmma.noop_barrier`` does not compile in 0.27.)
    """
    ptr = T.address_of(acc[0])
    T.evaluate(T.cuda.func_call("mlsys_register_fence", ptr, count, source_code=_REGISTER_FENCE))


def wgmma_fragment(M, N):
    """Which thread of a warpgroup holds (m, n) of an M x N accumulator, and in which register.

    Row  m = 64 * i + 16 * warp + 8 * h + lane // 4
    Col  n = 8 * j + 2 * (lane % 4) + c
    Register (N // 2) * i + 4 * j + 2 * h + c.   PTX ISA: wgmma.mma_async, register fragment D.
    """
    shape = (M // 64, 4, 2, 8, N // 8, 4, 2)
    tid = tid_in_wg
    return TileLayout(S[shape : (N // 2, 32 @ tid, 2, 4 @ tid, 4, 1 @ tid, 1)])
