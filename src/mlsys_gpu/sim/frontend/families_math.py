"""Rows for PTX arithmetic: floats, packed pairs, integers, logic, conversions, votes, shuffles."""

from __future__ import annotations

from typing import Any

from mlsys_gpu.sim.frontend.families import _scalar_bits
from mlsys_gpu.sim.frontend.table import row
from mlsys_gpu.sim.frontend.values import BYTES, FLOATS, Value

_PAIRS = {"f16x2": "float16", "bf16x2": "bfloat16"}
_WIDTH = {f"{kind}{bits}": bits for kind in "bus" for bits in (16, 32, 64)}


def _store(t: Any, target: Any, value: Value) -> None:
    """Assign a result to a destination register, as its type."""
    buffer = t.buffer_of(target.source)
    t.store_register(buffer, target.indices[0], as_bits(t, value, buffer.dtype))


def as_bits(t: Any, value: Value, dtype: str) -> Value:
    """A value's bits as another type of the same size (``mov`` between register types)."""
    if value.dtype == dtype or value.parts is not None:
        return value
    if {value.dtype, dtype} <= {"uint32", "int32"} or {value.dtype, dtype} <= {"uint64", "int64"}:
        return t.cast(value, dtype)
    if value.dtype not in BYTES or BYTES[value.dtype] != BYTES[dtype]:
        return t.cast(value, dtype)
    if value.uniform:
        return _scalar_bits(t, value, dtype)
    return t.typed(Value(t.raw(value, value.dtype), dtype, value.lane, value.loop))


def _flags(values: list[Value]) -> tuple[bool, bool]:
    return any(v.lane for v in values), any(v.loop for v in values)


def _sources(t: Any, call: Any) -> tuple[Any, list[Value]]:
    """The destination and the source values of an operation with single registers."""
    (target, *_), *rest = call.operands.values()
    return target, [t.expr(v[0]) for v in rest]


def _typed(t: Any, value: Value, dtype: str) -> str:
    return as_bits(t, value, dtype).code


# ------------------------------------------------------------------------------------- floats


def _float_row(kind: str) -> None:
    @row(f"ptx.{kind}", vectorizable=True)
    def emit(t: Any, call: Any) -> None:
        kind_of, source = call.mods["type"], call.mods.get("srctype")
        if kind_of == "f64" or source:
            raise t.refuse(f"{kind}.{kind_of}{'.' + source if source else ''}")
        target, values = _sources(t, call)
        lane, loop = _flags(values)
        mode, ftz = call.mods.get("rnd") or "rn", bool(call.mods.get("ftz"))
        if kind_of == "f32x2":
            args = ", ".join(v.code for v in values)
            value = Value(f'f32x2("{kind}", "{mode}", {ftz}, {args})', "uint64", lane, loop)
        else:
            args = ", ".join(_typed(t, v, "float32") for v in values)
            sat = bool(call.mods.get("sat"))
            code = f'f32("{kind}", "{mode}", {ftz}, {sat}, {args})'
            value = Value(code, "float32", lane, loop)
        _store(t, target, value)


for _kind in ("add", "sub", "mul", "fma"):
    _float_row(_kind)


def _approximate_row(kind: str) -> None:
    @row(f"ptx.{kind}", vectorizable=True)
    def emit(t: Any, call: Any) -> None:
        if call.mods["type"] != "f32" or call.mods.get("mode") not in ("approx", "rn"):
            raise t.refuse(f"{kind}.{call.mods.get('mode')}.{call.mods['type']}")
        target, (value,) = _sources(t, call)
        code = f'approximate("{kind}", {bool(call.mods.get("ftz"))}, {_typed(t, value, "float32")})'
        _store(t, target, Value(code, "float32", value.lane, value.loop))


for _kind in ("ex2", "lg2", "rcp", "sqrt", "rsqrt", "tanh"):
    _approximate_row(_kind)


