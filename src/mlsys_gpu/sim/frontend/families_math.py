"""Rows for PTX's floating-point arithmetic, comparisons, moves and packing."""

from __future__ import annotations

from typing import Any

from mlsys_gpu.sim.frontend.families import _scalar_bits
from mlsys_gpu.sim.frontend.table import row
from mlsys_gpu.sim.frontend.values import BYTES, FLOATS, Value

_WIDTH = {f"{kind}{bits}": bits for kind in "bus" for bits in (8, 16, 32, 64)}
_PACKED = ("f16x2", "bf16x2", "u16x2", "s16x2", "u8x4", "s8x4")
_FLOAT_DTYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}


def dtype_of(of: str) -> str:
    """The dtype that holds a register of a PTX type; packed types are held as their bits."""
    if of in _FLOAT_DTYPES:
        return _FLOAT_DTYPES[of]
    if of in _PACKED:
        return "uint32"
    if of == "f32x2":
        return "uint64"
    if of == "pred":
        return "bool"
    return ("int" if of[0] == "s" else "uint") + of[1:]


_integer = dtype_of


def as_bits(t: Any, value: Value, dtype: str) -> Value:
    """A value's bits as another type (``mov`` between register types); integers change their size
    by their value, floats by the bits."""
    if value.dtype == dtype or value.parts is not None:
        return value
    if {value.dtype, dtype} <= {"uint32", "int32"} or {value.dtype, dtype} <= {"uint64", "int64"}:
        return t.cast(value, dtype)
    size, wanted = BYTES.get(value.dtype, 0), BYTES[dtype]
    if size != wanted:
        if value.dtype in FLOATS and dtype not in FLOATS and dtype != "bool":
            return t.cast(as_bits(t, value, f"uint{8 * size}"), dtype)
        if dtype in FLOATS and value.dtype not in FLOATS and value.dtype != "bool":
            return as_bits(t, t.cast(value, f"uint{8 * wanted}"), dtype)
        return t.cast(value, dtype)
    if value.dtype == "bool" or dtype == "bool":
        return t.cast(value, dtype)
    if value.uniform:
        return _scalar_bits(t, value, dtype)
    return t.typed(Value(t.raw(value, value.dtype), dtype, value.lane, value.loop))


def _store(t: Any, target: Any, value: Value) -> None:
    """Assign a result to a destination register, as its type; a sunk one takes nothing."""
    if target is None:
        return
    buffer = t.buffer_of(target.source)
    t.store_register(buffer, target.indices[0], as_bits(t, value, buffer.dtype))


def _store_truth(t: Any, target: Any, value: Value) -> None:
    """Assign a predicate, which a register holds as 1 or 0."""
    _store(t, target, t.cast(value, "uint32"))


def _flags(values: list[Value]) -> tuple[bool, bool]:
    return any(v.lane for v in values), any(v.loop for v in values)


def _sources(t: Any, call: Any) -> tuple[Any, list[Value]]:
    """The destination and the source values of an operation with single registers."""
    (target, *_), *rest = call.operands.values()
    return target, [t.expr(v[0]) for v in rest if v]


def _typed(t: Any, value: Value, dtype: str) -> str:
    return as_bits(t, value, dtype).code


def _truth(value: Value) -> str:
    """A predicate operand as a condition."""
    return value.code if value.dtype == "bool" else f"({value.code} != 0)"


def _result(t: Any, target: Any, code: str, of: str, values: list[Value]) -> None:
    lane, loop = _flags(values)
    _store(t, target, Value(code, dtype_of(of), lane, loop))


def _arguments(t: Any, values: list[Value], of: str) -> str:
    return ", ".join(_typed(t, v, dtype_of(of)) for v in values)


def _spelt(call: Any) -> str:
    """The modifiers of a call, for messages."""
    return ".".join(v for v in call.mods.values() if v)


# ------------------------------------------------------------------------------------- floats


def _float_row(kind: str, *names: str) -> None:
    @row(*(f"ptx.{name}" for name in names or (kind,)), vectorizable=True)
    def emit(t: Any, call: Any) -> None:
        of, source = call.mods["type"], call.mods.get("srctype")
        target, values = _sources(t, call)
        mode, ftz = call.mods.get("rnd") or "rn", bool(call.mods.get("ftz"))
        if source:  # 16-bit numbers that take part as float32
            narrow = values[:2] if kind == "fma" else values[:1]
            wide = [t.cast(as_bits(t, v, dtype_of(source)), "float32") for v in narrow]
            values = [*wide, *values[len(wide) :]]
        if of == "f64":
            if mode != "rn":
                raise t.refuse(f"{kind}.{_spelt(call)}")
            _result(t, target, f'f64("{kind}", {_arguments(t, values, of)})', of, values)
            return
        args = _arguments(t, values, of)
        if of == "f32x2":
            code = f'f32x2("{kind}", "{mode}", {ftz}, {args})'
        else:
            code = f'f32("{kind}", "{mode}", {ftz}, {bool(call.mods.get("sat"))}, {args})'
        _result(t, target, code, of, values)


