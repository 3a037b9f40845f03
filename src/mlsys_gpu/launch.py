"""Where kernels run: in the simulator or on a GPU, from the same ``PrimFunc``.

Both entries look at every argument before anything runs, so that a wrong shape is one sentence and
not an illegal address. On a GPU a kernel is compiled by ``tvm.compile`` the first time it is run;
what was compiled is kept, so a second call only launches. The expensive part, NVRTC, is also kept
on disk under the content of what it compiled, where :mod:`mlsys_gpu.artifacts` finds it too.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from mlsys_gpu import device
from mlsys_gpu import parameters as call
from mlsys_gpu.lowering import arch_of, parameters, pipeline_for_launch
from mlsys_gpu.parameters import ArgumentError, Param
from mlsys_gpu.tensormap import TensorMap, decode

if TYPE_CHECKING:
    from mlsys_gpu.sim import Report
    from mlsys_gpu.sim.debugger import Session
    from mlsys_gpu.sim.explain import Explanation

ALIGNMENT = 16
"""Bytes that a tensor's address on the GPU is a multiple of: what vector loads and TMA need."""


# ------------------------------------------------------------------------------------- arguments


def _a(value: Any) -> str:
    """The name of a value's type with its article: ``a list``, ``an int``."""
    name = type(value).__name__
    return f"an {name}" if name[:1].lower() in tuple("aeiou") else f"a {name}"


@dataclass(frozen=True)
class _Argument:
    """What there is to know about one array, whichever library it came from."""

    array: Any
    dtype: str
    shape: tuple[int, ...]
    contiguous: bool
    writable: bool
    place: str  # "the CPU", "cuda:0", …
    gpu: int | None

    @classmethod
    def of(cls, array: Any, label: str) -> _Argument:
        """Read NumPy arrays and torch tensors without importing torch for those who have none."""
        if type(array).__module__.partition(".")[0] == "torch" or hasattr(array, "is_cuda"):
            return cls._of_tensor(array, label)
        import numpy as np

        if not isinstance(array, np.ndarray):
            raise ArgumentError(
                f"{label} is {_a(array)}, but kernels take NumPy arrays and torch tensors"
            )
        return cls(
            array=array,
            dtype=array.dtype.name if array.dtype.isnative else f"byte-swapped {array.dtype.name}",
            shape=array.shape,
            contiguous=array.flags.c_contiguous,
            writable=array.flags.writeable,
            place="the CPU",
            gpu=None,
        )

    @classmethod
    def _of_tensor(cls, tensor: Any, label: str) -> _Argument:
        import torch

        if not isinstance(tensor, torch.Tensor):
            raise ArgumentError(f"{label} is {_a(tensor)}, but kernels take tensors")
        if tensor.device.type not in ("cpu", "cuda"):
            raise ArgumentError(
                f"{label} is on {tensor.device}, but kernels run on CUDA devices and, simulated, "
                "on CPU tensors"
            )
        return cls(
            array=tensor,
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(tensor.shape),
            contiguous=tensor.layout == torch.strided and tensor.is_contiguous(),
            writable=True,
            place=str(tensor.device) if tensor.is_cuda else "the CPU",
            gpu=tensor.get_device() if tensor.is_cuda else None,
        )

    def as_numpy(self, dtype: str) -> Any:
        """A NumPy view of the same memory, bfloat16 through ml_dtypes."""
        from mlsys_gpu.verification import numpy_dtype

        view = self.array
        if hasattr(view, "detach"):
            import torch

            view = view.detach()
            if view.dtype == torch.bfloat16:  # NumPy has no such type: hand over the bits
                view = view.view(torch.uint16)
            view = view.numpy()
        return view.view(numpy_dtype(dtype)) if dtype == "bfloat16" else view


def _name(kernel: Any) -> str:
    attrs = getattr(kernel, "attrs", None)
    if attrs is not None and "global_symbol" in attrs:
        return str(attrs["global_symbol"])
    return str(getattr(kernel, "name", "kernel"))


