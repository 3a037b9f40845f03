"""Instructions on memory: atomics and reductions, mbarriers, ``cp.async``, bulk copies and
reductions, tensor copies, clusters with distributed shared memory.

Where the order of threads could show, each thread has a place of its own, or the operation commutes
and only its end is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .case import Case, Mapped, rng_of
from .scalar import pool

N = 256
HEAD = "from tvm.script import tirx as T\n\n@T.prim_func\ndef kernel("

#: Storage of each type, and the format of its elements where it is a float.
STORAGE = {
    "b16": "uint16", "b32": "uint32", "u32": "uint32", "s32": "int32", "b64": "uint64",
    "u64": "uint64", "s64": "int64", "f32": "float32", "f64": "float64", "f16": "uint16",
    "bf16": "uint16", "f16x2": "uint32", "bf16x2": "uint32",
}  # fmt: skip


def kernel_text(params: Sequence[str], body: Sequence[str], *, threads: int = N, grid: int = 1,
                cluster: int = 1) -> str:  # fmt: skip
    lines = ["T.device_entry()"]
    if cluster > 1:
        lines.append(f"rank = T.cta_id_in_cluster([{cluster}])")
    lines += [f"cta = T.cta_id([{grid}])", f"tid = T.thread_id([{threads}])", *body]
    return HEAD + ", ".join(params) + "):\n" + "".join(f"    {line}\n" for line in lines)


def values_of(kind: str, which: int, n: int, name: str = "") -> np.ndarray:
    x = pool(kind, which, n).astype(np.dtype(STORAGE[kind].replace("float", "uint")).str)
    return x.view(STORAGE[kind])


# ------------------------------------------------------------------------------------- atomics

ATOMICS = [
    *((op, k) for op in ("and", "or", "xor") for k in ("b32", "b64")),
    *(("add", k) for k in ("u32", "s32", "u64", "f32", "f64")),
    *((op, k) for op in ("min", "max") for k in ("u32", "s32", "u64", "s64")),
    ("inc", "u32"), ("dec", "u32"),
    *(("add.noftz", k) for k in ("f16", "bf16", "f16x2", "bf16x2")),
    *(("exch", k) for k in ("b32", "b64")), *(("cas", k) for k in ("b16", "b32", "b64")),
]  # fmt: skip


def atomics_case(kind: str, space: str) -> Case:
    """All atomics and reductions on one type in one state space, a place of its own each thread."""
    dtype = STORAGE[kind]
    ops = [(verb, op) for op, k in ATOMICS if k == kind for verb in ("atom", "red")]
    ops = [(verb, op) for verb, op in ops if verb == "atom" or op not in ("exch", "cas")]
    body = [f'old = T.alloc_local((1,), "{dtype}")', f'v = T.alloc_local((2,), "{dtype}")',
            "v[0] = V[tid]", "v[1] = C[tid]"]  # fmt: skip
    if space == "shared":
        body += ["pool = T.SMEMPool()", f's = pool.alloc(({N},), "{dtype}", align=16)',
                 "pool.commit()"]  # fmt: skip
    names, olds = [], []
    for i, (verb, op) in enumerate(ops):
        if space == "shared":
            body += ["s[tid] = X[tid]", "T.cuda.warp_sync()"]
            at = "T.cuda.cvta_generic_to_shared(s.ptr_to([tid]))"
        else:
            body += [f"Y[{i}, tid] = X[tid]"]
            at = f"Y.ptr_to([{i}, tid])"
        operands = f"{at}, v[1], v[0]" if op == "cas" else f"{at}, v[0]"
        target = "old[0], " if verb == "atom" else ""
        body.append(f'T.evaluate(T.ptx["{verb}.{space}.{op}.{kind}"]({target}{operands}))')
        if space == "shared":
            body += ["T.cuda.warp_sync()", f"Y[{i}, tid] = s[tid]"]
        names.append(f"{verb}.{space}.{op}.{kind}")
        if verb == "atom":
            body.append(f"Z[{len(olds)}, tid] = old[0]")
            olds.append(f"{names[-1]} old")
    params = [f'{n}: T.Buffer(({N},), "{dtype}")' for n in "XVC"]
    params += [f'Y: T.Buffer(({len(ops)}, {N}), "{dtype}")',
               f'Z: T.Buffer(({len(olds)}, {N}), "{dtype}")']  # fmt: skip
    text = kernel_text(params, body)

    def arguments():
        x, v = values_of(kind, 0, N), values_of(kind, 1, N)
        c = np.where(np.arange(N) % 2, x, np.roll(x, 1))  # every other comparison holds
        return [x, v, c, np.zeros((len(ops), N), dtype), np.zeros((len(olds), N), dtype)]

    formats = dict.fromkeys(names + olds, kind)
    return Case("atomics", f"atomics {space} {kind}", text, arguments, (3, 4), {3: names, 4: olds},
                formats=formats)  # fmt: skip


def contended_case() -> Case:
    """Two CTAs of 256 threads meet at eight places; the operations commute."""
    ops = [("add", "u32"), ("add", "s32"), ("min", "u32"), ("max", "s32"), ("and", "b32"),
           ("or", "b32"), ("xor", "b32")]  # fmt: skip
    body, params, names = [], ['V: T.Buffer((512,), "uint32")'], []
    for i, (op, kind) in enumerate(ops):
        value = "V[cta * 256 + tid]"
        if kind == "s32":
            value = f'T.reinterpret("int32", {value})'
        body.append(f'T.evaluate(T.ptx["red.global.{op}.{kind}"](Y{i}.ptr_to([tid % 8]), {value}))')
        params.append(f'Y{i}: T.Buffer((8,), "{STORAGE[kind]}")')
        names.append(f"red.global.{op}.{kind} of 512 threads")
    text = kernel_text(params, body, grid=2)

    def arguments():
        rng = rng_of("contended")
        v = rng.integers(0, 1 << 32, 512, dtype=np.uint64).astype(np.uint32)
        starts = [rng.integers(0, 1 << 31, 8).astype(STORAGE[k]) for _, k in ops]
        return [v, *starts]

    outputs = tuple(range(1, 1 + len(ops)))
    return Case("atomics", "atomics contended", text, arguments, outputs,
                labels=dict(zip(outputs, names, strict=True)))  # fmt: skip


# ------------------------------------------------------------------------------------ mbarriers


def mbarrier_case() -> Case:
    """One thread takes an mbarrier through its phases and reads what it can be asked."""
    body = [
        "pool = T.SMEMPool()", 'bar = pool.alloc((1,), "uint64", align=8)', "pool.commit()",
        's = T.alloc_local((1,), "uint64")', 'p = T.alloc_local((1,), "uint32")', "if tid == 0:",
    ]  # fmt: skip
    steps: list[tuple[str, str]] = []
    at = "bar.ptr_to([0])"

    def do(name: str, call: str) -> None:
        body.append(f"    {call}")
        if "(s[0], bar" in call:
            steps.append((name, "pending count"))
            body.append("    T.ptx.mbarrier.pending_count.b64(p[0], s[0])")
            body.append(f"    Y[{len(steps) - 1}] = p[0]")
        for parity in (0, 1):
            steps.append((name, f"test_wait.parity {parity}"))
            body.append(
                f"    T.ptx.mbarrier.test_wait.parity.shared.b64(p[0], {at}, T.uint32({parity}))"
            )
            body.append(f"    Y[{len(steps) - 1}] = p[0]")

    mb = "T.ptx.mbarrier"
    complete = 'T.ptx["mbarrier.complete_tx.relaxed.cta.shared::cta.b64"]'
    do("init 7", f"{mb}.init.shared.b64({at}, T.uint32(7))")
    do("arrive", f"{mb}.arrive.shared.b64(s[0], {at})")
    do("arrive 3", f'T.ptx["mbarrier.arrive.shared.b64"](s[0], {at}, T.uint32(3))')
    do("arrive.noComplete 2",
       f'T.ptx["mbarrier.arrive.noComplete.shared.b64"](s[0], {at}, T.uint32(2))')  # fmt: skip
    do("arrive to the last", f"{mb}.arrive.shared.b64(s[0], {at})")
    do("expect_tx 48",
       f'T.ptx["mbarrier.expect_tx.relaxed.cta.shared::cta.b64"]({at}, T.uint32(48))')  # fmt: skip
    do("arrive_drop", f'T.ptx["mbarrier.arrive_drop.shared.b64"](s[0], {at})')
    do("arrive_drop 2", f'T.ptx["mbarrier.arrive_drop.shared.b64"](s[0], {at}, T.uint32(2))')
    do("arrive 4", f'T.ptx["mbarrier.arrive.shared.b64"](s[0], {at}, T.uint32(4))')
    do("complete_tx 48", f"{complete}({at}, T.uint32(48))")
    do("arrive of the four left", f"{mb}.arrive.shared.b64(s[0], {at})")
    do("arrive.expect_tx 16",
       f'T.ptx["mbarrier.arrive.expect_tx.shared.b64"](s[0], {at}, T.uint32(16))')  # fmt: skip
    do("complete_tx 16", f"{complete}({at}, T.uint32(16))")
    do("arrive 2", f'T.ptx["mbarrier.arrive.shared.b64"](s[0], {at}, T.uint32(2))')
    count = len(steps)
    text = kernel_text([f'Y: T.Buffer(({count},), "uint32")'], body, threads=32)
    names = [f"{i // 2}: {name}: {what}" for i, (name, what) in enumerate(steps)]
    return Case("mbarriers", "mbarrier", text, lambda: [np.full(count, 99, np.uint32)], (0,),
                {0: names})  # fmt: skip


# ------------------------------------------------------------------------------------- cp.async


def cp_async_case() -> Case:
    """All sizes, with source sizes that leave the rest zero, and sources that are ignored."""
    forms = [("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)]
    body = ["pool = T.SMEMPool()", 's = pool.alloc((2048,), "uint32", align=16)', "pool.commit()"]
    row, names = 0, []
    for cop, size in forms:
        for what in ("", "src-size", "ignore-src"):
            more = {
                "": "",
                "src-size": f", T.cast(tid % {size + 1}, 'uint32')",
                "ignore-src": ", T.ptx.pred(T.cast(tid % 3 == 0, 'uint32'))",
            }[what]
            body += [
                "for i in range(4):", "    s[tid * 4 + i] = T.uint32(0xABABABAB)",
                "T.cuda.cta_sync()",
                f'T.evaluate(T.ptx["cp.async.{cop}.shared.global"](s.ptr_to([tid * 4]), '
                f"X.ptr_to([tid * 4]), {size}{more}))",
                "T.ptx.cp.async_.wait_all()", "T.cuda.cta_sync()",
                "for i in range(4):", f"    Y[{row}, tid * 4 + i] = s[tid * 4 + i]",
                "T.cuda.cta_sync()",
            ]  # fmt: skip
            row += 1
            names.append(f"cp.async.{cop} {size} {what}".strip())
    text = kernel_text(
        ['X: T.Buffer((256,), "uint32")', f'Y: T.Buffer(({row}, 256), "uint32")'], body, threads=64
    )

    def arguments():
        x = rng_of("cp.async").integers(0, 1 << 32, 256, dtype=np.uint64).astype(np.uint32)
        return [x, np.zeros((row, 256), np.uint32)]

    return Case("cp.async", "cp.async", text, arguments, (1,), {1: names})


# ------------------------------------------------------------------------------------ bulk copies

BULK_REDUCTIONS = [
    *((op, k) for op in ("and", "or", "xor") for k in ("b32", "b64")),
    *((op, k) for op in ("add", "min", "max") for k in ("u32", "s32", "u64")),
    *((op, "s64") for op in ("min", "max")), ("inc", "u32"), ("dec", "u32"),
    ("add", "f32"), ("add", "f64"), ("add.noftz", "f16"), ("add.noftz", "bf16"),
    ("min", "f16"), ("max", "f16"), ("min", "bf16"), ("max", "bf16"),
]  # fmt: skip


def bulk_reduction_case() -> Case:
    """``cp.reduce.async.bulk`` from shared to global memory."""
    body = ["pool = T.SMEMPool()", 's = pool.alloc((512,), "uint32", align=128)', "pool.commit()"]
    params, names, kinds = [], [], []
    form = "cp.reduce.async.bulk.global.shared::cta.bulk_group"
    for i, (op, kind) in enumerate(BULK_REDUCTIONS):
        size = np.dtype(STORAGE[kind]).itemsize
        words = N * size // 4
        params += [f'V{i}: T.Buffer(({words},), "uint32")', f'Y{i}: T.Buffer(({words},), "uint32")']
        body += [
            f"for i in range({max(1, words // N)}):",
            f"    if tid + {N} * i < {words}:",
            f"        s[tid + {N} * i] = V{i}[tid + {N} * i]",
            "T.ptx.fence.proxy.async_.shared__cta()", "T.cuda.cta_sync()", "if tid == 0:",
            f'    T.evaluate(T.ptx["{form}.{op}.{kind}"](Y{i}.ptr_to([0]), '
            f"T.cuda.cvta_generic_to_shared(s.ptr_to([0])), T.uint32({words * 4})))",
            "    T.ptx.cp.async_.bulk.commit_group()", "    T.ptx.cp.async_.bulk.wait_group(0)",
            "T.cuda.cta_sync()",
        ]  # fmt: skip
        names.append(f"{form}.{op}.{kind}")
        kinds.append(kind)

    def arguments():
        given = []
        for kind in kinds:
            x, v = values_of(kind, 0, N), values_of(kind, 1, N)
            given += [v.view(np.uint32), x.view(np.uint32).copy()]
        return given

    outputs = tuple(range(1, 2 * len(kinds), 2))
    formats = {
        name: kind + "x2" if kind in ("f16", "bf16") else kind
        for name, kind in zip(names, kinds, strict=True)
    }
    text = kernel_text(params, body)
    return Case("bulk copies", "bulk reductions", text, arguments, outputs, formats=formats,
                labels=dict(zip(outputs, names, strict=True)))  # fmt: skip


def bulk_copy_case() -> Case:
    """Global to shared memory by an mbarrier, to the other CTA's, and back in a bulk group."""
    at = "T.cuda.cvta_generic_to_shared"
    body = [
        "pool = T.SMEMPool()", 's = pool.alloc((512,), "uint32", align=128)',
        'bar = pool.alloc((2,), "uint64", align=8)', "pool.commit()",
        'far = T.alloc_local((2,), "uint32")',
        "for i in range(2):", "    s[tid + 256 * i] = T.uint32(7)",
        "if tid == 0:",
        "    T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), T.uint32(1))",
        "    T.ptx.mbarrier.init.shared.b64(bar.ptr_to([1]), T.uint32(1))",
        "    T.ptx.fence.mbarrier_init.release.cluster()",
        "    T.ptx.mbarrier.arrive.expect_tx.shared.b64(bar.ptr_to([1]), T.uint32(320))",
        "T.ptx.fence.proxy.async_.shared__cta()",
        "T.cuda.cluster_sync()",
        "if tid == 0:",
        "    T.ptx.mbarrier.arrive.expect_tx.shared.b64(bar.ptr_to([0]), T.uint32(512))",
        '    T.evaluate(T.ptx["cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"]('
        f"{at}(s.ptr_to([4])), X.ptr_to([64 * rank]), T.uint32(512), {at}(bar.ptr_to([0]))))",
        "T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)",
        "if tid == 0:",
        f'    T.ptx["mapa.shared::cluster.u32"](far[0], {at}(s.ptr_to([256])), '
        "T.cast(1 - rank, 'uint32'))",
        f'    T.ptx["mapa.shared::cluster.u32"](far[1], {at}(bar.ptr_to([1])), '
        "T.cast(1 - rank, 'uint32'))",
        '    T.evaluate(T.ptx["cp.async.bulk.shared::cluster.shared::cta.'
        f'mbarrier::complete_tx::bytes"](far[0], {at}(s.ptr_to([8])), T.uint32(320), far[1]))',
        "T.cuda.mbarrier_wait(bar.ptr_to([1]), 0)",
        "T.ptx.fence.proxy.async_.shared__cta()",
        "T.cuda.cta_sync()",
        "if tid == 0:",
        '    T.evaluate(T.ptx["cp.async.bulk.global.shared::cta.bulk_group"]('
        f"Y.ptr_to([rank, 0]), {at}(s.ptr_to([0])), T.uint32(2048)))",
        "    T.ptx.cp.async_.bulk.commit_group()", "    T.ptx.cp.async_.bulk.wait_group(0)",
        "T.cuda.cluster_sync()",
    ]  # fmt: skip
    text = kernel_text(
        ['X: T.Buffer((256,), "uint32")', 'Y: T.Buffer((2, 512), "uint32")'], body,
        grid=2, cluster=2,
    )  # fmt: skip

    def arguments():
        x = rng_of("bulk").integers(0, 1 << 32, 256, dtype=np.uint64).astype(np.uint32)
        return [x, np.zeros((2, 512), np.uint32)]

    return Case(
        "bulk copies", "bulk copies", text, arguments, (1,),
        labels={1: "cp.async.bulk global to shared, shared to shared::cluster, shared to global"},
    )  # fmt: skip


