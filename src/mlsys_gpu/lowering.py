"""From a TIRx ``PrimFunc`` to what runs: the host launch and the lowered device function.

This is the only module that drives TVM's compilation pipeline. ``launch`` compiles for a GPU,
``artifacts`` emits CUDA, PTX and SASS, and ``sim`` executes; all three start from the
:class:`Lowered` that :func:`lower` returns, so that what the simulator executes is what the GPU
would compile.

What depends on the TVM release stands here (and in the kernels): the name of the pipeline, the
shape of ``call_ffi_kernel`` in the host function, and the class names of statements.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from mlsys_gpu import parameters as call
from mlsys_gpu.parameters import POINTER, TENSOR_MAP, ArgumentError, Param
from mlsys_gpu.release import TVM_VERSION, require_tvm

if TYPE_CHECKING:
    import tvm

#: Attribute that carries the author's source line through lowering, around each tile primitive.
LINE_KEY = "pragma_mlsys_gpu_line"

#: Attribute that names a kernel's parameters which are its workspace (:class:`Param`).
WORKSPACE = "mlsys_gpu.workspace"

#: Architectures that this course writes kernels for, by their short names.
ARCHITECTURES = {"hopper": "sm_90a", "blackwell": "sm_100a"}

#: Instructions that not every architecture has: how a printed function names them (comments and
#: names of the author's look otherwise), which architectures have them, and these in words.
#: Source: PTX ISA, "Target ISA Notes" of wgmma.mma_async and tcgen05.mma.
_BOUND = {
    "wgmma": (r"\bT\.ptx\.wgmma\b", r"sm_90a", "sm_90a"),
    "tcgen05": (
        r'\bT\.ptx\.tcgen05\b|\bdispatch="tcgen05"|\bscope="tmem"',
        r"sm_1[01]\d[af]",
        "sm_100a and its relatives",
    ),
}


@lru_cache(maxsize=1)
def _tvm() -> Any:
    """The ``tvm`` module, once its release has been checked."""
    require_tvm()
    import tvm
    import tvm.tirx

    return tvm


class KernelError(ArgumentError, TypeError):
    """What was given as a kernel is none."""


class LoweringError(ValueError):
    """A PrimFunc that TVM cannot lower, or whose host function launches in a way we do not know."""


@dataclass(frozen=True)
class Launch:
    """A kernel launch: ``grid`` in CTAs, ``block`` in threads, ``cluster`` in CTAs,
    dynamic shared memory in bytes.

    An extent of ``grid`` that depends on the call is an expression over its arguments
    (:meth:`_HostReader.source`).
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0
    #: Programmatic dependent launch: the grid may start before the one before it has ended, and
    #: waits for it at ``griddepcontrol.wait``.
    programmatic: bool = False

    @property
    def threads(self) -> int:
        """Threads of one CTA."""
        return math.prod(self.block)

    @property
    def ctas(self) -> int:
        """CTAs of the grid; raises ``LoweringError`` where the call gives its extents."""
        if any(isinstance(extent, str) for extent in self.grid):
            raise LoweringError(f"the grid {self.grid} depends on the kernel's arguments")
        return math.prod(self.grid)


def _within_limits(launch: Launch) -> None:
    """Refuse a launch that no GPU of compute capability 9.0 or 10.0 accepts."""
    try:
        call.within_limits(vars(launch))
    except ArgumentError as error:
        raise LoweringError(str(error)) from None


@dataclass(frozen=True)
class SharedRegion:
    """A named buffer that the kernel's author placed in dynamic shared memory.

    ``offset`` and ``nbytes`` are bytes from the start of dynamic shared memory; ``layout`` is as
    :func:`layout_facts` gives it.
    """

    name: str
    offset: int
    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    layout: dict[str, Any] | None = None


@dataclass(frozen=True)
class View:
    """A named buffer in tensor memory or in registers.

    ``source``: its first column for ``tmem``, the name of the allocation that it is a view of for
    ``local``; ``layout`` is as :func:`layout_facts` gives it.
    """

    name: str
    scope: str
    source: int | str
    shape: tuple[int, ...]
    dtype: str
    layout: dict[str, Any] | None


@dataclass(frozen=True)
class TensorMap:
    """A tensor map that the host encodes (``cuTensorMapEncodeTiled``), dimensions innermost first.

    ``tensor`` is an index into the kernel's parameters and ``offset`` a byte offset in it;
    ``shape``, ``box`` and ``steps`` (element strides) are elements, ``strides`` bytes of all
    dimensions but the innermost; ``swizzle``, ``interleave`` and ``fill`` are the driver's codes.
    ``format`` is the driver's data type where the host names one, or -1 where it follows from
    ``dtype``. Numbers that depend on the call are expressions (:meth:`_HostReader.source`).

    A map that the caller encodes is a parameter of the kernel: its ``tensor`` is that parameter,
    and the other fields are empty.
    """

    tensor: int
    offset: int | str = 0
    dtype: str = TENSOR_MAP
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    box: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    interleave: int = 0
    swizzle: int = 0
    fill: int = 0
    format: int = -1