def _params(kernel: Any) -> tuple[Param, ...]:
    """Parameters of a PrimFunc, or of a handle that already knows them (Lowered, Program)."""
    params = getattr(kernel, "params", None)
    if params is None:
        raise ArgumentError(f"a kernel is a TIRx PrimFunc, got {type(kernel).__name__}")
    if hasattr(kernel, "source"):  # the simulator's Program, whose values are JSON's
        return tuple(
            Param(name, None if shape is None else tuple(shape), dtype, i in kernel.workspaces)
            for i, (name, shape, dtype) in enumerate(params)
        )
    if hasattr(kernel, "launch"):  # Lowered
        return params
    return parameters(kernel)


@dataclass(frozen=True)
class _Call:
    """The arguments of a call: each parameter with what was given for it."""

    params: tuple[Param, ...]
    #: An :class:`_Argument` for arrays, else the value itself: a number, a map, None.
    values: tuple[Any, ...]

    @property
    def arrays(self) -> list[tuple[Param, _Argument]]:
        """The arrays, with their parameters."""
        pairs = zip(self.params, self.values, strict=True)
        return [(p, v) for p, v in pairs if isinstance(v, _Argument)]

    @property
    def output(self) -> int | None:
        """The position of the last array that is no workspace: the output."""
        pairs = enumerate(zip(self.params, self.values, strict=True))
        found = [i for i, (p, v) in pairs if isinstance(v, _Argument) and not p.workspace]
        return found[-1] if found else None

    @property
    def gpu(self) -> int | None:
        """The GPU that the arrays, or where there are none the tensor maps' arrays, are on."""
        for value in self.values:
            if isinstance(value, _Argument):
                return value.gpu
        for value in self.values:
            owner = value.memory.owner if isinstance(value, TensorMap) else None
            if owner is not None and getattr(owner, "is_cuda", False):
                return owner.get_device()
        return None

    def simulated(self) -> list[Any]:
        """The arguments for the simulator: NumPy views of the arrays' memory."""
        return [
            v.as_numpy(p.dtype if p.kind == "tensor" else v.dtype)
            if isinstance(v, _Argument)
            else v
            for p, v in zip(self.params, self.values, strict=True)
        ]

    def compiled(self) -> list[Any]:
        """The arguments for a compiled kernel: tensors, numbers, pointers to encoded maps."""
        return [
            v.array if isinstance(v, _Argument) else v.encode() if isinstance(v, TensorMap) else v
            for v in self.values
        ]


def _checked(kernel: Any, given: Sequence[Any]) -> _Call:
    """Look at all arguments of a call.

    The last array is the output: it must be writable. A workspace may be left out: there is a new
    one then.

    Raises:
        ArgumentError: for the first argument that breaks a rule.
    """
    name, params = _name(kernel), _params(kernel)
    given = _with_workspaces(params, given, lambda param: _zeros(param, given))
    if len(given) != len(params):
        asked = [p for p in params if not p.workspace]
        names = ", ".join(p.name for p in asked)
        what = "arrays" if all(p.kind == "tensor" for p in asked) else "arguments"
        raise ArgumentError(f"{name} takes {len(asked)} {what} ({names}), got {len(given)}")
    values = []
    for param, value in zip(params, given, strict=True):
        label = f"{name}: {param.name}"
        if param.kind == "scalar":
            values.append(call.scalar(value, param.dtype, label))
        elif param.kind == "map":
            values.append(_map(value, label))
        elif param.kind == "pointer" and value is None:
            values.append(None)
        else:
            argument = _Argument.of(value, label)
            _check_one(param, argument, label)
            values.append(argument)
    checked = _Call(params, tuple(values))
    try:
        call.match(
            params,
            [
                v.shape if p.kind == "tensor" and isinstance(v, _Argument) else None
                for p, v in zip(params, values, strict=True)
            ],
            {p.name: v for p, v in zip(params, values, strict=True) if p.kind == "scalar"},
        )
    except ArgumentError as error:
        raise ArgumentError(f"{name}: {error}") from None
    places = {argument.place for _, argument in checked.arrays}
    if len(places) > 1:
        where = ", ".join(f"{p.name} on {a.place}" for p, a in checked.arrays)
        raise ArgumentError(f"{name}: all arrays must be in one place, got {where}")
    if checked.output is not None and not values[checked.output].writable:
        raise ArgumentError(f"{name}: the output {params[checked.output].name} is read-only")
    return checked


