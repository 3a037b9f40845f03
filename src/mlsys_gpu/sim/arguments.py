"""From a call's arguments to a launch: a Program with numbers for all that the call decides.

Arguments come in the kernel's parameter order: arrays, numbers, and tensor maps
(:mod:`mlsys_gpu.tensormap`). Arrays that share memory, and tensor maps on them, become one tensor.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mlsys_gpu import parameters, tensormap
from mlsys_gpu.parameters import ArgumentError, Param
from mlsys_gpu.sim.program import Program, Unsupported
from mlsys_gpu.tensormap import Memory


def params_of(program: Program) -> list[Param]:
    """A Program's parameters."""
    return [
        Param(name, None if shape is None else tuple(shape), dtype)
        for name, shape, dtype in program.params
    ]


def bind(program: Program, arguments: Sequence[Any]) -> tuple[Program, list[Any]]:
    """The launch that a call makes, and the arrays of its ``params``, in order.

    In the Program that comes back all parameters are tensors, and all sizes numbers.

    Raises:
        ArgumentError: an argument that does not fit its parameter.
        Unsupported: a tensor map of a kind that is not modelled.
    """
    params = params_of(program)
    if _plain(program, params) and not _shared(arguments):
        return program, list(arguments)
    if len(arguments) != len(params):
        names = ", ".join(p.name for p in params)
        raise ArgumentError(
            f"{program.name} takes {len(params)} arguments ({names}), {len(arguments)} given"
        )
    scalars = {
        p.name: parameters.scalar(value, p.dtype, p.name)
        for p, value in zip(params, arguments, strict=True)
        if p.kind == "scalar"
    }
    shapes = [
        _shape(p, value) if p.kind == "tensor" else None
        for p, value in zip(params, arguments, strict=True)
    ]
    parameters.match(params, shapes, scalars)
    values: dict[str, Any] = {}
    for i, (param, shape) in enumerate(zip(params, shapes, strict=True)):
        if param.kind == "scalar":
            values[f"a{i}"] = scalars[param.name]
        for k, size in enumerate(shape or ()):
            values[f"d{i}_{k}"] = size
    return _Binder(program, params, arguments, values).bound()


def _plain(program: Program, params: Sequence[Param]) -> bool:
    """Whether a call decides nothing but which arrays the tensors are."""
    return (
        all(p.kind == "tensor" and not p.symbolic for p in params)
        and not any(isinstance(n, str) for n in program.launch["grid"])
        and not any(a[0] == "scalar" for a in program.arguments)
        and not program.maps
    )


def _shared(arrays: Sequence[Any]) -> bool:
    """Whether arrays share memory."""
    try:
        spans = sorted((m.address, m.end) for m in map(Memory.of, arrays))
    except (AttributeError, TypeError):  # no arrays: the machine says so
        return False
    return any(a[1] > b[0] for a, b in itertools.pairwise(spans))


def _shape(param: Param, value: Any) -> tuple[int, ...]:
    shape = getattr(value, "shape", None)
    if shape is None:
        what = "None" if value is None else f"a {type(value).__name__}"
        raise ArgumentError(f"{param.name} is {what}, but must be an array ({param.dtype})")
    return tuple(int(n) for n in shape)


@dataclass
class _Tensor:
    """Memory that a kernel can reach, as one tensor of the machine."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    array: Any
    memory: Memory


class _Binder:
    """Evaluates a Program's expressions for one call, and joins what shares memory."""

    def __init__(
        self,
        program: Program,
        params: Sequence[Param],
        arguments: Sequence[Any],
        values: dict[str, Any],
    ):
        self.program, self.params, self.values = program, params, values
        #: For each parameter its tensor (None for scalars and null pointers), or its map.
        self.tensors: list[_Tensor | None] = []
        self.given: list[tensormap.TensorMap | None] = []
        for param, value in zip(params, arguments, strict=True):
            tensor, given = _reached(param, value)
            self.tensors.append(tensor)
            self.given.append(given)

    def number(self, expression: Any) -> Any:
        return parameters.evaluate(expression, self.values)

    def bound(self) -> tuple[Program, list[Any]]:
        program = self.program
        launch = dict(program.launch)
        launch["grid"] = [int(self.number(n)) for n in launch["grid"]]
        try:
            parameters.within_limits({"block": (launch["threads"], 1, 1), **launch})
        except ArgumentError as error:
            raise ArgumentError(f"{program.name}: {error}") from None
        whole, place = _joined(self.tensors, program.written or ())
        maps = [self.tensor_map(record) for record in program.maps]
        for record in maps:
            index, offset = place[record["tensor"]]
            record["tensor"], record["offset"] = index, record["offset"] + offset
        return replace(
            program,
            launch=launch,
            params=[[t.name, list(t.shape), t.dtype] for t in whole],
            arguments=[self.argument(a, place) for a in program.arguments],
            maps=maps,
            written=None
            if program.written is None
            else sorted({place[i][0] for i in program.written if i in place}),
        ), [t.array for t in whole]

    def argument(self, argument: Sequence[Any], place: dict[int, tuple[int, int]]) -> list[Any]:
        kind, what, *rest = argument
        if kind == "map":
            return ["map", what]
        if kind == "scalar":
            (dtype,) = rest
            value = self.number(what)
            floats = dtype.startswith("float")
            return ["scalar", getattr(np, dtype)(value) if floats else value]
        if self.tensors[what] is None:
            return ["null"]
        index, offset = place[what]
        return ["tensor", index, offset + int(self.number(rest[0]))]

    def tensor_map(self, record: dict[str, Any]) -> dict[str, Any]:
        """A tensor map with numbers for its fields, checked by the driver's rules."""
        which = record["tensor"]
        name = self.params[which].name
        given = self.given[which]
        if given is not None:
            return {**given.record, "tensor": which, "offset": 0}
        tensor = self.tensors[which]
        if tensor is None:
            raise ArgumentError(f"{self.program.name}: a tensor map of {name}, which is null")
        made = dict(record)
        for field in ("shape", "strides", "box", "steps"):
            made[field] = [int(self.number(n)) for n in record[field]]
        for field in ("offset", "interleave", "swizzle", "fill"):
            made[field] = int(self.number(record[field]))
        try:
            made["dtype"] = tensormap.data_type(record["dtype"], int(self.number(made["format"])))
        except NotImplementedError as error:
            raise Unsupported(f"{self.program.name}: {error}") from None
        wrong = tensormap.problem(made, made["offset"])
        if wrong is None and made["offset"] + tensormap.reach(made) > tensor.memory.nbytes:
            wrong = (
                f"it reaches {tensormap.reach(made)} bytes from byte {made['offset']}, and {name} "
                f"holds {tensor.memory.nbytes}"
            )
        if wrong is not None:
            raise ArgumentError(f"{self.program.name}: no tensor map of {name}: {wrong}")
        return made