@dataclass(frozen=True)
class Lowered:
    """A PrimFunc after TVM's ``tirx`` pipeline, split into host and device."""

    name: str
    arch: str
    device: tvm.tirx.PrimFunc
    host: tvm.tirx.PrimFunc
    launch: Launch
    params: tuple[Param, ...]
    #: For each argument of the device function: ``("tensor", i, offset)``, the i-th of ``params``
    #: and a byte offset; ``("map", i)``, the i-th of ``maps``; or ``("scalar", value, dtype)``.
    arguments: tuple[tuple[Any, ...], ...]
    maps: tuple[TensorMap, ...]
    shared_regions: tuple[SharedRegion, ...]
    #: Named buffers in tensor memory, and views of registers.
    views: tuple[View, ...]
    #: Names of variables and buffers in the author's source.
    names: frozenset[str]
    #: SHA-256 over the PrimFunc, its architecture and the TVM release.
    key: str


def prim_func(kernel: Any) -> tvm.tirx.PrimFunc:
    """The one PrimFunc that a kernel is, or that an IRModule holds.

    Raises:
        KernelError: ``kernel`` is something else.
        LoweringError: a module of several functions, or of none.
    """
    tvm = _tvm()
    if isinstance(kernel, tvm.IRModule):
        functions = list(kernel.functions.values())
        if len(functions) != 1:
            raise LoweringError(
                f"the IRModule holds {len(functions)} functions; a kernel is exactly one PrimFunc"
            )
        kernel = functions[0]
    if not isinstance(kernel, tvm.tirx.PrimFunc):
        raise KernelError(f"a kernel is a tvm.tirx.PrimFunc, not {type(kernel).__name__}")
    return kernel


def architecture(arch: Any) -> str:
    """The ``sm_…`` name of an architecture that a caller names.

    Raises ``ValueError`` for what is no such name.
    """
    found = ARCHITECTURES.get(arch, arch) if isinstance(arch, str) else ""
    if not re.fullmatch(r"sm_\d+[af]?", found):
        raise ValueError(
            f"unknown architecture {arch!r}: name hopper, blackwell, or an sm_… target"
        )
    return found


def arch_of(func: tvm.tirx.PrimFunc, arch: str | None = None) -> str:
    """Architecture a PrimFunc is for, as ``sm_90a`` or ``sm_100a``.

    In this order: the ``arch`` argument (``hopper``, ``blackwell`` or an ``sm_…`` name), the
    function's ``target`` attribute, and the instructions that it uses: ``wgmma`` exists on
    ``sm_90a`` only, ``tcgen05`` on ``sm_100a``. A kernel that names neither runs on both and is
    taken as ``sm_90a``.

    Raises ``ValueError`` for an ``arch`` that is no ``sm_…`` name, that the ``target`` attribute
    contradicts, or that lacks instructions which the function uses.
    """
    func = prim_func(func)
    own = _own_arch(func)
    if arch is not None:
        arch = architecture(arch)
        if own is not None and own != arch:
            raise ValueError(f"{_name(func)} has the target {own}, which contradicts arch {arch!r}")
        _has_instructions(func, arch)
        return arch
    if own is not None:
        return own
    text = func.script()
    if "tcgen05" in text or 'scope="tmem"' in text:
        return "sm_100a"
    return "sm_90a"


def _own_arch(func: Any) -> str | None:
    """The architecture that a function's ``target`` attribute names, if it names one."""
    target = func.attrs.get("target") if func.attrs is not None else None
    attrs: Any = getattr(target, "attrs", {})  # a target may be a string, too
    return str(attrs["arch"]) if "arch" in attrs else None


def _has_instructions(func: Any, arch: str) -> None:
    """Refuse an architecture that lacks instructions which a function uses."""
    text = func.script()
    for family, (used, known, where) in _BOUND.items():
        if re.search(used, text) and not re.fullmatch(known, arch):
            raise ValueError(
                f"{_name(func)} uses {family}, which {arch} lacks: it exists on {where} only"
            )


def _name(func: Any) -> str:
    attrs = func.attrs or {}
    return str(attrs["global_symbol"]) if "global_symbol" in attrs else "kernel"


def cuda_target(arch: str) -> tvm.target.Target:
    """TVM's CUDA target for ``arch``, with the C host that needs no LLVM."""
    tvm = _tvm()
    return tvm.target.Target({"kind": "cuda", "arch": arch}, host={"kind": "c"})