def _extreme_row(name: str, kind: str) -> None:
    @row(f"ptx.{name}", vectorizable=True)
    def emit(t: Any, call: Any) -> None:
        if any(call.mods.get(m) for m in ("xorsign", "abs", "relu")):
            raise t.refuse(f"{name} with {'.'.join(v for v in call.mods.values() if v)}")
        target, values = _sources(t, call)
        lane, loop = _flags(values)
        of = call.mods["type"]
        if of == "f32":
            args = ", ".join(_typed(t, v, "float32") for v in values)
            code = f'extreme("{kind}", {bool(call.mods.get("nan"))}, {args})'
            _store(t, target, Value(code, "float32", lane, loop))
        elif of in ("u32", "s32", "u64", "s64"):
            dtype = ("uint" if of[0] == "u" else "int") + of[1:]
            args = ", ".join(t.cast(v, dtype).code for v in values)
            function = f"np.{kind}imum" if lane or loop else kind
            _store(t, target, Value(f"{function}({args})", dtype, lane, loop))
        else:
            raise t.refuse(f"{name}.{of}")


for _name, _kind in {"max": "max", "min": "min", "max3": "max", "min3": "min"}.items():
    _extreme_row(_name, _kind)


@row("ptx.neg", "ptx.abs_f", vectorizable=True)
def negate(t: Any, call: Any) -> None:
    if call.mods["type"] != "f32":
        raise t.refuse(f"neg.{call.mods['type']}")
    target, (value,) = _sources(t, call)
    code = f"(-{_typed(t, value, 'float32')})"
    _store(t, target, Value(code, "float32", value.lane, value.loop))


# -------------------------------------------------------------------------------- moves, packing


@row("ptx.mov", vectorizable=True)
def mov(t: Any, call: Any) -> None:
    target, (value,) = _sources(t, call)
    _store(t, target, value)


@row("ptx.mov_pack_b32x2", vectorizable=True)
def pack_b32x2(t: Any, call: Any) -> None:
    (target,), parts = call.operands.values()
    values = [t.expr(p) for p in parts]
    lane, loop = _flags(values)
    low, high = (t.raw(v, v.dtype) for v in values)
    _store(t, target, Value(f"pack64({low}, {high})", "uint64", lane, loop))


@row("ptx.mov_unpack_b32x2", vectorizable=True)
def unpack_b32x2(t: Any, call: Any) -> None:
    targets, (source,) = call.operands.values()
    value = t.expr(source)
    for i, target in enumerate(targets):
        buffer = t.buffer_of(target.source)
        half = Value(f"unpack64({value.code}, {i})", buffer.dtype, value.lane, value.loop)
        t.store_register(buffer, target.indices[0], t.typed(half))


@row("ptx.mov_pack_b16x2", vectorizable=True)
def pack_b16x2(t: Any, call: Any) -> None:
    (target,), parts = call.operands.values()
    values = [t.expr(p) for p in parts]
    lane, loop = _flags(values)
    low, high = (t.integer(Value(t.raw(v, v.dtype), "uint16", v.lane, v.loop)).code for v in values)
    _store(t, target, Value(f"({low} | {high} << 16)", "uint32", lane, loop))


@row("ptx.mov_unpack_b16x2", vectorizable=True)
def unpack_b16x2(t: Any, call: Any) -> None:
    targets, (source,) = call.operands.values()
    value = as_bits(t, t.expr(source), "uint32")
    for i, target in enumerate(targets):
        half = f"({value.code} >> {16 * i} & 0xFFFF)"
        _store(t, target, Value(half, "uint16", value.lane, value.loop))


@row("ptx.cvt_f16x2_f32", "ptx.cvt_bf16x2_f32", vectorizable=True)
def cvt_pair(t: Any, call: Any) -> None:
    """Two floats packed into 32 bits: ``a`` in the upper half, ``b`` in the lower."""
    if call.mods.get("rnd") != "rn" or call.mods.get("relu") or call.mods.get("satfinite"):
        raise t.refuse(f"cvt with {'.'.join(v for v in call.mods.values() if v)}")
    target, (high, low) = _sources(t, call)
    dtype = _PAIRS[call.mods["dtype"]]
    lane, loop = _flags([high, low])
    code = f'pack_pair({low.code}, {high.code}, "{dtype}")'
    _store(t, target, Value(code, "uint32", lane, loop))


