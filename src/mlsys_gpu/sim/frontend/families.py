"""Rows of the operation table, by family: how each operation is emitted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mlsys_gpu.sim.frontend import analysis
from mlsys_gpu.sim.frontend.table import INLINE, inline, row
from mlsys_gpu.sim.frontend.values import BYTES, FLOATS, NUMPY, NotVectorizable, Registers, Value
from mlsys_gpu.sim.machine.inline import FUNCTIONS

_PTX_BYTES = {
    "b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "b32": 4, "u32": 4, "s32": 4,
    "f32": 4, "b64": 8, "u64": 8, "s64": 8, "f64": 8, "b128": 16,
}  # fmt: skip

#: Where lanes that an earlier operation has waited for would show up; of use in kernels that have
#: such operations (the translator leaves it out elsewhere).
REJOIN = "rejoin(w"

# ------------------------------------------------------------------------------ TIR built-ins


@row("address_of", vectorizable=True)
def address_of(t: Any, call: Any) -> Value:
    load = call.args[0]
    if type(load).__name__ == "Var":  # a kernel argument that is itself in memory: a tensor map
        return t.expr(load)
    buffer = t.buffer_of(load.source)
    if buffer.scope == "local":
        raise t.refuse(f"the address of the local {buffer.name} as a value")
    return t.address(buffer, load.indices[0], elements=True)


@row("buffer_data", vectorizable=True)
def buffer_data(t: Any, call: Any) -> Value:
    buffer = t.buffer_of(call.args[0])
    if buffer.scope == "local":
        raise t.refuse(f"the address of the local {buffer.name} as a value")
    return Value(buffer.base, "handle")


@row("handle_add_byte_offset", vectorizable=True)
def handle_add_byte_offset(t: Any, call: Any) -> Value:
    a, b = t.expr(call.args[0]), t.expr(call.args[1])
    return Value(f"({a.code} + {b.code})", "handle", a.lane or b.lane, a.loop or b.loop)


@row("ptx.addr", vectorizable=True)
def address_with_offset(t: Any, call: Any) -> Value:
    """``[base + offset]`` as PTX writes it in an address operand."""
    return handle_add_byte_offset(t, call)


@row("reinterpret", vectorizable=True)
def reinterpret(t: Any, call: Any) -> Value:
    value, dtype = t.expr(call.args[0]), str(call.ty)
    if "handle" in dtype or (value.dtype == "handle" and dtype == "uint64"):
        code, dtype = value.code, "handle" if "handle" in dtype else dtype
        if not value.uniform and "uint64" in (value.dtype, dtype):  # addresses are signed arrays
            code = f"({code}).astype({'np.int64' if dtype == 'handle' else 'np.uint64'})"
        return Value(code, dtype, value.lane, value.loop)
    if value.dtype == dtype:
        return value
    if dtype == "uint32x2" and value.dtype in ("uint64", "int64"):
        low = Value(f"({value.code} & 0xFFFFFFFF)", "uint32", value.lane, value.loop)
        high = Value(f"({value.code} >> 32 & 0xFFFFFFFF)", "uint32", value.lane, value.loop)
        return Value("", dtype, value.lane, value.loop, (low, high))
    if dtype == "uint64" and value.parts is not None and len(value.parts) == 2:
        low, high = value.parts
        if low.code.endswith("& 0xFFFFFFFF)") and high.code.endswith(">> 32 & 0xFFFFFFFF)"):
            whole = low.code[1 : -len(" & 0xFFFFFFFF)")]
            if high.code == f"({whole} >> 32 & 0xFFFFFFFF)":
                return Value(whole, dtype, value.lane, value.loop)
        if value.uniform:
            return Value(f"({low.code} | {high.code} << 32)", dtype)
        wide = [f"np.asarray({part.code}).astype(np.uint64)" for part in (low, high)]
        code = f"({wide[0]} | {wide[1]} << np.uint64(32))"
        return Value(code, dtype, value.lane, value.loop)
    if value.parts is not None or dtype not in BYTES or BYTES[dtype] != BYTES.get(value.dtype, 0):
        raise t.refuse(f"reinterpreting {value.dtype} as {dtype}")
    return (
        t.typed(Value(t.raw(value, value.dtype), dtype, value.lane, value.loop))
        if not value.uniform
        else _scalar_bits(t, value, dtype)
    )


def _scalar_bits(t: Any, value: Value, dtype: str) -> Value:
    """The bits of a scalar as another type of the same size."""
    unsigned = {1: "np.uint8", 2: "np.uint16", 4: "np.uint32", 8: "np.uint64"}[BYTES[dtype]]
    raw = f"{unsigned}({t.raw(value, value.dtype)})"
    if dtype in FLOATS and dtype != "bfloat16":
        return Value(f"{raw}.view({NUMPY[dtype]})", dtype)
    if dtype.startswith("int"):
        return Value(f"int({raw}.view({NUMPY[dtype]}))", dtype)
    return Value(f"int({raw})" if dtype != "bfloat16" else raw, dtype)


@row("if_then_else", vectorizable=True)
def if_then_else(t: Any, call: Any) -> Value:
    return t.choice(*call.args, str(call.ty))


@row("break_loop")
def break_loop(t: Any, call: Any) -> None:
    t.leave("break")


@row("continue_loop")
def continue_loop(t: Any, call: Any) -> None:
    t.leave("continue")


@row("thread_return")
def thread_return(t: Any, call: Any) -> None:
    t.leave("return")


def whole_warp(t: Any, what: str, members: Any = None, waits: bool = False) -> None:
    """All lanes that an operation names must reach it: here, where it names the whole warp.

    ``members``: its member mask (an expression, or its Value); without one, the operation is the
    whole warp's. ``waits``: it waits for the lanes that it names and that have not exited, as
    ``.sync`` says; without it, all of them must execute it (``.aligned``).
    """
    if members is not None:
        code = members.code if isinstance(members, Value) else str(getattr(members, "value", ""))
        if code not in ("4294967295", "-1"):
            return
    _collective(t, what)
    if t.context.lane is None and t.context.mask is not None:
        t.mark()
        t.emit(f"{'partial' if waits else 'whole_warp'}(w, {t.context.mask}, {what!r})")


def _unary(name: str, code: str) -> None:
    def emit(t: Any, call: Any) -> Value:
        value = t.expr(call.args[0])
        if value.dtype == "bfloat16":
            inner = code.format(f"bf16_to_f32({value.code})")
            return Value(f"f32_to_bf16({inner})", value.dtype, value.lane, value.loop)
        return Value(code.format(value.code), value.dtype, value.lane, value.loop)

    row(name, vectorizable=True)(emit)


for _name, _code in {
    "exp": "np.exp({0})",
    "exp2": "np.exp2({0})",
    "log": "np.log({0})",
    "log2": "np.log2({0})",
    "sqrt": "np.sqrt({0})",
    "fabs": "np.abs({0})",
    "floor": "np.floor({0})",
    "ceil": "np.ceil({0})",
}.items():
    _unary(_name, _code)


# ------------------------------------------------------------------- T.cuda: helpers and barriers


@row("cuda.cvta_generic_to_shared", vectorizable=True)
def cvta_generic_to_shared(t: Any, call: Any) -> Value:
    value = t.expr(call.args[0])
    code = value.code
    if code.startswith("(GB + ") or code == "GB":
        return Value(code.replace("GB", "SB", 1), "uint32", value.lane, value.loop)
    return Value(f"({code} & 0xFFFFFFFF)", "uint32", value.lane, value.loop)


@row("cuda.thread_rank", result="lane", vectorizable=True)
def thread_rank(t: Any, call: Any) -> Value:
    if t.context.lane is not None:
        return Value(f"(w.tid0 + {t.context.lane})", "int32")
    return Value("tidc" if t.slice is not None else "tid", "int32", True)


@row("cuda.wgmma_encode_matrix_descriptor")
def wgmma_encode(t: Any, call: Any) -> None:
    """GmmaDescriptor of TVM's CUDA header: swizzle 0 none, 1 32B, 2 64B, 3 128B."""
    _encode_matrix(t, call, {0: 0, 1: 3, 2: 2, 3: 1}, 62, 0)