def lower(func: Any, arch: str | None = None, *, keep_lines: bool = False) -> Lowered:
    """Lower a PrimFunc through TVM's ``tirx`` pipeline and read its launch from the host part.

    ``keep_lines`` wraps every tile primitive in an attribute with the author's line, which the
    simulator reads back; code generation never sees it. Raises :class:`LoweringError` with TVM's
    own message when the function does not lower.
    """
    func = prim_func(func)
    arch = arch_of(func, arch)
    _has_instructions(func, arch)  # its own target may be wrong, too
    name = _name(func)
    params = parameters(func)
    regions = tuple(_shared_regions(func.body))
    views, names = tuple(_views(func.body)), frozenset(_names(func.body))
    tagged = func.with_body(_tag_lines(func.body)) if keep_lines else func
    module = _run_pipeline(tagged, name, arch)
    host, device = _split(module, name)
    launch, arguments, maps = _HostReader(host, params).read()
    return Lowered(
        name=name,
        arch=arch,
        device=device,
        host=host,
        launch=replace(launch, programmatic=_waits_for_a_grid(device)),
        params=params,
        arguments=arguments,
        maps=maps,
        shared_regions=regions,
        views=views,
        names=names,
        key=content_key(func, arch),
    )


_PARAMS, _PROGRAMMATIC = "tirx.kernel_launch_params", "tirx.use_programtic_dependent_launch"
_FOR_LAUNCH = "mlsys_gpu"


def pipeline_for_launch() -> str:
    """The name of TVM's ``tirx`` pipeline with one thing added: programmatic dependent launch.

    TIRx 0.27 has ``griddepcontrol`` and its runtime has the launch attribute that gives it a
    meaning, but nothing in a kernel asks for it. Here a kernel that waits for the grid before it
    (``griddepcontrol.wait``) is launched with the attribute. Compiled by the ``tirx`` pipeline
    alone the same kernel waits for nothing, and starts when the grid before it has ended. CUDA
    Programming Guide, "Programmatic Dependent Launch and Synchronization".
    """
    tvm = _tvm()
    from tvm.tirx import compilation_pipeline

    def factory() -> Any:
        parts: Any = compilation_pipeline.tirx_pipeline()
        pipeline, *finish = parts

        module_pass: Any = tvm.transform.module_pass

        @module_pass(opt_level=0)
        def run(module: Any, _context: Any) -> Any:
            module = pipeline(module)
            for name, function in list(module.functions.items()):
                tags = [str(tag) for tag in function.attrs.get(_PARAMS, ())]
                on_device = tags and "tirx.is_entry_func" not in function.attrs
                if on_device and _PROGRAMMATIC not in tags and _waits_for_a_grid(function):
                    # The size of shared memory stays last: TVM's runtime insists.
                    last = tags[-1] == "tirx.use_dyn_shared_memory"
                    tags.insert(len(tags) - last, _PROGRAMMATIC)
                    module.update_func(name, function.with_attr(_PARAMS, tags))
            return module

        return run, *finish

    compilation_pipeline.register_tir_pipeline(_FOR_LAUNCH, factory)
    return _FOR_LAUNCH


def _waits_for_a_grid(device: Any) -> bool:
    return bool(re.search(r"griddepcontrol\W+wait", device.script()))


def content_key(func: Any, arch: str) -> str:
    """SHA-256 of a PrimFunc's content, its architecture and the TVM release (hex).

    Over the printed function: ``tvm.ir.save_json`` crashes on tile primitives in this release.
    """
    _tvm()
    digest = hashlib.sha256()
    for part in (TVM_VERSION, arch, func.script(show_meta=True)):
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()


# --------------------------------------------------------------------------- before the pipeline


def parameters(func: Any) -> tuple[Param, ...]:
    """The parameters of a PrimFunc, in order; needs no lowering.

    Raises :class:`LoweringError` for a parameter of a type that no kernel takes, and for a
    workspace that is no tensor of a fixed shape.
    """
    _tvm()
    naming = _Names(func)
    attrs = func.attrs if func.attrs is not None else {}
    own = {str(name) for name in attrs.get(WORKSPACE, ())}
    params = []
    for i, param in enumerate(func.params):
        shape, ty = getattr(param, "shape", None), param.ty
        name = str(param.name) or f"argument_{i}"
        if shape is not None:
            dims = tuple(source(dim, naming) for dim in shape)
            params.append(Param(name, dims, str(param.dtype)))
        elif type(ty).__name__ == "PrimType":
            params.append(Param(name, None, str(ty)))
        elif type(ty).__name__ == "PointerType":
            is_map = "TensorMap" in str(ty)
            params.append(Param(name, None, TENSOR_MAP if is_map else POINTER))
        else:
            raise LoweringError(f"parameter {name} is a {ty}, which no kernel takes")
    for name in own:
        if not any(p.name == name and p.kind == "tensor" and not p.symbolic for p in params):
            raise LoweringError(
                f"the workspace {name} is no parameter that is a tensor of one shape"
            )
    return tuple(replace(p, workspace=p.name in own) for p in params)


