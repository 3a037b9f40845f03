"""Instructions from registers to registers: arithmetic, bits, conversions, comparisons.

Forms come from TVM's PTX table, all that an sm_90a assembles and the simulator models, for some
instructions (comparisons, conversions) a sample. One thread has one set of operands; operands are
random numbers of their type and the numbers at its edges: zeros, infinities, NaN of several
payloads, subnormal numbers, ties.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from tvm.backend.cuda.ptx import table as ptx

from .case import Case, rng_of

#: Threads of a CTA, and forms of one kernel.
THREADS, CHUNK = 256, 64

#: Instructions of each family, how many operand sets, and how many forms at most.
FAMILIES: dict[str, tuple[tuple[str, ...], int, int]] = {
    "integer arithmetic": (
        ("add_int", "sub_int", "mul_int", "mul_wide", "mad_int", "mad_wide", "mul24", "mad24",
         "sad", "abs", "neg_int", "dp4a", "dp2a", "div", "rem", "max:int", "min:int"), 256, 99,
    ),
    "bits": (
        ("popc", "clz", "bfind", "brev", "bfe", "bfi", "szext", "bmsk", "fns", "and", "or", "xor",
         "not", "cnot", "shf", "shl", "shr", "prmt", "cvt_pack", "cvt_pack_c", "lop3", "selp",
         "slct", "copysign"), 256, 99,
    ),
    "fp32 and fp64 arithmetic": (
        ("add", "sub", "mul", "fma", "mad_f", "div_f", "abs_f", "neg", "rcp", "sqrt", "testp",
         "max:float", "min:float"), 256, 99,
    ),
    "approximations": (
        ("rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh", "div_f", "ex2_half",
         "tanh_half"), 2048, 99,
    ),
    "16-bit arithmetic": (
        ("add_half", "sub_half", "mul_half", "fma_half", "neg_half", "abs_half", "max:half",
         "min:half"), 256, 99,
    ),
    "moves": (
        ("mov", "mov_pack_b16x2", "mov_pack_b16x4", "mov_pack_b32x2", "mov_unpack_b16x2",
         "mov_unpack_b16x4", "mov_unpack_b32x2", "lop3_bool", "lop3_bool_sink"), 256, 99,
    ),
    "comparisons into two predicates": (
        ("setp_bool_pq", "setp_half_pq", "setp_half_bool_pq"), 256, 24,
    ),
    "lanes of a warp without predicates": (
        ("match_all_sync", "shfl_sync"), 256, 99,
    ),
    "comparisons": (
        ("set", "set_bool", "setp", "setp_pq", "setp_bool", "set_half", "set_half_bool",
         "setp_half", "setp_half_bool"), 256, 24,
    ),
    "conversions": (
        ("cvt", "cvt_f16x2_f32", "cvt_bf16x2_f32", "cvt_tf32_f32", "cvt_f8x2_f32",
         "cvt_f8x2_fp16x2", "cvt_f16x2_f8x2"), 256, 400,
    ),
    "lanes of a warp": (
        ("vote_sync", "vote_sync_ballot", "match_any_sync", "match_all_sync", "match_all_sync_p",
         "redux_sync", "redux_sync_bitwise", "elect_sync", "shfl_sync", "shfl_sync_p",
         "activemask"), 256, 99,
    ),
}  # fmt: skip

#: Forms that sm_90 does not have, or that the simulator leaves for later.
_LEFT_OUT = re.compile(
    r"f32x2|\.oob|f64.*\.r[zmp]|r[zmp].*\.f64|multiple_of|\.pred\b|^(add|sub|fma)\..*f32\.b?f16"
    r"|e[45]m[23]x2\.bf16x2|r[nz]\.satfinite.*\.tf32"
)


#: Instructions whose ``.pred`` is no operand's register but a result's or a vote's.
_PREDICATES = {"vote_sync"}

#: What tells entries of the same name apart.
_APART = {
    "setp_pq": " p|q", "lop3_bool_sink": " _|p", "mov_pack_b16x2": " of two b16",
    "mov_pack_b16x4": " of four b16", "mov_pack_b32x2": " of two b32",
    "mov_unpack_b16x2": " into two b16", "mov_unpack_b16x4": " into four b16",
    "mov_unpack_b32x2": " into two b32",
}  # fmt: skip


class Form:
    """One form of an instruction: its entry in the table and its modifiers."""

    def __init__(self, entry: Any, tokens: tuple[str, ...]):
        self.entry, self.tokens = entry, tokens
        self.mods = ptx.mods(entry, tokens)
        self.layout = [
            slot for slot, _, n in ptx.operand_layout(entry, self.mods) for _ in range(n)
        ]
        words = [t for t in tokens if t]
        self.name = ".".join([entry.ptx_name, *words])

    @property
    def label(self) -> str:
        """The name, with what tells two entries of it apart."""
        return self.name + _APART.get(self.entry.name, "")

    def operands(self) -> Iterator[tuple[int, Any, str, str]]:
        """Position, slot, PTX type and TVM dtype of each register operand."""
        for i, slot in enumerate(self.layout):
            if slot.kind == "reg":
                yield (
                    i,
                    slot,
                    ptx.operand_type(slot, self.mods),
                    ptx.operand_dtypes(slot, self.mods)[0],
                )


def _kind_of(form: Form) -> str:
    last = [t for t in form.tokens if t][-1]
    if "f16" in last:
        return "half"
    return "float" if last.startswith("f") else "int"


@cache
def forms_of(family: str) -> tuple[Form, ...]:
    names, _, most = FAMILIES[family]
    found: dict[str, Form] = {}
    for spec in names:
        name, _, kind = spec.partition(":")
        entry = ptx.TABLE[name]
        forms = [Form(entry, tokens) for tokens in _variants(name)]
        forms = [f for f in forms if name in _PREDICATES or not _LEFT_OUT.search(f.name)]
        if kind:
            forms = [f for f in forms if _kind_of(f) == kind]
        if family == "approximations":
            forms = [f for f in forms if ".approx" in f.name or ".full" in f.name]
        elif family == "fp32 and fp64 arithmetic":
            forms = [f for f in forms if ".approx" not in f.name and ".full" not in f.name]
        if len(forms) > most and family.startswith("comparisons"):
            forms = _spread(forms, most, random.Random(name))
        elif len(forms) > most:
            forms = random.Random(name).sample(forms, most)
        found.update((f.label, f) for f in forms)
    return tuple(found.values())


def _spread(forms: list[Form], most: int, rng: random.Random) -> list[Form]:
    """So many of the forms that each modifier of each position is among them."""
    rng.shuffle(forms)
    chosen: list[Form] = []
    seen: set[tuple[int, str]] = set()
    for form in forms:
        brings = set(enumerate(form.tokens)) - seen
        if brings:
            chosen.append(form)
            seen |= brings
    rest = [form for form in forms if form not in chosen]
    return chosen + rest[: max(0, most - len(chosen))]


def _variants(name: str) -> Iterator[tuple[str, ...]]:
    """All forms; of ``cvt``, which has millions of combinations, random legal ones."""
    entry = ptx.TABLE[name]
    if name != "cvt":
        yield from ptx.variants(entry)
        return
    rng = random.Random(5)
    axes = [(*slot.choices, "") if slot.optional else slot.choices for slot in entry.slots]
    seen = set()
    for _ in range(60_000):
        # qualifiers mostly left out, so that all pairs of types come up
        tokens = tuple(
            "" if slot.optional and rng.random() < 0.6 else rng.choice(axis)
            for slot, axis in zip(entry.slots, axes, strict=True)
        )
        if tokens not in seen and (entry.check is None or not entry.check(ptx.mods(entry, tokens))):
            seen.add(tokens)
            yield tokens


# ------------------------------------------------------------------------------------ operands

_F32 = [
    0x00000000, 0x80000000, 0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC12345,
    0x7F800001, 0x00000001, 0x807FFFFF, 0x00800000, 0x7F7FFFFF, 0x40000000, 0x3F000000, 0x4F000000,
    0x4F800000, 0xCF000000, 0x5F000000, 0x477FE000, 0x477FEFFF, 0x477FF000, 0x33800000, 0x33000000,
    0x33000001, 0x387FE000, 0x387FF000, 0x3F801000, 0x3F803000, 0x3F808000, 0x3F818000, 0x43E00000,
    0x43E80000, 0x43F00000, 0x476FFFFF, 0x47700000, 0x3B000000, 0x3AFFFFFF, 0x3FC00000, 0x40200000,
    0xBF000000, 0xC0200000, 0x42FE0000, 0x437F8000, 0x46FFFE00, 0x7F7F8000, 0x7F7F7FFF, 0x00400000,
]  # fmt: skip
_F16 = [
    0x0000, 0x8000, 0x3C00, 0xBC00, 0x7C00, 0xFC00, 0x7E00, 0xFE01, 0x7C01, 0x7FFF, 0x0001, 0x83FF,
    0x0400, 0x7BFF, 0x4000, 0x3800, 0x3C01, 0xFBFF, 0x0200, 0x5BF8, 0x77FF,
]  # fmt: skip
_BF16 = [
    0x0000, 0x8000, 0x3F80, 0xBF80, 0x7F80, 0xFF80, 0x7FC0, 0xFFC1, 0x7F81, 0x7FFF, 0x0001, 0x807F,
    0x0080, 0x7F7F, 0x4000, 0x3F00, 0x3F81, 0xFF7F, 0x0040, 0x4780, 0x477F,
]  # fmt: skip
_INTS = [0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 33, 63, 64, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0x8000,
         0xFFFF, 0x7FFFFF, 0x800000, 0xFFFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFFE,
         0xFFFF8000, 0x80000001]  # fmt: skip


def _crossed(edges: list[int], which: int, n: int) -> np.ndarray:
    """Edges for operand ``which``: the first two run through all pairs of the first twelve, as far
    as there is room, the others through all edges."""
    i = np.arange(n)
    first = min(12, len(edges))
    if which == 0:
        at = i % first
    elif which == 1:
        at = i // first % first
    else:
        at = i * 7 % len(edges)
    late = i >= first * first
    at = np.where(late, (i * (1, 5, 7)[which % 3]) % len(edges), at)
    return np.array(edges, dtype=np.uint64)[at]


def _floats(rng, edges, exponent: int, mantissa: int, which: int, n: int) -> np.ndarray:
    """Patterns of a float format: edges, random bits, and numbers of similar size."""
    bits = 1 + exponent + mantissa
    x = rng.integers(0, 1 << bits, n, dtype=np.uint64, endpoint=False)
    bias = (1 << (exponent - 1)) - 1
    near = (
        rng.integers(0, 2, n, dtype=np.uint64) << np.uint64(bits - 1)
        | (bias + rng.integers(-3, 5, n)).astype(np.uint64) << np.uint64(mantissa)
        | rng.integers(0, 1 << mantissa, n, dtype=np.uint64)
    )
    i = np.arange(n)
    x = np.where(i % 3 == 0, x, near)
    count = n * 9 // 16
    x[:count] = _crossed(edges, which, count)
    return x


def pool(kind: str, which: int, n: int) -> np.ndarray:
    """Operand ``which`` of a kind, for ``n`` threads, as unsigned integers."""
    rng = rng_of(f"pool {kind} {which}")
    if kind == "count":  # shift amounts, positions, lengths
        x = rng.integers(0, 40, n, dtype=np.uint64)
        x[::5] = rng.integers(0, 300, len(x[::5]), dtype=np.uint64)
        x[::17] = rng.integers(0, 1 << 32, len(x[::17]), dtype=np.uint64)
        return x
    if kind == "offset":
        return (rng.integers(-6, 7, n) & 0xFFFFFFFF).astype(np.uint64)
    if kind == "base":
        return rng.integers(0, 32, n, dtype=np.uint64)
    if kind == "lane":
        return rng.integers(0, 36, n, dtype=np.uint64)
    if kind == "segment":  # width as a mask in bits 8 to 12, clamp in bits 0 to 4
        widths = rng.choice(np.array([32, 16, 8, 4, 1], np.uint64), n)
        return (np.uint64(32) - widths) << np.uint64(8) | rng.integers(0, 32, n, dtype=np.uint64)
    if kind in ("few", "few64"):
        x = rng.integers(0, 3, n, dtype=np.uint64) << np.uint64(31)
        x[32:96] = 7  # the same in all lanes of two warps
        return x | x << np.uint64(32) if kind == "few64" else x & np.uint64(0xFFFFFFFF)
    if kind == "likely":
        x = rng.integers(0, 2, n, dtype=np.uint64)
        x[32:64], x[64:96], x[96:128] = 0, 1, np.arange(32) == 5
        return x
    if kind == "pred":
        return rng.integers(0, 2, n, dtype=np.uint64)
    if kind == "f32":
        return _floats(rng, _F32, 8, 23, which, n)
    if kind == "f16":
        return _floats(rng, _F16, 5, 10, which, n)
    if kind == "bf16":
        return _floats(rng, _BF16, 8, 7, which, n)
    if kind in ("f16x2", "bf16x2"):
        low = pool(kind[:-2], which, n)
        high = np.roll(pool(kind[:-2], which, n), 0 if which == 0 else n // 3)
        return low | high << np.uint64(16)
    if kind == "f64":
        edges = [int(np.float64(np.uint32(e).view(np.float32)).view(np.uint64)) for e in _F32]
        edges[6:9] = [0x7FF8000000000000, 0xFFF8000000012345, 0x7FF0000000000001]
        edges += [1, 0x000FFFFFFFFFFFFF, 0x0010000000000000, 0x7FEFFFFFFFFFFFFF]
        return _floats(rng, edges, 11, 52, which, n)
    if kind == "e4m3x2" or kind == "e5m2x2":
        return np.arange(n, dtype=np.uint64) * np.uint64(257) & np.uint64(0xFFFF)
    bits = int(re.search(r"\d+", kind)[0])
    bits *= int(kind.partition("x")[2] or 1)
    x = rng.integers(0, (1 << bits) - 1, n, dtype=np.uint64, endpoint=True)
    edges = [e if e < 1 << 31 or bits < 64 else e | 0xFFFFFFFF << 32 for e in _INTS]
    count = n * 9 // 16
    x[:count] = _crossed(edges, which, count) & np.uint64((1 << bits) - 1 & (1 << 64) - 1)
    if kind in ("u64", "s64", "b64"):  # not only of full width
        x[count::2] >>= rng.integers(0, 64, len(x[count::2]), dtype=np.uint64)
    return x


_COUNTS = {
    ("shl", "b"), ("shr", "b"), ("shf", "c"), ("bfe", "b"), ("bfe", "c"), ("bfi", "c"),
    ("bfi", "d"), ("szext", "b"), ("bmsk", "a"), ("bmsk", "b"),
}  # fmt: skip


def _kind(form: Form, slot: Any, token: str) -> str:
    if (form.entry.name, slot.name) in _COUNTS:
        return "count"
    name = form.entry.name
    if name.startswith("shfl") and slot.name in "bc":
        return {"b": "lane", "c": "segment"}[slot.name]
    if name.startswith("match"):
        return "few64" if token.endswith("64") else "few"
    if name.startswith("vote"):
        return "likely"
    if form.entry.name == "fns" and slot.name in ("base", "offset"):
        return slot.name
    return token


def _dtype_bits(dtype: str) -> str:
    return {
        "float32": "uint32", "float64": "uint64", "float16": "uint16", "bfloat16": "uint16",
    }.get(dtype, dtype.replace("int", "uint").replace("uuint", "uint"))  # fmt: skip


def _text(
    forms: tuple[Form, ...], n: int, lanes: int = 32
) -> tuple[str, list[tuple[str, int, str]], dict[str, list[str]], dict[str, str]]:
    """The kernel's source; the pools that it takes; the labels of each output's rows; the number
    format of each.

    ``lanes``: how many of each warp take part.
    """
    pools: dict[tuple[str, int, str], str] = {}
    outs: dict[str, list[str]] = {}
    formats: dict[str, str] = {}
    body: list[str] = []
    for form in forms:
        args, marks, stores = [""] * len(form.layout), [], []
        reads: dict[str, int] = {}
        for i, slot in enumerate(form.layout):
            if slot.kind == "imm":
                args[i] = "T.int32(0x6A)" if form.entry.name.startswith("lop3") else "T.int32(0)"
        for i, slot, token, dtype in form.operands():
            if slot.rw == "r":
                if slot.name == "membermask":
                    args[i] = f"T.uint32({(1 << lanes) - 1})"
                    continue
                kind = _kind(form, slot, token)
                which = reads[kind] = reads.get(kind, -1) + 1
                key = (kind, which, dtype)
                if token == "pred":  # carried as an integer
                    key = (kind, which, "uint32")
                    marks.append(f"p{i}")
                name = pools.setdefault(key, f"x{len(pools)}")
                args[i] = f"{name}[0]"
            else:
                dtype = "uint32" if token == "pred" else dtype
                row = len(outs.setdefault(dtype, []))
                extra = "" if slot.name in ("d", "p") and i == 0 else f" {slot.name}"
                extra += f"{i}" * (slot.name == "d" and i > 0)
                outs[dtype].append(form.label + extra)
                formats[form.label + extra] = token
                args[i] = f"r_{dtype}[{row}]"
                stores.append(f"Y_{dtype}[{row}, at] = r_{dtype}[{row}]")
        call = ", ".join(
            [f'"{form.entry.op_name}"', *args, *(f'"{v}"' for v in form.mods.values()),
             f'"{",".join(marks)}"']
        )  # fmt: skip
        body.append(f'T.evaluate(call("", {call}))')
        body += stores
    lines = ["from tvm.script import tirx as T", "from tvm.tirx import call_intrin as call", "",
             "@T.prim_func", "def kernel("]  # fmt: skip
    for (_, _, dtype), name in pools.items():
        lines.append(f'    X_{name}: T.Buffer(({n},), "{dtype}"),')
    for dtype, rows in outs.items():
        lines.append(f'    Y_{dtype}: T.Buffer(({len(rows)}, {n}), "{dtype}"),')
    lines += ["):", "    T.device_entry()", f"    cta = T.cta_id([{n // THREADS}])",
              f"    tid = T.thread_id([{THREADS}])",
              f"    at: T.let = cta * {THREADS} + tid"]  # fmt: skip
    for (_, _, dtype), name in pools.items():
        lines += [f'    {name} = T.alloc_local((1,), "{dtype}")', f"    {name}[0] = X_{name}[at]"]
    for dtype, rows in outs.items():
        lines.append(f'    r_{dtype} = T.alloc_local(({len(rows)},), "{dtype}")')
    if lanes < 32:
        lines.append(f"    if tid % 32 < {lanes}:")
    lines += [("    " if lanes == 32 else "        ") + line for line in body]
    return "\n".join(lines) + "\n", list(pools), outs, formats


def _storage(dtype: str) -> str:
    return "uint16" if dtype == "bfloat16" else dtype


def _case(family: str, number: int, forms: tuple[Form, ...], n: int, lanes: int = 32) -> Case:
    text, pools, outs, formats = _text(forms, n, lanes)
    if lanes < 32:
        outs = {k: [f"{row} of {lanes} lanes" for row in rows] for k, rows in outs.items()}

    def arguments() -> list[np.ndarray]:
        given = []
        for kind, which, dtype in pools:
            x = pool(kind, which, n)
            given.append(x.astype(_dtype_bits(dtype)).view(_storage(dtype)))
        return given + [np.zeros((len(rows), n), _storage(dtype)) for dtype, rows in outs.items()]

    first = len(pools)
    return Case(
        family, f"{family} {number}", text, arguments,
        tuple(range(first, first + len(outs))),
        {first + i: rows for i, rows in enumerate(outs.values())}, formats=formats,
    )  # fmt: skip


def cases() -> Iterator[Case]:
    for family, (_, n, _) in FAMILIES.items():
        forms = forms_of(family)
        for number, start in enumerate(range(0, len(forms), CHUNK)):
            yield _case(family, number, forms[start : start + CHUNK], n)
        if family.startswith("lanes of a warp"):
            alone = tuple(f for f in forms if not f.entry.name.startswith("shfl"))
            yield _case(family, 1, alone, n, lanes=20)