_TYPES = {
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "u16": "uint16", "s16": "int16",
    "u32": "uint32", "s32": "int32", "u64": "uint64", "s64": "int64", "u8": "uint8", "s8": "int8",
}  # fmt: skip


@row("ptx.cvt", vectorizable=True)
def cvt(t: Any, call: Any) -> None:
    """Conversions that C's have too: between floats to nearest even, float to integer truncated."""
    into, origin = _TYPES.get(call.mods["dtype"]), _TYPES.get(call.mods["atype"])
    mode = call.mods.get("rnd") or ""
    narrowing = into in FLOATS
    if (
        into is None
        or origin is None
        or mode not in (("rn", "") if narrowing else ("rzi", ""))
        or any(call.mods.get(m) for m in ("relu", "satfinite", "sat"))
    ):
        raise t.refuse(f"cvt.{'.'.join(v for v in call.mods.values() if v)}")
    target, (value,) = _sources(t, call)
    _store(t, target, t.cast(as_bits(t, value, origin), into))


# ---------------------------------------------------------------------------- integers and logic


def _integer(of: str) -> str:
    return ("int" if of[0] == "s" else "uint") + of[1:]


def _integer_row(name: str, code: str) -> None:
    @row(f"ptx.{name}", vectorizable=True)
    def emit(t: Any, call: Any) -> None:
        of = call.mods["type"]
        if of not in _WIDTH or call.mods.get("sat"):
            raise t.refuse(f"{name}.{of}")
        dtype = _integer(of)
        target, values = _sources(t, call)
        lane, loop = _flags(values)
        args = [as_bits(t, v, dtype).code for v in values]
        whole = code.format(*args)
        if not (dtype == "uint64" and (lane or loop)):
            whole = f"wrap({whole}, {_WIDTH[of]}, {dtype[0] == 'i'})"
        _store(t, target, Value(whole, dtype, lane, loop))


for _name, _code in {
    "add_int": "({0} + {1})",
    "sub_int": "({0} - {1})",
    "and": "({0} & {1})",
    "or": "({0} | {1})",
    "xor": "({0} ^ {1})",
    "not": "(~{0})",
    "div": "tdiv({0}, {1})",
    "rem": "tmod({0}, {1})",
}.items():
    _integer_row(_name, _code)


@row("ptx.mul_int", vectorizable=True)
def mul_int(t: Any, call: Any) -> None:
    of = call.mods["type"]
    dtype, bits = _integer(of), _WIDTH[of]
    target, values = _sources(t, call)
    lane, loop = _flags(values)
    a, b = (as_bits(t, v, dtype).code for v in values)
    if call.mods["mode"] == "hi":
        code = f"mul_high({a}, {b}, {bits}, {dtype[0] == 'i'})"
    else:
        code = f"wrap({a} * {b}, {bits}, {dtype[0] == 'i'})"
    _store(t, target, Value(code, dtype, lane, loop))


@row("ptx.mul_wide", vectorizable=True)
def mul_wide(t: Any, call: Any) -> None:
    of = call.mods["type"]
    dtype = _integer(of)
    target, values = _sources(t, call)
    lane, loop = _flags(values)
    double = dtype.replace("16", "32") if "16" in dtype else dtype.replace("32", "64")
    a, b = (t.cast(as_bits(t, v, dtype), double).code for v in values)
    _store(t, target, Value(f"({a} * {b})", double, lane, loop))


def _shift_row(kind: str) -> None:
    @row(f"ptx.{kind}", vectorizable=True)
    def emit(t: Any, call: Any) -> None:
        of = call.mods["type"]
        dtype = _integer(of)
        target, (a, b) = _sources(t, call)
        lane, loop = _flags([a, b])
        code = (
            f'shift("{kind}", {as_bits(t, a, dtype).code}, {b.code}, {_WIDTH[of]}, '
            f"{dtype[0] == 'i'})"
        )
        _store(t, target, Value(code, dtype, lane, loop))


_shift_row("shl")
_shift_row("shr")


@row("ptx.lop3", vectorizable=True)
def lop3(t: Any, call: Any) -> None:
    target, values = _sources(t, call)
    *values, table = values
    lane, loop = _flags(values)
    args = ", ".join(as_bits(t, v, "uint32").code for v in values)
    _store(t, target, Value(f"lop3({args}, {table.code})", "uint32", lane, loop))


