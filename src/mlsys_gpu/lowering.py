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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlsys_gpu.release import TVM_VERSION, require_tvm

if TYPE_CHECKING:
    import tvm

#: Attribute that carries the author's source line through lowering, around each tile primitive.
LINE_KEY = "pragma_mlsys_gpu_line"

#: Architectures that this course writes kernels for, by their short names.
ARCHITECTURES = {"hopper": "sm_90a", "blackwell": "sm_100a"}


def _tvm() -> Any:
    """The ``tvm`` module, once its release has been checked."""
    require_tvm()
    import tvm
    import tvm.tirx

    return tvm


class LoweringError(ValueError):
    """A PrimFunc that TVM cannot lower, or whose host function launches in a way we do not know."""


@dataclass(frozen=True)
class Param:
    """One kernel argument: a tensor in global memory.

    ``shape`` is in elements; ``dtype`` as TVM spells it (``float16``, ``bfloat16``, …).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Launch:
    """A kernel launch: ``grid`` in CTAs, ``block`` in threads, ``cluster`` in CTAs,
    dynamic shared memory in bytes."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0

    @property
    def threads(self) -> int:
        """Threads of one CTA."""
        x, y, z = self.block
        return x * y * z

    @property
    def ctas(self) -> int:
        """CTAs of the grid."""
        x, y, z = self.grid
        return x * y * z


@dataclass(frozen=True)
class SharedRegion:
    """A named buffer that the kernel's author placed in dynamic shared memory.

    ``offset`` and ``nbytes`` are bytes from the start of dynamic shared memory.
    """

    name: str
    offset: int
    nbytes: int
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Lowered:
    """A PrimFunc after TVM's ``tirx`` pipeline, split into host and device."""

    name: str
    arch: str
    device: tvm.tirx.PrimFunc
    host: tvm.tirx.PrimFunc
    launch: Launch
    params: tuple[Param, ...]
    #: For each argument of the device function: index of the tensor in ``params`` it points to.
    arguments: tuple[int, ...]
    shared_regions: tuple[SharedRegion, ...]
    #: SHA-256 over the PrimFunc, its architecture and the TVM release.
    key: str


def arch_of(func: tvm.tirx.PrimFunc, arch: str | None = None) -> str:
    """Architecture a PrimFunc is for, as ``sm_90a`` or ``sm_100a``.

    In this order: the ``arch`` argument (``hopper``, ``blackwell`` or an ``sm_…`` name), the
    function's ``target`` attribute, and the instructions that it uses: ``wgmma`` exists on
    ``sm_90a`` only, ``tcgen05`` on ``sm_100a``. A kernel that names neither runs on both and is
    taken as ``sm_90a``.

    Raises ``ValueError`` for an architecture that is no ``sm_…`` name.
    """
    if arch is not None:
        arch = ARCHITECTURES.get(arch, arch)
        if not arch.startswith("sm_"):
            raise ValueError(
                f"unknown architecture {arch!r}: name hopper, blackwell, or an sm_… target"
            )
        return arch
    target = func.attrs.get("target") if func.attrs is not None else None
    if target is not None and "arch" in target.attrs:
        return str(target.attrs["arch"])
    text = func.script()
    if "tcgen05" in text or 'scope="tmem"' in text:
        return "sm_100a"
    return "sm_90a"


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
    tvm = _tvm()
    if isinstance(func, tvm.IRModule):
        functions = list(func.functions.values())
        if len(functions) != 1:
            raise LoweringError(
                f"the IRModule holds {len(functions)} functions; a kernel is exactly one PrimFunc"
            )
        func = functions[0]
    if not isinstance(func, tvm.tirx.PrimFunc):
        raise TypeError(f"a kernel is a tvm.tirx.PrimFunc, not {type(func).__name__}")
    arch = arch_of(func, arch)
    name = str(func.attrs["global_symbol"]) if "global_symbol" in func.attrs else "kernel"
    params = parameters(func)
    regions = tuple(_shared_regions(func.body))
    tagged = func.with_body(_tag_lines(func.body)) if keep_lines else func
    module = _run_pipeline(tagged, name, arch)
    host, device = _split(module)
    launch, arguments = _read_host(host, params)
    return Lowered(
        name=name,
        arch=arch,
        device=device,
        host=host,
        launch=launch,
        params=params,
        arguments=arguments,
        shared_regions=regions,
        key=content_key(func, arch),
    )


def content_key(func: Any, arch: str) -> str:
    """SHA-256 of a PrimFunc's content, its architecture and the TVM release (hex).

    Over the printed function: ``tvm.ir.save_json`` crashes on tile primitives in this release.
    """
    digest = hashlib.sha256()
    for part in (TVM_VERSION, arch, func.script(show_meta=True)):
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()


# --------------------------------------------------------------------------- before the pipeline


def parameters(func: Any) -> tuple[Param, ...]:
    """The tensors that a PrimFunc takes, in order; needs no lowering.

    Raises :class:`LoweringError` for a parameter that is no tensor or has a symbolic dimension.
    """
    params = []
    for param in func.params:
        shape = getattr(param, "shape", None)
        if shape is None:
            raise LoweringError(
                f"parameter {param} is no tensor: kernels take tensors in global memory only"
            )
        dims = []
        for dim in shape:
            if not hasattr(dim, "value"):
                raise LoweringError(
                    f"parameter {param.name} has the symbolic dimension {dim}: "
                    "build the kernel for concrete shapes"
                )
            dims.append(int(dim.value))
        params.append(Param(str(param.name), tuple(dims), str(param.dtype)))
    return tuple(params)


