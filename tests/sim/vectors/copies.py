"""Copies to several CTAs of a cluster, and the forms of bulk copies that stand nowhere else:
``.shared::cta`` destinations, reductions in another CTA's shared memory, cache hints, prefetches.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .case import Case, Mapped, rng_of
from .memory import SWIZZLES, kernel_text, values_of

#: For clusters of each size, round by round, the CTAs to which each rank sends its tile. No CTA
#: goes without one.
MASKS = {
    2: [(0b11, 0b11), (0b10, 0b01), (0b01, 0b11)],
    4: [
        (0b1111, 0b1111, 0b1111, 0b1111), (0b0101, 0b1010, 0b0110, 0b1001),
        (0b0001, 0b1000, 0b1100, 0b0111),
    ],
}  # fmt: skip
SMEM = "T.cuda.cvta_generic_to_shared"


def _multicast_text(size: int, words: int, issue: list[str], params: list[str]) -> str:
    """Each CTA sends a tile of ``words`` in each round to the CTAs of its mask; the slot in shared
    memory is the sender's. ``issue``: the copy to ``slot`` and ``bar`` of a round ``r``."""
    rounds = len(MASKS[size])
    total = rounds * size * words
    body = [
        "pool = T.SMEMPool()", f's = pool.alloc(({total},), "uint32", align=1024)',
        f'bar = pool.alloc(({rounds},), "uint64", align=8)', "pool.commit()",
        f"for i in range({total // 128}):", "    s[tid + 128 * i] = T.uint32(0xABABABAB)",
        "if tid == 0:", f"    for r in range({rounds}):",
        "        T.ptx.mbarrier.init.shared.b64(bar.ptr_to([r]), T.uint32(1))",
        "    T.ptx.fence.mbarrier_init.release.cluster()",
        f"    for r in range({rounds}):",
        "        T.ptx.mbarrier.arrive.expect_tx.shared.b64(bar.ptr_to([r]), E[r, rank])",
        "T.ptx.fence.proxy.async_.shared__cta()", "T.cuda.cluster_sync()", "if tid == 0:",
        f"    for r in range({rounds}):", *(f"        {line}" for line in issue),
        f"for r in range({rounds}):", "    T.cuda.mbarrier_wait(bar.ptr_to([r]), 0)",
        f"for i in range({total // 128}):", "    Y[rank, tid + 128 * i] = s[tid + 128 * i]",
        "T.cuda.cluster_sync()",
    ]  # fmt: skip
    params = [*params, f'M: T.Buffer(({rounds}, {size}), "uint16")',
              f'E: T.Buffer(({rounds}, {size}), "uint32")',
              f'Y: T.Buffer(({size}, {total}), "uint32")']  # fmt: skip
    return kernel_text(params, body, threads=128, grid=size, cluster=size)


def _masks(size: int, sizes: np.ndarray) -> list[np.ndarray]:
    """Masks, and the bytes that each CTA expects, where rank s sends ``sizes[round, s]`` bytes."""
    masks = np.array(MASKS[size], np.uint16)
    here = masks[:, None, :] >> np.arange(size)[None, :, None] & 1  # round, receiver, sender
    return [masks, (here * sizes[:, None, :]).sum(axis=2).astype(np.uint32)]


