"""Rows for what TVM's CUDA backend offers beside PTX: C++ helpers, intrinsics and mathematics."""

from __future__ import annotations

import re
from typing import Any

from mlsys_gpu.sim.frontend import analysis
from mlsys_gpu.sim.frontend.control import Context
from mlsys_gpu.sim.frontend.families import (
    _collective,
    _registers_at,
    _store_results,
    whole_warp,
)
from mlsys_gpu.sim.frontend.families_math import _flags, _typed, as_bits
from mlsys_gpu.sim.frontend.table import row
from mlsys_gpu.sim.frontend.values import BYTES, FLOATS, NUMPY, NotVectorizable, Registers, Value

# ------------------------------------------------------------------- mathematics of TVM's own


def _math_row(name: str, *others: str) -> None:
    @row(name, *others, vectorizable=True)
    def emit(t: Any, call: Any) -> Value:
        dtype = str(call.ty)
        values = [t.expr(a) for a in call.args]
        codes = [v.code for v in values]
        if dtype == "bfloat16":
            codes = [f"bf16_to_f32({code})" for code in codes]
        code = f'mathematics("{name}", {", ".join(codes)})'
        if dtype == "bfloat16":
            code = f"f32_to_bf16({code})"
        return Value(code, dtype, *_flags(values))


for _name in (
    "sin", "cos", "tan", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh",
    "atan2", "pow", "fmod", "hypot", "copysign", "nextafter", "ldexp", "trunc", "round",
    "nearbyint", "erf", "log1p", "log10", "exp10", "rsqrt", "sigmoid", "tanh",
):  # fmt: skip
    _math_row(_name)


@row("fma", vectorizable=True)
def fma(t: Any, call: Any) -> Value:
    values = [t.expr(a) for a in call.args]
    dtype = str(call.ty)
    args = ", ".join(v.code for v in values)
    code = {
        "float32": f'f32("fma", "rn", False, False, {args})',
        "float64": f'f64("fma", {args})',
        "float16": f'half("fma", "f16", False, False, False, {args})',
        "bfloat16": f'half("fma", "bf16", False, False, False, {args})',
    }[dtype]
    return Value(code, dtype, *_flags(values))


def _question_row(name: str, question: str) -> None:
    @row(name, vectorizable=True)
    def emit(t: Any, call: Any) -> Value:
        value = t.expr(call.args[0])
        code = f"bf16_to_f32({value.code})" if value.dtype == "bfloat16" else value.code
        if value.dtype not in FLOATS:
            return Value(str(question == "finite"), "bool")
        code = f'kind_of_number("{question}", {code})'
        return Value(code, "bool", value.lane, value.loop)


for _name, _question in {
    "isnan": "notanumber",
    "isinf": "infinite",
    "isfinite": "finite",
}.items():
    _question_row(_name, _question)


@row("popcount", "ctpop", "clz", vectorizable=True)
def bit_counts(t: Any, call: Any) -> Value:
    value = t.expr(call.args[0])
    kind = "clz" if str(call.op.name).endswith("clz") else "popc"
    code = f'count_bits("{kind}", {value.code}, {8 * BYTES[value.dtype]})'
    return Value(code, str(call.ty), value.lane, value.loop)


@row("cuda.ffs_u32", vectorizable=True)
def find_first_set(t: Any, call: Any) -> Value:
    """``__ffs``: one more than the lowest set bit's position, or 0."""
    value = t.named(t.expr(call.args[0]))
    code = f'count_bits("popc", ({value.code} ^ ({value.code} - 1)), 32)'
    return Value(f"({value.code} != 0) * {code}", str(call.ty), value.lane, value.loop)


@row("likely", vectorizable=True)
def likely(t: Any, call: Any) -> Value:
    return t.expr(call.args[0])


@row("dp4a", vectorizable=True)
def dp4a(t: Any, call: Any) -> Value:
    """Four products of bytes: of ``int8x4`` or ``uint8x4`` held in 32 bits."""
    a, b, c = (t.expr(x) for x in call.args)
    if any(v.parts is not None for v in (a, b)):
        raise t.refuse("dp4a of vectors")
    signed = [not v.dtype.startswith("uint") for v in (a, b)]
    code = f"dot_bytes({a.code}, {b.code}, {c.code}, {signed[0]}, {signed[1]})"
    return Value(code, str(call.ty), *_flags([a, b, c]))


@row("isnullptr", vectorizable=True)
def isnullptr(t: Any, call: Any) -> Value:
    value = t.expr(call.args[0])
    return Value(f"({value.code} == 0)", "bool", value.lane, value.loop)