def _shared_regions(body: Any):
    """Named views of dynamic shared memory, as the author declared them."""
    stack = [body]
    while stack:
        stmt = stack.pop()
        kind = type(stmt).__name__
        if kind == "SeqStmt":
            stack.extend(reversed(list(stmt.seq)))
        elif kind == "IfThenElse":
            stack.extend(s for s in (stmt.else_case, stmt.then_case) if s is not None)
        elif kind in ("AttrStmt", "For", "While"):
            stack.append(stmt.body)
        elif kind == "DeclBuffer" and str(stmt.buffer.scope()).startswith("shared"):
            buffer = stmt.buffer
            offset, dims = buffer.elem_offset, list(buffer.shape)
            if not all(hasattr(x, "value") for x in dims):
                continue
            start = int(offset.value) if hasattr(offset, "value") else 0
            bits = _bits(str(buffer.dtype))
            count = 1
            for dim in dims:
                count *= int(dim.value)
            yield SharedRegion(
                name=str(buffer.name),
                offset=start * bits // 8,
                nbytes=count * bits // 8,
                shape=tuple(int(d.value) for d in dims),
                dtype=str(buffer.dtype),
            )


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


def _run_pipeline(func: Any, name: str, arch: str) -> Any:
    tvm = _tvm()
    target = cuda_target(arch)
    attrs = dict(func.attrs.items()) if func.attrs is not None else {}
    if "target" in attrs:  # the pipeline binds host and device itself
        func = func.without_attr("target")
    module = tvm.IRModule({name: func.with_attr("global_symbol", name)})
    pipeline, _, _ = tvm.tirx.get_tir_pipeline("tirx")
    try:
        with target:
            module = tvm.tirx.transform.BindTarget(target)(module)
            return pipeline(module)
    except Exception as error:  # TVM raises its own hierarchy, and plain ValueErrors
        raise LoweringError(f"TVM could not lower {name} for {arch}: {error}") from error


def _split(module: Any) -> tuple[Any, Any]:
    device = [f for f in module.functions.values() if "tirx.kernel_launch_params" in f.attrs]
    host = [f for f in module.functions.values() if "tirx.is_entry_func" in f.attrs]
    if len(device) != 1 or len(host) != 1:
        raise LoweringError(
            f"the lowered module holds {len(host)} host and {len(device)} device functions; "
            "expected one of each"
        )
    return host[0], device[0]


#: The launch parameters that TVM emits, and where each goes.
_AXES = {"x": 0, "y": 1, "z": 2}


def _read_host(host: Any, params: tuple[Param, ...]) -> tuple[Launch, tuple[int, ...]]:
    """The launch that the host function makes: its extents, and which tensor each argument is."""
    call, data_of = _find_launch(host, {p.name: i for i, p in enumerate(params)})
    names = [str(n) for n in call.attrs["launch_params"]] if call.attrs else []
    if not names:
        names = [str(n) for n in _launch_params(call)]
    values = list(call.args)[1:]
    arguments, extents = values[: len(values) - len(names)], values[len(values) - len(names) :]
    grid, block, cluster, shared = [1, 1, 1], [1, 1, 1], [1, 1, 1], 0
    for name, extent in zip(names, extents, strict=True):
        if not hasattr(extent, "value"):
            raise LoweringError(f"the launch extent {name} = {extent} is no constant")
        value = int(extent.value)
        head, _, axis = name.partition(".")
        if head == "blockIdx":
            grid[_AXES[axis]] = value
        elif head == "threadIdx":
            block[_AXES[axis]] = value
        elif head in ("clusterCtaIdx", "clusterIdx"):
            cluster[_AXES[axis]] = value
        elif name == "tirx.use_dyn_shared_memory":
            shared = value
        elif name in ("tirx.use_programtic_dependent_launch", "tirx.use_cooperative_launch"):
            raise LoweringError(f"the launch attribute {name} is not supported")
        else:
            raise LoweringError(f"unknown launch parameter {name}")
    indices = []
    for argument in arguments:
        index = data_of(argument)
        if index is None:
            raise LoweringError(f"the kernel argument {argument} is no tensor of the host function")
        indices.append(index)
    as3 = tuple[int, int, int]
    return Launch(as3(grid), as3(block), as3(cluster), shared), tuple(indices)


def _launch_params(call: Any) -> list[Any]:
    raise LoweringError(f"the kernel call {call} names no launch parameters")


def _find_launch(host: Any, index_of: dict[str, int]):
    """The ``call_ffi_kernel`` of a host function, and a map from its arguments to tensors."""
    alias: dict[int, Any] = {}
    calls = []
    stack = [host.body]
    while stack:
        stmt = stack.pop()
        kind = type(stmt).__name__
        if kind == "SeqStmt":
            stack.extend(reversed(list(stmt.seq)))
        elif kind == "IfThenElse":
            stack.extend(s for s in (stmt.else_case, stmt.then_case) if s is not None)
        elif kind in ("AttrStmt", "For", "While"):
            stack.append(stmt.body)
        elif kind == "DeclBuffer":
            alias[stmt.buffer.__hash__()] = (stmt.buffer, stmt.data)
        elif kind == "Evaluate" and type(stmt.value).__name__ == "Call":
            name = str(getattr(stmt.value.op, "name", ""))
            if name == "tirx.call_ffi_kernel":
                calls.append(stmt.value)
    if len(calls) != 1:
        raise LoweringError(f"the host function launches {len(calls)} kernels; expected one")

    def data_of(argument: Any) -> int | None:
        for _ in range(8):
            if type(argument).__name__ == "Call" and "buffer_data" in str(argument.op.name):
                argument = argument.args[0]
            name = str(getattr(argument, "name", ""))
            if name in index_of:
                return index_of[name]
            held = alias.get(argument.__hash__())
            if held is None:
                return None
            argument = held[1]
        return None

    return calls[0], data_of
