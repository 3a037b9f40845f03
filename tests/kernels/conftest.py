"""One build and one compilation of each kernel for all tests of this folder."""

from functools import cache

import pytest

from mlsys_gpu.artifacts import Artifacts, inspect
from mlsys_gpu.kernels import gemm


@cache
def _artifacts(arch: str, number: int, dtype: str) -> Artifacts:
    step = gemm.step(number, arch)
    return inspect(step.build(*step.default_shape, dtype))


@pytest.fixture(scope="session")
def artifacts():
    """``artifacts(arch, number, dtype)``: a step at its default shape, assembled."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="assembling needs cuda-python and NVRTC")
    return _artifacts