# ----------------------------------------------------------------------------------- tensor copies

SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
DTYPES = ("uint8", "float16", "int32", "float32", "uint64")


def a_box(rng, rank: int, dtype: str, swizzle: int, fill: bool, negative: bool):
    """A random tensor, its map's fields, coordinates, and bytes of the box: those that are copied,
    and those that it takes in shared memory."""
    item = 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
    most = swizzle or int(rng.choice([16, 32, 48, 96]))
    row = int(rng.integers(1, most // 16 + 1)) * 16
    box, steps = [row // item], [1]
    limit = 128
    for _ in range(rank - 1):
        box.append(int(rng.integers(1, max(2, min(6, limit)))))
        limit //= box[-1]
        steps.append(int(rng.choice([1, 1, 2, 3])))
    shape = [max(1, b + int(rng.integers(-2, 6))) for b in box]
    pitch = -(-shape[0] * item // 16) * 16 + 16 * int(rng.integers(0, 2))
    padded = [*shape[:0:-1], pitch // item]
    raw = rng.integers(0, 256, (*padded[:-1], padded[-1] * item)).astype(np.uint8)
    tensor = raw.view("uint16" if dtype == "bfloat16" else dtype)
    strides = [pitch]
    for n in shape[1:-1]:
        strides.append(strides[-1] * n)
    fields = {
        "box": box, "shape": shape, "strides": strides[: rank - 1], "element_strides": steps,
        "swizzle": SWIZZLES[swizzle], "oob_fill": int(fill), "dtype": dtype,
    }  # fmt: skip
    coords = [int(rng.integers(-2, n)) for n in shape]
    # the innermost one in steps of 16 bytes: with others the copy faults
    coords[0] = int(rng.integers(-2, -(-shape[0] * item // 16))) * 16 // item
    extent = [box[0], *(-(-b // s) for b, s in zip(box[1:], steps[1:], strict=True))]
    if not negative:  # a store with a negative one faults; many reach past a row's end
        coords = [max(0, c) for c in coords]
        if rng.integers(2):
            coords[0] = (shape[0] * item - 1) // 16 * 16 // item
    held = int(np.prod(extent[1:], dtype=int)) * max(row, swizzle)  # in shared memory
    return tensor, fields, coords, int(np.prod(extent)) * item, held


def tensor_case(number: int, what: str) -> Case:
    name = f"tensor {what} {number}"
    rng = rng_of(name)
    rank, swizzle = number % 5 + 1, (0, 32, 64, 128)[number // 2 % 4]
    dtype = DTYPES[(number + number // 5) % 5]
    if what not in ("load", "store"):
        dtype = ("int32", "uint32", "float16", "float32")[number % 4]
        if what in ("min", "max"):
            dtype = ("int32", "uint32", "float16", "uint64")[number % 4]
        if what in ("and", "or", "xor", "inc", "dec"):
            dtype = "uint32"
    if what == "load" and number >= 24:
        dtype = ("float16", "float32", "bfloat16")[number % 3]
    fill = what == "load" and dtype.endswith(("float16", "float32")) and number % 2 == 0
    fill = fill or number >= 24
    tensor, fields, coords, nbytes, held = a_box(rng, rank, dtype, swizzle, fill, what == "load")
    if dtype.startswith("float") and what != "load":  # all kinds of numbers
        kind = {"float16": "f16", "float32": "f32"}[dtype]
        tensor = np.resize(values_of(kind, 0, N), tensor.shape).view(dtype)
    words = -(-held // 512) * 128
    at = ", ".join(f"T.int32({c})" for c in coords)
    smem = "T.cuda.cvta_generic_to_shared"
    body = ["pool = T.SMEMPool()", f's = pool.alloc(({words},), "uint32", align=1024)',
            'bar = pool.alloc((1,), "uint64", align=8)', "pool.commit()",
            f"for i in range({words // 128}):"]  # fmt: skip
    if what == "load":
        form = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile"
        form += ".mbarrier::complete_tx::bytes"
        body += [
            "    s[tid + 128 * i] = T.uint32(0)",
            "T.ptx.fence.proxy.async_.shared__cta()", "T.cuda.cta_sync()", "if tid == 0:",
            "    T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), T.uint32(1))",
            "    T.ptx.fence.mbarrier_init.release.cluster()",
            f"    T.ptx.mbarrier.arrive.expect_tx.shared.b64(bar.ptr_to([0]), T.uint32({nbytes}))",
            f'    T.evaluate(T.ptx["{form}"](s.ptr_to([0]), T.address_of(m), {at}, '
            f"{smem}(bar.ptr_to([0]))))",
            "T.cuda.cta_sync()", "T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)",
            f"for i in range({words // 128}):", "    Y[tid + 128 * i] = s[tid + 128 * i]",
        ]  # fmt: skip
    else:
        form = f"cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group"
        if what != "store":
            form = f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{what}.tile.bulk_group"
        body += [
            "    s[tid + 128 * i] = Y[tid + 128 * i]",
            "T.ptx.fence.proxy.async_.shared__cta()", "T.cuda.cta_sync()", "if tid == 0:",
            f'    T.evaluate(T.ptx["{form}"](T.address_of(m), {at}, s.ptr_to([0])))',
            "    T.ptx.cp.async_.bulk.commit_group()", "    T.ptx.cp.async_.bulk.wait_group(0)",
        ]  # fmt: skip
    text = kernel_text(["m: T.TensorMap()", f'Y: T.Buffer(({words},), "uint32")'], body,
                       threads=128)  # fmt: skip
    source = rng.integers(0, 1 << 32, words, dtype=np.uint64).astype(np.uint32)
    if dtype.startswith("float") and what != "load":
        flat = values_of(kind, 1, N)
        source = np.resize(flat, words * 4 // flat.itemsize).view(np.uint32)

    def arguments():
        if what == "load":
            return [Mapped(tensor, fields), np.zeros(words, np.uint32)]
        return [Mapped(tensor.copy(), fields), source]

    label = f"{form} {dtype} swizzle {swizzle} steps {fields['element_strides']}"
    label += " NaN fill" * fill + f" #{number}"
    output = 1 if what == "load" else 0
    formats = {label: {"float16": "f16", "float32": "f32"}.get(dtype, "")} if output == 0 else {}
    return Case("tensor copies", name, text, arguments, (output,), formats=formats,
                labels={output: label})  # fmt: skip


# ---------------------------------------------------------------------------------------- clusters


def cluster_case(size: int) -> Case:
    """Loads, stores and atomics on another CTA's shared memory, ``st.async``, ``red.async``."""
    at = "T.cuda.cvta_generic_to_shared"
    place = "T.cast((rank + 1) % " + str(size) + ", 'uint32')"
    asyncs = [("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32", 0)]
    asyncs += [
        (f"red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{op}.{k}", i + 1)
        for i, (op, k) in enumerate(
            [("add", "u32"), ("add", "s32"), ("min", "s32"), ("max", "u32"), ("inc", "u32"),
             ("dec", "u32"), ("and", "b32"), ("or", "b32"), ("xor", "b32")]
        )
    ]  # fmt: skip
    count = len(asyncs)
    atomics = [("add", "u32"), ("min", "s32"), ("max", "u32"), ("xor", "b32"), ("inc", "u32"),
               ("exch", "b32"), ("add", "f32")]  # fmt: skip
    total = count + len(atomics) + 1
    body = [
        "pool = T.SMEMPool()", f's = pool.alloc(({total * 32},), "uint32", align=128)',
        'bar = pool.alloc((1,), "uint64", align=8)', "pool.commit()",
        'far = T.alloc_local((2,), "uint32")', 'old = T.alloc_local((1,), "uint32")',
        'olds = T.alloc_local((1,), "int32")', 'oldf = T.alloc_local((1,), "float32")',
        f"for i in range({total}):", "    s[32 * i + tid] = X[rank, 32 * i + tid]",
        "if tid == 0:",
        "    T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), T.uint32(1))",
        "    T.ptx.fence.mbarrier_init.release.cluster()",
        f"    T.ptx.mbarrier.arrive.expect_tx.shared.b64(bar.ptr_to([0]), T.uint32({128 * count}))",
        "T.cuda.cluster_sync()",
        f'T.ptx["mapa.shared::cluster.u32"](far[1], {at}(bar.ptr_to([0])), {place})',
    ]  # fmt: skip
    names = []
    for form, i in asyncs:
        value = f"V[rank, {32 * i} + tid]"
        if form.endswith("s32"):
            value = f'T.reinterpret("int32", {value})'
        call = form.replace("st.async", "st_async").replace("red.async", "red_async")
        body += [
            f'T.ptx["mapa.shared::cluster.u32"](far[0], {at}(s.ptr_to([{32 * i} + tid])), {place})',
            f'T.evaluate(T.ptx["{call}"](far[0], {value}, far[1]))',
        ]
        names.append(form)
    for k, (op, kind) in enumerate(atomics):
        i = count + k
        value = f"V[rank, {32 * i} + tid]"
        target = {"s32": "olds[0]", "f32": "oldf[0]"}.get(kind, "old[0]")
        if kind in ("s32", "f32"):
            value = f'T.reinterpret("{"int32" if kind == "s32" else "float32"}", {value})'
        held = f'T.reinterpret("uint32", {target})' if kind in ("s32", "f32") else target
        body += [
            f'T.ptx["mapa.shared::cluster.u32"](far[0], {at}(s.ptr_to([{32 * i} + tid])), {place})',
            f'T.evaluate(T.ptx["atom.shared::cluster.{op}.{kind}"]({target}, far[0], {value}))',
            f"Z[{k}, rank, tid] = {held}",
        ]
        names.append(f"atom.shared::cluster.{op}.{kind}")
    i = total - 1
    body += [
        f'T.ptx["mapa.shared::cluster.u32"](far[0], {at}(s.ptr_to([{32 * i} + tid])), {place})',
        f'T.evaluate(T.ptx["st.shared::cluster.u32"](far[0], V[rank, {32 * i} + tid]))',
        "T.cuda.cluster_sync()",
        "T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)",
        'T.evaluate(T.ptx["ld.shared::cluster.u32"](old[0], far[0]))',
        f"Z[{len(atomics)}, rank, tid] = old[0]",
        f"for i in range({total}):", "    Y[i, rank, tid] = s[32 * i + tid]",
        "T.cuda.cluster_sync()",
    ]  # fmt: skip
    names.append("st.shared::cluster.u32")
    words, olds = 32 * total, len(atomics) + 1
    text = kernel_text(
        [f'X: T.Buffer(({size}, {words}), "uint32")', f'V: T.Buffer(({size}, {words}), "uint32")',
         f'Y: T.Buffer(({total}, {size}, 32), "uint32")',
         f'Z: T.Buffer(({olds}, {size}, 32), "uint32")'],
        body, threads=32, grid=size, cluster=size,
    )  # fmt: skip

    def arguments():
        rng = rng_of(f"cluster {size}")
        given = []
        for _ in range(2):
            x = rng.integers(0, 1 << 32, (size, total, 32), dtype=np.uint64).astype(np.uint32)
            x[:, 5:7] %= 3  # inc and dec wrap
            floats = (rng.standard_normal((size, 32)) * 9).astype(np.float32)
            x[:, count + 6] = floats.view(np.uint32)
            given.append(x.reshape(size, words))
        return [
            *given,
            np.zeros((total, size, 32), np.uint32),
            np.zeros((olds, size, 32), np.uint32),
        ]

    forms = {2: [f"{n} of {size} CTAs" for n in names]}
    forms[3] = [f"{n} old, {size} CTAs" for n in names[count:-1]] + [f"ld.shared::cluster {size}"]
    return Case("clusters", f"cluster of {size}", text, arguments, (2, 3), forms)


def cases() -> Iterator[Case]:
    for space in ("global", "shared"):
        for kind in dict.fromkeys(k for _, k in ATOMICS):
            yield atomics_case(kind, space)
    yield contended_case()
    yield mbarrier_case()
    yield cp_async_case()
    yield bulk_reduction_case()
    yield bulk_copy_case()
    for number in range(30):
        yield tensor_case(number, "load")
    for number in range(20):
        yield tensor_case(number, "store")
    for number, what in enumerate(("add", "add", "add", "add", "min", "max", "min", "max", "and",
                                   "or", "xor", "inc", "dec")):  # fmt: skip
        yield tensor_case(number, what)
    for size in (2, 4):
        yield cluster_case(size)