@row("cuda.tcgen05_encode_matrix_descriptor")
def tcgen05_encode(t: Any, call: Any) -> None:
    """SmemDescriptor of TVM's CUDA header: version 1; swizzle 0 none, 1 32B, 2 64B, 3 128B."""
    _encode_matrix(t, call, {0: 0, 1: 6, 2: 4, 3: 2, 4: 1}, 61, 1 << 46)


def _encode_matrix(t: Any, call: Any, modes: dict[int, int], shift: int, fixed: int) -> None:
    target, address, leading, stride, swizzle = call.args
    where = t.expr(address)
    mode = modes[int(swizzle.value)] << shift | fixed
    ldo, sdo = t.expr(leading), t.expr(stride)
    code = (
        f"(({where.code} & 0x3FFFF) >> 4 | ({ldo.code} & 0x3FFF) << 16 | "
        f"({sdo.code} & 0x3FFF) << 32)"
    )
    lane = where.lane or ldo.lane or sdo.lane
    # Arrays mix signed and unsigned 64-bit integers into floats: unsigned before the top bits.
    code = f"({code}.astype(np.uint64) | np.uint64({mode}))" if lane else f"({code} | {mode})"
    _store_through(t, target, Value(code, "uint64", lane))


@row("cuda.tcgen05_encode_instr_descriptor")
def tcgen05_encode_instruction(t: Any, call: Any) -> None:
    target, d, a, b, m, n, _, trans_a, trans_b, *rest = call.args
    formats, into = {"float16": 0, "bfloat16": 1}, {"float16": 0, "float32": 1}
    if str(d.value) not in into or str(a.value) not in formats or str(b.value) not in formats:
        raise t.refuse(f"tcgen05.mma of {a.value} and {b.value} into {d.value}")
    negate_a = int(rest[1].value) if len(rest) > 1 else 0
    negate_b = int(rest[2].value) if len(rest) > 2 else 0
    bits = (
        into[str(d.value)] << 4
        | formats[str(a.value)] << 7
        | formats[str(b.value)] << 10
        | negate_a << 13
        | negate_b << 14
        | int(trans_a.value) << 15
        | int(trans_b.value) << 16
        | int(n.value) >> 3 << 17
        | int(m.value) >> 4 << 24
    )
    _store_through(t, target, Value(str(bits), "uint32"))


