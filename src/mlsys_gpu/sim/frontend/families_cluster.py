"""Rows for cluster launch control and register reallocation."""

from __future__ import annotations

from typing import Any

from mlsys_gpu.sim.frontend.families import _active, _collective
from mlsys_gpu.sim.frontend.table import row
from mlsys_gpu.sim.frontend.values import Value


@row("ptx.setmaxnreg")
def setmaxnreg(t: Any, call: Any) -> None:
    """Moves registers between warps; what the CTA has at launch, the kernel's attributes say."""
    attrs = t.lowered.device.attrs
    names = ("tirx.launch_bounds_min_blocks_per_sm", "tirx.max_registers")
    bounds = ", ".join(str(int(attrs[name])) if name in attrs else "None" for name in names)
    action, count = call.mods["action"], t.expr(call.one("nreg")).code
    _collective(t, f"setmaxnreg.{action}")
    t.blocking(f'setmaxnreg(w, "{action}", {count}, {bounds}{t.mask()})')


@row("ptx.clusterlaunchcontrol_try_cancel")
def try_cancel(t: Any, call: Any) -> None:
    address, barrier = (t.expr(v[0]).code for v in call.operands.values())
    everywhere = bool(call.mods.get("multicast"))
    t.mark()
    t.emit(f"clc_try_cancel(w, {address}, {barrier}, {everywhere}{_active(t)})")


@row("ptx.clusterlaunchcontrol_query_cancel_is_canceled")
def is_canceled(t: Any, call: Any) -> None:
    (target,), (response,) = call.operands.values()
    code = f"clc_is_canceled({t.expr(response).code})"
    buffer = t.buffer_of(target.source)
    t.store_register(buffer, target.indices[0], Value(code, buffer.dtype))


@row("ptx.clusterlaunchcontrol_query_cancel_get_first_ctaid")
def get_first_ctaid(t: Any, call: Any) -> None:
    (target,), (response,) = call.operands.values()
    axis = "xyz".index(call.mods["query"][-1])
    with t.predicated(call):
        t.mark()
        code = f"clc_first_ctaid(w, {t.expr(response).code}, {axis})"
        buffer = t.buffer_of(target.source)
        t.store_register(buffer, target.indices[0], Value(code, buffer.dtype))
