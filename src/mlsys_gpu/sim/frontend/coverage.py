"""What the simulator models of TVM's PTX dialect and CUDA helpers, and what is left for later.

The documentation's tables are made from what stands here and in the table of operations. Tests hold
that every instruction of TVM's PTX table is in one of them, and that what is left is refused by
name.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from mlsys_gpu.sim.frontend import table

#: Topics of the documentation, in its order, each with patterns of the names of its operations; the
#: first topic that fits has the operation.
TOPICS: dict[str, tuple[str, ...]] = {
    "TMA and other bulk copies": (
        "ptx.cp_async_bulk*", "ptx.cp_reduce_async_bulk*", "ptx.st_bulk",
    ),
    "Copies of threads: cp.async": ("ptx.cp_async*",),
    "mbarriers": ("ptx.mbarrier*", "cuda.mbarrier*"),
    "Barriers of a CTA, a cluster, a grid": (
        "ptx.bar_*", "ptx.barrier_*", "cuda.cta_sync", "cuda.syncthreads*", "cuda.warpgroup_sync",
        "cuda.cluster_sync", "cuda.grid_sync", "tvm_storage_sync",
    ),
    "Fences": ("ptx.fence*", "cuda.thread_fence"),
    "Lanes of a warp: votes, matches, shuffles, reductions": (
        "ptx.vote*", "ptx.match*", "ptx.activemask", "ptx.elect*", "ptx.redux*", "ptx.shfl*",
        "cuda.*_sync*", "cuda.__*", "cuda.warp_*", "cuda.cta_reduce", "tvm_warp_*",
    ),
    "Clusters: distributed shared memory, launch control": (
        "ptx.mapa*", "ptx.getctarank*", "ptx.clusterlaunchcontrol*", "ptx.st_async*",
        "ptx.red_async*", "cuda.sm100_2sm*", "cuda.smem_addr*", "ptx.griddepcontrol",
    ),
    "Loads, stores, atomics": (
        "ptx.ld", "ptx.ld_*", "ptx.st", "ptx.st_*", "ptx.ldu*", "ptx.atom*", "ptx.red", "ptx.red_*",
        "cuda.ldg", "cuda.atomic*", "cuda.wait_until", "ptx.isspacep", "ptx.cvta*", "ptx.addr",
        "cuda.cvta*", "ptx.prefetch*", "ptx.discard", "ptx.applypriority*", "ptx.createpolicy*",
    ),
    "Matrix products of a warp: mma.sync": (
        "ptx.mma*", "ptx.ldmatrix*", "ptx.stmatrix*", "ptx.movmatrix*",
    ),
    "Matrix products of a warpgroup: wgmma": ("ptx.wgmma*", "cuda.wgmma*", "ptx.setmaxnreg"),
    "The tensor core of Blackwell: tcgen05": ("ptx.tcgen05*", "cuda.*tcgen05*", "cuda.get_tmem*"),
    "Arithmetic, comparisons, bits, conversions": (
        "ptx.*", "cuda.float*", "cuda.fmul*", "cuda.fadd*", "cuda.f*", "cuda.h*", "cuda.bfloat*",
        "cuda.make*", "cuda.uint_as*", "cuda.*half*", "cuda.*fp8*",
    ),
    "Special registers, clocks, debugging": (
        "cuda.mov_sreg", "cuda.clock64", "cuda.nano_sleep", "cuda.printf", "cuda.trap*",
        "cuda.thread_rank", "cuda.iket*", "assume",
    ),
    "TIR's own": ("*",),
}  # fmt: skip

#: Operations that are accepted, and why they change nothing or are modelled in a simple way.
REMARKS: dict[str, str] = {
    "ptx.prefetch*": "no effect: there are no caches",
    "ptx.cp_async_bulk*prefetch*": "no effect: there are no caches",
    "ptx.applypriority*": "no effect: there are no caches",
    "ptx.discard": "writes 128 bytes that look like nothing sensible",
    "ptx.createpolicy*": "an opaque value; cache hints are accepted and have no effect",
    "ptx.griddepcontrol": "returns at once: a launch by itself depends on no other grid",
    "ptx.fence_proxy": "of `.async`, by state space; `.alias` has no effect",
    "ptx.fence_proxy_tensormap*": "no effect: tensor maps do not change while a kernel runs",
    "cuda.nano_sleep": "lets others run; for how long is not modelled",
    "ptx.mbarrier_try_wait*": "how long it would sleep is not modelled",
    "cuda.clock64": "counts its own readings; no measure of time",
    "cuda.mov_sreg": "`%clock` and `%globaltimer` count readings; `%smid` goes through the SMs",
    "cuda.printf": "printed when the run ends, lane by lane",
    "cuda.trap*": "a finding (`assertion`) where the condition fails",
    "cuda.iket*": "no effect: marks for NVIDIA's tools",
    "assume": "no effect: a promise to the compiler",
}


@dataclass(frozen=True)
class Left:
    """Something that is left for later, and refused by name.

    ``names``: patterns of the operations' names, which nothing in the table stands for. ``forms``:
    patterns of operations that are modelled, but not in the forms whose refusal says ``said`` (a
    regular expression).
    """

    what: str
    why: str
    names: tuple[str, ...] = ()
    forms: tuple[str, ...] = ()
    said: str = ""


_OPERANDS = "other operand formats than fp16 and bf16 are not modelled yet"
_NEWER = "instructions of PTX 9.3 and later for GPUs after Blackwell (`sm_107`)"

LEFT: tuple[Left, ...] = (
    Left(
        "Block-scaled products (`mxf8f6f4`, `mxf4`, `mxf4nvf4`)", _OPERANDS,
        ("ptx.tcgen05_mma_block_scale*", "cuda.tcgen05_encode_instr_descriptor_block_scaled",
         "cuda.runtime_instr_desc"),
    ),
    Left(
        "fp8, fp6 and fp4 products", _OPERANDS, ("ptx.wgmma_fp8*",),
        ("ptx.tcgen05_mma_*",), r"kind::f8f6f4",
    ),
    Left(
        "int8 products", _OPERANDS, ("ptx.wgmma_int*", "ptx.mma_int"),
        ("ptx.tcgen05_mma_*",), r"kind::i8",
    ),
    Left(
        "tf32 products", _OPERANDS, ("ptx.wgmma_tf32*",), ("ptx.tcgen05_mma_*",), r"kind::tf32",
    ),
    Left("Products of single bits, and of fp64", _OPERANDS, ("ptx.wgmma_b1*", "ptx.mma_f64")),
    Left(
        "`mma.sync` of other shapes and formats than m16n8k8 and m16n8k16 of fp16 and bf16",
        _OPERANDS, ("ptx.mma_f16c_f32d",), ("ptx.mma", "ptx.mma_f16acc"), r"mma\.sync",
    ),
    Left("Sparse products", "the metadata of 2:4 sparsity is not modelled", ("ptx.mma_sp*",)),
    Left(
        "8-bit and narrower matrices of `ldmatrix` and `stmatrix`", _OPERANDS,
        ("ptx.ldmatrix_m16n16_b8", "ptx.ldmatrix_b8fmt", "ptx.ldmatrix_s8_s4",
         "ptx.stmatrix_m16n8_b8"),
    ),
    Left(
        "`tcgen05.cp`, `tcgen05.mma.ws`, `tcgen05.ld.red`",
        "copies into tensor memory, weight-stationary products and loads that reduce",
        ("ptx.tcgen05_cp", "ptx.tcgen05_mma_ws_ss", "ptx.tcgen05_mma_ws_ts", "ptx.tcgen05_ld_red",
         "ptx.tcgen05_ld_red_split"),
    ),
    Left(
        "im2col copies", "convolutions are not what this course is about", ("ptx.*_im2col*",),
    ),
    Left(
        "Tensor maps that a kernel changes (`tensormap.replace`)",
        "tensor maps are the host's: they do not change while a kernel runs", ("ptx.tensormap*",),
    ),
    Left(
        "`multimem`", "multicast objects span several GPUs", ("ptx.multimem*",),
    ),
    Left("Copies between GPUs (`fabric`)", "there is one GPU",
         ("ptx.fabric*", "ptx.fence_proxy_fabric")),
    Left(
        "`st.async` and `red.async` to global memory", "writes to memory-mapped devices",
        ("ptx.st_async_release", "ptx.red_async_release"),
    ),
    Left(
        "Reports and conditional phases of mbarriers, layout v1", _NEWER,
        ("ptx.mbarrier_*_report*",), ("ptx.mbarrier*",), r"phase_type::conditional|layout::v1",
    ),
    Left(
        "Bulk copies that are strong accesses, that report, or that ignore bytes", _NEWER,
        ("ptx.cp_async_bulk*_report",), ("ptx.cp_async_bulk*",),
        r"cp\.async\.bulk\.relaxed|ignore_oob",
    ),
    Left(
        "Multicast to 16 and 32 CTAs by other masks, tensor maps overridden in the instruction",
        _NEWER, ("ptx.*multicast16*", "ptx.*multicast32*", "ptx.*_override_*"),
    ),
    Left(
        "Other additions of PTX 9.3 and 9.4", _NEWER,
        ("ptx.*_mixed_vec*", "ptx.cvt_pzo*", "ptx.cvt_94*", "ptx.cvt_*ue5m3*", "ptx.*spcompress",
         "ptx.spdecompress", "ptx.tcgen05_*exclusive", "ptx.tcgen05_commit_multicast_width",
         "ptx.tcgen05_commit_sync_restrict*", "ptx.tcgen05_mma_*ti16*", "ptx.tcgen05_mma_lut*",
         "ptx.tcgen05_mma_*collector*", "ptx.clmad"),
    ),
    Left(
        "Stochastic rounding to fp8, fp6 and fp4, and the format s2f6",
        "random bits and formats that no kernel of this course uses",
        ("ptx.cvt_rs_f*x4_f32", "ptx.cvt_s2f6*", "ptx.cvt_bf16x2_s2f6x2"),
        ("ptx.cvt_bf16x2_f*",), r"scaled::n2::ue8m0",
    ),
    Left(
        "float64 rounded in other ways than to nearest even", "float64 is NumPy's", (),
        ("ptx.add", "ptx.sub", "ptx.mul", "ptx.fma", "ptx.mad_f", "ptx.div_f", "ptx.rcp",
         "ptx.sqrt"), r"\.r[zmp]\.f64",
    ),
    Left("`fma.oob`", "it is for the borders of convolutions", (), ("ptx.fma_half",), r"\.oob"),
    Left(
        "Addresses of constant, local and parameter memory", "registers have no addresses here", (),
        ("ptx.ld", "ptx.ld_vec*", "ptx.st", "ptx.st_vec*", "ptx.cvta*", "ptx.isspacep"),
        r"state space|isspacep|cvta",
    ),
    Left(
        "128-bit atomics and remote stores", "integers have 64 bits here", (),
        ("ptx.atom*", "ptx.st_async*"), r"b128",
    ),
)  # fmt: skip

#: What is refused elsewhere than at an operation.
ALSO_LEFT: dict[str, str] = {
    "Tensor maps with interleaved layouts, or with swizzles of 32- and 64-byte atoms": (
        "how they lay bytes out in shared memory is not modelled"
    ),
    "Tensor maps of fp32 with flushing, of tf32, and of 4- and 6-bit elements": (
        "such copies round or unpack while they load"
    ),
    "Inline CUDA (`T.cuda.func_call`) for which no Python equivalent is registered": (
        "the simulator cannot read CUDA C++; `mlsys_gpu.sim.inline` registers an equivalent"
    ),
}


def topic(name: str) -> str:
    """The topic of an operation."""
    for title, patterns in TOPICS.items():
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            return title
    raise KeyError(name)


def left(name: str) -> Left | None:
    """What is said of an operation that is left for later."""
    for entry in LEFT:
        if any(fnmatchcase(name, pattern) for pattern in entry.names):
            return entry
    return None


def remark(name: str) -> str:
    """What is said of an operation that is accepted without much of an effect."""
    return next((text for p, text in REMARKS.items() if fnmatchcase(name, p)), "")


def spelling(name: str) -> str:
    """An operation as it is written: PTX with the modifiers that it must have, or TIRx.

    Of a modifier with several values they stand in braces, or its name where they are many.
    """
    from tvm.backend.cuda.ptx.table import TABLE

    if not name.startswith("ptx.") or name == "ptx.addr":
        return f"T.{name}"
    entry = TABLE[name.removeprefix("ptx.")]
    parts = [entry.ptx_name]
    for slot in entry.slots:
        if not slot.optional:
            few = len(slot.choices) <= 4
            inside = "|".join(slot.choices) if few else slot.name
            parts.append(inside if len(slot.choices) == 1 else f"{{{inside}}}")
    return ".".join(parts)


def modelled() -> dict[str, dict[str, str]]:
    """For each topic the operations that are modelled, as they are written, each with a remark."""
    found: dict[str, dict[str, str]] = {title: {} for title in TOPICS}
    for name in table.names():
        if name.startswith(("inline ", "prim.")):
            continue
        found[topic(name)].setdefault(spelling(name), remark(name))
    return {title: dict(sorted(names.items())) for title, names in found.items() if names}
