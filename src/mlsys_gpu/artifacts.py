"""What a kernel becomes: CUDA C++, PTX, machine code and its resources, on any Linux machine.

    artifacts = mlsys_gpu.inspect(kernel)
    artifacts.cuda, artifacts.ptx, artifacts.sass, artifacts.resources

No GPU and no CUDA toolkit is needed. TVM writes the CUDA C++; NVRTC (from its wheel, through
cuda-python) makes PTX and a cubin, with headers that come as wheels too; ``nvdisasm`` (a wheel)
reads the cubin back. Results are kept in :mod:`mlsys_gpu.cache`.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlsys_gpu import cache
from mlsys_gpu.lowering import Launch, Lowered, lower

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

_INSTALL = "pip install -r requirements.txt brings it (on Linux: NVIDIA has none for macOS)"

# NVRTC knows neither the driver's tensor map type nor math.h's INFINITY.
_PREAMBLE = """\
struct alignas(64) CUtensorMap_st { unsigned long long opaque[16]; };
typedef struct CUtensorMap_st CUtensorMap;
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
"""

# The options that TVM itself compiles with, so that what is inspected is what runs.
_OPTIONS = (
    "-default-device",
    "--device-int128",
    "--use_fast_math",
    "--ptxas-options=-v",
    "--ptxas-options=--register-usage-level=10",
    "--ptxas-options=--warn-on-local-memory-usage",
)


class CompileError(RuntimeError):
    """NVRTC or ptxas refused the generated code. The message holds their log."""


class MissingTool(RuntimeError):
    """A compiler, header or disassembler is not installed. The message says what and how."""


@dataclass(frozen=True)
class Compiled:
    """What NVRTC makes of one CUDA source; the log holds ptxas's report."""

    ptx: str
    cubin: bytes
    log: str


