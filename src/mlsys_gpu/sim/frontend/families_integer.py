"""Rows for PTX's integer, logic, shift and bit-field instructions."""

from __future__ import annotations

from typing import Any

from mlsys_gpu.sim.frontend.families_math import (
    _WIDTH,
    _arguments,
    _flags,
    _result,
    _sources,
    _spelt,
    _store,
    _store_truth,
    _truth,
    _typed,
    as_bits,
    dtype_of,
)
from mlsys_gpu.sim.frontend.table import row
from mlsys_gpu.sim.frontend.values import Value


def _wrapped(code: str, of: str, sat: bool = False) -> str:
    """An integer result as its type holds it."""
    return f"{'saturated' if sat else 'wrap'}({code}, {_WIDTH[of]}, {of[0] == 's'})"


def _integer_row(name: str, code: str) -> None:
    @row(f"ptx.{name}", vectorizable=True)
    def emit(t: Any, call: Any) -> None:
        of, sat = call.mods["type"], bool(call.mods.get("sat"))
        target, values = _sources(t, call)
        if of in ("u16x2", "s16x2"):
            if name != "add_int" or sat:
                raise t.refuse(f"{name}.{_spelt(call)}")
            code_of = f'pairwise("add", {of[0] == "s"}, False, {_arguments(t, values, of)})'
            _result(t, target, code_of, of, values)
            return
        args = [_typed(t, v, dtype_of(of)) for v in values]
        _result(t, target, _wrapped(code.format(*args), of, sat), of, values)


for _name, _code in {
    "add_int": "({0} + {1})",
    "sub_int": "({0} - {1})",
    "div": 'divided("div", {0}, {1})',
    "rem": 'divided("rem", {0}, {1})',
    "abs": "np.abs({0})",
    "neg_int": "(-{0})",
    "cnot": "({0} == 0) * 1",
}.items():
    _integer_row(_name, _code)


def _logic_row(name: str, code: str) -> None:
    @row(f"ptx.{name}", vectorizable=True)
    def emit(t: Any, call: Any) -> None:
        of = call.mods["type"]
        target, values = _sources(t, call)
        if of == "pred":
            truths = [_truth(v) for v in values]
            lane, loop = _flags(values)
            whole = f"({truths[0]} == False)" if name == "not" else code.format(*truths)
            _store_truth(t, target, Value(whole, "bool", lane, loop))
            return
        args = [_typed(t, v, dtype_of(of)) for v in values]
        whole = code.format(*args)
        if name == "not":
            whole = _wrapped(whole, of)
        _result(t, target, whole, of, values)


for _name, _code in {
    "and": "({0} & {1})",
    "or": "({0} | {1})",
    "xor": "({0} ^ {1})",
    "not": "(~{0})",
}.items():
    _logic_row(_name, _code)


def _product(t: Any, call: Any) -> str:
    """The product of the first two operands, in the half that the call asks for."""
    of = call.mods["type"]
    a, b = (as_bits(t, t.expr(call.one(name)), dtype_of(of)).code for name in ("a", "b"))
    if call.mods["mode"] == "hi":
        return f"mul_high({a}, {b}, {_WIDTH[of]}, {of[0] == 's'})"
    return _wrapped(f"{a} * {b}", of)


@row("ptx.mul_int", "ptx.mad_int", vectorizable=True)
def mul_int(t: Any, call: Any) -> None:
    of = call.mods["type"]
    target, values = _sources(t, call)
    code = _product(t, call)
    if len(values) == 3:
        added = f"{code} + {_typed(t, values[2], dtype_of(of))}"
        code = _wrapped(added, of, bool(call.mods.get("sat")))
    _result(t, target, code, of, values)


@row("ptx.mul_wide", "ptx.mad_wide", vectorizable=True)
def mul_wide(t: Any, call: Any) -> None:
    of = call.mods["type"]
    target, values = _sources(t, call)
    double = of[0] + str(2 * _WIDTH[of])
    a, b = (t.cast(as_bits(t, v, dtype_of(of)), dtype_of(double)).code for v in values[:2])
    code = f"({a} * {b})"
    if len(values) == 3:
        code = _wrapped(f"{code} + {_typed(t, values[2], dtype_of(double))}", double)
    _result(t, target, code, double, values)