def _with_workspaces(
    params: Sequence[Param], given: Sequence[Any], make: Callable[[Param], Any]
) -> Sequence[Any]:
    """The arguments of a call that leaves workspaces out, with those that ``make`` makes."""
    asked = sum(not p.workspace for p in params)
    if asked == len(params) or len(given) != asked:
        return given
    rest = iter(given)
    return [make(p) if p.workspace else next(rest) for p in params]


def _zeros(param: Param, given: Sequence[Any]) -> Any:
    """A workspace, where the arrays of a call are."""
    shape = tuple(int(d) for d in param.shape or ())
    for array in given:
        if getattr(array, "is_cuda", False):
            import torch

            return torch.zeros(shape, dtype=getattr(torch, param.dtype), device=array.device)
    import numpy as np

    return np.zeros(shape, param.dtype)


def _map(value: Any, label: str) -> Any:
    """A tensor map as the simulator and the GPU take it: what was encoded here, or a pointer."""
    found = decode(value)
    if found is not None:
        return found
    if isinstance(value, (ctypes.c_void_p, int)) and not isinstance(value, bool):
        return value  # the driver may have encoded it; the simulator refuses what it cannot read
    what = "None" if value is None else f"a {type(value).__name__}"
    raise ArgumentError(f"{label} is {what}, but must be a tensor map (mlsys_gpu.TensorMap)")


def _check_one(param: Param, argument: _Argument, label: str) -> None:
    if 0 in argument.shape and not param.symbolic:
        built = f"; the kernel is built for {param.shape}" if param.shape is not None else ""
        raise ArgumentError(f"{label} has shape {argument.shape} and so no elements{built}")
    # uint16 holds the bits of a bfloat16 where NumPy lacks the type
    raw_bits = param.dtype == "bfloat16" and argument.dtype == "uint16"
    if param.kind == "tensor" and argument.dtype != param.dtype and not raw_bits:
        raise ArgumentError(f"{label} has dtype {argument.dtype}, but must have {param.dtype}")
    if param.kind == "tensor" and not param.symbolic and argument.shape != param.shape:
        raise ArgumentError(
            f"{label} has shape {argument.shape}, but the kernel is built for {param.shape}"
        )
    if not argument.contiguous:
        raise ArgumentError(f"{label} is not contiguous in row-major order; pass a copy that is")
    if argument.gpu is not None and argument.array.data_ptr() % ALIGNMENT:
        address = argument.array.data_ptr()
        raise ArgumentError(
            f"{label} starts at address {address:#x}, but must start at a multiple of "
            f"{ALIGNMENT} bytes; pass a copy"
        )


# ------------------------------------------------------------------------------------- simulator


