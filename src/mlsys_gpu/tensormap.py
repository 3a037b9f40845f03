"""Tensor maps that a caller hands to a kernel, and host code that encodes them without a GPU.

A kernel may take tensor maps as parameters (``const __grid_constant__ CUtensorMap``). On a GPU the
host encodes each with ``cuTensorMapEncodeTiled`` into 128 opaque bytes. Here, :class:`TensorMap`
describes one on an array, and :func:`host_encoding` lets host code that calls TVM's
``runtime.cuTensorMapEncodeTiled`` run on a machine that has no driver: the bytes that it writes
name a :class:`TensorMap`, which the simulator finds again.

Source: CUDA Driver API, "Tensor Map Object Management", ``cuTensorMapEncodeTiled``.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import numbers
import reprlib
import sys
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mlsys_gpu.parameters import ArgumentError

#: Bytes of an encoded tensor map, and what its address is a multiple of.
DESCRIPTOR_BYTES, DESCRIPTOR_ALIGNMENT = 128, 64

SWIZZLES = {"none": 0, "32B": 1, "64B": 2, "128B": 3, "128B_atom_32B": 4,
            "128B_atom_32B_flip_8B": 5, "128B_atom_64B": 6}  # fmt: skip
INTERLEAVES = {"none": 0, "16B": 1, "32B": 2}
PROMOTIONS = {"none": 0, "64B": 1, "128B": 2, "256B": 3}
FILLS = {"zeros": 0, "nan": 1}

#: Bytes of an inner box row that each swizzle takes at most.
_SPANS = {1: 32, 2: 64, 3: 128, 4: 128, 5: 128, 6: 128}

#: Bytes of the elements that a tensor map may have here.
ITEM_BYTES = {
    "uint8": 1, "int8": 1, "bool": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4,
    "uint64": 8, "int64": 8, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
}  # fmt: skip

#: Element types by the driver's code (``CUtensorMapDataType``); those after them round or unpack
#: while they load.
_FORMATS = {
    0: "uint8", 1: "uint16", 2: "uint32", 3: "int32", 4: "uint64", 5: "int64", 6: "float16",
    7: "float32", 8: "float64", 9: "bfloat16",
}  # fmt: skip
_OTHER_FORMATS = {
    10: "FLOAT32_FTZ", 11: "TFLOAT32", 12: "TFLOAT32_FTZ", 13: "16U4_ALIGN8B",
    14: "16U4_ALIGN16B", 15: "16U6_ALIGN16B",
}  # fmt: skip


@dataclass(frozen=True)
class Memory:
    """Consecutive bytes of the host: address, size, and the object that keeps them alive."""

    address: int
    nbytes: int
    owner: Any = None
    name: str = ""

    @classmethod
    def of(cls, array: Any, name: str = "") -> Memory:
        """The bytes that a NumPy array or a torch CPU tensor spans, from its first element."""
        if hasattr(array, "data_ptr"):
            sizes, strides = tuple(array.shape), tuple(array.stride())
            item, start = array.element_size(), int(array.data_ptr())
        else:
            sizes, item = array.shape, array.itemsize
            strides = [s // item for s in array.strides]
            start = int(array.ctypes.data)
        if any(n == 0 for n in sizes):
            return cls(start, 0, array, name)
        last = sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
        return cls(start, (last + 1) * item, array, name)

    @property
    def end(self) -> int:
        return self.address + self.nbytes


def dtype_of(array: Any) -> str:
    """The element type of an array as TVM spells it."""
    name = str(array.dtype).removeprefix("torch.")
    return {"float8_e4m3fn": "float8_e4m3fn"}.get(name, name)


def problem(record: dict[str, Any], address: int) -> str | None:
    """The rule of ``cuTensorMapEncodeTiled`` that a tensor map breaks, or None.

    ``record``: ``dtype``, ``shape``, ``strides``, ``box``, ``steps``, ``interleave``, ``swizzle``,
    ``fill``, dimensions innermost first, codes as the driver's; ``address`` of the first element.
    """
    shape, strides = record["shape"], record["strides"]
    box, steps, swizzle = record["box"], record["steps"], record["swizzle"]
    rank, interleave = len(shape), record["interleave"]
    item = ITEM_BYTES.get(record["dtype"])
    if item is None:
        return f"elements of {record['dtype']} have no tensor map data type here"
    if not 1 <= rank <= 5:
        return f"it has {rank} dimensions; a tensor map has 1 to 5"
    for what, given, count in (
        ("strides", strides, rank - 1), ("box sizes", box, rank), ("element strides", steps, rank),
    ):  # fmt: skip
        if len(given) != count:
            return f"it has {len(given)} {what} for {rank} dimensions; there must be {count}"
    if interleave not in INTERLEAVES.values():
        return f"the interleave code is {interleave}; the driver has 0 to 2"
    if swizzle not in SWIZZLES.values():
        return f"the swizzle code is {swizzle}; the driver has 0 to 6"
    if record["fill"] not in FILLS.values():
        return f"the out-of-bounds fill code is {record['fill']}; the driver has 0 and 1"
    if interleave and rank < 3:
        return f"interleaved layouts have at least 3 dimensions, and it has {rank}"
    align = 32 if interleave == 2 else 16
    if address % align:
        return f"its first element is at address {address:#x}, which {align} does not divide"
    for i, size in enumerate(shape):
        if not 1 <= size <= 1 << 32:
            return f"dimension {i} has {size} elements; each has 1 to 2^32"
    for i, stride in enumerate(strides):
        if stride % align or not 0 <= stride < 1 << 40:
            return (
                f"the stride of dimension {i + 1} is {stride} bytes; strides are multiples of "
                f"{align} bytes below 2^40"
            )
    for i, size in enumerate(box):
        if not 1 <= size <= 256:
            return f"the box has {size} elements along dimension {i}; it has 1 to 256"
    for i, step in enumerate(steps):
        if not 1 <= step <= 8:
            return f"the element stride of dimension {i} is {step}; it is 1 to 8"
    inner = box[0] * item
    if not interleave and inner % 16:
        return f"the box's inner dimension is {inner} bytes; it must be a multiple of 16"
    span = _SPANS.get(swizzle)
    if not interleave and span is not None and inner > span:
        return f"the box's inner dimension is {inner} bytes, and this swizzle takes at most {span}"
    if interleave == 2 and swizzle != 1:
        return "the 32-byte interleaved layout goes with the 32-byte swizzle"
    if record["fill"] == 1 and "float" not in record["dtype"]:
        return f"out-of-bounds elements of {record['dtype']} cannot be NaN"
    return None


def reach(record: dict[str, Any]) -> int:
    """Bytes from a tensor map's first element to past its last."""
    item = ITEM_BYTES[record["dtype"]]
    strides = [item, *record["strides"]]
    return item + sum((n - 1) * s for n, s in zip(record["shape"], strides, strict=True))