def multicast_tensor_case(size: int, dims: int, swizzle: int) -> Case:
    """``cp.async.bulk.tensor`` with ``.multicast::cluster``; some boxes reach past the tensor."""
    name = f"multicast tensor {dims}d swizzle {swizzle} cluster {size}"
    row = (swizzle or 64) // 2
    box = [row, 8, 1, 1, 1][:dims] if dims != 3 else [row, 4, 2]
    if dims == 1:
        box = [256]
    words = int(np.prod(box)) // 2
    tile = -(-words // 256) * 256  # slots begin where a swizzle's pattern does
    rounds = len(MASKS[size])
    coords = ", ".join(f"C[r, rank, {i}]" for i in range(dims))
    form = f"cp.async.bulk.tensor.{dims}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    form += ".multicast::cluster"
    slot = f"s.ptr_to([(r * {size} + rank) * {tile}])"
    issue = [f'T.evaluate(T.ptx["{form}"]({slot}, T.address_of(m), {coords}, '
             f"{SMEM}(bar.ptr_to([r])), M[r, rank]))"]  # fmt: skip
    params = ["m: T.TensorMap()", f'C: T.Buffer(({rounds}, {size}, {dims}), "int32")']
    text = _multicast_text(size, tile, issue, params)

    def arguments():
        rng = rng_of(name)
        shape = [n + int(rng.integers(1, 4)) * (8 if i == 0 else 1) for i, n in enumerate(box)]
        tensor = rng.integers(0, 1 << 16, shape[::-1]).astype(np.uint16)
        strides, pitch = [], 2 * shape[0]
        for n in shape[1:]:
            strides.append(pitch)
            pitch *= n
        fields = {
            "box": box, "shape": shape, "strides": strides, "element_strides": [1] * dims,
            "swizzle": SWIZZLES[swizzle], "oob_fill": 0, "dtype": "float16",
        }  # fmt: skip
        first = rng.integers(-1, shape[0] // 8, (rounds, size, 1)) * 8
        others = rng.integers(-1, np.maximum(1, shape[1:]), (rounds, size, dims - 1))
        where = np.concatenate([first, others], axis=2).astype(np.int32)
        sizes = np.full((rounds, size), 4 * words)
        total = rounds * size * tile
        return [Mapped(tensor.view(np.float16), fields), where, *_masks(size, sizes),
                np.zeros((size, total), np.uint32)]  # fmt: skip

    label = f"{form} swizzle {swizzle}, clusters of {size}"
    return Case("multicast", name, text, arguments, (4,), labels={4: label})


def multicast_bulk_case(size: int) -> Case:
    """``cp.async.bulk`` with ``.multicast::cluster``, of several sizes."""
    rounds, tile = len(MASKS[size]), 128
    form = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
    issue = [
        f'T.evaluate(T.ptx["{form}"]({SMEM}(s.ptr_to([(r * {size} + rank) * {tile}])), '
        f"X.ptr_to([r, rank, 0]), B[r, rank], {SMEM}(bar.ptr_to([r])), M[r, rank]))"
    ]
    params = [f'X: T.Buffer(({rounds}, {size}, {tile}), "uint32")',
              f'B: T.Buffer(({rounds}, {size}), "uint32")']  # fmt: skip
    text = _multicast_text(size, tile, issue, params)

    def arguments():
        rng = rng_of(f"multicast bulk {size}")
        x = rng.integers(0, 1 << 32, (rounds, size, tile), dtype=np.uint64).astype(np.uint32)
        sizes = rng.integers(1, 4 * tile // 16 + 1, (rounds, size)) * 16
        sizes[0, 0], sizes[0, 1] = 16, 4 * tile
        return [x, sizes.astype(np.uint32), *_masks(size, sizes),
                np.zeros((size, rounds * size * tile), np.uint32)]  # fmt: skip

    name = f"multicast bulk cluster {size}"
    return Case("multicast", name, text, arguments, (4,), labels={4: f"{form}, clusters of {size}"})


# ------------------------------------------------------------------------- other forms of copies

SENT = [(op, k) for op in ("and", "or", "xor") for k in ("b32",)]
SENT += [(op, k) for op in ("add", "min", "max") for k in ("u32", "s32")]
SENT += [("add", "u64"), ("inc", "u32"), ("dec", "u32")]


def sent_reductions_case() -> Case:
    """``cp.reduce.async.bulk`` from a CTA's shared memory into the other's."""
    count, n = len(SENT), 64
    form = "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
    body = [
        "pool = T.SMEMPool()", f's = pool.alloc(({2 * n * count},), "uint32", align=128)',
        'bar = pool.alloc((1,), "uint64", align=8)', "pool.commit()",
        'far = T.alloc_local((2,), "uint32")',
        f"for i in range({count}):", f"    s[{n} * i + tid] = X[rank, {n} * i + tid]",
        f"    s[{n * count} + {n} * i + tid] = V[rank, {n} * i + tid]",
        "if tid == 0:",
        "    T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), T.uint32(1))",
        "    T.ptx.fence.mbarrier_init.release.cluster()",
        "    T.ptx.mbarrier.arrive.expect_tx.shared.b64(bar.ptr_to([0]), "
        f"T.uint32({4 * n * count}))",
        "T.ptx.fence.proxy.async_.shared__cta()", "T.cuda.cluster_sync()", "if tid == 0:",
        f'    T.ptx["mapa.shared::cluster.u32"](far[1], {SMEM}(bar.ptr_to([0])), '
        "T.cast(1 - rank, 'uint32'))",
    ]  # fmt: skip
    for i, (op, kind) in enumerate(SENT):
        body += [
            f'    T.ptx["mapa.shared::cluster.u32"](far[0], {SMEM}(s.ptr_to([{n * i}])), '
            "T.cast(1 - rank, 'uint32'))",
            f'    T.evaluate(T.ptx["{form}.{op}.{kind}"](far[0], '
            f"{SMEM}(s.ptr_to([{n * count + n * i}])), T.uint32({4 * n}), far[1]))",
        ]
    body += [
        "T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)",
        f"for i in range({count}):", f"    Y[i, rank, tid] = s[{n} * i + tid]",
        "T.cuda.cluster_sync()",
    ]  # fmt: skip
    params = [f'{a}: T.Buffer((2, {n * count}), "uint32")' for a in "XV"]
    params.append(f'Y: T.Buffer(({count}, 2, {n}), "uint32")')
    text = kernel_text(params, body, threads=n, grid=2, cluster=2)

    def arguments():
        given = []
        for which in range(2):
            rows = [
                np.resize(values_of(k, which, 256).view(np.uint32), 4 * n)[n * which :][: 2 * n]
                for _, k in SENT
            ]
            each = np.stack([r.reshape(2, n) for r in rows], axis=1)
            given.append(np.ascontiguousarray(each.reshape(2, n * count)))
        return [*given, np.zeros((count, 2, n), np.uint32)]

    names = [f"{form}.{op}.{kind}" for op, kind in SENT]
    return Case(
        "copies, more forms", "reductions in another CTA", text, arguments, (2,), {2: names}
    )


POLICIES = [
    "createpolicy.fractional.L2::evict_last.b64", "createpolicy.fractional.L2::evict_first.b64",
    "createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64",
]  # fmt: skip


def hints_case() -> Case:
    """Prefetches, cache policies and hints, ``griddepcontrol``: what they leave untouched.

    A 2-D box, a run of bytes and the threads' own copies, each by several forms with the same end.
    """
    g2s = "cp.async.bulk.tensor.2d.{}.global.tile.mbarrier::complete_tx::bytes{}"
    run = "cp.async.bulk.{}.global.mbarrier::complete_tx::bytes{}"
    out = "cp.async.bulk.global.shared::cta.bulk_group{}"
    box_out = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group{}"
    body = [
        "pool = T.SMEMPool()", 's = pool.alloc((2048,), "uint32", align=1024)',
        'bar = pool.alloc((1,), "uint64", align=8)', "pool.commit()",
        'policy = T.alloc_local((6,), "uint64")',
        'T.evaluate(T.ptx["griddepcontrol.wait"]())',
    ]  # fmt: skip
    for i, policy in enumerate(POLICIES):
        body.append(f'T.evaluate(T.ptx["{policy}"](policy[{i}]))')
    body += [
        'T.evaluate(T.ptx["createpolicy.fractional.L2::evict_first.b64"](policy[3], '
        "T.float32(0.5)))",
        'T.evaluate(T.ptx["createpolicy.range.global.L2::evict_last.L2::evict_unchanged.b64"]('
        "policy[4], X.ptr_to([0]), T.uint32(512), T.uint32(1024)))",
        "for i in range(16):", "    s[tid + 128 * i] = T.uint32(0xABABABAB)",
        "T.ptx.fence.proxy.async_.shared__cta()", "T.cuda.cta_sync()", "if tid == 0:",
        '    T.evaluate(T.ptx["prefetch.tensormap"](T.address_of(m)))',
        '    T.evaluate(T.ptx["cp.async.bulk.prefetch.tensor.2d.L2.global.tile"]('
        "T.address_of(m), T.int32(8), T.int32(1)))",
        '    T.evaluate(T.ptx["cp.async.bulk.prefetch.L2.global"](X.ptr_to([0]), T.uint32(1024)))',
        '    T.evaluate(T.ptx["prefetch.global.L2"](X.ptr_to([0])))',
        '    T.evaluate(T.ptx["prefetch.global.L1"](X.ptr_to([64])))',
        '    T.evaluate(T.ptx["prefetch.L1"](X.ptr_to([64])))',
        '    T.evaluate(T.ptx["prefetchu.L1"](X.ptr_to([128])))',
        '    T.evaluate(T.ptx["prefetch.global.L2::evict_last"](X.ptr_to([128])))',
        "    T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), T.uint32(1))",
        "    T.ptx.fence.mbarrier_init.release.cluster()",
        "    T.ptx.mbarrier.arrive.expect_tx.shared.b64(bar.ptr_to([0]), T.uint32(4096))",
    ]  # fmt: skip
    names = []
    hint = ".L2::cache_hint"
    for i, (where, hinted) in enumerate((w, h) for w in ("cta", "cluster") for h in (False, True)):
        form = g2s.format(f"shared::{where}", hint * hinted)
        more = f", policy[{i}]" * hinted
        body.append(
            f'    T.evaluate(T.ptx["{form}"]({SMEM}(s.ptr_to([{256 * i}])), T.address_of(m), '
            f"T.int32(8), T.int32({i - 1}), {SMEM}(bar.ptr_to([0])){more}))"
        )
        names.append(form)
    for i, (where, hinted) in enumerate((w, h) for w in ("cta", "cluster") for h in (False, True)):
        form = run.format(f"shared::{where}", hint * hinted)
        more = f", policy[{4 - i}]" * hinted
        body.append(
            f'    T.evaluate(T.ptx["{form}"]({SMEM}(s.ptr_to([{1024 + 256 * i}])), '
            f"X.ptr_to([{64 * i}]), T.uint32(512), {SMEM}(bar.ptr_to([0])){more}))"
        )
        names.append(form)
    body += [
        "T.cuda.cta_sync()", "T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)",
        "for i in range(8):", "    Y[i, tid] = s[256 * i + tid]", "T.cuda.cta_sync()",
        "if tid == 0:",
    ]  # fmt: skip
    for i, hinted in enumerate((False, True)):
        more = f", policy[{i}]" * hinted
        form = out.format(hint * hinted)
        body.append(f'    T.evaluate(T.ptx["{form}"](Z.ptr_to([{i}, 0]), '
                    f"{SMEM}(s.ptr_to([{1024 + 256 * i}])), T.uint32(512){more}))")  # fmt: skip
        names.append(form)
    reduce = "cp.reduce.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.add.u32"
    names.append(reduce)
    names.append(box_out.format(hint))
    names.append("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group" + hint)
    body += [
        f'    T.evaluate(T.ptx["{reduce}"](Z.ptr_to([2, 0]), {SMEM}(s.ptr_to([1024])), '
        "T.uint32(512), policy[2]))",
        f'    T.evaluate(T.ptx["{names[-2]}"](T.address_of(o), T.int32(0), T.int32(0), '
        f"{SMEM}(s.ptr_to([0])), policy[3]))",
        f'    T.evaluate(T.ptx["{names[-1]}"](T.address_of(o), T.int32(0), T.int32(8), '
        f"{SMEM}(s.ptr_to([256])), policy[3]))",
        "    T.ptx.cp.async_.bulk.commit_group()",
        '    T.evaluate(T.ptx["cp.async.bulk.wait_group.read"](0))',
        "    T.ptx.cp.async_.bulk.wait_group(0)",
        'T.evaluate(T.ptx["griddepcontrol.launch_dependents"]())',
    ]  # fmt: skip
    params = ["m: T.TensorMap()", "o: T.TensorMap()", 'X: T.Buffer((1024,), "uint32")',
              'Y: T.Buffer((8, 128), "uint32")', 'Z: T.Buffer((3, 128), "uint32")']  # fmt: skip
    text = kernel_text(params, body, threads=128)

    def arguments():
        rng = rng_of("hints")
        x = rng.integers(0, 1 << 32, 1024, dtype=np.uint64).astype(np.uint32)
        tensor = rng.integers(0, 1 << 32, (12, 24), dtype=np.uint64).astype(np.uint32)
        into = rng.integers(0, 1 << 32, (16, 16), dtype=np.uint64).astype(np.uint32)
        fields = {"box": [16, 8], "shape": [24, 12], "strides": [96], "element_strides": [1, 1],
                  "swizzle": 0, "oob_fill": 0, "dtype": "uint32"}  # fmt: skip
        whole = {**fields, "shape": [16, 16], "strides": [64]}
        z = rng.integers(0, 1 << 32, (3, 128), dtype=np.uint64).astype(np.uint32)
        return [Mapped(tensor, fields), Mapped(into, whole), x, np.zeros((8, 128), np.uint32), z]

    return Case(
        "copies, more forms", "hints and prefetches", text, arguments, (1, 3, 4),
        {3: names[:8], 4: names[8:11]},
        labels={1: f"{names[11]}, {names[12].partition('.bulk_group')[0]}"},
    )  # fmt: skip


def own_tensor_case(dims: int) -> Case:
    """Boxes of each rank to ``.shared::cta``, with and without ``.tile``, and out again."""
    name = f"tensor shared::cta {dims}d"
    box = [8, 4, 2, 2, 1][:dims]
    words = int(np.prod(box))
    forms = [f"cp.async.bulk.tensor.{dims}d.{dst}.global{tile}.mbarrier::complete_tx::bytes"
             for dst in ("shared::cta", "shared::cluster") for tile in ("", ".tile")]  # fmt: skip
    out = [f"cp.async.bulk.tensor.{dims}d.global.shared::cta{tile}.bulk_group"
           for tile in ("", ".tile")]  # fmt: skip
    out += [f"cp.reduce.async.bulk.tensor.{dims}d.global.shared::cta.add{tile}.bulk_group"
            for tile in ("", ".tile")]  # fmt: skip
    where = [[8 * (i // 2)] + [(i + j) % 3 for j in range(dims - 1)] for i in range(4)]
    body = [
        "pool = T.SMEMPool()", 's = pool.alloc((512,), "uint32", align=1024)',
        'bar = pool.alloc((1,), "uint64", align=8)', "pool.commit()", "if tid == 0:",
        f'    T.evaluate(T.ptx["cp.async.bulk.prefetch.tensor.{dims}d.L2.global"]('
        f"T.address_of(m), {', '.join(f'T.int32({c})' for c in where[1])}))",
        "    T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), T.uint32(1))",
        "    T.ptx.fence.mbarrier_init.release.cluster()",
        "    T.ptx.mbarrier.arrive.expect_tx.shared.b64(bar.ptr_to([0]), "
        f"T.uint32({4 * 4 * words}))",
    ]  # fmt: skip
    for i, form in enumerate(forms):
        coords = ", ".join(f"T.int32({c})" for c in where[i])
        body.append(f'    T.evaluate(T.ptx["{form}"]({SMEM}(s.ptr_to([{128 * i}])), '
                    f"T.address_of(m), {coords}, {SMEM}(bar.ptr_to([0]))))")  # fmt: skip
    body += ["T.cuda.cta_sync()", "T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)",
             "for i in range(4):", f"    if tid < {words}:", "        Y[i, tid] = s[128 * i + tid]",
             "T.cuda.cta_sync()", "if tid == 0:"]  # fmt: skip
    for i, form in enumerate(out):
        coords = ", ".join(f"T.int32({c})" for c in [8 * i] + [0] * (dims - 1))
        body.append(f'    T.evaluate(T.ptx["{form}"](T.address_of(o), {coords}, '
                    f"{SMEM}(s.ptr_to([{128 * i}]))))")  # fmt: skip
    body += ["    T.ptx.cp.async_.bulk.commit_group()", "    T.ptx.cp.async_.bulk.wait_group(0)"]
    params = ["m: T.TensorMap()", "o: T.TensorMap()", f'Y: T.Buffer((4, {words}), "uint32")']
    text = kernel_text(params, body, threads=128)

    def arguments():
        rng, given = rng_of(name), []
        for first in (20, 32):
            shape = [first, *(n + 1 for n in box[1:])]
            strides, pitch = [], 4 * first
            for n in shape[1:]:
                strides.append(pitch)
                pitch *= n
            tensor = rng.integers(0, 1 << 32, shape[::-1], dtype=np.uint64).astype(np.uint32)
            given.append(Mapped(tensor, {
                "box": box, "shape": shape, "strides": strides, "element_strides": [1] * dims,
                "swizzle": 0, "oob_fill": 0, "dtype": "uint32",
            }))  # fmt: skip
        return [*given, np.zeros((4, words), np.uint32)]

    return Case("copies, more forms", name, text, arguments, (1, 2), {2: forms},
                labels={1: ", ".join(out)})  # fmt: skip


ASYNC = [
    (f"cp.async.{cop}.{dst}.global{hint}{prefetch}", size, what)
    for cop, sizes in (("ca", (4, 8, 16)), ("cg", (16,)))
    for i, size in enumerate(sizes)
    for j, what in enumerate(("", "src-size", "ignore-src"))
    for dst, hint, prefetch in (
        ("shared::cta", "", ("", ".L2::64B", ".L2::128B", ".L2::256B")[(i + j) % 4]),
        ("shared", ".L2::cache_hint", ("", ".L2::128B", ".L2::256B", ".L2::64B")[(i + j) % 4]),
        ("shared", "", (".L2::256B", ".L2::64B", "", ".L2::128B")[(i + j) % 4]),
    )
]


def cp_async_forms_case() -> Case:
    """``cp.async`` with hints and to ``.shared::cta``, in groups of which the last is awaited
    later."""
    body = [
        "pool = T.SMEMPool()", f's = pool.alloc(({128 * len(ASYNC)},), "uint32", align=16)',
        "pool.commit()", 'policy = T.alloc_local((1,), "uint64")',
        'T.evaluate(T.ptx["createpolicy.fractional.L2::evict_first.b64"](policy[0]))',
        f"for i in range({4 * len(ASYNC)}):", "    s[32 * i + tid] = T.uint32(0xABABABAB)",
        "T.cuda.cta_sync()",
    ]  # fmt: skip
    names = []
    for i, (form, size, what) in enumerate(ASYNC):
        operands = f"s.ptr_to([{128 * i} + tid * 4]), X.ptr_to([{i}, tid * 4]), {size}"
        if what == "src-size":
            operands += f", T.cast((tid + {i}) % {size + 1}, 'uint32')"
        if what == "ignore-src":
            operands += f", T.ptx.pred(T.cast((tid + {i}) % 3 == 0, 'uint32'))"
        if "cache_hint" in form:
            operands += ", policy[0]"
        body += [f'T.evaluate(T.ptx["{form}"]({operands}))', "T.ptx.cp.async_.commit_group()"]
        names.append(f"{form} {size} {what}".rstrip())
    last = len(ASYNC) - 1
    body += [
        "T.ptx.cp.async_.wait_group(1)", "T.cuda.cta_sync()",
        f"for i in range({4 * last}):", "    Y[i // 4, i % 4 * 32 + tid] = s[32 * i + tid]",
        "T.ptx.cp.async_.wait_group(0)", "T.cuda.cta_sync()",
        "for i in range(4):", f"    Y[{last}, i * 32 + tid] = s[{128 * last} + 32 * i + tid]",
    ]  # fmt: skip
    shape = (len(ASYNC), 128)
    text = kernel_text([f'{n}: T.Buffer({shape}, "uint32")' for n in "XY"], body, threads=32)

    def arguments():
        x = rng_of("cp.async forms").integers(0, 1 << 32, shape, dtype=np.uint64)
        return [x.astype(np.uint32), np.zeros(shape, np.uint32)]

    return Case("cp.async, more forms", "cp.async forms", text, arguments, (1,), {1: names})


def cases() -> Iterator[Case]:
    for size in (2, 4):
        for swizzle in SWIZZLES:
            yield multicast_tensor_case(size, 2, swizzle)
        yield multicast_bulk_case(size)
    for dims, swizzle in ((1, 0), (3, 64), (4, 0), (5, 128)):
        yield multicast_tensor_case(2, dims, swizzle)
    yield sent_reductions_case()
    yield hints_case()
    for dims in range(1, 6):
        yield own_tensor_case(dims)
    yield cp_async_forms_case()