@row("ptr_byte_offset", vectorizable=True)
def ptr_byte_offset(t: Any, call: Any) -> Value:
    a, b = t.expr(call.args[0]), t.expr(call.args[1])
    return Value(f"({a.code} + {b.code})", "handle", *_flags([a, b]))


@row("cuda.iket_mark", "cuda.iket_range_push", "cuda.iket_range_pop", "cuda.iket_range_end",
     vectorizable=True)  # fmt: skip
def profiler_mark(t: Any, call: Any) -> None:
    """A mark for NVIDIA's in-kernel event tracer: it changes nothing."""


@row("cuda.iket_range_start", "cuda.iket_sentinel_token", "cuda.iket_official_event",
     result="uniform", vectorizable=True)  # fmt: skip
def profiler_token(t: Any, call: Any) -> Value:
    """A token of the tracer's."""
    return Value("0", "uint32")


@row("cuda.wgmma_noop_barrier", "cuda.wgmma_noop_barrier_float32",
     "cuda.wgmma_noop_barrier_uint32", vectorizable=True)  # fmt: skip
def register_barrier(t: Any, call: Any) -> None:
    """A compiler fence on a register: the simulator runs statements in order anyway."""


# ---------------------------------------------------------------------- conversions, packed pairs


@row("cuda.make_float2", vectorizable=True)
def make_float2(t: Any, call: Any) -> Value:
    values = [t.expr(a) for a in call.args]
    low, high = (t.raw(v, "float32") for v in values)
    return Value(f"pack64({low}, {high})", "uint64", *_flags(values))


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
        args = ", ".join(v.code for v in values)
        return Value(f'f32x2("{kind}", "rn", False, {args})', "uint64", *_flags(values))


_pair_row("fmul2_rn", "mul")
_pair_row("fadd2_rn", "add")


def _minimum_row(name: str, kind: str) -> None:
    @row(f"cuda.{name}", vectorizable=True)
    def emit(t: Any, call: Any) -> Value:
        """Of packed bfloat16 pairs; a NaN loses."""
        values = [t.expr(a) for a in call.args]
        args = ", ".join(_typed(t, v, "uint32") for v in values)
        code = f'extreme_of("{kind}", "bf16x2", False, False, "", {args})'
        return Value(code, "uint32", *_flags(values))


_minimum_row("hmin2", "min")
_minimum_row("hmax2", "max")


@row("cuda.uint_as_float", "cuda.float_as_uint", vectorizable=True)
def float_bits(t: Any, call: Any) -> Value:
    return as_bits(t, t.expr(call.args[0]), str(call.ty))


@row("cuda.half2float", "cuda.bfloat162float", vectorizable=True)
def to_float(t: Any, call: Any) -> Value:
    dtype = "float16" if str(call.op.name).endswith("half2float") else "bfloat16"
    return t.cast(as_bits(t, t.expr(call.args[0]), dtype), "float32")


@row("cuda.float22bfloat162_rn", "cuda.float22bfloat162_rn_from_float2", vectorizable=True)
def to_bfloat_pair(t: Any, call: Any) -> Value:
    """Two floats as packed bfloat16, the first in the lower half."""
    values = [t.expr(a) for a in call.args]
    if len(values) == 2:
        low, high = (_typed(t, v, "float32") for v in values)
    else:
        (pair,) = values = [t.named(values[0])]
        halves = [Value(f"unpack64({pair.code}, {i})", "float32", pair.lane) for i in (0, 1)]
        low, high = (t.typed(h).code for h in halves)
    return Value(f'pack_pair({low}, {high}, "bfloat16")', "uint32", *_flags(values))


@row("cuda.bfloat1622float2", vectorizable=True)
def from_bfloat_pair(t: Any, call: Any) -> Value:
    value = t.named(as_bits(t, t.expr(call.args[0]), "uint32"))
    low, high = f"({value.code} << 16 & 0xFFFFFFFF)", f"({value.code} & 0xFFFF0000)"
    return Value(f"pack64({low}, {high})", "uint64", value.lane, value.loop)


@row("cuda.fp8x4_e4m3_from_float4", vectorizable=True)
def to_e4m3(t: Any, call: Any) -> Value:
    """Four floats as packed e4m3, the first lowest; saturating."""
    values = [t.expr(a) for a in call.args]
    args = ", ".join(_typed(t, v, "float32") for v in reversed(values))
    return Value(f'pack_numbers("e4m3", "rn", False, True, {args})', "uint32", *_flags(values))


