"""A kernel as text: a TIRx ``PrimFunc`` to JSON and back.

A kernel that a student builds travels from the process that ran the student's code to the process
that judges it. ``tvm.ir.save_json`` crashes on every expression in the pinned release (it cannot
write a ``PrimType``), ``script()`` loses what the parser cannot read back, and pickled Python would
let the sender run code in the receiver. So this module writes the object graph field by field
through the reflection data of ``tvm_ffi`` and reads it back without evaluating anything: only the
types that occur in kernels are rebuilt, and names must be identifiers.

Form: ``{"tvm": release, "root": i, "nodes": [[type_key, payload], ...]}``; a field that refers to
another object holds ``{"r": index}``, a dtype ``{"t": "float16"}``, a float that JSON cannot write
``{"f": "nan"}``. Children come before parents, so one pass rebuilds the graph with its sharing.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

#: Objects that a kernel may consist of; anything else is refused by name.
_ALLOWED = re.compile(r"(ir|prim|tirx|relax|ffi)\.(expr\.)?[A-Za-z0-9]+")
_FORBIDDEN = frozenset({"ir.IRModule", "relax.Function", "relax.ExternFunc", "ffi.Function"})
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
#: More objects than any kernel of the course has by a factor of twenty.
_MAX_NODES = 1_000_000


class SerialError(ValueError):
    """A kernel that cannot be written or read back; the message names the object."""


def _fields(cls: type) -> list[Any]:
    """Reflected fields of a TVM class, base class first."""
    chain = []
    info = getattr(cls, "__tvm_ffi_type_info__", None)
    while info is not None:
        chain.append(info.fields or [])
        info = info.parent_type_info
    return [field for fields in reversed(chain) for field in fields]


def dump_kernel(func: Any) -> str:
    """Writes a ``PrimFunc`` as JSON text; source spans are kept.

    Raises
    ------
    SerialError
        The function holds something that is no part of a kernel (a packed function, a module).
    """
    import tvm_ffi

    nodes: list[list[Any]] = []
    index: dict[int, int] = {}
    alive: list[Any] = []  # handles are reused once an object dies: keep every visited one

    def key_of(obj: Any) -> str:
        info = getattr(type(obj), "__tvm_ffi_type_info__", None)
        return info.type_key if info is not None else type(obj).__name__

    def leaf(value: Any) -> Any:
        """The JSON form of a value that is no object, or ``None, False`` for an object."""
        if value is None or isinstance(value, bool | int):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"f": repr(value)}
        if isinstance(value, str):
            return str(value)
        if isinstance(value, tvm_ffi.dtype) or type(value).__name__ in ("DataType", "dtype"):
            return {"t": str(value)}
        return NotImplemented

    def payload_and_children(obj: Any) -> tuple[str, Any, list[Any]]:
        """Splits an object into its type, a template with holes, and what fills the holes."""
        key = key_of(obj)
        if isinstance(obj, tvm_ffi.Array | tvm_ffi.List):
            return "ffi.Array" if isinstance(obj, tvm_ffi.Array) else "ffi.List", None, list(obj)
        if isinstance(obj, tvm_ffi.Map | tvm_ffi.Dict):
            flat = [part for item in obj.items() for part in item]
            return "ffi.Map" if isinstance(obj, tvm_ffi.Map) else "ffi.Dict", None, flat
        if key in ("ir.Op", "ir.SourceName", "tirx.Axis"):
            return key, str(obj.name), []
        if key == "target.Target":
            return key, json.dumps(_plain(obj.export())), []
        if not _ALLOWED.fullmatch(key) or key in _FORBIDDEN:
            raise SerialError(f"a kernel cannot hold an object of type {key}")
        names, children = [], []
        for field in _fields(type(obj)):
            names.append(field.name)
            children.append(field.getter(obj))
        return key, names, children

    # Depth first with an explicit stack: kernels nest deeper than Python's recursion limit.
    root = func
    stack: list[tuple[Any, tuple[str, Any, list[Any]] | None]] = [(root, None)]
    open_handles: set[int] = set()
    while stack:
        obj, split = stack.pop()
        handle = obj.__chandle__()
        if split is None:
            if handle in index:
                continue
            if handle in open_handles:
                raise SerialError(f"an object of type {key_of(obj)} contains itself")
            open_handles.add(handle)
            alive.append(obj)
            split = payload_and_children(obj)
            stack.append((obj, split))
            for child in reversed(split[2]):
                if leaf(child) is NotImplemented:
                    if not isinstance(child, tvm_ffi.core.Object):
                        raise SerialError(f"a kernel cannot hold a {type(child).__name__}")
                    if child.__chandle__() not in index:
                        alive.append(child)
                        stack.append((child, None))
            continue
        key, template, children = split
        refs = []
        for child in children:
            value = leaf(child)
            refs.append({"r": index[child.__chandle__()]} if value is NotImplemented else value)
        if key.startswith("ffi."):
            payload: Any = refs
        elif isinstance(template, str):
            payload = template
        else:
            payload = dict(zip(template, refs, strict=True))
        open_handles.discard(handle)
        index[handle] = len(nodes)
        nodes.append([key, payload])
    import tvm

    return json.dumps({"tvm": tvm.__version__, "root": index[root.__chandle__()], "nodes": nodes})


def load_kernel(text: str) -> Any:
    """Reads :func:`dump_kernel`'s text back into a ``PrimFunc``; nothing in it is evaluated.

    Raises
    ------
    SerialError
        The text is not of this form, comes from another TVM release, holds a type that is no part
        of a kernel, or names a variable with something that is no identifier.
    """
    import tvm
    import tvm_ffi

    try:
        data = json.loads(text)
        nodes, root, release = data["nodes"], data["root"], data["tvm"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise SerialError("this is no serialised kernel") from error
    if release != tvm.__version__:
        raise SerialError(f"the kernel was written by TVM {release}, this is {tvm.__version__}")
    if not isinstance(nodes, list) or len(nodes) > _MAX_NODES:
        raise SerialError("a serialised kernel has between one and a million objects")
    make = tvm_ffi.get_global_func("ffi.MakeObjectFromPackedArgs")
    built: list[Any] = []

    def value(item: Any) -> Any:
        if not isinstance(item, dict):
            if isinstance(item, list):
                raise SerialError("a list must be an object of its own")
            return item
        if "r" in item:
            position = item["r"]
            if not isinstance(position, int) or not 0 <= position < len(built):
                raise SerialError(f"reference {position!r} points at nothing")
            return built[position]
        if "t" in item:
            return tvm_ffi.dtype(str(item["t"]))
        return float(item["f"])

    try:
        for key, payload in nodes:
            built.append(_rebuild(key, payload, value, make))
        func = built[root]
    except SerialError:
        raise
    except Exception as error:
        raise SerialError(f"the serialised kernel cannot be rebuilt: {error}") from error
    if not isinstance(func, tvm.tirx.PrimFunc):
        raise SerialError(f"expected a PrimFunc, found {type(func).__name__}")
    return func


def _rebuild(key: str, payload: Any, value: Any, make: Any) -> Any:
    """One object of the graph; its children exist already."""
    import tvm
    import tvm_ffi

    if key in ("ffi.Array", "ffi.List"):
        items = [value(item) for item in payload]
        return tvm_ffi.Array(items) if key == "ffi.Array" else tvm_ffi.List(items)
    if key in ("ffi.Map", "ffi.Dict"):
        items = [value(item) for item in payload]
        pairs = dict(zip(items[0::2], items[1::2], strict=True))
        return tvm_ffi.Map(pairs) if key == "ffi.Map" else tvm_ffi.Dict(pairs)
    if key == "ir.Op":
        return tvm.ir.Op.get(payload)
    if key == "ir.SourceName":
        return tvm_ffi.get_global_func("ir.SourceName")(payload)
    if key == "tirx.Axis":
        return tvm.tirx.layout.Axis.get(payload)
    if key == "target.Target":
        return tvm.target.Target(json.loads(payload))
    if not isinstance(key, str) or not _ALLOWED.fullmatch(key) or key in _FORBIDDEN:
        raise SerialError(f"a kernel cannot hold an object of type {key}")
    if key == "ir.Var" and not _NAME.fullmatch(payload["name"] or "v"):
        # Names reach generated code later on; they must not be able to say anything there.
        raise SerialError(f"the variable name {payload['name']!r} is no identifier")
    if key == "ir.DictAttrs":
        return tvm.ir.make_node("ir.DictAttrs", **_string_keys(value(payload["__dict__"])))
    if key == "ir.Range":  # kept apart: Range's constructor takes (begin, end)
        return tvm.ir.Range.from_min_extent(value(payload["min"]), value(payload["extent"]))
    packed = [part for name, item in payload.items() for part in (name, value(item))]
    return make(key, *packed)


def _plain(obj: Any) -> Any:
    """TVM containers as Python's own."""
    import tvm_ffi

    if isinstance(obj, tvm_ffi.Map | dict):
        return {str(k): _plain(v) for k, v in obj.items()}
    if isinstance(obj, tvm_ffi.Array | list | tuple):
        return [_plain(v) for v in obj]
    if isinstance(obj, str):
        return str(obj)
    return obj


def _string_keys(mapping: Any) -> dict[str, Any]:
    return {str(key): item for key, item in mapping.items()}