class _Names:
    """Names of a PrimFunc's variables in expressions, each variable its own."""

    def __init__(self, func: Any):
        self.known = {_identity(p): str(p.name) for p in func.params}
        self.taken = set(self.known.values())

    def __call__(self, var: Any) -> str:
        key = _identity(var)
        if key not in self.known:
            base = name = str(var.name)
            count = 0
            while name in self.taken or not name.isidentifier():
                count += 1
                name = f"{base if base.isidentifier() else 'n'}_{count}"
            self.known[key] = name
            self.taken.add(name)
        return self.known[key]


_BINARY = {
    "Add": "({} + {})", "Sub": "({} - {})", "Mul": "({} * {})", "FloorDiv": "({} // {})",
    "FloorMod": "({} % {})", "Min": "min({}, {})", "Max": "max({}, {})", "EQ": "({} == {})",
    "NE": "({} != {})", "LT": "({} < {})", "LE": "({} <= {})", "GT": "({} > {})",
    "GE": "({} >= {})", "And": "({} and {})", "Or": "({} or {})", "BitwiseAnd": "({} & {})",
    "BitwiseOr": "({} | {})", "BitwiseXor": "({} ^ {})", "LShift": "({} << {})",
    "RShift": "({} >> {})",
}  # fmt: skip


def source(expr: Any, leaf: Any) -> Any:
    """A host expression as a number, or as Python source for :func:`mlsys_gpu.parameters.evaluate`.

    ``leaf`` gives the source of a variable, or of a call that is no arithmetic.

    Raises :class:`LoweringError` for an expression that is no arithmetic on numbers.
    """
    kind = type(expr).__name__
    if kind == "IntImm":
        return int(expr.value)
    if kind == "FloatImm":
        return f'{expr.ty}("{float(expr.value)!r}")'
    if kind in _BINARY:
        return _BINARY[kind].format(source(expr.a, leaf), source(expr.b, leaf))
    if kind in ("Div", "Mod"):
        a, b = source(expr.a, leaf), source(expr.b, leaf)
        if str(expr.ty).startswith("float"):
            return f"({a} / {b})"
        quotient = f"truncated({a}, {b})"
        return quotient if kind == "Div" else f"({a} - {b} * {quotient})"
    if kind == "Not":
        return f"(not {source(expr.a, leaf)})"
    if kind == "Cast":
        return _cast(source(expr.value, leaf), str(expr.ty))
    if kind == "Select":
        parts = (source(x, leaf) for x in (expr.condition, expr.true_value, expr.false_value))
        return "({1} if {0} else {2})".format(*parts)
    if kind == "Call" and str(expr.op.name) in ("tirx.if_then_else", "prim.if_then_else"):
        return "({1} if {0} else {2})".format(*(source(x, leaf) for x in expr.args))
    return leaf(expr)


def _cast(value: Any, dtype: str) -> Any:
    if dtype == "bool":
        return f"bool({value})"
    if dtype.startswith(("int", "uint")):
        bits, signed = int(dtype.lstrip("uint")), dtype.startswith("int")
        if (bits == 64 and signed) or isinstance(value, int):
            return value if isinstance(value, int) else f"wrapped({value}, 64, True)"
        return f"wrapped({value}, {bits}, {signed})"
    if dtype in ("float16", "float32", "float64"):
        return f"{dtype}({value})"
    raise LoweringError(f"the host function computes a {dtype}, which is not supported")


def _statements(body: Any) -> Iterator[Any]:
    """The statements of a function that has not been lowered, in order."""
    stack = [body]
    while stack:
        stmt = stack.pop()
        yield stmt
        kind = type(stmt).__name__
        if kind == "SeqStmt":
            stack.extend(reversed(list(stmt.seq)))
        elif kind == "IfThenElse":
            stack.extend(s for s in (stmt.else_case, stmt.then_case) if s is not None)
        elif kind in ("AttrStmt", "For", "While"):
            stack.append(stmt.body)


def _shared_regions(body: Any) -> Iterator[SharedRegion]:
    """Named views of dynamic shared memory, as the author declared them."""
    for stmt in _statements(body):
        if type(stmt).__name__ == "DeclBuffer" and str(stmt.buffer.scope()).startswith("shared"):
            buffer = stmt.buffer
            offset, shape = buffer.elem_offset, _constants(buffer.shape)
            if shape is None:
                continue
            start = int(offset.value) if hasattr(offset, "value") else 0
            bits = _bits(str(buffer.dtype))
            yield SharedRegion(
                name=str(buffer.name),
                offset=start * bits // 8,
                nbytes=math.prod(shape) * bits // 8,
                shape=shape,
                dtype=str(buffer.dtype),
                layout=layout_facts(buffer.layout),
            )


