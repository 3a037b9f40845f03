"""Facts about the GPUs of this machine, read through cuda-python's driver bindings.

Everything here answers on a machine with no GPU, no driver and no cuda-python: with None or an
empty tuple, and :func:`driver_problem` says why. Reading facts creates no CUDA context.

Sources: CUDA Driver API, `cuDeviceGetAttribute` and `CUdevice_attribute`; the
architecture-specific targets (`sm_90a`, `sm_100a`), which wgmma and tcgen05 need, are described
in the PTX ISA under `.target`.
"""

from __future__ import annotations

import functools
import importlib
import re
from dataclasses import asdict, dataclass
from typing import Any

from mlsys_gpu.lowering import ARCHITECTURES

EXAMPLES: dict[str, str] = {"hopper": "an H100 or H200", "blackwell": "a B200"}
"""GPUs that a reader may know each architecture by."""

# dense 16-bit tensor core operations (a multiply-add counts two) per clock of one SM
TENSOR_FLOP_PER_CLOCK_PER_SM: dict[str, int] = {"sm_90a": 4096, "sm_100a": 8192}


class NeedsGpu(RuntimeError):
    """What was asked for needs a GPU that this machine does not have; the sentence says which."""


class ArchitectureMismatch(NeedsGpu):
    """A kernel was to run on a GPU of another architecture than it is built for."""


@dataclass(frozen=True)
class Device:
    """One GPU.

    Attributes:
        index: ordinal, as CUDA and torch count.
        name: marketing name, such as ``NVIDIA H200``.
        arch: compilation target, such as ``sm_90a``.
        compute_capability: major and minor.
        multiprocessors: number of SMs.
        memory_bytes: device memory.
        l2_bytes: L2 cache.
        shared_bytes_per_block: largest dynamic shared memory of one CTA, after opting in.
        clock_khz: highest SM clock; 0 where the driver does not say.
    """

    index: int
    name: str
    arch: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    memory_bytes: int
    l2_bytes: int
    shared_bytes_per_block: int
    clock_khz: int

    @property
    def family(self) -> str | None:
        """``"hopper"`` or ``"blackwell"``; None for any other architecture."""
        return family_of(self.arch)

    @property
    def peak_tflops(self) -> float | None:
        """Dense 16-bit tensor core TFLOP/s at the highest clock; None where it is not known."""
        flop_per_clock = TENSOR_FLOP_PER_CLOCK_PER_SM.get(self.arch)
        if flop_per_clock is None or not self.clock_khz:
            return None
        return flop_per_clock * self.multiprocessors * self.clock_khz * 1e3 / 1e12

    def to_dict(self) -> dict[str, Any]:
        """The facts as JSON spells them."""
        facts = asdict(self)
        facts["compute_capability"] = list(self.compute_capability)
        facts["family"] = self.family
        return facts


def arch_of_capability(major: int, minor: int) -> str:
    """Compilation target of a compute capability: ``(9, 0)`` is ``"sm_90a"``.

    From compute capability 9.0 on, the ``a`` targets hold the instructions that the kernels are
    about (wgmma, tcgen05); a cubin for one of them runs on exactly that capability.
    """
    suffix = "a" if major >= 9 else ""
    return f"sm_{major}{minor}{suffix}"


def family_of(arch: str) -> str | None:
    """``"hopper"`` for ``"sm_90a"``, ``"blackwell"`` for ``"sm_100a"``, None for another."""
    return next((name for name, target in ARCHITECTURES.items() if target == arch), None)


@functools.cache
def _initialised_driver() -> tuple[Any, str | None]:
    """The driver bindings after ``cuInit``, or None and the reason why there are none."""
    try:
        driver = importlib.import_module("cuda.bindings.driver")
    except ImportError:
        return None, "cuda-python is not installed"
    try:
        (status,) = driver.cuInit(0)
    except RuntimeError:
        # cuda-python raises its own subclasses of RuntimeError where libcuda is not found
        return None, "no NVIDIA driver is installed"
    if status != driver.CUresult.CUDA_SUCCESS:
        return None, f"the NVIDIA driver did not start ({status.name})"
    return driver, None


def _value(driver: Any, answer: tuple[Any, ...]) -> Any:
    """The value of a driver call's answer, after its status was looked at."""
    status, *values = answer
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"the CUDA driver answered {status.name}")
    return values[0]