@row("cuda.fdividef", vectorizable=True)
def fdividef(t: Any, call: Any) -> Value:
    """``__fdividef``: ``div.approx.ftz`` by the options that TVM compiles with (fast math)."""
    values = [t.expr(a) for a in call.args]
    code = f'divide("approx", True, {values[0].code}, {values[1].code})'
    return Value(code, "float32", *_flags(values))


def _converted_row(name: str, source: str, target: str, count: int) -> None:
    @row(f"cuda.{name}")
    def emit(t: Any, call: Any) -> None:
        """Conversion from one place to another, both given by their addresses."""
        into, origin = call.args
        if name != "float22half2":
            origin, into = call.args
        value = _read_through(t, origin, source, count)
        code = {
            "float16": f"f32_to_f16({value.code})",
            "float32": f"({value.code}).astype(np.float32)",
        }[target]
        _write_through(t, into, Value(code, target, value.lane), count)


def _local(t: Any, pointer: Any) -> bool:
    """Whether a pointer is the address of a local array's element."""
    load = analysis.pointed_at(pointer)
    return load is not None and t.buffer_of(load.source).scope == "local"


def _read_through(t: Any, pointer: Any, dtype: str, count: int) -> Value:
    """Consecutive numbers behind a pointer, on a last axis."""
    if _local(t, pointer):
        registers = _registers_at(t, pointer, count)
        if registers.dtype != dtype:
            raise t.refuse(f"the address of {registers.dtype} registers as {dtype}")
        t.touch_registers(registers, False)
        return t.read_registers(registers, count)
    where = t.expr(pointer)
    size = BYTES[dtype]
    t.note_memory("generic", store=False, width=size)
    t.mark()
    code = f"ld_generic(w, {where.code}, {size}, {count}{t.mask(where)})"
    return Value(f"({code}).view({NUMPY[dtype]})", dtype, where.lane)


def _write_through(t: Any, pointer: Any, value: Value, count: int) -> None:
    if _local(t, pointer):
        registers = _registers_at(t, pointer, count)
        if registers.dtype != value.dtype:
            raise t.refuse(f"the address of {registers.dtype} registers as {value.dtype}")
        t.touch_registers(registers, True)
        t.write_registers(Registers(registers.root, registers.dtype, registers.first, count), value)
        return
    where = t.expr(pointer)
    size = BYTES[value.dtype]
    t.note_memory("generic", store=True, width=size)
    t.mark()
    raw = f"np.ascontiguousarray({value.code}).view(np.uint{8 * size})"
    t.emit(f"st_generic(w, {where.code}, {raw}, {size}, {count}{t.mask(where)})")


_converted_row("float22half2", "float32", "float16", 2)
_converted_row("half8tofloat8", "float16", "float32", 8)
_converted_row("float8tohalf8", "float32", "float16", 8)


@row("cuda.get_tmem_addr", vectorizable=True)
def get_tmem_addr(t: Any, call: Any) -> Value:
    """A tensor-memory address moved by rows (bits 16 up) and columns."""
    values = [t.expr(a) for a in call.args]
    base, rows, columns = (v.code for v in values)
    return Value(f"({base} + ({rows} << 16) + {columns})", "uint32", *_flags(values))


# ------------------------------------------------------------------------------------- memory


@row("cuda.ldg", vectorizable=True)
def ldg(t: Any, call: Any) -> Value | None:
    """``__ldg``: a load from global memory that nothing writes while the kernel runs."""
    *operands, dtype = [a for a in call.args if type(a).__name__ != "IntImm"]
    if len(call.args) > 2:
        dtype = next(a for a in call.args if type(a).__name__ == "StringImm")
        operands = [a for a in call.args if type(a).__name__ not in ("StringImm", "IntImm")]
    *targets, address = operands
    kind = str(dtype.value)
    where = t.address_name(t.expr(address))
    size, count = BYTES[kind], max(1, len(targets))
    t.note_memory("global", store=False, width=size * count)
    t.mark()
    code = f"ld_global(w, {where.code}, {size}, {count}{t.mask(where)})"
    value = Value(code, kind, where.lane, where.loop)
    if not targets:
        return t.typed(value)
    if not all(_local(t, x) for x in targets):
        raise t.refuse("__ldg into memory")
    _store_results(t, [x.args[0] for x in targets], value, size)
    return None