def _views(body: Any) -> Iterator[View]:
    """Named buffers in tensor memory, and named views of registers."""
    for stmt in _statements(body):
        if type(stmt).__name__ != "DeclBuffer":
            continue
        buffer = stmt.buffer
        scope, shape = str(buffer.scope()), _constants(buffer.shape)
        source: int | str | None = None
        if scope == "tmem" and buffer.allocated_addr:
            address = buffer.allocated_addr[0]
            source = int(address.value) if hasattr(address, "value") else None
        elif scope == "local":
            data = stmt.data
            if type(data).__name__ == "Call" and data.args:
                data = data.args[0]
            source = str(data.name) if hasattr(data, "name") else None
        if shape is None or source is None:
            continue
        layout = layout_facts(buffer.layout)
        yield View(str(buffer.name), scope, source, shape, str(buffer.dtype), layout)


def _names(body: Any) -> Iterator[str]:
    """Names that the author gave to variables and buffers."""
    for stmt in _statements(body):
        kind = type(stmt).__name__
        if kind in ("AllocBuffer", "DeclBuffer"):
            yield str(stmt.buffer.name)
        elif kind == "Bind":
            yield str(stmt.var.name)
        elif kind == "For":
            yield str(stmt.loop_var.name)
        elif kind == "ScopeIdDefStmt":
            yield from (str(var.name) for var in getattr(stmt, "def").def_ids)


def _constants(numbers: Any) -> tuple[int, ...] | None:
    """The values of integers, or None where one is not constant."""
    if not all(hasattr(n, "value") for n in numbers):
        return None
    return tuple(int(n.value) for n in numbers)


def layout_facts(layout: Any) -> dict[str, Any] | None:
    """A TIRx layout as plain values, or None where it has none or is not constant.

    ``shard`` and ``replica``: ``[extent, stride, axis]``, outermost first; ``offset``: by axis;
    ``swizzle``: ``[per_element, swizzle_len, atom_len, inner]``, or None. A coordinate is flattened
    in row-major order, split by the extents, and each part times its stride is added to its axis;
    memory is the axis ``m``. Then the swizzle exchanges bits of ``m`` (TIRx Layout API).
    """
    if layout is None:
        return None
    swizzle = None
    if hasattr(layout, "tile_layout"):
        numbers = (layout.per_element, layout.swizzle_len, layout.atom_len)
        swizzle = [*(int(n) for n in numbers), bool(layout.swizzle_inner)]
        layout = layout.tile_layout
    if not hasattr(layout, "shard"):
        return None
    parts: dict[str, Any] = {"swizzle": swizzle, "offset": {}}
    for what in ("shard", "replica"):
        parts[what] = []
        for one in getattr(layout, what):
            numbers = _constants((one.extent, one.stride))
            if numbers is None:
                return None
            parts[what].append([*numbers, str(one.axis.name)])
    for axis, start in layout.offset.items():
        if not hasattr(start, "value"):
            return None
        parts["offset"][str(axis.name)] = int(start.value)
    return parts


def _bits(dtype: str) -> int:
    tvm = _tvm()
    return int(tvm.DataType(dtype).bits)


def _tag_lines(stmt: Any) -> Any:
    """Rebuild ``stmt`` with every tile primitive inside an attribute that names its line."""
    tvm = _tvm()
    tirx = tvm.tirx
    kind = type(stmt).__name__
    if kind == "SeqStmt":
        return tirx.SeqStmt([_tag_lines(s) for s in stmt.seq], stmt.span)
    if kind == "AttrStmt":
        body = _tag_lines(stmt.body)
        return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, body, stmt.span)
    if kind == "IfThenElse":
        other = None if stmt.else_case is None else _tag_lines(stmt.else_case)
        return tirx.IfThenElse(stmt.condition, _tag_lines(stmt.then_case), other, stmt.span)
    if kind == "For":
        return tirx.For(
            stmt.loop_var,
            stmt.min,
            stmt.extent,
            stmt.kind,
            _tag_lines(stmt.body),
            stmt.thread_binding,
            stmt.annotations,
            stmt.step,
            stmt.span,
        )
    if kind == "While":
        return tirx.While(stmt.condition, _tag_lines(stmt.body), stmt.span)
    if kind == "TilePrimitiveCall":
        place = "\n".join(f"{file}:{line}" for file, line in span_lines(stmt.span))
        if place:
            value = tvm.ir.StringImm(place)
            return tirx.AttrStmt(tirx.IntImm("int32", 0), LINE_KEY, value, stmt, stmt.span)
    return stmt