def simulate(
    kernel: Any,
    *arrays: Any,
    schedule: str = "lazy",
    schedule_seed: int = 0,
    checks: bool = True,
    readings: dict[str, str] | None = None,
    arch: str | None = None,
    timing: bool | str = False,
) -> Report:
    """Run a kernel in the simulator.

    Args:
        kernel: any TIRx ``PrimFunc``, or a handle that the simulator compiled from one.
        arrays: one argument for each parameter, in order. For tensors NumPy arrays or torch CPU
            tensors, row-major; bfloat16 is ``torch.bfloat16``, ml_dtypes' ``bfloat16``, or its
            bits as ``uint16``; symbolic dimensions get their values from the arrays' shapes. For
            scalars Python's or NumPy's numbers. For tensor maps :class:`mlsys_gpu.TensorMap`, or a
            pointer to one that the host encoded (:func:`mlsys_gpu.tensormap.host_encoding`). For
            raw pointers arrays, or None. What the kernel writes is filled in place. Tensors of the
            kernel's own (:class:`mlsys_gpu.parameters.Param`) may be left out.
        schedule: when asynchronous effects land: ``"eager"`` (at once), ``"lazy"`` (as late as is
            legal) or ``"seeded"`` (anywhere between, drawn from ``schedule_seed``).
        schedule_seed: seed of the schedule.
        checks: look for races, uninitialised reads, out-of-bounds accesses and misuse.
        readings: which readings of the ISA hold where its text leaves room, by the names of
            ``mlsys_gpu.sim.machine.READINGS``: ``{"wgmma-wait": "warp"}``.
        arch: the architecture, ``hopper``, ``blackwell`` or an ``sm_…`` name, for a kernel that
            does not say it.
        timing: record the run for the model of time, of the architecture's usual GPU (``True``) or
            of the one named (``"h200"``, ``"b200"``).

    Returns:
        The report: ``.ok``, ``.findings``, counters; ``.readings`` names those that mattered. Of a
        timed run also ``.timing`` and ``.timeline()``.

    Raises:
        ArgumentError: an argument that the kernel cannot take, before anything runs.
    """
    checked = _checked(kernel, arrays)
    if checked.gpu is not None:
        raise ArgumentError(
            f"{_name(kernel)}: the simulator takes CPU arrays, got tensors on "
            f"cuda:{checked.gpu}; pass A.cpu() and so on, or run on the GPU with mg.run"
        )
    how = _how(schedule, schedule_seed, readings, checks=checks)
    simulator = importlib.import_module("mlsys_gpu.sim")
    return simulator.simulate(kernel, *checked.simulated(), arch=arch, timing=timing, **how)


def model(
    kernel: Any,
    *arrays: Any,
    gpu: Any = None,
    clusters: int | None = None,
    arch: str | None = None,
    registers: int | None = None,
) -> Any:
    """The modelled duration of a launch on a GPU, from a few of its clusters.

    For sizes that would take too long to execute: the clusters that run stand for all of them.

    Args:
        kernel: any TIRx ``PrimFunc``.
        arrays: as for :func:`simulate`; they are not changed. Without any, zeros of the declared
            shapes stand for the tensors (a kernel with other arguments needs them).
        gpu: whose constants hold: ``"h200"``, ``"b200"``, a file of constants, or a ``Gpu``; the
            architecture's usual one by default.
        clusters: how many clusters run, 6 by default.
        arch: as for :func:`simulate`.
        registers: of a thread; by default the compiler is asked.

    Returns:
        The :class:`mlsys_gpu.sim.timing.Timing`: ``.microseconds``, ``.tflops(flops)``,
        ``.occupancy``, ``.statistics()``, ``.timeline()``; ``print`` gives a summary.

    Raises:
        ArgumentError: an argument that the kernel cannot take, or a GPU that is not known or of
            another architecture.
    """
    checked = _checked(kernel, arrays).simulated() if arrays else ()
    simulator = importlib.import_module("mlsys_gpu.sim")
    try:
        return simulator.model(
            kernel, *checked, gpu=gpu, clusters=clusters, arch=arch, registers=registers
        )
    except ValueError as error:
        raise ArgumentError(str(error)) from error


def _how(schedule: Any, schedule_seed: Any, readings: Any, **switches: Any) -> dict[str, Any]:
    """Options of a simulation, looked at before anything is compiled.

    Raises:
        ArgumentError: an option that is none; the message names the value and what it may be.
    """
    from mlsys_gpu.sim import machine

    for name, value in switches.items():
        if not isinstance(value, bool):
            raise ArgumentError(f"{name} is True or False, not {value!r}")
    try:
        machine.check_options(schedule, schedule_seed, readings)
    except ValueError as error:
        raise ArgumentError(str(error)) from None
    return {
        "schedule": schedule, "schedule_seed": schedule_seed, "readings": readings, **switches
    }  # fmt: skip


