"""Rows for cluster launch control and register reallocation."""

from __future__ import annotations

from typing import Any

from mlsys_gpu.sim.frontend.families import _collective
from mlsys_gpu.sim.frontend.families_bulk import _issuer
from mlsys_gpu.sim.frontend.families_math import _store
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
    address, barrier = t.expr(call.one("addr")).code, t.expr(call.one("mbar")).code
    everywhere = bool(call.mods.get("multicast"))
    t.mark()
    t.emit(f"clc_try_cancel(w, {address}, {barrier}, {everywhere}{_issuer(t)})")


@row("ptx.clusterlaunchcontrol_query_cancel_is_canceled")
def is_canceled(t: Any, call: Any) -> None:
    response = t.expr(call.one("response"))
    code = f"clc_is_canceled({response.code})"
    _store(t, call.one("p"), Value(code, "uint32", response.lane))


@row(
    "ptx.clusterlaunchcontrol_query_cancel_get_first_ctaid",
    "ptx.clusterlaunchcontrol_query_cancel_get_first_ctaid_v4",
)
def get_first_ctaid(t: Any, call: Any) -> None:
    """One coordinate, or ``{x, y, z, _}``: the fourth register's value is undefined."""
    targets, response = call.operands["d"], t.expr(call.one("response"))
    axes = ["xyz".index(call.mods["query"][-1])] if len(targets) == 1 else [0, 1, 2]
    t.mark()
    mask = t.mask() if response.lane else ""
    for axis, target in zip(axes, targets, strict=False):
        if target is not None:
            code = f"clc_first_ctaid(w, {response.code}, {axis}{mask})"
            _store(t, target, Value(code, "uint32", response.lane))
    if len(targets) == 4 and targets[3] is not None:
        _store(t, targets[3], Value('int(poison("uint32"))', "uint32"))