def _store_through(t: Any, target: Any, value: Value) -> None:
    """Store a value through the address of a local."""
    load = analysis.pointed_at(target)
    buffer = t.buffer_of(load.source)
    if buffer.scope != "local":
        raise t.refuse(f"a descriptor written to {buffer.scope} memory")
    t.store_register(buffer, load.indices[0], value)


def _collective(t: Any, what: str) -> None:
    """A warp-wide operation has no meaning for one lane alone."""
    t.mark()
    if t.context.lane is not None:
        t.emit(f"whole_warp(w, w.lanes == {t.context.lane}, {what!r})")
    else:
        t.emit(f"{REJOIN}{t.mask()})")


def _active(t: Any) -> str:
    """The mask argument of an operation that counts threads."""
    if t.context.lane is not None:
        return ", mask=True"
    return t.mask()


def _mask_kw(t: Any) -> str:
    return f", mask={t.context.mask}" if t.context.mask else ""


# ----------------------------------------------------------------------- inline CUDA (func_call)


@row("cuda.func_call", vectorizable=True)
def func_call(t: Any, call: Any) -> Value | None:
    name = str(call.args[0].value)
    found = INLINE.get(name)
    if found is None and name in FUNCTIONS:
        return _registered(t, call, name)
    if found is None:
        raise t.refuse(
            f"the inline CUDA function {name}, for which no Python equivalent is registered "
            "(mlsys_gpu.sim.inline registers one)"
        )
    if t.slice is not None and not found.vectorizable:
        raise NotVectorizable(name)
    arguments = [a for a in list(call.args)[1:] if type(a).__name__ != "StringImm"]
    return found.emit(t, call, arguments)


def _registered(t: Any, call: Any, name: str) -> Value:
    """A call of a function that a reader has registered: values in, a value out."""
    values = [t.expr(a) for a in list(call.args)[1:] if type(a).__name__ != "StringImm"]
    dtypes, into = tuple(v.dtype for v in values), str(call.ty)
    if any(v.parts is not None or v.dtype not in NUMPY for v in values) or into not in NUMPY:
        raise t.refuse(f"the inline CUDA function {name} of other than numbers")
    args = "".join(f", {v.code}" for v in values)
    code = f"inline_call({name!r}, {dtypes!r}, {into!r}{args})"
    return Value(code, into, any(v.lane for v in values), any(v.loop for v in values))