def debug(
    kernel: Any,
    *arrays: Any,
    at: str | int | None = None,
    warp: int | Sequence[int] | None = None,
    cta: Any = None,
    schedule: str = "lazy",
    schedule_seed: int = 0,
    checks: bool = True,
    findings: bool = True,
    readings: dict[str, str] | None = None,
    arch: str | None = None,
) -> Session:
    """Run a kernel in the simulator under control: stop, look, step on.

    Args:
        kernel: any TIRx ``PrimFunc``.
        arrays: as for :func:`simulate`. Outputs are filled when the run comes to its end.
        at: run to this line first: its number in the kernel's own file, ``"file.py:93"``, or a part
            of its text (``"Tx.gemm_async"``). Without it the session stands before the first line.
        warp, cta: whose line: the index of a warp in its CTA, or several; a block index. Any if
            left out.
        schedule, schedule_seed, checks, readings, arch: as for :func:`simulate`; the run is the
            same.
        findings: stop at every finding.

    Returns:
        A :class:`mlsys_gpu.sim.debugger.Session`: ``step()``, ``run_until(…)``, ``cont()``,
        ``variables``, ``smem("As", stage=1)``, ``tmem(0, 8)``, ``barriers``, ``waits``,
        ``shell()``, …

    Raises:
        ArgumentError: an array that the kernel cannot take, before anything runs.
        DebugError: ``at``, ``warp`` or ``cta`` do not exist. Where they do and nobody comes there,
            the session stands at the end of the run and says so.
    """
    checked = _checked(kernel, arrays)
    if checked.gpu is not None:
        raise ArgumentError(
            f"{_name(kernel)}: the debugger runs in the simulator and takes CPU arrays, got "
            f"tensors on cuda:{checked.gpu}; pass A.cpu() and so on"
        )
    how = _how(schedule, schedule_seed, readings, checks=checks, findings=findings)
    debugger = importlib.import_module("mlsys_gpu.sim.debugger")
    return debugger.debug(kernel, *checked.simulated(), at=at, warp=warp, cta=cta, arch=arch, **how)


def explain(
    kernel: Any,
    *arrays: Any,
    reference: Any = None,
    element: Sequence[int] | None = None,
    output: str | None = None,
    tolerance: float | None = None,
    schedule: str = "lazy",
    schedule_seed: int = 0,
    readings: dict[str, str] | None = None,
    arch: str | None = None,
) -> Explanation:
    """Where a wrong number that a kernel computes comes from.

    Runs the kernel in the simulator, on copies of the arrays. ``report.explain(D, reference)`` does
    the same after a simulation.

    Args:
        kernel: any TIRx ``PrimFunc``.
        arrays: as for :func:`simulate`.
        reference: what the output should hold, of its shape (any dtype).
        element: the element to explain; the one furthest from the reference if left out.
        output: the parameter's name; the last one if left out.
        tolerance: how far from the reference an element is still right, relative to it and to the
            reference's root mean square; four times the dtype's rounding if left out.
        schedule, schedule_seed, readings, arch: as for :func:`simulate`.

    Returns:
        An :class:`mlsys_gpu.sim.explain.Explanation`: which tiles are wrong, who wrote the element,
        which elements of the operands met for it, which part of K is missing or was added twice.

    Raises:
        ArgumentError: an array that the kernel cannot take.
        ValueError: no element is wrong, and none is named.
    """
    checked = _checked(kernel, arrays)
    if checked.gpu is not None:
        raise ArgumentError(
            f"{_name(kernel)}: numbers are explained in the simulator, which takes CPU arrays, got "
            f"tensors on cuda:{checked.gpu}; pass A.cpu() and so on"
        )
    how = _how(schedule, schedule_seed, readings)
    module = importlib.import_module("mlsys_gpu.sim.explain")
    return module.explain(
        kernel,
        *checked.simulated(),
        output=output,
        reference=reference,
        element=element,
        tolerance=tolerance,
        arch=arch,
        **how,
    )