@row("cuda.wait_until")
def wait_until(t: Any, call: Any) -> None:
    """Loads of a word until a condition holds of it: relaxed ones, and then one that acquires."""
    target, pointer, condition, scope, space, kind, _ = call.args
    buffer = t.buffer_of(target.source)
    ptx = str(kind.value) or f"b{8 * BYTES[buffer.dtype]}"
    size = int(re.sub(r"\D", "", ptx)) // 8
    where = t.address_name(t.expr(pointer))
    outer = t.context
    pending = ""
    if t.context.lane is None and t.facts.lane(condition, None):
        pending = t.fresh("waiting")
        t.emit(f"{pending} = {outer.mask or 'w.everybody'}")
    t.emit("while True:")
    with t.block():
        t.context = Context(mask=pending) if pending else outer
        _strong_load(t, target, where, size, str(space.value), "relaxed", str(scope.value))
        test = t.expr(condition)
        t.context = outer
        if pending:
            t.emit(f"{pending} = {pending} & ~({test.code})")
            t.emit(f"if not {pending}.any(): break")
        else:
            t.emit(f"if {test.code}: break")
        t.emit("yield None")
    _strong_load(t, None, where, size, str(space.value), "acquire", str(scope.value))


def _strong_load(
    t: Any, target: Any, where: Value, size: int, space: str, sem: str, scope: str
) -> None:
    t.mark()
    mask = t.mask(where)
    code = f'ld_strong(w, "{space}", {where.code}, {size}, 1, "{sem}", "{scope}"{mask})'
    if target is None:
        t.emit(code)
        return
    _store_results(t, [target], Value(code, "", where.lane), size)


# ------------------------------------------------------------------------- reductions over lanes


def _reduced_alike(facts: Any, call: Any, region: int | None) -> bool:
    """A reduction's result differs between lanes where each group of lanes has its own."""
    return int(call.args[2].value) < 32


@row("cuda.warp_reduce", result=_reduced_alike)
def warp_reduce(t: Any, call: Any) -> Value:
    """Reduction over groups of ``width`` lanes by exchanges with the lane XOR 16, 8, …"""
    value, kind, width = t.expr(call.args[0]), str(call.args[1].value), int(call.args[2].value)
    whole_warp(t, "a reduction over all 32 lanes", waits=True)
    return _reduce(t, value, kind, width)


def _reduce(t: Any, value: Value, kind: str, width: int) -> Value:
    code = f'warp_reduce(w, {value.code}, "{kind}", {width}, "{value.dtype}")'
    if width < 32:
        return Value(code, value.dtype, True)
    name = t.fresh("all")
    t.emit(f"{name} = {code}[0]")
    return Value(name if value.dtype in FLOATS else f"int({name})", value.dtype)


@row("cuda.cta_reduce", result="uniform")
def cta_reduce(t: Any, call: Any) -> Value:
    """Reduction over a CTA: within each warp, through shared memory, and in the first warp."""
    if t.slice is not None:
        raise NotVectorizable("a reduction over the CTA")
    value, kind, warps = t.expr(call.args[0]), str(call.args[1].value), int(call.args[2].value)
    dtype, size = value.dtype, BYTES[value.dtype]
    _collective(t, "a reduction over the CTA")
    scratch = t.expr(call.args[3])
    base = t.fresh("scratch")
    t.emit(f"{base} = {t.shared_address('shared', scratch)}")
    t.note_memory("shared", store=True, width=size)
    own = _reduce(t, value, kind, 32)
    t.mark()
    t.emit(f"st_shared(w, {base} + wid * {size}, {t.raw(own, dtype)}, {size}, 1, lane=0)")
    t.blocking(f"cta_sync(w{t.mask()})")
    t.emit("if wid == 0:")
    with t.block():
        t.mark()
        some = t.fresh("m")
        t.emit(f"{some} = w.lanes < {warps}")
        loaded = Value(
            f"ld_shared(w, {base} + w.lanes * {size}, {size}, 1, mask={some})", dtype, True
        )
        rest = {"sum": "0", "max": "-np.inf", "min": "np.inf"}[kind]
        part = f"np.where({some}, {t.typed(loaded).code}, {NUMPY[dtype]}({rest}))"
        total = _reduce(t, Value(part, dtype, True), kind, 32)
        t.emit(f"st_shared(w, {base}, {t.raw(total, dtype)}, {size}, 1, lane=0)")
    t.blocking(f"cta_sync(w{t.mask()})")
    t.mark()
    name = t.fresh("total")
    result = t.typed(Value(f"ld_shared(w, {base}, {size}, 1{t.mask()})", dtype))
    t.emit(f"{name} = {result.code}")
    return Value(name, dtype)