@inline("tvm_builtin_pointer_offset", vectorizable=True)
def pointer_offset(t: Any, call: Any, arguments: list[Any]) -> Value:
    pointer, offset = arguments
    base, by = t.expr(pointer), t.expr(offset)
    element = _pointee(pointer)
    size = BYTES[element]
    code = by.code if size == 1 else f"{by.code} * {size}"
    return Value(f"({base.code} + {code})", "handle", base.lane or by.lane, base.loop or by.loop)


def _pointee(pointer: Any) -> str:
    """The element type that a pointer expression points to."""
    if type(pointer).__name__ == "Call" and str(pointer.op.name) == "tirx.address_of":
        return str(pointer.args[0].source.dtype)
    return str(pointer.ty.element_type)


@inline("mlsys_register_fence", vectorizable=True)
def register_fence(t: Any, call: Any, arguments: list[Any]) -> None:
    """A compiler fence on registers: the simulator runs statements in order anyway."""


def _registers_at(t: Any, pointer: Any, count: int) -> Registers:
    """``count`` registers behind the address of a local."""
    load = analysis.pointed_at(pointer)
    buffer = t.buffer_of(load.source)
    found = t.registers_of(buffer, [load.indices[0]])
    if found is None:
        if t.slice is not None:
            raise NotVectorizable("registers at an index that is no arithmetic progression")
        raise t.refuse(f"the address of the local {buffer.name}")
    return replace(found, count=count)


_CASTS = {
    ("float32", "float16"): "f32_to_f16({0})",
    ("float32", "bfloat16"): "f32_to_bf16({0})",
    ("float16", "float32"): "({0}).astype(np.float32)",
    ("bfloat16", "float32"): "bf16_to_f32({0})",
}


def _cast_row(source: str, target: str, code: str) -> None:
    def emit(t: Any, call: Any, arguments: list[Any]) -> None:
        into, origin = _registers_at(t, arguments[0], 2), _registers_at(t, arguments[1], 2)
        t.touch_registers(origin, False)
        t.touch_registers(into, True)
        value = t.read_registers(origin, 2)
        t.write_registers(into, Value(code.format(value.code), target, value.lane, value.loop))

    inline(f"tvm_builtin_cast_{source}x2_{target}x2", vectorizable=True)(emit)


for (_source, _target), _code in _CASTS.items():
    _cast_row(_source, _target, _code)


# -------------------------------------------------------------------------------- PTX: ld and st


def _space(t: Any, call: Any) -> str:
    space = call.mods.get("space", "")
    if space.startswith("shared"):
        return "shared"
    if space in ("global", ""):
        return "global" if space else "generic"
    raise t.refuse(f"the state space {space}")


@row("ptx.ld", "ptx.ld_vec", "ptx.ld_vec256", "ptx.ldu", "ptx.ldu_vec", "ptx.ld_proxy_readonly",
     vectorizable=True)  # fmt: skip
def ld(t: Any, call: Any) -> None:
    space, size = _space(t, call), _PTX_BYTES.get(call.mods["type"])
    if size is None:
        raise t.refuse(f"ld of type {call.mods['type']}")
    where = t.address_name(t.expr(call.one(_address_name(call))))
    targets = next(v for k, v in call.operands.items() if k in ("d", "dst"))
    lanes = len(targets)
    t.note_memory(space, store=False, width=size * lanes)
    t.mark()
    many, item = (2, 8) if size == 16 else (lanes, size)  # a 128-bit register is two words
    strong = _strength(t, call)
    if strong is not None:
        code = f'ld_strong(w, "{space}", {where.code}, {item}, {many}, {strong}{t.mask(where)})'
    else:
        code = f"ld_{space}(w, {where.code}, {item}, {many}{t.mask(where)})"
    if size == 16:
        if t.slice is not None:
            raise NotVectorizable("a 128-bit register")
        registers = t.wide_registers(targets[0])
        if registers is not None:
            t.touch_registers(registers, True)
            words = f"({code}).view({NUMPY[registers.dtype]})"
            t.write_registers(registers, Value(words, registers.dtype, where.lane))
            return
        wide = Value(f"wide({code})", "uint128", where.lane)
        t.store_register(t.buffer_of(targets[0].source), targets[0].indices[0], wide)
        return
    _store_results(t, targets, Value(code, "", where.lane, where.loop), size)