# ------------------------------------------------------------------------------------------- GPU


@dataclass(frozen=True)
class GpuRun:
    """A kernel that ran on a GPU and came to its end.

    ``seconds`` is the time of the kernel alone, where it was taken: one launch, for an order of
    magnitude. ``mg.benchmark`` measures.
    """

    kernel: str
    device: device.Device
    seconds: float | None = None

    def __str__(self) -> str:
        took = "" if self.seconds is None else f" in {self.seconds * 1e6:.1f} µs"
        return f"{self.kernel} ran on {self.device.name}{took}"


class Compiled:
    """A kernel compiled for its GPU architecture; calling it launches it.

    Args of a call: contiguous CUDA tensors of the kernel's shapes and dtypes, which are not
    looked at again. The launch goes to torch's current stream and returns at once. A workspace
    that is left out is one that all such launches on a GPU share: they must not overlap.
    """

    def __init__(
        self, name: str, arch: str, function: Any, executable: Any, params: Sequence[Param] = ()
    ):
        self.name = name
        self.arch = arch
        self._function = function
        self._executable = executable  # owns the loaded module
        self._params = params
        self._workspaces: dict[tuple[str, str], Any] = {}  # by name and device

    def __call__(self, *tensors: Any) -> None:
        if len(tensors) < len(self._params):
            tensors = tuple(_with_workspaces(self._params, tensors, partial(self._own, tensors)))
        self._function(*tensors)

    def _own(self, tensors: Sequence[Any], param: Param) -> Any:
        """The workspace of launches on the GPU that the tensors are on."""
        key = (param.name, str(tensors[0].device))
        if key not in self._workspaces:
            self._workspaces[key] = _zeros(param, tensors)
        return self._workspaces[key]


_COMPILED_LIMIT = 64
# id of the PrimFunc -> (the PrimFunc, which keeps that id taken, and what it compiled to)
_compiled: OrderedDict[int, tuple[Any, Compiled]] = OrderedDict()


def compile_for_gpu(kernel: Any) -> Compiled:
    """Compile a ``PrimFunc`` for the GPU architecture that it is for, once.

    Needs the CUDA driver. The 64 kernels used last stay compiled.
    """
    held = _compiled.get(id(kernel))
    if held is not None:
        _compiled.move_to_end(id(kernel))
        return held[1]
    compiled = _compile(kernel)
    _compiled[id(kernel)] = (kernel, compiled)
    while len(_compiled) > _COMPILED_LIMIT:
        _compiled.popitem(last=False)
    return compiled


def _compile(kernel: Any) -> Compiled:
    import tvm

    name, arch = _name(kernel), arch_of(kernel)
    # without a host of its own the target gets LLVM: no C compiler is needed on the machine
    target = tvm.target.Target({"kind": "cuda", "arch": arch})
    function = kernel.without_attr("target") if "target" in kernel.attrs else kernel
    with _our_compiler(arch):
        executable = tvm.compile(
            function.with_attr("global_symbol", name),
            target=target,
            tir_pipeline=pipeline_for_launch(),
        )
        entry = executable[name]
    return Compiled(name, arch, entry, executable, parameters(kernel))


_CALLBACK = "tvm_callback_cuda_compile"


@contextlib.contextmanager
def _our_compiler(arch: str) -> Iterator[None]:
    """While active, TVM compiles CUDA through :mod:`mlsys_gpu.artifacts`.

    So what runs is what ``inspect`` shows, from the same cache on disk. Where that cannot start,
    for want of a header or a tool, TVM's own way is taken: it looks for a CUDA toolkit.
    """
    import tvm_ffi

    from mlsys_gpu import artifacts

    original: Any = tvm_ffi.get_global_func(_CALLBACK)

    def compile_cuda(code: str) -> bytes:
        try:
            return artifacts.compile_cuda(code, arch).cubin
        except artifacts.CompileError:
            raise  # the source is at fault, and TVM's compiler would say the same
        except Exception:  # MissingTool, and what other releases of cuda-python raise
            return bytes(original(code))

    tvm_ffi.register_global_func(_CALLBACK, compile_cuda, override=True)
    try:
        yield
    finally:
        tvm_ffi.register_global_func(_CALLBACK, original, override=True)