_float_row("add")
_float_row("sub")
_float_row("mul")
_float_row("fma", "fma", "mad_f")


def _approximate_row(kind: str) -> None:
    @row(f"ptx.{kind}", vectorizable=True)
    def emit(t: Any, call: Any) -> None:
        of, mode, ftz = call.mods["type"], call.mods["mode"], bool(call.mods.get("ftz"))
        target, (value,) = _sources(t, call)
        x = _typed(t, value, dtype_of(of))
        if of == "f64" and mode == "approx" and not ftz:
            code = f"(1 / np.sqrt({x}))"
        elif of == "f64" and mode == "approx":
            code = f'approximate_f64("{kind}", {x})'
        elif of == "f64" and mode == "rn":
            code = f"np.sqrt({x})" if kind == "sqrt" else f"(np.float64(1) / {x})"
        elif of == "f64":
            raise t.refuse(f"{kind}.{_spelt(call)}")
        elif mode == "approx":
            code = f'approximate("{kind}", {ftz}, {x})'
        elif kind == "sqrt":
            code = f'square_root("{mode}", {ftz}, {x})'
        else:
            code = f'divide("{mode}", {ftz}, np.float32(1), {x})'
        _result(t, target, code, of, [value])


for _kind in ("ex2", "lg2", "rcp", "sqrt", "rsqrt", "sin", "cos", "tanh"):
    _approximate_row(_kind)


@row("ptx.div_f", vectorizable=True)
def div_f(t: Any, call: Any) -> None:
    of, mode = call.mods["type"], call.mods["mode"]
    target, values = _sources(t, call)
    args = _arguments(t, values, of)
    if of == "f32":
        code = f'divide("{mode}", {bool(call.mods.get("ftz"))}, {args})'
    elif mode == "rn":
        code = f'f64("div", {args})'
    else:
        raise t.refuse(f"div.{_spelt(call)}")
    _result(t, target, code, of, values)


@row("ptx.neg", "ptx.abs_f", vectorizable=True)
def sign_of_float(t: Any, call: Any) -> None:
    of = call.mods["type"]
    target, (value,) = _sources(t, call)
    x = _typed(t, value, dtype_of(of))
    if call.mods.get("ftz"):
        x = f"flushed({x})"
    code = f'sign_changed("{"neg" if call.name.endswith("neg") else "abs"}", {x})'
    _result(t, target, code, of, [value])


@row("ptx.copysign", vectorizable=True)
def copysign(t: Any, call: Any) -> None:
    """The sign of ``a`` put on the value of ``b``."""
    of = call.mods["type"]
    target, values = _sources(t, call)
    a, b = (_typed(t, v, dtype_of(of)) for v in values)
    _result(t, target, f"np.copysign({b}, {a})", of, values)


@row("ptx.testp", vectorizable=True)
def testp(t: Any, call: Any) -> None:
    target, (value,) = _sources(t, call)
    x = _typed(t, value, dtype_of(call.mods["type"]))
    code = f'kind_of_number("{call.mods["op"]}", {x})'
    _store_truth(t, target, Value(code, "bool", value.lane, value.loop))


def _half_row(name: str, kind: str) -> None:
    @row(f"ptx.{name}", vectorizable=True)
    def emit(t: Any, call: Any) -> None:
        of = call.mods["type"]
        if call.mods.get("oob"):
            raise t.refuse(f"{kind}.{_spelt(call)}")
        target, values = _sources(t, call)
        ftz, sat, relu = (bool(call.mods.get(m)) for m in ("ftz", "sat", "relu"))
        if name == "ex2_half" and of.startswith("bf16"):
            ftz = True
        code = f'half("{kind}", "{of}", {ftz}, {sat}, {relu}, {_arguments(t, values, of)})'
        _result(t, target, code, of, values)


for _name in ("add", "sub", "mul", "fma", "neg", "abs", "tanh", "ex2"):
    _half_row(f"{_name}_half", _name)


def _extreme_row(name: str, kind: str) -> None:
    @row(f"ptx.{name}", vectorizable=True)
    def emit(t: Any, call: Any) -> None:
        of, relu = call.mods["type"], bool(call.mods.get("relu"))
        target, values = _sources(t, call)
        lane, loop = _flags(values)
        args = _arguments(t, values, of)
        ftz, nan = (bool(call.mods.get(m)) for m in ("ftz", "nan"))
        how = ".".join(m for m in ("xorsign", "abs", "relu") if call.mods.get(m))
        if of == "f32" and not ftz and not how:
            code = f'extreme("{kind}", {nan}, {args})'
        elif of in ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2"):
            code = f'extreme_of("{kind}", "{of}", {ftz}, {nan}, "{how}", {args})'
        elif of in ("u16x2", "s16x2"):
            code = f'pairwise("{kind}", {of[0] == "s"}, {relu}, {args})'
        else:
            function = f"np.{kind}imum" if lane or loop else kind
            code = f"{function}({args})"
            if relu:
                code = f"np.maximum({code}, 0)" if lane or loop else f"max({code}, 0)"
        _result(t, target, code, of, values)


