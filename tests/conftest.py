"""For all tests: thread counts, and the reason why GPU tests skip."""

import ctypes
import os
from functools import cache

import pytest

from mlsys_gpu.device import Device

# Small matrices on few cores: a thread pool in each BLAS costs more than it brings.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")


@cache
def _no_gpu() -> str | None:
    """Why there is no GPU, or None where the driver reports at least one."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver (libcuda.so.1) on this machine"
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return "the NVIDIA driver reports no GPU"
    return None


def _wrong_gpu(arch: str | None) -> str | None:
    """Why tests for ``arch`` (``hopper``, ``blackwell``, or any) cannot run here, or None."""
    from mlsys_gpu import device, launch

    here = device.current()
    if here is None or (arch is not None and here.family != arch):
        wanted = device.describe_arch(device.ARCHITECTURES[arch]) if arch else "any"
        return f"needs a GPU, {wanted}: here is {here.name if here else 'none'}"
    try:
        launch.torch_with_cuda("this test")
    except device.NeedsGpu as error:
        return str(error)
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        marker = item.get_closest_marker("gpu")
        if marker is None:
            continue
        reason = _no_gpu()
        reason = f"needs a GPU: {reason}" if reason else _wrong_gpu(*marker.args[:1] or (None,))
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def h200() -> Device:
    """An H200's facts, as its driver gives them."""
    return Device(
        index=0,
        name="NVIDIA H200",
        arch="sm_90a",
        compute_capability=(9, 0),
        multiprocessors=132,
        memory_bytes=150_000_000_000,
        l2_bytes=62_914_560,
        shared_bytes_per_block=232_448,
        clock_khz=1_980_000,
    )