def run(kernel: Any, *arrays: Any) -> Report | GpuRun:
    """Run a kernel where its arrays are: CUDA tensors on the GPU, CPU arrays in the simulator.

    Args:
        kernel: a TIRx ``PrimFunc``.
        arrays: as for :func:`simulate`, or torch CUDA tensors, contiguous and 16-byte aligned.

    Returns:
        On the CPU the simulator's report; on a GPU, once the kernel has ended, a
        :class:`GpuRun`.

    Raises:
        ArgumentError: an argument that the kernel cannot take, before anything runs.
        ArchitectureMismatch: CUDA tensors on a GPU of another architecture than the kernel's.
    """
    checked = _checked(kernel, arrays)
    gpu = checked.gpu
    if gpu is None:
        return simulate(kernel, *arrays)
    import torch

    on = device.devices()[gpu]
    device.refuse_other_architecture(_name(kernel), arch_of(kernel), on)
    with torch.cuda.device(gpu):
        compile_for_gpu(kernel)(*checked.compiled())
        torch.cuda.synchronize()
    return GpuRun(_name(kernel), on)


def run_on_gpu(kernel: Any, *arrays: Any) -> GpuRun:
    """Run a kernel on this machine's GPU, from CPU arrays and back.

    The arrays are copied to the GPU; the kernel is launched once to load it and once more, timed,
    on the output as it was handed in (poison it to see what stays unwritten); the output, the last
    array, is copied back in place.

    Args:
        kernel: a TIRx ``PrimFunc``.
        arrays: as for :func:`simulate`.

    Raises:
        ArgumentError: an array that the kernel cannot take.
        NeedsGpu: no GPU of the kernel's architecture, or torch cannot use it.
    """
    checked = _checked(kernel, arrays)
    name, output = _name(kernel), checked.output
    on = device.require(arch_of(kernel), f"running {name}")
    torch = torch_with_cuda(f"running {name}")
    if output is None or any(p.kind == "map" for p in checked.params):
        raise ArgumentError(f"{name} takes tensor maps: encode them on the GPU and use mg.run")
    views = checked.simulated()
    tensors = [_to_gpu(v) if hasattr(v, "shape") and v.shape else v for v in views]
    compiled = compile_for_gpu(kernel)
    # the first launch loads the module, into an output that nobody looks at
    compiled(*(torch.empty_like(t) if i == output else t for i, t in enumerate(tensors)))
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    compiled(*tensors)
    end.record()
    torch.cuda.synchronize()
    views[output][...] = _from_gpu(tensors[output]).view(views[output].dtype)
    return GpuRun(name, on, start.elapsed_time(end) / 1e3)


def torch_with_cuda(purpose: str) -> Any:
    """The ``torch`` module, if it can use this machine's GPU.

    Raises:
        NeedsGpu: torch is not installed, is built without CUDA, or sees no GPU; ``purpose`` is
            the sentence's subject.
    """
    try:
        import torch
    except ImportError:
        raise device.NeedsGpu(
            f"{purpose} needs PyTorch with CUDA; torch is not installed."
        ) from None
    if not torch.cuda.is_available():
        what = "is built without it" if torch.version.cuda is None else "sees no GPU"
        raise device.NeedsGpu(
            f"{purpose} needs PyTorch with CUDA; torch {torch.__version__} {what}."
        )
    return torch


def _to_gpu(array: Any) -> Any:
    """A copy of a NumPy array on torch's current GPU; bfloat16 travels as its bits."""
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view("uint16")).view(torch.bfloat16).cuda()
    return torch.from_numpy(array).cuda()


def _from_gpu(tensor: Any) -> Any:
    """The same way back; bfloat16 arrives as its bits, ``uint16``."""
    import torch

    tensor = tensor.cpu()
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
