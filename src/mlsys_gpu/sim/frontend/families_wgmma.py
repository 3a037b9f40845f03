"""Rows for a warpgroup's matrix products (``wgmma``)."""

from __future__ import annotations

from typing import Any

from mlsys_gpu.sim.frontend.analysis import node_id
from mlsys_gpu.sim.frontend.families import _collective, _mask_kw
from mlsys_gpu.sim.frontend.table import row
from mlsys_gpu.sim.frontend.values import BYTES, Root


@row("ptx.wgmma_fence")
def wgmma_fence(t: Any, call: Any) -> None:
    _collective(t, "wgmma.fence")
    t.mark()
    t.emit(f"wgmma_fence(w{_mask_kw(t)})")


@row("ptx.wgmma_commit_group")
def wgmma_commit_group(t: Any, call: Any) -> None:
    _collective(t, "wgmma.commit_group")
    t.mark()
    t.emit(f"wgmma_commit(w{_mask_kw(t)})")


@row("ptx.wgmma_wait_group")
def wgmma_wait_group(t: Any, call: Any) -> None:
    count = t.expr(next(iter(call.operands.values()))[0]).code
    _collective(t, "wgmma.wait_group")
    t.blocking(f"wgmma_wait(w, {count}{_mask_kw(t)})")


@row(
    "ptx.wgmma_f16_ss",
    "ptx.wgmma_f16_rs",
    "ptx.wgmma_f16_f16acc_ss",
    "ptx.wgmma_f16_f16acc_rs",
    "ptx.wgmma_bf16_ss",
    "ptx.wgmma_bf16_rs",
    result="lane",
)
def wgmma_mma(t: Any, call: Any) -> None:
    _collective(t, "wgmma.mma_async")
    n = int(call.mods["shape"].split("n")[1].split("k")[0])
    dtype = "float16" if call.mods["atype"] == "f16" else "bfloat16"
    half = call.mods["dtype"] == "f16"
    d = _pieces(t, call.operands["d"])
    if "a_desc" in call.operands:
        a, ta = t.expr(call.one("a_desc")).code, int(call.one("trans_a").value)
    else:
        a, ta = _pieces(t, call.operands["a"], values=True), 0
    b, scale = (t.expr(call.one(k)).code for k in ("b_desc", "scale_d"))
    sign = int(call.one("scale_a").value) * int(call.one("scale_b").value)
    tb = int(call.one("trans_b").value)
    t.mark()
    step = f"({a}, {b}, {scale})"
    rest = f'{n}, "{dtype}", {ta}, {tb}, {sign}{", True" * half}{_mask_kw(t)})'
    head = "    " * t.depth + f"wgmma_mma(w, {d}, ("
    tail = f",), {rest}"
    last = t.lines[-1]
    if last.startswith(head) and last.endswith(tail):  # the next step on the same accumulators
        t.lines[-1] = f"{last[: -len(tail)]}, {step}{tail}"
    else:
        t.flush()
        t.lines.append(f"{head}{step}{tail}")


def _pieces(t: Any, sources: list[Any], values: bool = False) -> str:
    """Source of the registers that an operand names: runs of consecutive ones of local arrays.

    With ``values``, an operand that is no such register is its value, a tuple of one element.
    """
    registers = t.registers(sources)
    if registers is not None and BYTES[registers.dtype] == 4:
        return f"(({registers.root.name}, {registers.first}, {registers.count}),)"
    runs: list[list[Any]] = []  # [root, constant, rest, count], or [None, source]
    for source in sources:
        found = _register(t, source)
        if found is None:
            if not values:
                raise t.refuse(f"wgmma accumulators in {source}, no register of a local array")
            value = t.expr(source)
            if BYTES.get(value.dtype) != 4:
                raise t.refuse(f"a wgmma fragment of type {value.dtype}")
            runs.append([None, t.raw(value, value.dtype)])
            continue
        root, constant, rest = found
        last: list[Any] = runs[-1] if runs else [None]
        if last[0] is root and last[2] == rest and last[1] + last[3] == constant:
            last[3] += 1
        else:
            runs.append([root, constant, rest, 1])
    parts = []
    for root, constant, *more in runs:
        if root is None:
            parts.append(f"({constant},)")
            continue
        rest, count = more
        first = f"({rest} + {constant})" if rest else str(constant)
        parts.append(f"({root.name}, {first}, {count})")
    return f"({', '.join(parts)},)"


def _register(t: Any, source: Any) -> tuple[Root, int, str] | None:
    """The array, constant and other part of the index that a subscript of 32 bits names."""
    if type(source).__name__ != "TensorLoad":
        return None
    buffer = t.buffers.get(node_id(source.source))
    if buffer is None or buffer.root is None or buffer.root.kind != "array":
        return None
    index = t.affine(source.indices[0])
    if index is None:
        raise t.refuse("wgmma registers at an index that differs between the lanes of a warp")
    if BYTES[buffer.dtype] != 4:
        raise t.refuse(f"wgmma registers of type {buffer.dtype}")
    return buffer.root, index[1], index[2]
