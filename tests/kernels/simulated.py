"""A run in the simulator that must say nothing."""

from typing import Any

import mlsys_gpu as mg
from mlsys_gpu.verification import gemm_inputs, poisoned


def simulated(
    kernel: Any, shape: tuple[int, int, int], dtype: str = "float16", seed: int = 0, **schedule: Any
) -> tuple[Any, Any, Any]:
    """A, B and D of a silent run of a built GEMM kernel."""
    A, B = gemm_inputs(*shape, dtype=dtype, seed=seed)
    D = poisoned((shape[0], shape[1]), dtype)
    report = mg.simulate(kernel, A, B, D, **schedule)
    assert report.ok, report
    assert not report.findings
    return A, B, D