class TensorMap:
    """A tensor map on an array, to pass where a kernel takes one.

    Dimensions are innermost first, as in ``cuTensorMapEncodeTiled``.

    Args:
        array: NumPy array or torch tensor; what the map reaches of its memory is what TMA moves.
        box: elements of one copy along each dimension, at most 256 each.
        shape: elements of the tensor along each dimension; the array's own, reversed, if omitted.
        strides: bytes between neighbours along each dimension but the innermost; the array's own
            if omitted.
        element_strides: every how many elements a copy takes, 1 to 8; ones if omitted.
        swizzle: ``none``, ``32B``, ``64B``, ``128B``, ``128B_atom_32B``,
            ``128B_atom_32B_flip_8B``, ``128B_atom_64B``, or the driver's code.
        interleave: ``none``, ``16B``, ``32B``, or the driver's code.
        l2_promotion: ``none``, ``64B``, ``128B``, ``256B``, or the driver's code; no effect in the
            simulator.
        oob_fill: what a copy writes for elements outside: ``zeros``, ``nan``, or the driver's code.
        dtype: element type as TVM spells it; the array's own if omitted.

    Raises:
        ArgumentError: a rule of ``cuTensorMapEncodeTiled`` is broken, or the map reaches beyond the
            array's memory; the sentence names the rule and the value.
    """

    def __init__(
        self,
        array: Any,
        *,
        box: Sequence[int],
        shape: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
        element_strides: Sequence[int] | None = None,
        swizzle: str | int = "none",
        interleave: str | int = "none",
        l2_promotion: str | int = "none",
        oob_fill: str | int = "zeros",
        dtype: str | None = None,
    ):
        if not isinstance(array, Memory):
            _mappable(array)
        memory = array if isinstance(array, Memory) else Memory.of(array)
        if dtype is None:
            dtype = dtype_of(array)
        elif not isinstance(dtype, str):
            raise ArgumentError(f"dtype is a name, such as 'float16', not {reprlib.repr(dtype)}")
        boxes = _integers(box, "box")
        self.l2_promotion = _code(l2_promotion, PROMOTIONS, "l2_promotion")
        if self.l2_promotion not in PROMOTIONS.values():
            raise ArgumentError(
                f"no tensor map of {memory.name or 'the array'}: the L2 promotion code is "
                f"{self.l2_promotion}; the driver has 0 to 3"
            )
        self.record: dict[str, Any] = {
            "dtype": dtype,
            "shape": _reversed_shape(array) if shape is None else _integers(shape, "shape"),
            "strides": (
                _reversed_strides(array) if strides is None else _integers(strides, "strides")
            ),
            "box": boxes,
            "steps": (
                [1] * len(boxes)
                if element_strides is None
                else _integers(element_strides, "element_strides")
            ),
            "interleave": _code(interleave, INTERLEAVES, "interleave"),
            "swizzle": _code(swizzle, SWIZZLES, "swizzle"),
            "fill": _code(oob_fill, FILLS, "oob_fill"),
        }
        wrong = problem(self.record, memory.address)
        if wrong is None and reach(self.record) > memory.nbytes:
            wrong = (
                f"it reaches {reach(self.record)} bytes from its first element, and the array "
                f"holds {memory.nbytes}"
            )
        if wrong is not None:
            raise ArgumentError(f"no tensor map of {memory.name or 'the array'}: {wrong}")
        #: What the map reaches, to the end of the last row's 16 bytes: a neighbour in the same
        #: allocation is another tensor.
        whole = -(-reach(self.record) // 16) * 16
        self.memory = replace(memory, nbytes=min(whole, memory.nbytes))

    def __repr__(self) -> str:
        r = self.record
        return f"<TensorMap {r['dtype']} {r['shape']} box {r['box']} swizzle {r['swizzle']}>"

    def encode(self) -> Any:
        """A pointer to the encoded map (``ctypes.c_void_p``), by TVM's
        ``runtime.cuTensorMapEncodeTiled``; it lives as long as this object."""
        import tvm_ffi

        self._storage = ctypes.create_string_buffer(DESCRIPTOR_BYTES + DESCRIPTOR_ALIGNMENT)
        base = ctypes.addressof(self._storage)
        pointer = ctypes.c_void_p(-(-base // DESCRIPTOR_ALIGNMENT) * DESCRIPTOR_ALIGNMENT)
        r = self.record
        encode: Any = tvm_ffi.get_global_func(ENCODER)
        encode(
            pointer,
            r["dtype"],
            len(r["shape"]),
            ctypes.c_void_p(self.memory.address),
            *r["shape"],
            *r["strides"],
            *r["box"],
            *r["steps"],
            r["interleave"],
            r["swizzle"],
            self.l2_promotion,
            r["fill"],
        )
        return pointer


def _mappable(array: Any) -> None:
    """Refuse what has no memory that a map could be made of."""
    is_tensor = all(hasattr(array, name) for name in ("data_ptr", "stride", "element_size"))
    if isinstance(array, type) or not (
        is_tensor or all(hasattr(array, name) for name in ("ctypes", "strides", "itemsize"))
    ):
        what = "None" if array is None else f"a {type(array).__name__}"
        raise ArgumentError(f"a tensor map is made of a NumPy array or a torch tensor, not {what}")
    layout, device = getattr(array, "layout", ""), getattr(array, "device", "")
    if is_tensor and (str(layout) != "torch.strided" or str(device) == "meta"):
        raise ArgumentError(
            f"no tensor map of the array: it is a {layout} tensor on {device}, which has no rows "
            "of elements in memory"
        )
    shape = tuple(int(n) for n in array.shape)
    if 0 in shape:
        raise ArgumentError(
            f"no tensor map of the array: its shape {shape} has the size 0; each dimension has "
            "1 to 2^32 elements"
        )


def _integers(value: Any, what: str) -> list[int]:
    """An option that is a tuple (or list) of integers."""
    items: list[Any] | None = None
    if getattr(value, "ndim", 0) == 1:
        items = value.tolist()
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        items = list(value)
    if items is None or not all(_is_integer(n) for n in items):
        raise ArgumentError(f"{what} is a tuple of integers, not {reprlib.repr(value)}")
    return [int(n) for n in items]


def _is_integer(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _reversed_shape(array: Any) -> list[int]:
    return [int(n) for n in reversed(tuple(array.shape))]


def _reversed_strides(array: Any) -> list[int]:
    """Strides in bytes of all dimensions but the last, innermost first."""
    if hasattr(array, "data_ptr"):
        strides = [s * array.element_size() for s in array.stride()]
        item = array.element_size()
    else:
        strides, item = list(array.strides), array.itemsize
    if strides and strides[-1] != item and array.shape[-1] != 1:
        raise ArgumentError("no tensor map of the array: its last dimension is not contiguous")
    return strides[-2::-1] if len(strides) > 1 else []


def _code(value: Any, codes: dict[str, int], what: str) -> int:
    if isinstance(value, str) and value in codes:
        return codes[value]
    if _is_integer(value):
        return int(value)
    raise ArgumentError(
        f"{what} is one of {', '.join(codes)}, or the driver's code, not {reprlib.repr(value)}"
    )


# ------------------------------------------------------------------------- encoding on the host

ENCODER = "runtime.cuTensorMapEncodeTiled"

_MAGIC = b"mlsys_gpu.TensorMap\0"
_KEPT = 4096
_numbers = itertools.count(1)
#: Maps by number and by the address that their bytes were last written to.
_by_number: OrderedDict[int, TensorMap] = OrderedDict()
_by_address: OrderedDict[int, int] = OrderedDict()


def encode_tiled(descriptor: Any, dtype: Any, rank: int, data: Any, *numbers: int) -> None:
    """What ``runtime.cuTensorMapEncodeTiled`` does where there is no driver.

    ``descriptor``: where 128 bytes are written, 64-byte aligned. ``data``: the first element.
    ``numbers``: shape, strides in bytes, box, element strides, then the codes of interleave,
    swizzle, L2 promotion and out-of-bounds fill, and perhaps of a data type.

    Raises:
        ArgumentError: as :class:`TensorMap`.
    """
    target, address = _address(descriptor), _address(data)
    if target % DESCRIPTOR_ALIGNMENT:
        raise ArgumentError(
            f"the tensor map is encoded at address {target:#x}, which {DESCRIPTOR_ALIGNMENT} does "
            "not divide"
        )
    values = [int(n) for n in numbers]
    if len(values) not in (4 * rank + 3, 4 * rank + 4):
        raise ArgumentError(
            f"{ENCODER} of rank {rank} takes {4 * rank + 7} arguments, got {len(values) + 4}"
        )
    interleave, swizzle, promotion, fill, *forced = values[4 * rank - 1 :]
    kind = data_type(str(dtype), forced[0] if forced else -1)
    made = TensorMap(
        find(address) or Memory(address, 1 << 48, None, f"memory_{address:x}"),
        shape=values[:rank],
        strides=values[rank : 2 * rank - 1],
        box=values[2 * rank - 1 : 3 * rank - 1],
        element_strides=values[3 * rank - 1 : 4 * rank - 1],
        interleave=interleave,
        swizzle=swizzle,
        l2_promotion=promotion,
        oob_fill=fill,
        dtype=kind,
    )
    number = next(_numbers)
    _by_number[number] = made
    _by_address.pop(target, None)
    _by_address[target] = number
    for table in (_by_number, _by_address):
        while len(table) > _KEPT:
            table.popitem(last=False)
    text = _MAGIC + number.to_bytes(8, "little")
    ctypes.memmove(target, text.ljust(DESCRIPTOR_BYTES, b"\0"), DESCRIPTOR_BYTES)


def data_type(dtype: str, code: int = -1) -> str:
    """The element type of a map: what the driver's data type ``code`` names, or ``dtype``.

    Raises:
        NotImplementedError: a data type that changes elements while they are copied.
    """
    if code >= 0 and code not in _FORMATS:
        name = _OTHER_FORMATS.get(code, str(code))
        raise NotImplementedError(f"tensor maps of the data type {name} are not modelled")
    if dtype.startswith("float8"):
        return "uint8"
    return _FORMATS[code] if code >= 0 and _FORMATS[code] != dtype else dtype


def _address(pointer: Any) -> int:
    """The address that a pointer argument holds, in the forms that TVM's FFI hands over."""
    if isinstance(pointer, ctypes.c_void_p):
        return pointer.value or 0
    return int(pointer)


def find(address: int) -> Memory | None:
    """The array of a caller whose memory holds an address: in the frames that led here, or alive.

    Arrays are looked for among the callers' variables, and in their lists and tuples; the name is
    the one that the outermost caller has for it.
    """
    frame, held = sys._getframe(1), None
    while frame is not None:
        for name, value in list(frame.f_locals.items()):
            found = _holding(value, address, name)
            if found is not None and (held is None or found.owner is value):
                held = found
        frame = frame.f_back
    return held or _alive(address)


def _holding(value: Any, address: int, name: str, depth: int = 2) -> Memory | None:
    """The memory of ``value`` (an array, or a container of some) from an address on."""
    if isinstance(value, (list, tuple)) and depth and len(value) < 256:
        items = enumerate(value)
    elif isinstance(value, dict) and depth and len(value) < 256:
        items = list(value.items())
    else:
        memory = _whole(value)
        if memory is not None and memory.address <= address < memory.end:
            return Memory(address, memory.end - address, value, name)
        return None
    for _key, item in items:
        found = _holding(item, address, name, depth - 1)
        if found is not None:
            return found
    return None


def _whole(value: Any) -> Memory | None:
    """All the memory behind an array: a view's base, a tensor's storage; None for other objects."""
    kind = type(value).__module__.partition(".")[0]
    if kind == "torch" and hasattr(value, "untyped_storage"):
        if value.device.type != "cpu":
            return None
        storage = value.untyped_storage()
        return Memory(storage.data_ptr(), storage.nbytes(), value)
    if kind == "numpy" and hasattr(value, "ctypes") and hasattr(value, "strides"):
        while getattr(value.base, "ctypes", None) is not None:
            value = value.base
        return Memory.of(value) if value.size else None
    return None


def _alive(address: int) -> Memory | None:
    """The torch tensor, of all that are alive, whose memory holds an address."""
    import gc

    torch = sys.modules.get("torch")
    if torch is None:
        return None
    for value in gc.get_objects():
        if isinstance(value, torch.Tensor):
            found = _holding(value, address, "a tensor")
            if found is not None:
                return found
    return None


def decode(given: Any) -> TensorMap | None:
    """The tensor map that an argument stands for, or None.

    ``given``: a :class:`TensorMap`; a pointer to an encoded one (``ctypes.c_void_p``, an address,
    or an object whose ``ptr`` is one of these); or an array that holds its 128 bytes.
    """
    if isinstance(given, TensorMap):
        return given
    if hasattr(given, "tobytes"):
        return from_bytes(given.tobytes())
    if hasattr(given, "data_ptr"):
        return from_bytes(given.detach().cpu().numpy().tobytes())
    pointer = getattr(given, "ptr", given)
    if isinstance(pointer, (ctypes.c_void_p, int)) and not isinstance(pointer, bool):
        number = _by_address.get(_address(pointer))
        return None if number is None else _by_number.get(number)
    return None


def from_bytes(data: bytes) -> TensorMap | None:
    """The tensor map whose encoding the bytes are, or None."""
    if len(data) < DESCRIPTOR_BYTES or not data.startswith(_MAGIC):
        return None
    return _by_number.get(int.from_bytes(data[len(_MAGIC) : len(_MAGIC) + 8], "little"))


@contextlib.contextmanager
def host_encoding() -> Iterator[None]:
    """While active, ``runtime.cuTensorMapEncodeTiled`` encodes maps for the simulator.

    Host code that encodes tensor maps of CPU arrays runs unchanged inside; pass the pointers that
    it makes to :func:`mlsys_gpu.simulate` in place of the kernel's tensor maps. Where TVM has no
    such function, which is so on a machine without a CUDA driver, it is provided once both TVM and
    this package have been imported, and this context is not needed.
    """
    import tvm_ffi

    original = tvm_ffi.get_global_func(ENCODER, allow_missing=True)
    tvm_ffi.register_global_func(ENCODER, encode_tiled, override=True)
    try:
        yield
    finally:
        if original is not None:
            tvm_ffi.register_global_func(ENCODER, original, override=True)


def provide_encoder() -> None:
    """Register :func:`encode_tiled` with TVM where TVM has no encoder of its own."""
    import tvm_ffi

    if tvm_ffi.get_global_func(ENCODER, allow_missing=True) is None:
        tvm_ffi.register_global_func(ENCODER, encode_tiled)