def span_lines(span: Any) -> list[tuple[str, int]]:
    """Files and lines of a TVM span, outermost caller first (empty for no span)."""
    if span is None:
        return []
    if hasattr(span, "spans"):
        return [place for part in span.spans for place in span_lines(part)]
    return [(str(span.source_name.name), int(span.line))]


# ------------------------------------------------------------------------------------- pipeline


def _run_pipeline(func: Any, name: str, arch: str, named: str = "tirx") -> Any:
    tvm = _tvm()
    target = cuda_target(arch)
    attrs = dict(func.attrs.items()) if func.attrs is not None else {}
    if "target" in attrs:  # the pipeline binds host and device itself
        func = func.without_attr("target")
    module = tvm.IRModule({name: func.with_attr("global_symbol", name)})
    pipeline, _, _ = tvm.tirx.get_tir_pipeline(named)
    try:
        with target:
            module = tvm.tirx.transform.BindTarget(target)(module)
            return pipeline(module)
    except Exception as error:  # TVM raises its own hierarchy, and plain ValueErrors
        raise LoweringError(f"TVM could not lower {name} for {arch}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """What TVM says went wrong, without the whole module that it prints behind it."""
    text = str(error).split("\nError in pass:")[0].rstrip()
    return text if len(text) < 4000 else text[:4000] + " …"


def _split(module: Any, name: str) -> tuple[Any, Any]:
    functions = list(module.functions.values())
    host = [f for f in functions if "tirx.is_entry_func" in f.attrs]
    # a PrimFunc that has launch parameters of its own keeps them on the host's side, too
    device = [
        f
        for f in functions
        if "tirx.kernel_launch_params" in f.attrs and "tirx.is_entry_func" not in f.attrs
    ]
    if len(device) != 1 or len(host) != 1:
        hint = ""
        if not device:
            hint = (
                ": a kernel begins with T.device_entry(), and names at least one of T.cta_id, "
                "T.warp_id and T.thread_id, which give the launch its extents"
            )
        raise LoweringError(
            f"{name}: the lowered module holds {len(host)} host and {len(device)} device "
            f"functions; expected one of each{hint}"
        )
    return host[0], device[0]


#: The launch parameters that TVM emits, and where each goes: ``blockIdx`` is the grid.
_AXES = {"x": 0, "y": 1, "z": 2}


#: Fields of ``tvm_struct_get`` (TVM's ``TVMStructFieldKind``) that the host reader meets.
_SHAPE, _STRIDES, _DATA, _ELEMENT, _VALUE = 2, 3, 1, 17, 15


class _HostReader:
    """Reads the host function: the launch, the tensor maps, and what each kernel argument is.

    Numbers that depend on the call are expressions over ``a<i>``, the i-th argument (a scalar),
    and ``d<i>_<k>``, the k-th dimension of the i-th argument (a tensor).
    """

    def __init__(self, host: Any, params: tuple[Param, ...]):
        self.params = params
        self.names = {p.name: i for i, p in enumerate(params)}
        self.alias: dict[int, Any] = {}
        self.maps: list[TensorMap] = []
        self.map_of: dict[int, int] = {}
        self.launches: list[Any] = []
        self.walk(host.body)
        if len(self.launches) != 1:
            raise LoweringError(
                f"the host function launches {len(self.launches)} kernels; expected one"
            )

    def walk(self, stmt: Any) -> None:
        kind = type(stmt).__name__
        if kind == "SeqStmt":
            for child in stmt.seq:
                self.walk(child)
        elif kind == "IfThenElse":
            self.walk(stmt.then_case)
            if stmt.else_case is not None:
                self.walk(stmt.else_case)
        elif kind in ("AttrStmt", "For", "While"):
            self.walk(stmt.body)
        elif kind == "DeclBuffer":
            self.alias[_identity(stmt.buffer)] = stmt.data
        elif kind == "Bind":
            self.alias[_identity(stmt.var)] = stmt.value
        elif kind == "Evaluate" and type(stmt.value).__name__ == "Call":
            name = str(getattr(stmt.value.op, "name", ""))
            if name == "tirx.call_ffi_kernel":
                self.launches.append(stmt.value)
            elif name == "tirx.tensormap_encode_tiled":
                self.encode(stmt.value)
            elif _called(stmt.value) == "runtime.cuTensorMapEncodeTiled":
                self.encode_packed(list(stmt.value.args)[1:])

    def read(self) -> tuple[Launch, tuple[tuple[Any, ...], ...], tuple[TensorMap, ...]]:
        launch = self.launches[0]
        names = [str(n) for n in launch.attrs["launch_params"]]
        names = [n for n in names if n not in _FLAGS]
        values = list(launch.args)[1:]
        split = len(values) - len(names)
        extents: dict[str, list[Any]] = {
            "grid": [1, 1, 1], "block": [1, 1, 1], "cluster": [1, 1, 1],
        }  # fmt: skip
        shared = 0
        for name, extent in zip(names, values[split:], strict=True):
            head, _, axis = name.partition(".")
            if head == "blockIdx":
                extents["grid"][_AXES[axis]] = self.source(extent)
            elif head in _EXTENTS:
                value = self.constant(extent, f"the launch extent {name}")
                extents[_EXTENTS[head]][_AXES[axis]] = value
            elif name == "tirx.use_dyn_shared_memory":
                shared = self.constant(extent, "the size of dynamic shared memory")
            elif head == "preferredClusterCtaIdx":
                continue  # a preference: any launch with the kernel's own cluster is right
            else:
                raise LoweringError(f"the launch parameter {name} is not supported")
        as3 = tuple[int, int, int]
        found = Launch(as3(extents["grid"]), as3(extents["block"]), as3(extents["cluster"]), shared)
        _within_limits(found)
        return found, tuple(self.argument(a) for a in values[:split]), tuple(self.maps)

    def constant(self, expr: Any, what: str) -> int:
        value = self.source(expr)
        if isinstance(value, str):
            raise LoweringError(f"{what} is {expr}, which is no constant")
        return value

    # ------------------------------------------------------------------------------- expressions

    def source(self, expr: Any) -> Any:
        """A number of the host function, as :func:`source` spells it."""
        return source(expr, self.leaf)

    def leaf(self, expr: Any) -> Any:
        """A variable of the host function: a let, a scalar parameter, or a tensor's dimension."""
        index = self.parameter(expr)
        if index is not None and self.params[index].kind == "scalar":
            return f"a{index}"
        if type(expr).__name__ == "Var":
            held = self.alias.get(_identity(expr))
            if held is not None:
                return self.source(held)
        if _struct(expr) == _ELEMENT:  # an element of a tensor's shape or strides
            of, k = self.resolved(expr.args[0]), int(expr.args[1].value)
            index = self.parameter(of.args[0]) if _struct(of) is not None else None
            if index is not None and _struct(of) == _SHAPE:
                return f"d{index}_{k}"
            if index is not None and _struct(of) == _STRIDES:  # arrays are row-major
                rank = len(self.params[index].shape or ())
                return "(" + " * ".join(["1", *(f"d{index}_{i}" for i in range(k + 1, rank))]) + ")"
        raise LoweringError(f"the host function computes {expr}, which is not supported")

    def resolved(self, expr: Any) -> Any:
        """An expression with lets looked through."""
        for _ in range(16):
            held = self.alias.get(_identity(expr)) if type(expr).__name__ == "Var" else None
            if held is None:
                return expr
            expr = held
        return expr

    def parameter(self, expr: Any) -> int | None:
        """The index of the parameter whose value or handle an expression is, or None."""
        expr = self.resolved(expr)
        name = type(expr).__name__
        if name == "Var":
            index = self.names.get(str(expr.name))
            return index if index is not None and self.params[index].kind != "tensor" else None
        if _struct(expr) == _VALUE:
            return int(expr.args[1].value)
        if name == "Cast":
            return self.parameter(expr.value)
        if name == "Select":
            return self.parameter(expr.true_value)
        if name == "Call":
            called = str(expr.op.name)
            if called.endswith("if_then_else"):
                return self.parameter(expr.args[2])
            if called in ("tirx.reinterpret", "prim.reinterpret"):
                return self.parameter(expr.args[0])
        return None

    # ---------------------------------------------------------------------------------- pointers

    def argument(self, expr: Any) -> tuple[Any, ...]:
        """What a kernel argument is: a tensor, a tensor map, or a scalar."""
        if _identity(expr) in self.map_of:
            return "map", self.map_of[_identity(expr)]
        index = self.parameter(expr)
        if index is not None and self.params[index].kind == "map":
            self.map_of[_identity(expr)] = len(self.maps)
            self.maps.append(TensorMap(index))
            return "map", len(self.maps) - 1
        if type(expr.ty).__name__ == "PrimType":
            return "scalar", self.source(expr), str(expr.ty)
        if _tensor_map_on_stack(self.resolved(expr)):
            raise LoweringError(f"the tensor map {expr} is passed to the kernel and never encoded")
        return "tensor", *self.place(expr)

    def place(self, expr: Any) -> tuple[int, Any]:
        """The parameter that a pointer points into, and the byte offset in it."""
        offset: Any = 0
        for _ in range(32):
            name = str(getattr(expr, "name", ""))
            if name in self.names and self.params[self.names[name]].kind in ("tensor", "pointer"):
                return self.names[name], offset
            if type(expr).__name__ == "Call":
                called = str(expr.op.name)
                if called == "tirx.handle_add_byte_offset":
                    offset = _sum(offset, self.source(expr.args[1]))
                elif _struct(expr) in (_DATA, _VALUE):
                    index = self.parameter(expr.args[0] if _struct(expr) == _DATA else expr)
                    if index is None:
                        break
                    return index, offset
                elif called.endswith("address_of"):
                    load = expr.args[0]
                    size = _bits(str(load.source.dtype)) // 8
                    if len(load.indices) != 1:
                        break
                    by = self.source(load.indices[0])
                    offset = _sum(offset, by * size if isinstance(by, int) else f"({by} * {size})")
                    expr = load.source
                    continue
                elif called not in ("tirx.buffer_data", "tirx.reinterpret", "prim.reinterpret"):
                    break
                expr = expr.args[0]
                continue
            held = self.alias.get(_identity(expr))
            if held is None:
                break
            expr = held
        raise LoweringError(f"the kernel argument {expr} is no parameter of the host function")

    # ------------------------------------------------------------------------------- tensor maps

    def encode(self, encoded: Any) -> None:
        """A ``tensormap_encode_tiled``: map, data, shape, strides, box, element strides."""
        attrs = encoded.attrs
        target, data, *numbers = encoded.args
        codes = [int(attrs.interleave), int(attrs.swizzle), int(attrs.oob_fill)]
        forced = int(getattr(attrs, "force_cu_dtype", -1))
        dtype, rank = str(attrs.descriptor_dtype), int(attrs.rank)
        self.add_map(target, data, dtype, rank, [self.source(n) for n in numbers], codes, forced)

    def encode_packed(self, args: list[Any]) -> None:
        """A call of ``runtime.cuTensorMapEncodeTiled``: map, dtype, rank, data, and the numbers."""
        target, dtype, rank, data, *rest = args
        dims = self.constant(rank, "a tensor map's rank")
        numbers = [self.source(n) for n in rest]
        if len(numbers) not in (4 * dims + 3, 4 * dims + 4):
            raise LoweringError(
                f"runtime.cuTensorMapEncodeTiled of rank {dims} takes {4 * dims + 7} arguments, "
                f"and {len(args)} are passed"
            )
        interleave, swizzle, _l2, fill, *forced = numbers[4 * dims - 1 :]
        self.add_map(
            target,
            data,
            str(dtype.value),
            dims,
            numbers[: 4 * dims - 1],
            [interleave, swizzle, fill],
            forced[0] if forced else -1,
        )

    def add_map(
        self, target: Any, data: Any, dtype: str, rank: int, values: list[Any], codes: list[Any],
        forced: int,
    ) -> None:  # fmt: skip
        tensor, offset = self.place(data)
        self.map_of[_identity(target)] = len(self.maps)
        self.maps.append(
            TensorMap(
                tensor=tensor,
                offset=offset,
                dtype=dtype,
                shape=tuple(values[:rank]),
                strides=tuple(values[rank : 2 * rank - 1]),
                box=tuple(values[2 * rank - 1 : 3 * rank - 1]),
                steps=tuple(values[3 * rank - 1 : 4 * rank - 1]),
                interleave=codes[0],
                swizzle=codes[1],
                fill=codes[2],
                format=forced,
            )
        )


def _sum(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return b if a == 0 else f"({a} + {b})"


def _called(call_node: Any) -> str:
    """The name of the packed function that a call calls, or an empty string."""
    if str(call_node.op.name) not in ("tirx.tvm_call_packed", "tirx.call_packed"):
        return ""
    return str(getattr(call_node.args[0], "value", ""))


def _struct(expr: Any) -> int | None:
    """Which field of a struct an expression reads (``tvm_struct_get``), or None."""
    if type(expr).__name__ != "Call" or str(expr.op.name) != "tirx.tvm_struct_get":
        return None
    return int(expr.args[2].value)


def _tensor_map_on_stack(expr: Any) -> bool:
    return type(expr).__name__ == "Call" and str(expr.op.name) == "tirx.tvm_stack_alloca"


#: Launch parameters that have no value among the arguments. The first two say what the launch of
#: one kernel alone does anyway: all its CTAs run, and no kernel precedes it that it waits for.
_FLAGS = {
    "tirx.use_cooperative_launch",
    "tirx.use_programtic_dependent_launch",
    "tirx.use_required_block_dimension",
}

_EXTENTS = {
    "threadIdx": "block",
    "clusterCtaIdx": "cluster",
    "clusterIdx": "cluster",
}


def _identity(node: Any) -> int:
    """Identity of an IR node (Python objects are made afresh for each access)."""
    return int(node.__chandle__())