def _strength(t: Any, call: Any) -> str | None:
    """Arguments of a strong access, its semantics and scope; None for a weak one."""
    sem, scope = call.mods.get("sem") or "weak", call.mods.get("scope") or ""
    if sem == "weak":
        return None
    if t.slice is not None:
        raise NotVectorizable("a strong access")
    return f'"{sem}", "{scope}"'


def _address_name(call: Any) -> str:
    return next(k for k in call.operands if k in ("a", "addr", "src", "ptr", "dst_mem"))


def _store_results(t: Any, targets: list[Any], value: Value, size: int) -> None:
    """Assign what an operation returned (unsigned, with a last axis for several) to registers."""
    registers = t.registers(targets)
    if registers is not None:
        t.touch_registers(registers, True)
        code = value.code
        if registers.dtype not in ("bfloat16", "uint8", "uint16", "uint32", "uint64"):
            code = f"{code}.view({NUMPY[registers.dtype]})"
        t.write_registers(registers, Value(code, registers.dtype, value.lane, value.loop))
        return
    if len(targets) > 1:
        name = t.fresh("r")
        t.emit(f"{name} = {value.code}")
        parts = [
            Value(f"{name}[..., {i}]", "", value.lane, value.loop) for i in range(len(targets))
        ]
    else:
        parts = [value]
    for target, part in zip(targets, parts, strict=True):
        buffer = t.buffer_of(target.source)
        typed = t.typed(Value(part.code, buffer.dtype, part.lane, part.loop))
        t.store_register(buffer, target.indices[0], typed)


@row("ptx.st", "ptx.st_vec", "ptx.st_vec256", vectorizable=True)
def st(t: Any, call: Any) -> None:
    space, size = _space(t, call), _PTX_BYTES.get(call.mods["type"])
    if size is None:
        raise t.refuse(f"st of type {call.mods['type']}")
    with t.predicated(call):
        where = t.address_name(t.expr(call.one(_address_name(call))))
        sources = next(v for k, v in call.operands.items() if k in ("b", "src", "value", "val"))
        t.note_memory(space, store=True, width=size * len(sources))
        count, strong = len(sources), _strength(t, call)
        if size == 16:
            if t.slice is not None:
                raise NotVectorizable("a 128-bit register")
            wide = t.expr(sources[0])
            value, size, count = f"words({wide.code})", 8, 2
            if wide.parts is not None:  # registers of other types, seen as one of 128 bits
                value = f"stacked([{', '.join(t.raw(v, 'uint64') for v in wide.parts)}], np.uint64)"
        else:
            value = _group(t, sources, size)
        t.mark()
        if strong is not None:
            t.emit(
                f'st_strong(w, "{space}", {where.code}, {value}, {size}, {count}, {strong}'
                f"{t.mask(where)})"
            )
        else:
            t.emit(f"st_{space}(w, {where.code}, {value}, {size}, {count}{t.mask(where)})")


def _group(t: Any, sources: list[Any], size: int) -> str:
    """Source of several registers as unsigned values with a last axis."""
    unsigned = {1: "np.uint8", 2: "np.uint16", 4: "np.uint32", 8: "np.uint64"}[size]
    registers = t.registers(sources)
    if registers is not None and len(sources) > 1:
        t.touch_registers(registers, False)
        value = t.read_registers(registers, len(sources))
        if registers.dtype in ("float16", "float32", "float64", "int32", "int16", "int64", "int8"):
            return f"np.ascontiguousarray({value.code}).view({unsigned})"
        return value.code
    values = [t.expr(s) for s in sources]
    raws = [t.raw(v, v.dtype) for v in values]
    if len(raws) == 1:
        return raws[0]
    lane, loop = any(v.lane for v in values), any(v.loop for v in values)
    if not lane and not loop:
        return f"np.array([{', '.join(raws)}], dtype={unsigned})"
    shape = f"(32, {t.slice.extent})" if t.slice is not None else "(32,)"
    cast = [f"np.broadcast_to(np.asarray({r}, dtype={unsigned}), {shape})" for r in raws]
    return f"np.stack([{', '.join(cast)}], axis=-1)"
