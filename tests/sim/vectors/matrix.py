"""Matrix instructions: ``mma.sync``, ``ldmatrix``, ``stmatrix``, and ``wgmma`` in all its shapes.

Every element of a result is one function of its row of A, its column of B and its element of C, so
rows and columns of several kinds make all their combinations: numbers of similar size, numbers of
all sizes (which alignment cuts), subnormal numbers, infinities and NaN, sums that cancel.
"""

# Kernels are TVMScript: its parser gives names and annotations their meaning.
# pyright: reportUnboundVariable=false
# pyright: reportInvalidTypeForm=false

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache

import numpy as np

from .case import Case, rng_of

# ---------------------------------------------------------------------------------- numbers


def _format(dtype: str) -> tuple[int, int]:
    return (5, 10) if dtype == "f16" else (8, 7)


def numbers(rng: np.random.Generator, kind: str, dtype: str, shape) -> np.ndarray:
    """16-bit patterns of a kind."""
    exponent, mantissa = _format(dtype)
    bias = (1 << (exponent - 1)) - 1
    sign = rng.integers(0, 2, shape) << 15
    fraction = rng.integers(0, 1 << mantissa, shape)
    if kind == "similar":
        power = bias + rng.integers(-2, 3, shape)
    elif kind == "all sizes":
        low, high = (1, 30) if dtype == "f16" else (bias - 18, bias + 18)
        power = rng.integers(low, high, shape)
    elif kind == "large":  # of bfloat16, products that overflow float32
        power = rng.integers(bias + 2 * exponent, 2 * bias + 1, shape)
    elif kind == "subnormal":
        power = np.where(rng.random(shape) < 0.7, 0, rng.integers(0, 4, shape))
    elif kind == "few bits":
        power, fraction = bias + rng.integers(0, 2, shape), fraction & (3 << (mantissa - 2))
    else:  # special
        pool = [0, 0x8000, bias << mantissa, (bias + 1) << mantissa | 0x8000]
        odd = (1 << exponent) - 1 << mantissa
        x = rng.choice(pool, shape)
        # few enough that most sums have none, one or two of them
        hit = rng.random(shape)
        x = np.where(hit < 0.06, odd, np.where(hit > 0.96, odd | 0x8000, x))
        nan = odd | rng.integers(1, 1 << mantissa, shape) | sign
        return np.where((hit > 0.4) & (hit < 0.42), nan, x).astype(np.uint16)
    return (sign | power << mantissa | fraction).astype(np.uint16)


def size_of(bits: np.ndarray, dtype: str) -> np.ndarray:
    """Sizes of numbers, as float64; subnormal ones count as the smallest normal, as they do where
    tensor cores align. Infinities and NaN are infinite."""
    if dtype == "f32":
        x, least = bits.view(np.float32), 2.0**-126
    elif dtype == "f16":
        x, least = bits.view(np.float16), 2.0**-14
    else:
        x, least = (bits.astype(np.uint32) << 16).view(np.float32), 2.0**-126
    size = np.where(np.isfinite(x), np.abs(x), 0).astype(np.float64)
    size = np.where((size > 0) & (size < least), least, size)
    return np.where(np.isfinite(x), size, np.inf)