@row("ptx.mul24", "ptx.mad24", vectorizable=True)
def mul24(t: Any, call: Any) -> None:
    of = call.mods["type"]
    target, values = _sources(t, call)
    args = _arguments(t, values, of) + (", 0" if len(values) == 2 else "")
    high, sat = call.mods["mode"] == "hi", bool(call.mods.get("sat"))
    _result(t, target, f"product24({args}, {high}, {of[0] == 's'}, {sat})", of, values)


@row("ptx.sad", vectorizable=True)
def sad(t: Any, call: Any) -> None:
    """``c + |a - b|``."""
    of = call.mods["type"]
    target, values = _sources(t, call)
    a, b, c = (_typed(t, v, dtype_of(of)) for v in values)
    lane, loop = _flags(values[:2])
    larger, smaller = ("np.maximum", "np.minimum") if lane or loop else ("max", "min")
    distance = f"({larger}({a}, {b}) - {smaller}({a}, {b}))"
    _result(t, target, _wrapped(f"({c} + {distance})", of), of, values)


def _shift_row(kind: str) -> None:
    @row(f"ptx.{kind}", vectorizable=True)
    def emit(t: Any, call: Any) -> None:
        of = call.mods["type"]
        target, (a, b) = _sources(t, call)
        word = _WIDTH[of] <= 32 and a.dtype in ("int32", "uint32", dtype_of(of))
        if kind == "shl" and word and b.code.isdigit() and int(b.code) < _WIDTH[of]:
            _result(t, target, _wrapped(f"{a.code} << {b.code}", of), of, [a])
            return
        x, by = _typed(t, a, dtype_of(of)), _typed(t, b, "uint32")
        code = f'shift("{kind}", {x}, {by}, {_WIDTH[of]}, {of[0] == "s"})'
        _result(t, target, code, of, [a, b])


_shift_row("shl")
_shift_row("shr")


@row("ptx.shf", vectorizable=True)
def shf(t: Any, call: Any) -> None:
    target, values = _sources(t, call)
    clamp = call.mods["mode"] == "clamp"
    code = f'funnel("{call.mods["dir"]}", {clamp}, {_arguments(t, values, "b32")})'
    _result(t, target, code, "b32", values)


@row("ptx.lop3", "ptx.lop3_bool", "ptx.lop3_bool_sink", vectorizable=True)
def lop3(t: Any, call: Any) -> None:
    """A logic function of three operands; with ``.or`` or ``.and``, also whether it is not 0."""
    values = [t.expr(call.one(name)) for name in "abc"]
    table = t.expr(call.one("immLut")).code
    code = f"lop3({_arguments(t, values, 'b32')}, {table})"
    predicate = call.operands.get("p")
    if predicate is None:
        _result(t, call.one("d"), code, "b32", values)
        return
    name = t.fresh("c")
    t.emit(f"{name} = {code}")
    other = t.expr(call.one("q"))
    sign = "&" if call.mods["boolop"] == "and" else "|"
    lane, loop = _flags([*values, other])
    if call.name == "tirx.ptx.lop3_bool":
        _result(t, call.one("d"), name, "b32", values)
    test = Value(f"(({name} != 0) {sign} {_truth(other)})", "bool", lane, loop)
    _store_truth(t, predicate[0], test)


@row("ptx.prmt", vectorizable=True)
def prmt(t: Any, call: Any) -> None:
    target, values = _sources(t, call)
    mode = call.mods.get("mode") or ""
    code = f'permute_bytes({_arguments(t, values, "b32")}, "{mode}")'
    _result(t, target, code, "b32", values)


@row("ptx.popc", "ptx.clz", vectorizable=True)
def count_bits(t: Any, call: Any) -> None:
    of = call.mods["type"]
    target, (value,) = _sources(t, call)
    kind = "popc" if call.name.endswith("popc") else "clz"
    code = f'count_bits("{kind}", {_typed(t, value, dtype_of(of))}, {_WIDTH[of]})'
    _result(t, target, code, "u32", [value])