@row("ptx.prmt", vectorizable=True)
def prmt(t: Any, call: Any) -> None:
    if call.mods.get("mode"):
        raise t.refuse(f"prmt in mode {call.mods['mode']}")
    target, values = _sources(t, call)
    lane, loop = _flags(values)
    args = ", ".join(as_bits(t, v, "uint32").code for v in values)
    _store(t, target, Value(f"permute_bytes({args})", "uint32", lane, loop))


def _count_row(kind: str) -> None:
    @row(f"ptx.{kind}", vectorizable=True)
    def emit(t: Any, call: Any) -> None:
        of = call.mods["type"]
        target, (value,) = _sources(t, call)
        code = f'count_bits("{kind}", {as_bits(t, value, _integer(of)).code}, {_WIDTH[of]})'
        _store(t, target, Value(code, "uint32", value.lane, value.loop))


_count_row("popc")
_count_row("clz")

_COMPARE = {
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lo": "<", "ls": "<=",
    "hi": ">", "hs": ">=",
}  # fmt: skip


@row("ptx.setp", vectorizable=True)
def setp(t: Any, call: Any) -> None:
    sign, of = _COMPARE.get(call.mods["cmp"]), call.mods["type"]
    dtype = "float32" if of == "f32" else _integer(of) if of in _WIDTH else None
    if sign is None or dtype is None:
        raise t.refuse(f"setp.{call.mods['cmp']}.{of}")
    target, (a, b) = _sources(t, call)
    lane, loop = _flags([a, b])
    code = f"({as_bits(t, a, dtype).code} {sign} {as_bits(t, b, dtype).code})"
    _store(t, target, t.cast(Value(code, "bool", lane, loop), "uint32"))


@row("ptx.selp", vectorizable=True)
def selp(t: Any, call: Any) -> None:
    target, (yes, no, condition) = _sources(t, call)
    test = condition.code if condition.dtype == "bool" else f"({condition.code} != 0)"
    chosen = t.choose(Value(test, "bool", condition.lane, condition.loop), yes, no, yes.dtype)
    _store(t, target, chosen)


# ----------------------------------------------------------------------- T.cuda: packed pairs


@row("cuda.make_float2", vectorizable=True)
def make_float2(t: Any, call: Any) -> Value:
    values = [t.expr(a) for a in call.args]
    lane, loop = _flags(values)
    low, high = (t.raw(v, "float32") for v in values)
    return Value(f"pack64({low}, {high})", "uint64", lane, loop)


def _half_row(name: str, which: int) -> None:
    @row(f"cuda.{name}", vectorizable=True)
    def emit(t: Any, call: Any) -> Value:
        value = t.expr(call.args[0])
        half = f"unpack64({value.code}, {which})"
        return t.typed(Value(half, "float32", value.lane, value.loop))


_half_row("float2_x", 0)
_half_row("float2_y", 1)


def _pair_row(name: str, kind: str) -> None:
    @row(f"cuda.{name}", vectorizable=True)
    def emit(t: Any, call: Any) -> Value:
        values = [t.expr(a) for a in call.args]
        lane, loop = _flags(values)
        args = ", ".join(v.code for v in values)
        return Value(f'f32x2("{kind}", "rn", False, {args})', "uint64", lane, loop)


_pair_row("fmul2_rn", "mul")
_pair_row("fadd2_rn", "add")


@row("cuda.uint_as_float", "cuda.float_as_uint", vectorizable=True)
def float_bits(t: Any, call: Any) -> Value:
    return as_bits(t, t.expr(call.args[0]), str(call.ty))


@row("cuda.get_tmem_addr", vectorizable=True)
def get_tmem_addr(t: Any, call: Any) -> Value:
    """A tensor-memory address moved by rows (bits 16 up) and columns."""
    values = [t.expr(a) for a in call.args]
    lane, loop = _flags(values)
    base, rows, columns = (v.code for v in values)
    return Value(f"({base} + ({rows} << 16) + {columns})", "uint32", lane, loop)