@functools.cache
def devices() -> tuple[Device, ...]:
    """All GPUs of this machine; empty where there is none (see :func:`driver_problem`)."""
    driver, _ = _initialised_driver()
    if driver is None:
        return ()
    attributes = driver.CUdevice_attribute
    found = []
    for index in range(_value(driver, driver.cuDeviceGetCount())):
        handle = _value(driver, driver.cuDeviceGet(index))

        def attribute(name: str, handle: Any = handle) -> int:
            key = getattr(attributes, f"CU_DEVICE_ATTRIBUTE_{name}")
            return int(_value(driver, driver.cuDeviceGetAttribute(key, handle)))

        major = attribute("COMPUTE_CAPABILITY_MAJOR")
        minor = attribute("COMPUTE_CAPABILITY_MINOR")
        name = _value(driver, driver.cuDeviceGetName(128, handle))
        found.append(
            Device(
                index=index,
                name=name.split(b"\0", 1)[0].decode() if isinstance(name, bytes) else str(name),
                arch=arch_of_capability(major, minor),
                compute_capability=(major, minor),
                multiprocessors=attribute("MULTIPROCESSOR_COUNT"),
                memory_bytes=int(_value(driver, driver.cuDeviceTotalMem(handle))),
                l2_bytes=attribute("L2_CACHE_SIZE"),
                shared_bytes_per_block=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
                clock_khz=attribute("CLOCK_RATE"),
            )
        )
    return tuple(found)


def current() -> Device | None:
    """The GPU that torch launches on, or the first one; None where there is no GPU."""
    found = devices()
    if not found:
        return None
    import sys

    # a torch that nobody imported has chosen no device
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return found[torch.cuda.current_device()]
    return found[0]


def driver_problem() -> str | None:
    """Why no GPU can be used here, in words; None where at least one can."""
    driver, problem = _initialised_driver()
    if driver is None:
        return problem
    return None if devices() else "the NVIDIA driver sees no GPU"


def driver_cuda_version() -> str | None:
    """Newest CUDA that the installed driver supports, such as ``"13.0"``; None without one."""
    driver, _ = _initialised_driver()
    if driver is None:
        return None
    version = int(_value(driver, driver.cuDriverGetVersion()))
    return f"{version // 1000}.{version % 1000 // 10}"


def short_name(name: str) -> str:
    """``h200`` for ``NVIDIA H200``: the folder of a GPU's results."""
    words = re.findall(r"[A-Za-z]*\d+[A-Za-z]*", name)
    return (words[0] if words else name.replace(" ", "-")).lower()


def describe_arch(arch: str) -> str:
    """``"Hopper (sm_90a)"`` for ``"sm_90a"``; the target alone where the course has no name."""
    family = family_of(arch)
    return f"{family.capitalize()} ({arch})" if family else arch


def refuse_other_architecture(kernel: str, arch: str, device: Device) -> None:
    """Refuse to run a kernel on a GPU of another architecture.

    Args:
        kernel: the kernel's name, for the sentence.
        arch: what it is built for, such as ``"sm_100a"``.
        device: the GPU that holds the tensors.

    Raises:
        ArchitectureMismatch: the architectures differ; the sentence says how to simulate.
    """
    if arch != device.arch:
        family = family_of(arch)
        needs = f" and needs {EXAMPLES[family]}" if family else ""
        raise ArchitectureMismatch(
            f"{kernel} is built for {describe_arch(arch)}{needs}, but its tensors are on "
            f"{device.name}, {describe_arch(device.arch)}: simulate it with CPU arrays, "
            f"`mg.simulate(kernel, A.cpu(), B.cpu(), D_cpu)`, or from a shell with `--on sim`."
        )


def require(arch: str, purpose: str) -> Device:
    """The current GPU, if it is of architecture ``arch``.

    Args:
        arch: compilation target that is needed, such as ``"sm_90a"``.
        purpose: what it is needed for, as the sentence's subject.

    Raises:
        NeedsGpu: there is no GPU, or one of another architecture.
    """
    family = family_of(arch)
    example = f", such as {EXAMPLES[family]}" if family else ""
    need = f"{purpose} needs a {describe_arch(arch)} GPU{example}"
    device = current()
    if device is None:
        raise NeedsGpu(f"{need}; here {driver_problem()}.")
    if device.arch != arch:
        raise ArchitectureMismatch(
            f"{need}; this machine has {device.name}, {describe_arch(device.arch)}."
        )
    return device