@row("ptx.bfind", vectorizable=True)
def bfind(t: Any, call: Any) -> None:
    of = call.mods["type"]
    target, (value,) = _sources(t, call)
    amount = bool(call.mods.get("shiftamt"))
    x = _typed(t, value, dtype_of(of))
    _result(t, target, f"find_bit({x}, {_WIDTH[of]}, {of[0] == 's'}, {amount})", "u32", [value])


@row("ptx.brev", vectorizable=True)
def brev(t: Any, call: Any) -> None:
    of = call.mods["type"]
    target, (value,) = _sources(t, call)
    _result(t, target, f"reverse_bits({_typed(t, value, dtype_of(of))}, {_WIDTH[of]})", of, [value])


@row("ptx.fns", vectorizable=True)
def fns(t: Any, call: Any) -> None:
    target, (mask, base, offset) = _sources(t, call)
    args = f"{_arguments(t, [mask, base], 'b32')}, {_typed(t, offset, 'int32')}"
    _result(t, target, f"nth_set({args})", "b32", [mask, base, offset])


@row("ptx.bfe", vectorizable=True)
def bfe(t: Any, call: Any) -> None:
    of = call.mods["type"]
    target, (a, position, length) = _sources(t, call)
    args = f"{_typed(t, a, dtype_of(of))}, {_arguments(t, [position, length], 'u32')}"
    code = f"extract_bits({args}, {_WIDTH[of]}, {of[0] == 's'})"
    _result(t, target, code, of, [a, position, length])


@row("ptx.bfi", vectorizable=True)
def bfi(t: Any, call: Any) -> None:
    of = call.mods["type"]
    target, (a, b, position, length) = _sources(t, call)
    args = f"{_arguments(t, [a, b], of)}, {_arguments(t, [position, length], 'u32')}"
    _result(t, target, f"insert_bits({args}, {_WIDTH[of]})", of, [a, b, position, length])


@row("ptx.szext", vectorizable=True)
def szext(t: Any, call: Any) -> None:
    of = call.mods["type"]
    target, (a, length) = _sources(t, call)
    clamp = call.mods["mode"] == "clamp"
    args = f"{_typed(t, a, dtype_of(of))}, {_typed(t, length, 'uint32')}"
    _result(t, target, f"extend_bits({args}, {clamp}, {of[0] == 's'})", of, [a, length])


@row("ptx.bmsk", vectorizable=True)
def bmsk(t: Any, call: Any) -> None:
    target, values = _sources(t, call)
    clamp = call.mods["mode"] == "clamp"
    _result(t, target, f"bit_mask({_arguments(t, values, 'b32')}, {clamp})", "b32", values)


@row("ptx.dp4a", "ptx.dp2a", vectorizable=True)
def dot_product(t: Any, call: Any) -> None:
    target, (a, b, c) = _sources(t, call)
    signed = [call.mods[m] == "s32" for m in ("atype", "btype")]
    into = "s32" if any(signed) else "u32"
    args = f"{_arguments(t, [a, b], 'b32')}, {_typed(t, c, dtype_of(into))}"
    if call.name.endswith("dp4a"):
        code = f"dot_bytes({args}, {signed[0]}, {signed[1]})"
    else:
        code = f"dot_halves({args}, {signed[0]}, {signed[1]}, {call.mods['mode'] == 'hi'})"
    _result(t, target, code, into, [a, b, c])


@row("ptx.cvt_pack", "ptx.cvt_pack_c", vectorizable=True)
def cvt_pack(t: Any, call: Any) -> None:
    """Two integers saturated and packed, in front of what ``c`` holds already."""
    values = [t.expr(call.one(name)) for name in "ab"]
    args = _arguments(t, values, "s32")
    if "c" in call.operands:
        values.append(t.expr(call.one("c")))
        args += f", {_typed(t, values[2], 'uint32')}"
    else:
        args += ", 0"
    of = call.mods["convert"]
    _store(
        t,
        call.one("d"),
        Value(f"pack_integers({args}, {of[1:]}, {of[0] == 's'})", "uint32", *_flags(values)),
    )