class Artifacts:
    """What a kernel becomes on its way to the GPU. Each stage is made when it is first read."""

    def __init__(self, lowered: Lowered):
        self.lowered = lowered

    def __repr__(self) -> str:
        return f"<Artifacts of {self.name} for {self.arch}: cuda, ptx, sass, resources>"

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.lowered.name

    @property
    def arch(self) -> str:
        """``sm_90a`` or ``sm_100a``."""
        return self.lowered.arch

    @property
    def launch(self) -> Launch:
        """Grid, block, cluster and dynamic shared memory."""
        return self.lowered.launch

    @cached_property
    def cuda(self) -> str:
        """CUDA C++ source, as TVM generates it."""
        return cuda_source(self.lowered)

    @cached_property
    def _compiled(self) -> Compiled:
        return compile_cuda(self.cuda, self.arch)

    @property
    def ptx(self) -> str:
        """PTX: NVIDIA's virtual instruction set."""
        return self._compiled.ptx

    @property
    def cubin(self) -> bytes:
        """Machine code as an ELF file."""
        return self._compiled.cubin

    @cached_property
    def sass(self) -> str:
        """The machine code, disassembled."""
        return disassemble(self.cubin)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What ptxas warns about (serialised ``wgmma``, local memory, …).

        Also what it calls information but names a loss: that it ignores ``setmaxnreg``, say.
        """
        return _warnings(self._compiled.log)

    @cached_property
    def resources(self) -> dict[str, int]:
        """Registers, spill and stack bytes of a thread; shared bytes and threads of a CTA."""
        return _resources(self._compiled.log, str(self.lowered.device.attrs["global_symbol"])) | {
            "dynamic_shared_bytes": self.launch.shared_bytes,
            "threads": self.launch.threads,
        }


def inspect(kernel: PrimFunc | Lowered, arch: str | None = None) -> Artifacts:
    """CUDA, PTX, SASS and resources of a TIRx ``PrimFunc``. Needs no GPU.

    ``arch`` (``hopper``, ``blackwell``, ``sm_…``) says what a kernel is for that does not say it.
    Raises ``ValueError`` for a kernel that TVM cannot lower. The stages raise :class:`CompileError`
    with the compiler's log, or :class:`MissingTool`.
    """
    if isinstance(kernel, Lowered):
        if arch is not None:
            raise ValueError("a lowered kernel has its architecture already: leave arch out")
        return Artifacts(kernel)
    return Artifacts(lower(kernel, arch))


def cuda_source(lowered: Lowered) -> str:
    """The CUDA C++ that TVM generates for the device function."""
    import tvm

    pipeline: Any = tvm.tirx.get_tir_pipeline("tirx")
    finalize_device = pipeline[2]
    module = tvm.IRModule({str(lowered.device.attrs["global_symbol"]): lowered.device})
    build: Any = tvm.get_global_func("target.build.cuda")
    with _no_compilation():
        built = build(finalize_device()(module), lowered.device.attrs["target"])
    return built.inspect_source("cuda")


@contextlib.contextmanager
def _no_compilation() -> Iterator[None]:
    """While active, TVM generates CUDA and compiles none of it.

    On a machine with a GPU it would compile for that GPU's architecture, whatever the kernel's is.
    """
    import tvm_ffi

    callback = "tvm_callback_cuda_compile"
    original: Any = tvm_ffi.get_global_func(callback)
    # never loaded: the module that holds it is only asked for its source
    tvm_ffi.register_global_func(callback, lambda code: b"// not compiled", override=True)
    try:
        yield
    finally:
        tvm_ffi.register_global_func(callback, original, override=True)


def compile_cuda(
    source: str, arch: str, options: Sequence[str] = _OPTIONS, *, headers: bool = True
) -> Compiled:
    """Compile CUDA C++ for ``arch`` (``sm_90a``) with NVRTC: PTX, cubin and the compiler's log.

    ``options`` are those that TVM compiles with, if left out; ``headers`` says whether the source
    needs CUDA's. Cached by source, architecture, options and compiler version. Raises
    :class:`CompileError`.
    """
    nvrtc = _nvrtc()
    version = ".".join(map(str, nvrtc.nvrtcVersion()[1:]))
    entry = cache.key(source, arch, _PREAMBLE, *options, version)
    if held := cache.read("nvrtc", entry):
        text = json.loads(held)
        return Compiled(text["ptx"], base64.b64decode(text["cubin"]), text["log"])
    compiled = _run_nvrtc(nvrtc, source, arch, options, headers)
    text = {
        "ptx": compiled.ptx,
        "cubin": base64.b64encode(compiled.cubin).decode(),
        "log": compiled.log,
    }
    cache.write("nvrtc", entry, json.dumps(text).encode())
    return compiled


def disassemble(cubin: bytes) -> str:
    """SASS text of a cubin, by ``nvdisasm``. Raises :class:`MissingTool` if there is none."""
    tool = _nvdisasm()
    entry = cache.key(cubin)
    if held := cache.read("sass", entry):
        return held.decode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        done = subprocess.run([tool, "-c", str(path)], capture_output=True, text=True)
    if done.returncode:
        raise CompileError(f"nvdisasm could not read the cubin: {done.stderr.strip()}")
    cache.write("sass", entry, done.stdout.encode())
    return done.stdout


# ------------------------------------------------------------------------------------ NVRTC


def _nvrtc() -> Any:
    try:
        nvrtc = importlib.import_module("cuda.bindings.nvrtc")
        nvrtc.nvrtcVersion()  # loads the library
    except Exception as error:  # ImportError, or cuda-python's own "library not found"
        raise MissingTool(f"assembling needs cuda-python and NVRTC; {_INSTALL}. {error}") from error
    return nvrtc


# The headers that generated code includes, and the wheels that hold them.
_HEADERS = {
    "cuda_fp16.h": "nvidia-cuda-runtime",
    "crt/host_defines.h": "nvidia-cuda-crt",
    "cccl/cuda/std/cstdint": "nvidia-cuda-cccl",
}


@lru_cache(maxsize=1)
def _include_paths() -> tuple[str, str]:
    """Folders of CUDA's headers: those of the wheels, else those of an installed toolkit."""
    from cuda.pathfinder import find_nvidia_header_directory

    wheels = find_nvidia_header_directory("cudart")
    homes = [os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    folders = [*([Path(wheels)] if wheels else []), *(Path(h) / "include" for h in homes if h)]
    for folder in folders:
        if all((folder / header).is_file() for header in _HEADERS):
            return str(folder), str(folder / "cccl")
    first = folders[0]
    header = next(h for h in _HEADERS if not (first / h).is_file())
    raise MissingTool(f"assembling needs {header} of {_HEADERS[header]}; {_INSTALL}")


def _nvdisasm() -> str:
    try:
        from cuda.pathfinder import find_nvidia_binary_utility

        tool = find_nvidia_binary_utility("nvdisasm")
    except ImportError:
        tool = None
    tool = tool or shutil.which("nvdisasm")
    if tool is None:
        raise MissingTool(f"disassembling needs nvidia-cuda-nvdisasm; {_INSTALL}")
    return tool


def _run_nvrtc(nvrtc: Any, source: str, arch: str, given: Sequence[str], headers: bool) -> Compiled:
    folders = _include_paths() if headers else ()
    options = [f"--gpu-architecture={arch}", *given, *(f"-I{path}" for path in folders)]
    # The driver's header is the host's business; NVRTC compiles the device alone.
    code = _PREAMBLE + source.replace("#include <cuda.h>", "")
    status, program = nvrtc.nvrtcCreateProgram(code.encode(), b"kernel.cu", 0, None, None)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"NVRTC took no program: {status.name}")
    try:
        encoded = [option.encode() for option in options]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        log = _fetch(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
        text = log.rstrip(b"\0").decode(errors="replace")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"NVRTC {status.name} for {arch}:\n{_errors(text)}")
        ptx = _fetch(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
        cubin = _fetch(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
        return Compiled(ptx.rstrip(b"\0").decode(), cubin, text)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _fetch(program: Any, size_of: Any, read: Any) -> bytes:
    status, size = size_of(program)
    buffer = bytearray(size)
    if int(status) == 0 and size:
        (status,) = read(program, buffer)
    if int(status):
        raise CompileError(f"NVRTC gave no result: {status.name}")
    return bytes(buffer)


def _errors(log: str) -> str:
    """The log without its warnings about unused names, of which generated code has many."""
    blocks = re.split(r"\n\s*\n", log)
    return "\n\n".join(b for b in blocks if "warning #" not in b and "Remark:" not in b).strip()


def _warnings(log: str) -> tuple[str, ...]:
    """What ptxas warns about, in its own words."""
    warning = r"^ptxas (?:.*warning|info *: *\(\w+\) Potential Performance Loss) *: *(.*)$"
    return tuple(re.findall(warning, log, re.MULTILINE))


def _resources(log: str, function: str) -> dict[str, int]:
    """Read ptxas's report on ``function`` (the part of the log after its name)."""
    report = log.partition(f"Compiling entry function '{function}'")[2]
    frame = re.search(r"(\d+) bytes stack frame, (\d+) .*spill stores, (\d+) .*spill loads", report)
    registers = re.search(r"Used (\d+) registers", report)
    if not frame or not registers:
        raise CompileError(f"ptxas reported nothing on {function}:\n{_errors(log)}")
    shared = re.search(r"Used .*?(\d+) bytes smem", report)
    return {
        "registers": int(registers[1]),
        "spill_store_bytes": int(frame[2]),
        "spill_load_bytes": int(frame[3]),
        "stack_bytes": int(frame[1]),
        "static_shared_bytes": int(shared[1]) if shared else 0,
    }