def sums_of(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Sums of products' sizes, ``[..., i, k]`` with ``[..., j, k]``; infinite where one is."""
    odd_a, odd_b = (np.asarray(np.isinf(x).any(axis=-1)) for x in (a, b))
    odd = odd_a[..., :, None] | odd_b[..., None, :]
    a, b = (np.where(np.isfinite(x), x, 0) for x in (a, b))
    return np.where(odd, np.inf, a @ np.swapaxes(b, -1, -2))


KINDS = ("similar", "all sizes", "few bits", "subnormal", "special", "large")


def mixed(rng, dtype: str, rows: int, depth: int) -> np.ndarray:
    """``[rows, depth]``, each row of a kind of its own."""
    weights = [0.3, 0.3, 0.12, 0.12, 0.1, 0.06]
    kinds = rng.choice(len(KINDS), rows, p=weights)
    return np.stack([numbers(rng, KINDS[k], dtype, depth) for k in kinds])


def addends(rng, half: bool, shape) -> np.ndarray:
    """Elements of C as words of float32, or halves as uint16."""
    if half:
        kinds = rng.choice(len(KINDS), shape, p=[0.5, 0.3, 0.1, 0.04, 0.04, 0.02])
        each = [numbers(rng, kind, "f16", shape) for kind in KINDS]
        return np.choose(kinds, each).astype(np.uint16)
    bits = rng.integers(0, 1 << 32, shape, dtype=np.uint64).astype(np.uint32)
    power = rng.integers(127 - 14, 127 + 10, shape).astype(np.uint32)
    near = bits & np.uint32(0x807FFFFF) | power << np.uint32(23)
    wide = rng.integers(127 - 45, 127 + 40, shape).astype(np.uint32) << np.uint32(23)
    wide = bits & np.uint32(0x807FFFFF) | wide
    pool = [0, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC12345, 1, 0x807FFFFF,
            0x7F7FFFFF, 0x3F800000]  # fmt: skip
    special = rng.choice(np.array(pool, np.uint32), shape)
    hit = rng.random(shape)
    x = np.where(hit < 0.45, near, np.where(hit < 0.75, wide, np.where(hit < 0.9, 0, special)))
    return x.astype(np.uint32)


# ---------------------------------------------------------------------------------- mma.sync

TILES = 24
MMA_FORMS = [(k, *f) for k in (8, 16) for f in (("f16", "f32"), ("f16", "f16"), ("bf16", "f32"))]


def place_in_a(k: int) -> np.ndarray:
    """Where element i of lane l stands in A ``[16, k]`` (PTX ISA, "Matrix Fragments for mma")."""
    lane, i = np.arange(32)[:, None], np.arange(k // 2)[None, :]
    row = lane // 4 + np.where(i % 4 >= 2, 8, 0)
    column = 2 * (lane % 4) + i % 2 + np.where(i >= 4, 8, 0)
    return row * k + column


def place_in_b(k: int) -> np.ndarray:
    """Where element i of lane l stands in B, held as ``[8, k]``."""
    lane, i = np.arange(32)[:, None], np.arange(k // 4)[None, :]
    return lane // 4 * k + 2 * (lane % 4) + i % 2 + np.where(i >= 2, 8, 0)


def mma_case(k: int, dtype: str, acc: str) -> Case:
    name = f"mma.sync.aligned.m16n8k{k}.row.col.{acc}.{dtype}.{dtype}.{acc}"
    na, nb, nc = k // 4, k // 8, 4 if acc == "f32" else 2
    of_c = "float32" if acc == "f32" else "uint32"
    text = f"""\
from tvm.script import tirx as T

@T.prim_func
def kernel(
    A: T.Buffer(({TILES}, 32, {na}), "uint32"),
    B: T.Buffer(({TILES}, 32, {nb}), "uint32"),
    C: T.Buffer(({TILES}, 32, {nc}), "{of_c}"),
    D: T.Buffer(({TILES}, 32, {nc}), "{of_c}"),
):
    T.device_entry()
    cta = T.cta_id([{TILES}])
    tid = T.thread_id([32])
    a = T.alloc_local(({na},), "uint32")
    b = T.alloc_local(({nb},), "uint32")
    c = T.alloc_local(({nc},), "{of_c}")
    d = T.alloc_local(({nc},), "{of_c}")
    for i in T.unroll({na}):
        a[i] = A[cta, tid, i]
    for i in T.unroll({nb}):
        b[i] = B[cta, tid, i]
    for i in T.unroll({nc}):
        c[i] = C[cta, tid, i]
    T.evaluate(T.ptx["{name}"](
        *[d[i] for i in range({nc})], *[a[i] for i in range({na})],
        *[b[i] for i in range({nb})], *[c[i] for i in range({nc})]))
    for i in T.unroll({nc}):
        D[cta, tid, i] = d[i]
"""

    def arguments():
        rng = rng_of(name)
        a = mixed(rng, dtype, 16 * TILES, k).reshape(TILES, 16 * k)[:, place_in_a(k)]
        b = mixed(rng, dtype, 8 * TILES, k).reshape(TILES, 8 * k)[:, place_in_b(k)]
        c = addends(rng, acc == "f16", (TILES, 32, 4))
        C = np.ascontiguousarray(c).view(np.uint32 if acc == "f16" else np.float32)
        A, B = (np.ascontiguousarray(x).view(np.uint32) for x in (a, b))
        return [A, B, C, np.zeros_like(C)]

    def sizes():
        rng = rng_of(name)
        a = mixed(rng, dtype, 16 * TILES, k).reshape(TILES, 16, k)
        b = mixed(rng, dtype, 8 * TILES, k).reshape(TILES, 8, k)
        c = addends(rng, acc == "f16", (TILES, 32, 4))
        total = sums_of(size_of(a, dtype), size_of(b, dtype)).reshape(TILES, 128)
        lane, i = np.arange(32)[:, None], np.arange(4)[None, :]
        place = (lane // 4 + np.where(i >= 2, 8, 0)) * 8 + 2 * (lane % 4) + i % 2
        return [total[:, place] + size_of(c, acc)]

    formats = {name: "f32" if acc == "f32" else "f16x2"}
    return Case("mma.sync", name, text, arguments, (3,), formats=formats, sizes=sizes)


# -------------------------------------------------------------------- ldmatrix and stmatrix


def ldmatrix_case() -> Case:
    """All counts, plain and transposed; each row at another place, a permutation of them all."""
    loads = [(count, trans) for count in (1, 2, 4) for trans in (False, True)]
    body, at = [], 0
    for count, trans in loads:
        name = f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' * trans}.shared.b16"
        regs = ", ".join(f"r[{at + i}]" for i in range(count))
        body.append(f'T.evaluate(T.ptx["{name}"]({regs}, S.ptr_to([8 * P[tid]])))')
        at += count
    stores, first = [], 0
    for count, trans in loads:
        name = f"stmatrix.sync.aligned.m8n8.x{count}{'.trans' * trans}.shared.b16"
        regs = ", ".join(f"W[{i}]" for i in range(count))
        stores += [
            "for i in range(8):", "    Q[tid * 8 + i] = T.uint16(0x5555)", "T.cuda.cta_sync()",
            f'T.evaluate(T.ptx["{name}"](Q.ptr_to([8 * P[tid]]), {regs}))',
            "T.cuda.cta_sync()", "for i in range(8):", f"    Z[{first}, tid, i] = Q[tid * 8 + i]",
            "T.cuda.cta_sync()",
        ]  # fmt: skip
        first += 1
    indent = "\n    "
    text = f"""\
from tvm.script import tirx as T

@T.prim_func
def kernel(
    X: T.Buffer((256,), "uint16"), P: T.Buffer((32,), "int32"), V: T.Buffer((32, 4), "uint32"),
    Y: T.Buffer((15, 32), "uint32"), Z: T.Buffer((6, 32, 8), "uint16"),
):
    T.device_entry()
    cta = T.cta_id([1])
    tid = T.thread_id([32])
    S = T.alloc_buffer((256,), "uint16", scope="shared")
    Q = T.alloc_buffer((256,), "uint16", scope="shared")
    r = T.alloc_local((15,), "uint32")
    W = T.alloc_local((4,), "uint32")
    for i in range(8):
        S[tid * 8 + i] = X[tid * 8 + i]
    for i in range(4):
        W[i] = V[tid, i]
    T.cuda.cta_sync()
    {indent.join(body)}
    T.ptx["movmatrix.sync.aligned.m8n8.trans.b16"](r[14], W[0])
    for i in range(15):
        Y[i, tid] = r[i]
    {indent.join(stores)}
"""
    names = [
        f"ldmatrix.x{count}{'.trans' * trans} r{i}" for count, trans in loads for i in range(count)
    ]
    forms = {3: [*names, "movmatrix.trans"]}
    forms[4] = [f"stmatrix.x{count}{'.trans' * trans}" for count, trans in loads]

    def arguments():
        rng = rng_of("ldmatrix")
        X = rng.integers(0, 1 << 16, 256).astype(np.uint16)
        V = rng.integers(0, 1 << 32, (32, 4), dtype=np.uint64).astype(np.uint32)
        P = rng.permutation(32).astype(np.int32)
        return [X, P, V, np.zeros((15, 32), np.uint32), np.zeros((6, 32, 8), np.uint16)]

    return Case(
        "ldmatrix, stmatrix, movmatrix", "ldmatrix and stmatrix", text,
        arguments, (3, 4), forms,
    )  # fmt: skip


# ------------------------------------------------------------------------------------- wgmma

MODES = {0: 0, 32: 1, 64: 2, 128: 3}  # swizzle width to what encode_matrix_descriptor takes
WGMMA_KINDS = [
    (dtype, acc, source)
    for dtype, acc in (("f16", "f32"), ("f16", "f16"), ("bf16", "f32"))
    for source in ("ss", "rs")
]


def _swizzled(address, width: int):
    units = {0: 1, 32: 2, 64: 4, 128: 8}[width]
    return address ^ ((address >> 7) % units) << 4


def layout(rows: int, width: int, transposed: bool):
    """Byte places ``[rows, 16]`` of an operand for one k16 step, and its leading and stride
    offsets (PTX ISA, "Strides" and "Matrix Descriptor" of wgmma)."""
    mn, k = np.arange(rows)[:, None], np.arange(16)[None, :]
    if transposed and width:
        leading, stride = 8 * width * 2, 8 * width
        atom, inside = np.divmod(mn * 2, width)
        place = atom * leading + k // 8 * stride + k % 8 * width + inside
        return _swizzled(place, width), leading, stride
    if transposed:
        leading, stride = 128 * (rows // 8), 128
        return k // 8 * leading + mn // 8 * stride + k % 8 * 16 + mn % 8 * 2, leading, stride
    if width:
        leading, stride = 16, 8 * width
        return _swizzled(mn // 8 * stride + mn % 8 * width + k * 2, width), leading, stride
    leading, stride = 128, 256
    return mn // 8 * stride + k * 2 // 16 * leading + mn % 8 * 16 + k * 2 % 16, leading, stride


def wgmma_form(n: int, which: int) -> tuple[int, int, int, int, int]:
    """Transpositions, signs and swizzle of a product: they go round with n and the kind."""
    case = n // 8 + 5 * which
    ta, tb = case % 2, case // 2 % 2
    sign_a, sign_b = (1, -1)[case // 4 % 2], (1, -1)[(case // 3) % 2]
    width = (128, 64, 32, 0)[(case // 2 + which) % 4]
    if WGMMA_KINDS[which][2] == "rs":
        ta = 0
    return ta, tb, sign_a, sign_b, width


def _bytes_of(rows: int, width: int, transposed: bool) -> int:
    place, _, _ = layout(rows, width, transposed)
    return -(-(int(place.max()) + 2) // 1024) * 1024


@cache
def places_of_d(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of D's elements, ``[128, n / 2]``, by thread of the warpgroup."""
    thread, i = np.arange(128)[:, None], np.arange(n // 2)[None, :]
    rows = 16 * (thread // 32) + thread % 32 // 4 + np.where(i % 4 >= 2, 8, 0)
    columns = 8 * (i // 4) + 2 * (thread % 4) + i % 2
    return rows, np.broadcast_to(columns, rows.shape)


@cache
def places_of_a() -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of A's eight elements a thread."""
    thread, i = np.arange(128)[:, None], np.arange(8)[None, :]
    lane = thread % 32
    rows = 16 * (thread // 32) + lane // 4 + np.where(i % 4 >= 2, 8, 0)
    columns = 2 * (lane % 4) + i % 2 + np.where(i >= 4, 8, 0)
    return rows, np.broadcast_to(columns, rows.shape)


def wgmma_case(n: int) -> Case:
    """The six kinds of product in one shape, one after the other, ``D = +-A +-B + C``."""
    body: list[str] = []
    params, names, sizes = [], [], []
    for which, (dtype, acc, source) in enumerate(WGMMA_KINDS):
        ta, tb, sign_a, sign_b, width = wgmma_form(n, which)
        regs = n // 2 if acc == "f32" else n // 4
        of = "float32" if acc == "f32" else "uint32"
        size_a, size_b = _bytes_of(64, width, bool(ta)), _bytes_of(n, width, bool(tb))
        sizes.append((size_a, size_b))
        params.append(f'I{which}: T.Buffer(({(size_a + size_b) // 4},), "uint32")')
        params.append(f'F{which}: T.Buffer((128, 4), "uint32")')
        params.append(f'C{which}: T.Buffer((128, {regs}), "{of}")')
        params.append(f'D{which}: T.Buffer((128, {regs}), "{of}")')
        name = f"wgmma.mma_async.sync.aligned.m64n{n}k16.{acc}.{dtype}.{dtype}"
        _, la, sa = layout(64, width, bool(ta))
        _, lb, sb = layout(n, width, bool(tb))
        a = "*[a[i] for i in range(4)]" if source == "rs" else "desc_a"
        more = f"{sign_a}, {sign_b}, " + (f"{tb}" if source == "rs" else f"{ta}, {tb}")
        flags = "".join([" -A" * (sign_a < 0), " -B" * (sign_b < 0), " A.T" * ta, " B.T" * tb])
        names.append(f"{name} {source}{flags} swizzle {width}")
        local = "accf" if acc == "f32" else "acch"
        body += [
            f"for i in range({(size_a + size_b) // 512}):",
            f"    S[tid + 128 * i] = I{which}[tid + 128 * i]",
            "T.ptx.fence.proxy.async_.shared__cta()",
            "T.cuda.cta_sync()",
            f"for i in T.unroll({regs}):", f"    {local}[i] = C{which}[tid, i]",
            "for i in T.unroll(4):", f"    a[i] = F{which}[tid, i]",
            f"T.cuda.wgmma.encode_matrix_descriptor(T.address_of(desc_a), S.ptr_to([0]), "
            f"{la // 16}, {sa // 16}, {MODES[width]})",
            f"T.cuda.wgmma.encode_matrix_descriptor(T.address_of(desc_b), "
            f"S.ptr_to([{size_a // 4}]), {lb // 16}, {sb // 16}, {MODES[width]})",
            "T.ptx.wgmma.fence.sync.aligned()",
            f'T.evaluate(T.ptx["{name}"](*[{local}[i] for i in range({regs})], {a}, desc_b, '
            f"T.bool(True), {more}))",
            "T.ptx.wgmma.commit_group.sync.aligned()",
            "T.ptx.wgmma.wait_group.sync.aligned(0)",
            f"for i in T.unroll({regs}):", f"    D{which}[tid, i] = {local}[i]",
            "T.cuda.cta_sync()",
        ]  # fmt: skip
    words = max(a + b for a, b in sizes) // 4
    indent = "\n    "
    text = f"""\
from tvm.script import tirx as T

@T.prim_func
def kernel({", ".join(params)}):
    T.device_entry()
    cta = T.cta_id([1])
    tid = T.thread_id([128])
    pool = T.SMEMPool()
    S = pool.alloc(({words},), "uint32", align=1024)
    pool.commit()
    accf = T.alloc_local(({n // 2},), "float32")
    acch = T.alloc_local(({n // 4},), "uint32")
    a = T.alloc_local((4,), "uint32")
    desc_a: T.uint64
    desc_b: T.uint64
    {indent.join(body)}
"""

    def arguments():
        given = []
        rng = rng_of(f"wgmma {n}")
        for which, (dtype, acc, _) in enumerate(WGMMA_KINDS):
            ta, tb, _, _, width = wgmma_form(n, which)
            a, b = mixed(rng, dtype, 64, 16), mixed(rng, dtype, n, 16)
            size_a, size_b = sizes[which]
            image = np.full((size_a + size_b) // 2, 0xABAB, np.uint16)
            place_a, _, _ = layout(64, width, bool(ta))
            place_b, _, _ = layout(n, width, bool(tb))
            image[place_a // 2] = a
            image[(size_a + place_b) // 2] = b
            rows, columns = places_of_d(n)
            c = addends(rng, acc == "f16", (64, n))[rows, columns]
            C = np.ascontiguousarray(c).view(np.uint32 if acc == "f16" else np.float32)
            F = np.ascontiguousarray(a[places_of_a()]).view(np.uint32)
            given += [image.view(np.uint32), F, C, np.zeros_like(C)]
        return given

    def magnitudes():
        found = []
        rng = rng_of(f"wgmma {n}")
        rows, columns = places_of_d(n)
        for dtype, acc, _ in WGMMA_KINDS:
            a, b = (size_of(mixed(rng, dtype, m, 16), dtype) for m in (64, n))
            c = size_of(addends(rng, acc == "f16", (64, n)), acc)
            found.append((sums_of(a, b) + c)[rows, columns])
        return found

    outputs = tuple(range(3, 24, 4))
    formats = {
        name: "f32" if acc == "f32" else "f16x2"
        for name, (_, acc, _) in zip(names, WGMMA_KINDS, strict=True)
    }
    return Case("wgmma", f"wgmma n{n}", text, arguments, outputs, formats=formats, sizes=magnitudes,
                labels=dict(zip(outputs, names, strict=True)))  # fmt: skip


def cases() -> Iterator[Case]:
    for k, dtype, acc in MMA_FORMS:
        yield mma_case(k, dtype, acc)
    yield ldmatrix_case()
    for n in itertools.chain(range(8, 264, 8)):
        yield wgmma_case(n)
