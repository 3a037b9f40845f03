"""For all tests: thread counts, and the reason why GPU tests skip."""

import ctypes
import os
from functools import cache

import pytest

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = _no_gpu()
    if reason is None:
        return
    skip = pytest.mark.skip(reason=f"needs a GPU: {reason}")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)