for _name, _kind in {"max": "max", "min": "min", "max3": "max", "min3": "min"}.items():
    _extreme_row(_name, _kind)


# -------------------------------------------------------------------------------- comparisons

_COMPARE = {
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lo": "<", "ls": "<=",
    "hi": ">", "hs": ">=",
}  # fmt: skip


def _comparison(t: Any, call: Any, of: str, a: Value, b: Value) -> Value:
    """A comparison of two operands; of packed pairs, with the parts on a last axis."""
    lane, loop = _flags([a, b])
    cmp = call.mods["cmp"]
    x, y = _typed(t, a, dtype_of(of)), _typed(t, b, dtype_of(of))
    if of in ("f16", "bf16", "f16x2", "bf16x2"):
        x, y = f'numbers16({x}, "{of}")', f'numbers16({y}, "{of}")'
    elif of not in ("f32", "f64"):
        return Value(f"({x} {_COMPARE[cmp]} {y})", "bool", lane, loop)
    if call.mods.get("ftz"):
        x, y = (f'flushed({v}, "{of}")' for v in (x, y))
    return Value(f'truth("{cmp}", {x}, {y})', "bool", lane, loop)


def _with_predicate(
    t: Any, call: Any, test: str, predicate: Any, pairs: bool = False
) -> tuple[str, Value | None]:
    """A comparison's result joined with a predicate operand (``.and``, ``.or``, ``.xor``).

    ``pairs``: the result has the parts of packed pairs on a last axis.
    """
    if predicate is None:
        return test, None
    value = t.expr(predicate)
    sign = {"and": "&", "or": "|", "xor": "^"}[call.mods["boolop"]]
    other = _truth(value)
    if pairs:
        other = f"np.asarray({other})[..., None]"
    return f"({test} {sign} {other})", value


_PREDICATES = [f"ptx.setp{kind}{form}" for kind in ("", "_half") for form in
               ("", "_pq", "_bool", "_bool_pq")]  # fmt: skip


@row(*_PREDICATES, vectorizable=True)
def setp(t: Any, call: Any) -> None:
    """A comparison into a predicate, and its complement into a second one.

    Of packed pairs the first predicate is the lower numbers' result, the second the upper ones'.
    """
    of = call.mods["type"]
    a, b = t.expr(call.one("a")), t.expr(call.one("b"))
    result = _comparison(t, call, of, a, b)
    name = t.fresh("c")
    t.emit(f"{name} = {result.code}")
    tests = [f"np.asarray({name})[..., {i}]" for i in (0, 1)]
    if not of.endswith("x2"):
        tests = [name, f"({name} == False)"]
    predicate = call.operands.get("c")
    targets = [call.one("p")] + ([call.one("q")] if "q" in call.operands else [])
    for target, test in zip(targets, tests, strict=False):
        code, value = _with_predicate(t, call, test, predicate[0] if predicate else None)
        lane, loop = _flags([a, b] if value is None else [a, b, value])
        _store_truth(t, target, Value(code, "bool", lane, loop))


@row("ptx.set", "ptx.set_bool", "ptx.set_half", "ptx.set_half_bool", vectorizable=True)
def set_(t: Any, call: Any) -> None:
    """A comparison as a number: 1.0 for floats, all ones for integers, else 0."""
    into, of = call.mods["dtype"], call.mods["stype"]
    a, b = t.expr(call.one("a")), t.expr(call.one("b"))
    result = _comparison(t, call, of, a, b)
    predicate = call.operands.get("c")
    code, value = _with_predicate(
        t, call, result.code, predicate[0] if predicate else None, of.endswith("x2")
    )
    code = f'ones_where({code}, "{into}"{", True" if of.endswith("x2") else ""})'
    _result(t, call.one("d"), code, into, [a, b] if value is None else [a, b, value])


@row("ptx.set_packed", vectorizable=True)
def set_packed(t: Any, call: Any) -> None:
    of = call.mods["type"]
    target, values = _sources(t, call)
    bits = 8 if of.endswith("x4") else 16
    args = _arguments(t, values, "b32")
    code = f'equal_parts("{call.mods["cmp"]}", {bits}, {of[0] == "s"}, {args})'
    _result(t, target, code, "b32", values)


