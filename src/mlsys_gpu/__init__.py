"""Modern GPU Programming for MLSys: real TIRx kernels, a simulator that runs them, exercises.

>>> import mlsys_gpu as mg
>>> kernel = mg.gemm.step(3, arch="hopper").build(256, 384, 192)
>>> report = mg.simulate(kernel, A, B, D)  # D is filled; the report says what went wrong
>>> session = mg.debug(kernel, A, B, D, at="Tx.gemm_async")  # stop there, look, step on
>>> mg.run(kernel, A, B, D)  # CUDA tensors: on the GPU; CPU arrays: in the simulator

Importing this package imports neither TVM nor torch nor Triton: each name below is loaded when it
is first used. Another TVM release than the pinned one is refused here, at import.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from mlsys_gpu.on_import import when_imported
from mlsys_gpu.release import require_tvm, started_as_command

if TYPE_CHECKING:
    from mlsys_gpu import grading, kernels, sim, viz
    from mlsys_gpu.artifacts import inspect
    from mlsys_gpu.benchmarking import benchmark
    from mlsys_gpu.grading import check
    from mlsys_gpu.kernels import gemm
    from mlsys_gpu.launch import debug, explain, model, run, simulate
    from mlsys_gpu.sim import Report
    from mlsys_gpu.tensormap import TensorMap

__version__ = "0.1.0"

__all__ = [
    "Report",
    "TensorMap",
    "__version__",
    "benchmark",
    "check",
    "debug",
    "explain",
    "gemm",
    "grading",
    "inspect",
    "kernels",
    "model",
    "run",
    "sim",
    "simulate",
    "viz",
]

# public name -> (module, attribute); no attribute means the module itself
_PUBLIC: dict[str, tuple[str, str | None]] = {
    "gemm": ("mlsys_gpu.kernels.gemm", None),
    "simulate": ("mlsys_gpu.launch", "simulate"),
    "debug": ("mlsys_gpu.launch", "debug"),
    "explain": ("mlsys_gpu.launch", "explain"),
    "model": ("mlsys_gpu.launch", "model"),
    "run": ("mlsys_gpu.launch", "run"),
    "benchmark": ("mlsys_gpu.benchmarking", "benchmark"),
    "inspect": ("mlsys_gpu.artifacts", "inspect"),
    "check": ("mlsys_gpu.grading", "check"),
    "Report": ("mlsys_gpu.sim", "Report"),
    "TensorMap": ("mlsys_gpu.tensormap", "TensorMap"),
    "sim": ("mlsys_gpu.sim", None),
    "viz": ("mlsys_gpu.viz", None),
    "kernels": ("mlsys_gpu.kernels", None),
    "grading": ("mlsys_gpu.grading", None),
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}; it has {', '.join(sorted(__all__))}"
        )
    module_name, attribute = _PUBLIC[name]
    module = importlib.import_module(module_name)
    value = module if attribute is None else getattr(module, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


if not started_as_command():
    require_tvm()

# Without it TVM swallows the text of a syntax error in a kernel: its hook for uncaught errors
# prints a note that names this variable, and nothing else.
os.environ.setdefault("TVM_BACKTRACE", "1")


def _provide_encoder() -> None:
    from mlsys_gpu.tensormap import provide_encoder

    provide_encoder()


# Host code of kernels from elsewhere encodes tensor maps before anything else of ours is used.
when_imported("tvm", _provide_encoder)
