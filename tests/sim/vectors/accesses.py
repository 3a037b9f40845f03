"""Loads and stores of all types and widths, atomics of several values, addresses of state spaces
and CTAs, special registers, and what CUDA's own functions do.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .case import Case, rng_of
from .memory import STORAGE, kernel_text, values_of

TYPES = {
    "b8": "uint8", "u8": "uint8", "s8": "int8", "b16": "uint16", "u16": "uint16", "s16": "int16",
    "b32": "uint32", "u32": "uint32", "s32": "int32", "b64": "uint64", "u64": "uint64",
    "s64": "int64", "f32": "float32", "f64": "float64",
}  # fmt: skip
#: How a load and a store may be qualified, in turn; they go round with the forms.
LOADS = ("", ".weak", ".volatile", ".relaxed.cta", ".relaxed.gpu", ".relaxed.sys", ".acquire.cta",
         ".acquire.gpu", ".acquire.cluster")  # fmt: skip
STORES = ("", ".weak", ".volatile", ".relaxed.cta", ".relaxed.gpu", ".relaxed.sys", ".release.cta",
          ".release.gpu", ".release.cluster")  # fmt: skip
#: Cache operators and hints on global memory.
CACHED = (".ca", ".cg", ".cs", ".lu", ".cv", ".nc", ".nc.L1::no_allocate", ".L1::evict_last",
          ".L1::evict_first", ".L2::128B")  # fmt: skip
WRITTEN = (".wb", ".cg", ".cs", ".wt", ".L1::no_allocate", ".L1::evict_last")
SPACES = ("global", "shared", "shared::cta", "")
THREADS = 32


def _registers(name: str, vec: int, at: int = 0) -> str:
    return ", ".join(f"{name}[{at + i}]" for i in range(vec))


def loads_case(space: str) -> Case:
    """Every type and vector, loaded and stored in a state space, qualified in turn.

    Bytes are random; a thread loads its own, and what it stores is read back as bytes.
    """
    forms: list[tuple[str, str, int, str]] = []  # load, store, elements, type
    turn = 2 * SPACES.index(space)
    for kind, dtype in TYPES.items():
        for vec in (1, 2, 4):
            if vec * np.dtype(dtype).itemsize > 16:
                continue
            load, store = LOADS[turn % len(LOADS)], STORES[turn % len(STORES)]
            wide = f".v{vec}" * (vec > 1)
            where = f".{space}" if space else ""
            forms.append((f"ld{load}{where}{wide}.{kind}", f"st{store}{where}{wide}.{kind}", vec,
                          kind))  # fmt: skip
            turn += 1
    if space == "global":
        for i, more in enumerate(CACHED):
            written = WRITTEN[i % len(WRITTEN)]
            wide = (".v4", "")[i % 2]
            forms.append((f"ld.global{more}{wide}.b32", f"st.global{written}{wide}.b32",
                          4 if wide else 1, "b32"))  # fmt: skip
        for kind, vec in (("u8", 1), ("s16", 1), ("b32", 1), ("f64", 1), ("u16", 4), ("f32", 4),
                          ("b64", 2)):  # fmt: skip
            wide = f".v{vec}" * (vec > 1)
            forms.append((f"ldu.global{wide}.{kind}", f"st.global{wide}.{kind}", vec, kind))
    rows = len(forms)
    body = [f'r_{d} = T.alloc_local((4,), "{d}")' for d in dict.fromkeys(TYPES.values())]
    if space != "global":
        body += ["pool = T.SMEMPool()", 's = pool.alloc((1024,), "uint8", align=16)',
                 "pool.commit()"]  # fmt: skip
    names = []
    for row, (load, store, vec, kind) in enumerate(forms):
        dtype = TYPES[kind]
        regs = _registers(f"r_{dtype}", vec)
        size = vec * np.dtype(dtype).itemsize
        if space == "global":
            source, into = f"X.ptr_to([{row}, tid * {size}])", f"Y.ptr_to([{row}, tid * {size}])"
        else:
            source, into = f"s.ptr_to([tid * {size}])", f"s.ptr_to([512 + tid * {size}])"
            if not space:
                source, into = (f'T.reinterpret("uint64", {x})' for x in (source, into))
            body += [f"for i in range({size}):",
                     f"    s[tid * {size} + i] = X[{row}, tid * {size} + i]",
                     "T.cuda.warp_sync()"]  # fmt: skip
        body += [f'T.evaluate(T.ptx["{load}"]({regs}, {source}))',
                 f'T.evaluate(T.ptx["{store}"]({into}, {regs}))']  # fmt: skip
        if space != "global":
            body += ["T.cuda.warp_sync()", f"for i in range({size}):",
                     f"    Y[{row}, tid * {size} + i] = s[512 + tid * {size} + i]",
                     "T.cuda.warp_sync()"]  # fmt: skip
        names.append(f"{load}, {store}")
    shape = (rows, 16 * THREADS)
    params = [f'{n}: T.Buffer({shape}, "uint8")' for n in "XY"]
    text = kernel_text(params, body, threads=THREADS)
    name = f"loads and stores {space or 'generic'}"

    def arguments():
        return [rng_of(name).integers(0, 256, shape).astype(np.uint8), np.zeros(shape, np.uint8)]

    return Case("loads and stores", name, text, arguments, (1,), {1: names})


def matrices_case() -> Case:
    """``ldmatrix`` and ``stmatrix`` on ``shared::cta`` and generic addresses."""
    body = [
        "pool = T.SMEMPool()", 's = pool.alloc((256,), "uint16", align=16)',
        'q = pool.alloc((256,), "uint16", align=16)', "pool.commit()",
        'r = T.alloc_local((4,), "uint32")',
        "for i in range(8):", "    s[tid * 8 + i] = X[tid * 8 + i]", "T.cuda.warp_sync()",
    ]  # fmt: skip
    names = []
    for where in ("", ".shared::cta"):
        for count in (1, 2, 4):
            for trans in ("", ".trans"):
                i, regs = len(names), _registers("r", count)
                source, into = "s.ptr_to([8 * P[tid]])", "q.ptr_to([8 * P[31 - tid]])"
                if not where:
                    source, into = (f'T.reinterpret("uint64", {x})' for x in (source, into))
                form = f"matrix.sync.aligned.m8n8.x{count}{trans}{where}.b16"
                body += [
                    "for i in range(8):", "    q[tid * 8 + i] = T.uint16(0x5555)",
                    "T.cuda.warp_sync()", f'T.evaluate(T.ptx["ld{form}"]({regs}, {source}))',
                    f'T.evaluate(T.ptx["st{form}"]({into}, {regs}))', "T.cuda.warp_sync()",
                    "for i in range(8):", f"    Y[{i}, tid, i] = q[tid * 8 + i]",
                    "T.cuda.warp_sync()",
                ]  # fmt: skip
                names.append(f"ld{form}, st{form}")
    shape = (len(names), 32, 8)
    text = kernel_text(['X: T.Buffer((256,), "uint16")', 'P: T.Buffer((32,), "int32")',
                        f'Y: T.Buffer({shape}, "uint16")'], body, threads=32)  # fmt: skip

    def arguments():
        rng = rng_of("matrices")
        x = rng.integers(0, 1 << 16, 256).astype(np.uint16)
        return [x, rng.permutation(32).astype(np.int32), np.zeros(shape, np.uint16)]

    return Case("ldmatrix, stmatrix, other addresses", "matrices", text, arguments, (2,),
                {2: names})  # fmt: skip


WIDE = [(f"{op}.noftz", f"v{vec}", kind) for kind, vecs in
        (("f16", (2, 4, 8)), ("bf16", (2, 4, 8)), ("f16x2", (2, 4)), ("bf16x2", (2, 4)))
        for vec in vecs for op in ("add", "min", "max")]  # fmt: skip
WIDE += [("add", f"v{vec}", "f32") for vec in (2, 4)]


def wide_atomics_case() -> Case:
    """``atom`` and ``red`` of several values at once, in global memory."""
    n = 64
    body, params, names, olds, kinds = [], [], [], [], []
    for dtype in ("uint16", "uint32", "float32"):
        body += [f'v_{dtype} = T.alloc_local((8,), "{dtype}")',
                 f'o_{dtype} = T.alloc_local((8,), "{dtype}")']  # fmt: skip
    for i, (op, vector, kind) in enumerate(WIDE):
        vec, dtype = int(vector[1:]), STORAGE[kind]
        params += [f'{x}{i}: T.Buffer(({n * vec},), "{dtype}")' for x in "VYZO"]
        body += [f"for i in range({vec}):", f"    v_{dtype}[i] = V{i}[tid * {vec} + i]"]
        values, old = _registers(f"v_{dtype}", vec), _registers(f"o_{dtype}", vec)
        form = f"global.{op}.{vector}.{kind}"
        body += [
            f'T.evaluate(T.ptx["atom.{form}"]({old}, Y{i}.ptr_to([tid * {vec}]), {values}))',
            f"for i in range({vec}):", f"    O{i}[tid * {vec} + i] = o_{dtype}[i]",
            f'T.evaluate(T.ptx["red.{form}"](Z{i}.ptr_to([tid * {vec}]), {values}))',
        ]  # fmt: skip
        names += [f"atom.{form}", f"red.{form}", f"atom.{form} old"]
        kinds += [kind] * 3
    text = kernel_text(params, body, threads=n)

    def arguments():
        given = []
        for _, vector, kind in WIDE:
            count = n * int(vector[1:])
            x, v = (np.resize(values_of(kind, which, 256), count) for which in (0, 1))
            given += [v, x.copy(), x.copy(), np.zeros_like(x)]
        return given

    outputs = tuple(4 * i + j for i in range(len(WIDE)) for j in (1, 2, 3))
    return Case("atomics of several values", "wide atomics", text, arguments, outputs,
                formats=dict(zip(names, kinds, strict=True)),
                labels=dict(zip(outputs, names, strict=True)))  # fmt: skip


ORDERED = [
    "atom.relaxed.cta.global.add.u32", "atom.acquire.gpu.global.min.s32",
    "atom.release.sys.global.max.u32", "atom.acq_rel.cluster.global.xor.b32",
    "atom.relaxed.cta.shared::cta.add.u32", "atom.acq_rel.cta.shared.or.b32", "atom.add.u32",
    "atom.relaxed.gpu.global.exch.b32", "atom.exch.b32", "atom.shared::cta.exch.b32",
    "atom.acquire.cta.global.cas.b32", "atom.cas.b32", "atom.shared::cta.cas.b32",
    "atom.relaxed.gpu.global.add.noftz.f16x2", "atom.add.noftz.bf16x2",
    "atom.shared::cta.add.noftz.f16x2",
]  # fmt: skip
ORDERED += [f.replace("atom", "red").replace("acquire", "relaxed").replace("acq_rel", "release")
            for f in ORDERED if "exch" not in f and "cas" not in f]  # fmt: skip


def ordered_atomics_case() -> Case:
    """Atomics by their order, scope and state space, on generic addresses, too."""
    body = ["pool = T.SMEMPool()", 's = pool.alloc((64,), "uint32", align=16)', "pool.commit()",
            'old = T.alloc_local((1,), "uint32")',
            'olds = T.alloc_local((1,), "int32")']  # fmt: skip
    names, formats = [], {}
    for i, form in enumerate(ORDERED):
        signed = form.endswith("s32")
        value = "V[tid]" if not signed else 'T.reinterpret("int32", V[tid])'
        target = "olds[0]" if signed else "old[0]"
        if "shared" in form:
            body += ["s[tid] = X[tid]", "T.cuda.warp_sync()"]
            at = "T.cuda.cvta_generic_to_shared(s.ptr_to([tid]))"
        else:
            body.append(f"Y[{i}, 0, tid] = X[tid]")
            at = f"Y.ptr_to([{i}, 0, tid])"
        operands = f"{at}, C[tid], {value}" if ".cas" in form else f"{at}, {value}"
        if form.startswith("atom"):
            operands = f"{target}, {operands}"
        body.append(f'T.evaluate(T.ptx["{form}"]({operands}))')
        if form.startswith("atom"):
            held = f'T.reinterpret("uint32", {target})' if signed else target
            body.append(f"Y[{i}, 1, tid] = {held}")
        if "shared" in form:
            body += ["T.cuda.warp_sync()", f"Y[{i}, 0, tid] = s[tid]", "T.cuda.warp_sync()"]
        names.append(form)
        if form.endswith("f16x2"):
            formats[form] = "bf16x2" if "bf16" in form else "f16x2"
    shape = (len(ORDERED), 2, 64)
    params = [f'{n}: T.Buffer((64,), "uint32")' for n in "XVC"]
    text = kernel_text([*params, f'Y: T.Buffer({shape}, "uint32")'], body, threads=64)

    def arguments():
        x, v = (values_of("f16x2", which, 256)[:64].copy() for which in (0, 1))
        return [x, v, np.where(np.arange(64) % 2, x, v), np.zeros(shape, np.uint32)]

    return Case("atomics of several values", "ordered atomics", text, arguments, (3,), {3: names},
                formats=formats)  # fmt: skip


SUNK = ["global.add.u32", "global.max.u32", "shared::cta.xor.b32", "global.cas.b32",
        "shared::cta.cas.b32", "global.exch.b32", "shared::cta.exch.b32", "add.u32",
        "global.add.noftz.f16x2", "shared::cta.add.noftz.f16x2"]  # fmt: skip
SUNK_WIDE = ["global.add.noftz.v2.f16x2", "global.max.noftz.v4.f16x2", "global.add.v2.f32",
             "global.add.v4.f32"]  # fmt: skip


def sunk_atomics_case() -> Case:
    """Atomics whose result is thrown away (``_``)."""
    body = ["pool = T.SMEMPool()", 's = pool.alloc((64,), "uint32", align=16)', "pool.commit()",
            'v = T.alloc_local((4,), "uint32")', 'f = T.alloc_local((4,), "float32")']  # fmt: skip
    names, formats = [], {}
    for i, form in enumerate(SUNK):
        shared = "shared" in form
        body.append("s[tid] = X[tid]" if shared else f"Y[{i}, tid] = X[tid]")
        body += ["T.cuda.warp_sync()"] * shared
        at = "T.cuda.cvta_generic_to_shared(s.ptr_to([tid]))" if shared else f"Y.ptr_to([{i}, tid])"
        operands = "C[tid], V[tid]" if ".cas" in form else "V[tid]"
        body.append(f'T.evaluate(T.ptx["atom.{form}"]({at}, {operands}))')
        if shared:
            body += ["T.cuda.warp_sync()", f"Y[{i}, tid] = s[tid]", "T.cuda.warp_sync()"]
        names.append(f"atom.{form} _")
    for form in SUNK_WIDE:
        i, single = len(names), form.endswith(".f32")
        vec = int(form.partition(".v")[2][0])
        body += ["for i in range(4):", "    v[i] = V[tid // 4 * 4 + i]",
                 '    f[i] = T.reinterpret("float32", v[i])', f"Y[{i}, tid] = X[tid]",
                 "T.cuda.warp_sync()", f"if tid % {vec} == 0:"]  # fmt: skip
        values = _registers("f" if single else "v", vec)
        at = f"Y.ptr_to([{i}, tid])"
        body.append(f'    T.evaluate(T.ptx["atom.{form}"]({at}, {values}))')
        names.append(f"atom.{form} _")
    for name in names:
        kind = name.split(".")[-1].removesuffix(" _")
        if kind in ("f32", "f16x2", "bf16x2"):
            formats[name] = kind
    shape = (len(names), 64)
    params = [f'{n}: T.Buffer((64,), "uint32")' for n in "XVC"]
    text = kernel_text([*params, f'Y: T.Buffer({shape}, "uint32")'], body, threads=64)

    def arguments():
        x, v = (values_of("f16x2", which, 256)[100:164].copy() for which in (0, 1))
        return [x, v, np.where(np.arange(64) % 2, x, v), np.zeros(shape, np.uint32)]

    return Case("atomics of several values", "sunk atomics", text, arguments, (3,), {3: names},
                formats=formats)  # fmt: skip


def wide_moves_case() -> Case:
    """``mov.b128``: four words, or two of 64 bits, as one register and apart again."""
    body = ['q = T.alloc_local((1,), "uint128")', 'w = T.alloc_local((8,), "uint32")',
            'd = T.alloc_local((4,), "uint64")', "for i in range(4):",
            "    w[i] = X[tid * 4 + i]", "    d[i % 2] = Z[tid * 2 + i % 2]"]  # fmt: skip
    names = []
    for source, into in (("w", "w"), ("w", "d"), ("d", "w"), ("d", "d")):
        packed = _registers(source, 4 if source == "w" else 2)
        apart = _registers(into, *((4, 4) if into == "w" else (2, 2)))
        i = len(names)
        body += [f'T.evaluate(T.ptx["mov.b128"](q[0], {packed}))',
                 f'T.evaluate(T.ptx["mov.b128"]({apart}, q[0]))', "for i in range(2):"]  # fmt: skip
        low, high = (("d[2 + i] & T.uint64(0xFFFFFFFF)", "d[2 + i] >> T.uint64(32)") if into == "d"
                     else ("w[4 + 2 * i]", "w[5 + 2 * i]"))  # fmt: skip
        body += [f"    Y[{i}, tid, 2 * i] = T.cast({low}, 'uint32')",
                 f"    Y[{i}, tid, 2 * i + 1] = T.cast({high}, 'uint32')"]  # fmt: skip
        sizes = {"w": "four b32", "d": "two b64"}
        names.append(f"mov.b128 of {sizes[source]} into {sizes[into]}")
    params = ['X: T.Buffer((128,), "uint32")', 'Z: T.Buffer((64,), "uint64")',
              f'Y: T.Buffer(({len(names)}, 32, 4), "uint32")']  # fmt: skip
    text = kernel_text(params, body, threads=32)

    def arguments():
        rng = rng_of("wide moves")
        x = rng.integers(0, 1 << 32, 128, dtype=np.uint64).astype(np.uint32)
        z = rng.integers(0, 1 << 64, 64, dtype=np.uint64, endpoint=False)
        return [x, z, np.zeros((len(names), 32, 4), np.uint32)]

    return Case("loads and stores", "moves of 128 bits", text, arguments, (2,), {2: names})


SREGS = ["tid.x", "tid.y", "tid.z", "ntid.x", "ntid.y", "ntid.z", "ctaid.x", "ctaid.y", "nctaid.x",
         "nctaid.y", "laneid", "cluster_ctarank", "cluster_nctarank", "clusterid.x", "nclusterid.x",
         "cluster_ctaid.x", "cluster_nctaid.x", "lanemask_eq", "lanemask_lt", "lanemask_le",
         "lanemask_gt", "lanemask_ge"]  # fmt: skip


def addresses_case() -> Case:
    """Addresses of shared and global memory, of another CTA, what they say of themselves, and the
    special registers that a launch sets."""
    at, asked = 'T.reinterpret("uint64", s.ptr_to([tid]))', "T.cast(1 - rank, 'uint32')"
    near = "T.cuda.cvta_generic_to_shared(s.ptr_to([tid]))"
    body = [
        "pool = T.SMEMPool()", 's = pool.alloc((64,), "uint32", align=16)', "pool.commit()",
        'd = T.alloc_local((8,), "uint64")', 'f = T.alloc_local((2,), "uint32")',
        'p = T.alloc_local((1,), "uint32")', "s[tid] = X[rank, tid]", "T.cuda.cluster_sync()",
    ]  # fmt: skip
    names: list[str] = []

    def see(name: str, *lines: str, value: str = "p[0]") -> None:
        body.extend([*lines, f"Y[{len(names)}, rank, tid] = {value}"])
        names.append(name)

    def call(form: str, *operands: str) -> str:
        return f'T.evaluate(T.ptx["{form}"]({", ".join(operands)}))'

    body += [
        call("mapa.u64", "d[0]", "s.ptr_to([tid])", asked), call("mapa.u64", "d[1]", at, asked),
        call("mapa.shared::cluster.u32", "f[0]", near, asked),
        call("mapa.shared::cluster.u64", "d[2]", f"T.cast({near}, 'uint64')", asked),
        call("cvta.to.shared.u64", "d[3]", "s.ptr_to([tid])"),
        call("cvta.shared.u64", "d[4]", "d[3]"),
        call("cvta.to.global.u64", "d[5]", "X.ptr_to([rank, tid])"),
        call("cvta.global.u64", "d[6]", "d[5]"),
        call("cvta.shared::cluster.u64", "d[7]", "d[2]"),
    ]  # fmt: skip
    see("mapa.u64 of a pointer", call("ld.u32", "p[0]", "d[0]"))
    see("mapa.u64", call("ld.u32", "p[0]", "d[1]"))
    see("mapa.shared::cluster.u32", call("ld.shared::cluster.u32", "p[0]", "f[0]"))
    see("mapa.shared::cluster.u64, cvta.shared::cluster", call("ld.u32", "p[0]", "d[7]"))
    see("cvta.to.shared, cvta.shared", call("ld.u32", "p[0]", "d[4]"))
    see("cvta.to.global, cvta.global", call("ld.u32", "p[0]", "d[6]"))
    see("getctarank.u64 of mapa", call("getctarank.u64", "p[0]", "d[0]"))
    see("getctarank.u64 of its own", call("getctarank.u64", "p[0]", at))
    see("getctarank.shared::cluster.u32", call("getctarank.shared::cluster.u32", "p[0]", "f[0]"))
    see("getctarank.shared::cluster.u64", call("getctarank.shared::cluster.u64", "p[0]", "d[2]"))
    for space in ("shared", "shared::cta", "shared::cluster", "global", "local", "const"):
        for what, which in (("own", at), ("far", "d[0]"), ("global", "d[6]")):
            handle = f'T.reinterpret("handle", {which})'
            see(f"isspacep.{space}, {what}", call(f"isspacep.{space}", "p[0]", handle))
    for name in SREGS:
        see(f"mov %{name}", value=f'T.reinterpret("uint32", T.cuda.mov_sreg(32, "{name}"))')
    body.append("T.cuda.cluster_sync()")
    shape = (len(names), 2, 64)
    text = kernel_text(['X: T.Buffer((2, 64), "uint32")', f'Y: T.Buffer({shape}, "uint32")'], body,
                       threads=64, grid=2, cluster=2)  # fmt: skip

    def arguments():
        x = rng_of("addresses").integers(0, 1 << 32, (2, 64), dtype=np.uint64).astype(np.uint32)
        return [x, np.full(shape, 99, np.uint32)]

    return Case("addresses and registers", "addresses", text, arguments, (1,), {1: names})


#: CUDA's functions that TIRx has, by what they give; operands: integers u and v, floats f and g,
#: pairs of floats d and e.
FUNCTIONS: dict[str, dict[str, str]] = {
    "uint32": {
        "reduce_add_sync_u32": "m, u", "reduce_min_sync_u32": "m, u",
        "ballot_sync": "m, u % 3 == 0", "float_as_uint": "f", "float22bfloat162_rn": "f, g",
        "float22bfloat162_rn_from_float2": "d",
        "hmin2": "u, v", "hmax2": "u, v", "fp8x4_e4m3_from_float4": "f, g, g, f",
        "__shfl_sync": "m, u, v % 32, 32", "__shfl_up_sync": "m, u, 3, 16",
        "__shfl_down_sync": "m, u, 5, 32", "__shfl_xor_sync": "m, u, 9, 32", "__activemask": "",
    },
    "int32": {"ffs_u32": "u", "any_sync": "m, u % 7 == 0", "thread_rank": "",
              "syncthreads_and": "u > 3", "syncthreads_or": "u == 5"},
    "float32": {
        "uint_as_float": "u", "float2_x": "d", "float2_y": "d", "fdividef": "f, g",
        "half2float": "T.reinterpret('float16', T.cast(u & 65535, 'uint16'))",
        "bfloat162float": "T.reinterpret('bfloat16', T.cast(u & 65535, 'uint16'))",
    },
    "uint64": {"make_float2": "f, g", "bfloat1622float2": "u"},
}  # fmt: skip


def functions_case() -> Case:
    """CUDA's own functions, and TVM's reductions over a warp and a CTA."""
    n = 256
    params = [f'{x}: T.Buffer(({n},), "{d}")' for x, d in
              (("U", "uint32"), ("V", "uint32"), ("F", "float32"), ("G", "float32"),
               ("D", "uint64"))]  # fmt: skip
    body = ["m: T.let = T.uint32(0xFFFFFFFF)", "pool = T.SMEMPool()",
            's = pool.alloc((32,), "float32", align=16)', "pool.commit()"]  # fmt: skip
    for x in "UVFGD":
        dtype = {"F": "float32", "G": "float32", "D": "uint64"}.get(x, "uint32")
        body += [f'{x.lower()}_ = T.alloc_local((1,), "{dtype}")', f"{x.lower()}_[0] = {x}[tid]",
                 f"{x.lower()}: T.let = {x.lower()}_[0]"]  # fmt: skip
    forms: dict[int, list[str]] = {}
    formats = {}
    for i, (dtype, functions) in enumerate(FUNCTIONS.items()):
        calls = [(f"T.cuda.{name}", f"T.cuda.{name}({args})") for name, args in functions.items()]
        if dtype == "float32":
            for k, op in enumerate(("sum", "max", "min")):
                for w in (16, 8):
                    call = f'T.cuda.warp_reduce(small, "{op}", {w})'
                    calls.append((f"T.cuda.warp_reduce {op} {w}", call))
                call = f'T.cuda.cta_reduce(small, "{op}", {n // 32}, s.ptr_to([{8 * k}]))'
                calls.append((f"T.cuda.cta_reduce {op}", call))
            body.append("small: T.let = T.cast(u % T.uint32(1000), 'float32') - T.float32(500)")
        params.append(f'Y{i}: T.Buffer(({len(calls)}, {n}), "{dtype}")')
        for row, (_, call) in enumerate(calls):
            body.append(f"Y{i}[{row}, tid] = {call}")
        forms[5 + i] = [name for name, _ in calls]
        if dtype == "float32":
            formats = dict.fromkeys(forms[5 + i], "f32")
    formats["T.cuda.make_float2"] = formats["T.cuda.bfloat1622float2"] = "f32x2"
    text = kernel_text(params, body, threads=n)

    def arguments():
        u, v = values_of("bf16x2", 0, n), values_of("bf16x2", 1, n)
        f, g = values_of("f32", 0, n), values_of("f32", 1, n)
        d = f.view(np.uint32).astype(np.uint64) << np.uint64(32) | g.view(np.uint32)
        outputs = [np.zeros((len(forms[5 + i]), n), dtype) for i, dtype in enumerate(FUNCTIONS)]
        return [u, v, f, g, d, *outputs]

    return Case("CUDA's functions", "functions", text, arguments, tuple(forms), forms,
                formats=formats)  # fmt: skip


def sent_stores_case() -> Case:
    """``st.async`` of all types, alone and as vectors, and ``red.async`` of 64 bits."""
    forms = [(vec, kind) for kind in ("b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64")
             for vec in (1, 2, 4)]  # fmt: skip
    forms = [("st", v, k) for v, k in forms if v < 4 or k.endswith("32")]
    forms += [("red", 1, "u64")]
    slots = len(forms)
    registers = ("uint32", "int32", "float32", "uint64", "int64", "float64")
    body = [
        "pool = T.SMEMPool()", f's = pool.alloc(({slots * 128},), "uint32", align=128)',
        'bar = pool.alloc((1,), "uint64", align=8)', "pool.commit()",
        'far = T.alloc_local((2,), "uint32")',
        *(f'r_{d} = T.alloc_local((4,), "{d}")' for d in registers),
        f"for i in range({4 * slots}):", "    s[32 * i + tid] = X[rank, 32 * i + tid]",
        "if tid == 0:",
        "    T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), T.uint32(1))",
        "    T.ptx.fence.mbarrier_init.release.cluster()",
    ]  # fmt: skip
    sizes = [v * np.dtype(TYPES[k]).itemsize for _, v, k in forms]
    place = "T.cast(1 - rank, 'uint32')"
    at = "T.cuda.cvta_generic_to_shared"
    body += [
        "    T.ptx.mbarrier.arrive.expect_tx.shared.b64(bar.ptr_to([0]), "
        f"T.uint32({32 * sum(sizes)}))",
        "T.cuda.cluster_sync()",
        f'T.ptx["mapa.shared::cluster.u32"](far[1], {at}(bar.ptr_to([0])), {place})',
    ]
    names = []
    for i, (verb, vec, kind) in enumerate(forms):
        dtype = TYPES[kind]
        size = sizes[i]
        wide = f".v{vec}" * (vec > 1)
        form = f"st_async.shared::cluster.mbarrier::complete_tx::bytes{wide}.{kind}"
        if verb == "red":
            form = ("red_async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes."
                    f"add.{kind}")  # fmt: skip
        words = size // vec // 4
        for j in range(vec):
            word = f"V[rank, {i * 128} + tid * {size // 4} + {j * words}]"
            value = word if words == 1 else (
                f"T.cast({word}, 'uint64') | T.cast({word[:-1]} + 1], 'uint64') << T.uint64(32)"
            )  # fmt: skip
            if not dtype.startswith("uint"):
                value = f'T.reinterpret("{dtype}", {value})'
            body.append(f"r_{dtype}[{j}] = {value}")
        body += [
            f'T.ptx["mapa.shared::cluster.u32"](far[0], {at}(s.ptr_to([{i * 128} + '
            f"tid * {size // 4}])), {place})",
            f'T.evaluate(T.ptx["{form}"](far[0], {_registers(f"r_{dtype}", vec)}, far[1]))',
        ]
        names.append(form.replace("_async", ".async", 1))
    body += [
        "T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)",
        f"for i in range({slots}):", "    for j in range(4):",
        "        Y[i, rank, 32 * j + tid] = s[128 * i + 32 * j + tid]", "T.cuda.cluster_sync()",
    ]  # fmt: skip
    shape = (slots, 2, 128)
    params = [f'{n}: T.Buffer((2, {slots * 128}), "uint32")' for n in "XV"]
    text = kernel_text([*params, f'Y: T.Buffer({shape}, "uint32")'], body, threads=32, grid=2,
                       cluster=2)  # fmt: skip

    def arguments():
        x, v = rng_of("sent stores").integers(0, 1 << 32, (2, 2, slots * 128), dtype=np.uint64)
        return [x.astype(np.uint32), v.astype(np.uint32), np.zeros(shape, np.uint32)]

    return Case("stores to another CTA", "remote stores", text, arguments, (2,), {2: names})


def cases() -> Iterator[Case]:
    for space in SPACES:
        yield loads_case(space)
    yield wide_atomics_case()
    yield ordered_atomics_case()
    yield sunk_atomics_case()
    yield wide_moves_case()
    yield matrices_case()
    yield addresses_case()
    yield functions_case()
    yield sent_stores_case()