@row("ptx.selp", vectorizable=True)
def selp(t: Any, call: Any) -> None:
    dtype = dtype_of(call.mods["type"])
    target, (yes, no, condition) = _sources(t, call)
    test = Value(_truth(condition), "bool", condition.lane, condition.loop)
    _store(t, target, t.choose(test, as_bits(t, yes, dtype), as_bits(t, no, dtype), dtype))


@row("ptx.slct", vectorizable=True)
def slct(t: Any, call: Any) -> None:
    """``a`` where ``c >= 0``, else ``b`` (which a NaN chooses too)."""
    dtype = dtype_of(call.mods["dtype"])
    target, (yes, no, c) = _sources(t, call)
    test = f"({_typed(t, c, dtype_of(call.mods['ctype']))} >= 0)"
    if call.mods.get("ftz"):
        test = f"(flushed({_typed(t, c, 'float32')}) >= 0)"
    chosen = Value(test, "bool", c.lane, c.loop)
    _store(t, target, t.choose(chosen, as_bits(t, yes, dtype), as_bits(t, no, dtype), dtype))


# -------------------------------------------------------------------------------- moves, packing


@row("ptx.mov", vectorizable=True)
def mov(t: Any, call: Any) -> None:
    target, (value,) = _sources(t, call)
    if call.mods["type"] == "pred":
        _store_truth(t, target, Value(_truth(value), "bool", value.lane, value.loop))
        return
    _store(t, target, value)


def _pairs(t: Any, parts: list[Any]) -> Value | None:
    """Two registers of 32 bits as one value, where those of all iterations of a slice lie side by
    side: then one view of the array gives all."""
    registers, loop = t.registers(parts), t.slice
    if registers is None or loop is None or BYTES[registers.dtype] != 4:
        return None
    scattered = isinstance(registers.step, tuple)
    if registers.step != 2 and not scattered:
        return None
    for part in parts:  # each register's own reads, as the loop's analysis counts them
        t.load_register(t.buffer_of(part.source), part.indices[0])
    first = t.within(registers, loop)
    view = t.view(registers.root, registers.dtype)
    code = f"{view}[:, {first}:{first} + {2 * loop.extent}]"
    if scattered:
        code = f"{view}[:, {t.places(registers, first)}]"
    if not t.has_filled(registers):
        code = t.written(code, t.buffer_of(parts[0].source))
    return Value(f"pairs64({code})", "uint64", True, True)


@row("ptx.mov_pack_b16x2", "ptx.mov_pack_b16x4", "ptx.mov_pack_b32x2", "ptx.mov_pack_b32x4",
     "ptx.mov_pack_b64x2", vectorizable=True)  # fmt: skip
def pack(t: Any, call: Any) -> None:
    (target,), parts = call.operands.values()
    size = int(call.mods["type"][1:]) // len(parts)
    pairs = _pairs(t, parts) if (size, len(parts)) == (32, 2) else None
    if pairs is not None:
        _store(t, target, pairs)
        return
    values = [t.expr(p) for p in parts]
    raws = [t.integer(Value(t.raw(v, v.dtype), f"uint{size}", v.lane, v.loop)) for v in values]
    lane, loop = _flags(values)
    if size * len(values) == 32:
        low, high = (v.code for v in raws)
        _store(t, target, Value(f"({low} | {high} << 16)", "uint32", lane, loop))
        return
    if size == 32 and len(values) == 2:
        low, high = (t.raw(v, v.dtype) for v in values)
        code = f"pack64({low}, {high})"
        if low.isdigit() and high.isdigit():
            code = str(int(low) | int(high) << 32)
    else:
        code = f"joined({size}, {', '.join(v.code for v in raws)})"
    _store(t, target, Value(code, f"uint{size * len(values)}", lane, loop))


@row("ptx.mov_unpack_b16x2", "ptx.mov_unpack_b16x4", "ptx.mov_unpack_b32x2",
     "ptx.mov_unpack_b32x4", "ptx.mov_unpack_b64x2", vectorizable=True)  # fmt: skip
def unpack(t: Any, call: Any) -> None:
    targets, (source,) = call.operands.values()
    whole = int(call.mods["type"][1:])
    size = whole // len(targets)
    value = as_bits(t, t.expr(source), f"uint{whole}")
    if not value.uniform and t.slice is None:
        value = t.named(value)
    for i, target in enumerate(targets):
        if target is None:
            continue
        if size == 32 and whole == 64:
            buffer = t.buffer_of(target.source)
            half = Value(f"unpack64({value.code}, {i})", buffer.dtype, value.lane, value.loop)
            t.store_register(buffer, target.indices[0], t.typed(half))
            continue
        code = f"part({value.code}, {size}, {i})"
        if whole == 32:
            code = f"({value.code} >> {16 * i} & 0xFFFF)"
        _store(t, target, Value(code, f"uint{size}", value.lane, value.loop))
