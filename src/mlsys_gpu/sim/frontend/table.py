"""The table of operations: which PTX and CUDA operations exist, and how each is emitted.

A row is a function ``(t, call)`` registered under the lowered names of its operation; it emits code
through the translator ``t`` and returns a :class:`~.values.Value` where the operation is an
expression. ``result`` says where the result differs between lanes: ``args`` (where an argument
does), ``lane`` (always), ``uniform`` (never), ``shuffle`` (unless all lanes read one lane), or a
function of the facts, the call and the single-lane region it is in that says whether it does.
Families live in :mod:`.families` and beside it; a new operation is a new row there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: Whether an operation's result differs between lanes: of the facts, the call, and its region.
Varies = Callable[[Any, Any, "int | None"], bool]


@dataclass(frozen=True)
class Row:
    emit: Callable[..., Any]
    result: str | Varies
    vectorizable: bool
    family: str


ROWS: dict[str, Row] = {}

#: Inline CUDA functions that have a Python equivalent, by name (see :func:`inline`).
INLINE: dict[str, Row] = {}


def row(
    *names: str, result: str | Varies = "args", vectorizable: bool = False
) -> Callable[..., Any]:
    """Register a function for operations, named as in the lowered IR without ``tirx.``.

    TVM's own mathematics stands under ``prim.`` there: each such name is registered both ways.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        family = function.__module__.rsplit(".", 1)[-1]
        for name in names:
            ROWS["tirx." + name] = Row(function, result, vectorizable, family)
            if "." not in name:
                ROWS["prim." + name] = ROWS["tirx." + name]
        return function

    return register


def inline(*names: str, result: str = "args", vectorizable: bool = False) -> Callable[..., Any]:
    """Register the Python equivalent of inline CUDA functions (``T.cuda.func_call``)."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            INLINE[name] = Row(function, result, vectorizable, "inline")
        return function

    return register


def load() -> None:
    """Import the families, which fill the table."""
    from mlsys_gpu.sim.frontend import (  # noqa: F401
        families,
        families_atomics,
        families_bulk,
        families_cluster,
        families_convert,
        families_cuda,
        families_integer,
        families_math,
        families_mma,
        families_sync,
        families_tcgen05,
        families_wgmma,
    )


def names() -> list[str]:
    """Every operation in the table, sorted."""
    load()
    return sorted([name.removeprefix("tirx.") for name in ROWS] + [f"inline {n}" for n in INLINE])
