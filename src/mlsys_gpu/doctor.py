"""What this machine can run, and what is missing: the facts behind ``mlsys-gpu doctor``."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
import sys
from dataclasses import asdict, dataclass
from typing import Any

from mlsys_gpu import device, release

NOT_ON_SILICON = "not yet run on silicon"
"""What kernels carry until a result file holds a measurement of them."""

_INSTALL = "pip install -r requirements.txt"


@dataclass(frozen=True)
class Item:
    """One thing that the course stands on.

    Attributes:
        name: what it is.
        ok: whether it is there and usable.
        detail: its version, or what is wrong with it.
        needed_for: what does not work without it.
        required: whether nothing works without it; otherwise something optional is missing.
        fix: what to do about it, where it is not ok.
    """

    name: str
    ok: bool
    detail: str
    needed_for: str
    required: bool = False
    fix: str = ""


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _python() -> Item:
    ok = sys.version_info >= (3, 11)
    return Item(
        "Python",
        ok,
        platform.python_version(),
        "everything",
        required=True,
        fix="" if ok else "install Python 3.11 or newer",
    )


def _tvm() -> Item:
    found, pin = release.installed_tvm(), release.TVM_VERSION
    detail = found or "not installed"
    if found is not None and found != pin:
        detail = f"{found}, but the kernels are written for {pin}"
    return Item(
        "TVM (TIRx)",
        found == pin,
        detail,
        "building, simulating and running kernels",
        required=True,
        fix="" if found == pin else f'pip install "{release.TVM_DISTRIBUTION}=={pin}"',
    )


def _package(name: str, distribution: str, needed_for: str, required: bool) -> Item:
    found = _version(distribution)
    return Item(
        name,
        found is not None,
        found or "not installed",
        needed_for,
        required=required,
        fix="" if found else _INSTALL,
    )


def _torch() -> Item:
    needed_for = "running and measuring on a GPU"
    if _version("torch") is None:
        return Item("PyTorch", False, "not installed", needed_for, fix=_INSTALL)
    try:
        torch = importlib.import_module("torch")
    except Exception as error:  # a torch whose libraries do not load raises OSError and others
        detail = f"installed, but does not import: {error}"
        return Item("PyTorch", False, detail, needed_for, fix=_INSTALL)
    if torch.version.cuda is None:
        text = f"{torch.__version__}, without CUDA: enough to simulate"
    elif torch.cuda.is_available():
        text = f"{torch.__version__}, CUDA {torch.version.cuda}"
    else:
        text = f"{torch.__version__}, CUDA {torch.version.cuda}, but it sees no GPU"
    return Item("PyTorch", True, text, needed_for)


def _assembler() -> tuple[Item, Item]:
    """NVRTC and nvdisasm, tried on an empty kernel."""
    compiles = "assembling kernels, with or without a GPU"
    reads = "showing machine code (inspect --emit sass), registers for modelled times (trace)"
    try:
        from mlsys_gpu import artifacts

        made = artifacts.compile_cuda('extern "C" __global__ void empty() {}', "sm_90a")
    except Exception as error:
        reason = " ".join(str(error).split())
        return (
            Item("NVRTC", False, reason, compiles, fix=_INSTALL),
            Item("nvdisasm", False, "not tried: NVRTC made nothing to read", reads, fix=_INSTALL),
        )
    nvrtc = Item("NVRTC", True, _version("nvidia-cuda-nvrtc") or "found", compiles)
    try:
        artifacts.disassemble(made.cubin)
    except Exception as error:
        reason = " ".join(str(error).split())
        return nvrtc, Item("nvdisasm", False, reason, reads, fix=_INSTALL)
    return nvrtc, Item("nvdisasm", True, _version("nvidia-cuda-nvdisasm") or "found", reads)


def _gpu() -> Item:
    found = device.devices()
    needed_for = "running and measuring kernels on silicon"
    if not found:
        problem = device.driver_problem() or "none"
        return Item("GPU", False, problem, needed_for, fix="the simulator needs none")
    text = ", ".join(f"{d.name} ({d.arch})" for d in found)
    if any(d.family for d in found):
        return Item("GPU", True, text, needed_for)
    names = " or ".join(f"{f.capitalize()} ({a})" for f, a in device.ARCHITECTURES.items())
    return Item("GPU", False, f"{text}: the kernels are for {names}", needed_for)


def kernels(simulates: bool, torch_has_cuda: bool) -> list[dict[str, Any]]:
    """Every kernel, and where it runs on this machine.

    Args:
        simulates: whether the simulator works here.
        torch_has_cuda: whether torch can use a GPU.

    Returns:
        One dictionary for each kernel: ``kernel``, ``arch``, ``simulator``, ``gpu`` (whether it
        runs on a GPU of this machine), ``needs`` (the GPU it is for), ``silicon`` (GPUs on which
        it was measured, from the committed results) and ``badge``.
    """
    from mlsys_gpu.benchmarking import silicon
    from mlsys_gpu.kernels import gemm

    here = {d.arch for d in device.devices()} if torch_has_cuda else set()
    found = []
    for arch in gemm.ARCHS:
        target, measured = device.ARCHITECTURES[arch], silicon(arch)
        for step in gemm.everything(arch):
            found.append(
                {
                    "kernel": step.name,
                    "title": step.title,
                    "arch": arch,
                    "simulator": simulates,
                    "gpu": simulates and target in here,
                    "needs": device.EXAMPLES[arch],
                    "silicon": measured,
                    "badge": None if measured else NOT_ON_SILICON,
                }
            )
    return found


def examine() -> dict[str, Any]:
    """Look at this machine.

    Returns:
        What ``doctor --json`` prints: ``ok`` (whether the course runs here, in the simulator at
        least), ``items``, ``missing`` (the items that are not ok), ``gpus`` and ``kernels``.
    """
    torch = _torch()
    items = [
        _python(),
        _tvm(),
        _package("NumPy", "numpy", "the simulator", True),
        _package("ml_dtypes", "ml_dtypes", "bfloat16 in NumPy", True),
        torch,
        _package("Triton", "triton", "the Triton baseline", False),
        *_assembler(),
        _gpu(),
    ]
    ok = all(item.ok for item in items if item.required)
    loaded = sys.modules.get("torch")
    has_cuda = torch.ok and loaded is not None and loaded.cuda.is_available()
    return {
        "ok": ok,
        "platform": f"{platform.system()} {platform.machine()}",
        "items": [asdict(item) for item in items],
        "missing": [asdict(item) for item in items if not item.ok],
        "gpus": [d.to_dict() for d in device.devices()],
        "kernels": kernels(ok, has_cuda),
    }