def _reached(param: Param, value: Any) -> tuple[_Tensor | None, tensormap.TensorMap | None]:
    """The memory behind an argument, and the tensor map that it is."""
    if param.kind == "scalar" or (param.kind == "pointer" and value is None):
        return None, None
    if param.kind == "map":
        found = tensormap.decode(value)
        if found is None:
            what = "None" if value is None else f"a {type(value).__name__}"
            raise ArgumentError(
                f"{param.name} is {what}, but must be a tensor map: an mlsys_gpu.TensorMap, or a "
                "pointer that runtime.cuTensorMapEncodeTiled has encoded one to in this process"
            )
        return _behind(found.memory, param.name), found
    shape = _shape(param, value)
    dtype = param.dtype if param.kind == "tensor" else tensormap.dtype_of(value)
    return _Tensor(param.name, shape, dtype, value, Memory.of(value)), None


def _behind(memory: Memory, name: str) -> _Tensor:
    """The tensor that a map reaches: its array where the map reaches just that."""
    owner = memory.owner
    if owner is not None and getattr(owner, "shape", None) is not None:
        whole = Memory.of(owner)
        contiguous = (
            owner.is_contiguous() if hasattr(owner, "is_contiguous") else owner.flags.c_contiguous
        )
        storable = tensormap.dtype_of(owner) in tensormap.ITEM_BYTES
        if (
            contiguous
            and storable
            and (whole.address, whole.nbytes) == (memory.address, memory.nbytes)
        ):
            shape = tuple(int(n) for n in owner.shape)
            return _Tensor(memory.name or name, shape, tensormap.dtype_of(owner), owner, memory)
    return _bytes(memory.name or name, memory, [owner])


def _bytes(name: str, memory: Memory, owners: Sequence[Any]) -> _Tensor:
    """Memory as a tensor of bytes."""
    if memory.nbytes:
        raw = (ctypes.c_uint8 * memory.nbytes).from_address(memory.address)
        array = np.ctypeslib.as_array(raw)
    else:
        array = np.zeros(0, np.uint8)
    if any(isinstance(o, np.ndarray) and not o.flags.writeable for o in owners):
        array.flags.writeable = False
    return _Tensor(name, array.shape, "uint8", array, memory)


def _joined(
    tensors: Sequence[_Tensor | None], written: Sequence[int] = ()
) -> tuple[list[_Tensor], dict[int, tuple[int, int]]]:
    """Tensors that share no memory, and for each that was given its tensor and byte offset.

    Memory that several stand for goes by the one that the kernel writes (``written``: numbers).
    """
    given = {i: tensor for i, tensor in enumerate(tensors) if tensor is not None}
    order = sorted(given, key=lambda i: (given[i].memory.address, -given[i].memory.nbytes))
    groups: list[list[int]] = []
    end = 0
    for i in order:
        memory = given[i].memory
        if groups and memory.address < end:
            groups[-1].append(i)
        else:
            groups.append([i])
        end = max(end, memory.end)
    groups.sort(key=min)
    whole, place = [], {}
    for group in groups:
        known = [given[i] for i in sorted(group, key=lambda i: (i not in written, i))]
        start = min(t.memory.address for t in known)
        stop = max(t.memory.end for t in known)
        full = [t for t in known if (t.memory.address, t.memory.end) == (start, stop)]
        typed = [t for t in full if t.dtype != "uint8"] or full
        if typed:
            chosen = typed[0]
        else:
            memory = Memory(start, stop - start, [t.array for t in known])
            chosen = _bytes(known[0].name, memory, [t.array for t in known])
        for i in group:
            place[i] = (len(whole), given[i].memory.address - start)
        whole.append(chosen)
    return whole, place
