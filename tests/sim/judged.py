"""The kernels and shapes that judge the model of time: what is measured, and what is modelled.

``JUDGES`` is read by ``scripts/h200/judges.py``, which measures each on an H200, and by the tests
that hold modelled times to what was measured. The most telling ones come first: a measurement that
runs out of time leaves out the last.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from mlsys_gpu.kernels import gemm
from mlsys_gpu.verification import compare_gemm_tensors, gemm_inputs, poisoned

from .fixtures import (
    hopper_attention,
    hopper_cluster,
    hopper_micro,
    hopper_persistent,
    hopper_rows,
    hopper_split,
)

SMS = 132  # of an H200


@dataclass(frozen=True)
class Judge:
    """A kernel at one shape.

    Attributes:
        name: ``micro/copy_tma``, ``gemm/hopper/step3``, ``fixtures/hopper_persistent``.
        shape: sizes and options by name, as rows of results hold them.
        dtype: of inputs and outputs.
        build: makes the PrimFunc.
        arrays: ``arrays(seed)``: inputs, then the outputs, poisoned or, where the kernel adds to
            them, zero.
        error: ``error(*tensors)``: the largest error of the outputs over its bound, at most 1 if
            they are right; for torch tensors on any device, in float64.
        outputs: how many of the arrays, the last ones, are outputs.
        source: the file that holds the kernel.
        bytes: what must be read and written at least, each array once.
        flop: floating-point operations, a multiply-add counts two; None where none are counted.
    """

    name: str
    shape: dict[str, int]
    dtype: str
    build: Callable[[], Any] = field(repr=False)
    arrays: Callable[..., list[np.ndarray]] = field(repr=False)
    error: Callable[..., float] = field(repr=False)
    source: Path = field(repr=False)
    bytes: int
    flop: int | None = None
    outputs: int = 1

    @property
    def id(self) -> str:
        """Name and shape: ``micro/transpose R=8192 C=4096 padding=1``."""
        return " ".join([self.name, *(f"{k}={v}" for k, v in self.shape.items())])

    @property
    def source_sha256(self) -> str:
        """SHA-256 of the file that holds the kernel."""
        return hashlib.sha256(self.source.read_bytes()).hexdigest()


def judge(identity: str) -> Judge:
    """The judge with this :attr:`Judge.id`; ``KeyError`` if there is none."""
    return _BY_ID[identity]


def of_row(row: dict[str, Any]) -> Judge | None:
    """The judge that a row of results was measured from; None if it is no longer one."""
    found = [
        judge
        for judge in JUDGES
        if (judge.name, judge.dtype) == (row["kernel"], row["dtype"])
        and judge.shape.items() <= row.items()
    ]
    # the same sizes without ctas fit as well
    return max(found, key=lambda judge: len(judge.shape), default=None)


# ----------------------------------------------------------------------------------------- GEMM


def _gemm_error(A: Any, B: Any, D: Any) -> float:
    return compare_gemm_tensors(A, B, D).max_error


def _gemm_arrays(M: int, N: int, K: int, seed: int = 1) -> list[np.ndarray]:
    return [*gemm_inputs(M, N, K, seed=seed), poisoned((M, N))]


def _gemm(
    name: str, module_build: Callable[..., Any], source: Path, M: int, N: int, K: int, **how: int
) -> Judge:
    return Judge(
        name=name,
        shape={"M": M, "N": N, "K": K, **how},
        dtype="float16",
        build=partial(module_build, M, N, K, **how),
        arrays=partial(_gemm_arrays, M, N, K),
        error=_gemm_error,
        source=source,
        bytes=2 * (M * K + N * K + M * N),
        flop=2 * M * N * K,
    )


def _step(number: int, M: int, N: int, K: int) -> Judge:
    step = gemm.step(number, arch="hopper")
    return _gemm(step.name, step.build, step.source_path, M, N, K)


def _source(module: ModuleType) -> Path:
    assert module.__file__ is not None
    return Path(module.__file__)


def _persistent(size: int, stages: int) -> Judge:
    return _gemm(
        "fixtures/hopper_persistent",
        hopper_persistent.build,
        _source(hopper_persistent),
        *(size, size, size),
        ctas=SMS,
        stages=stages,
    )


def _cluster(size: int, clusters: int) -> Judge:
    return _gemm(
        "fixtures/hopper_cluster",
        hopper_cluster.build,
        _source(hopper_cluster),
        *(size, size, size),
        clusters=clusters,
    )


# --------------------------------------------------------------------------------- other fixtures


def _attention_error(Q: Any, K: Any, V: Any, O: Any) -> float:
    q, k, v, o = (x.double() for x in (Q, K, V, O))
    weights = (q @ k.T / 8).softmax(-1)
    bound = 2.0**-10 * (weights @ v.abs()) + 1e-6
    return float(((o - weights @ v).abs() / bound).max())


def _attention(M: int, N: int) -> Judge:
    return Judge(
        name="fixtures/hopper_attention",
        shape={"M": M, "N": N},
        dtype="float16",
        build=partial(hopper_attention.build, M, N),
        arrays=lambda seed=1: list(hopper_attention.arrays(M, N, seed)),
        error=_attention_error,
        source=_source(hopper_attention),
        bytes=2 * hopper_attention.HD * 2 * (M + N),
        flop=4 * M * N * hopper_attention.HD,
    )


def _rows_error(X: Any, Y: Any) -> float:
    wanted = X.double().softmax(-1).nan_to_num(0)  # a row of minus infinities gives zeros
    return float(((Y.double() - wanted).abs() / (1e-5 * wanted + 1e-12)).max())


def _rows(R: int, C: int) -> Judge:
    return Judge(
        name="fixtures/hopper_rows",
        shape={"R": R, "C": C, "ctas": SMS},
        dtype="float32",
        build=partial(hopper_rows.build, R, C, ctas=SMS),
        arrays=lambda seed=1: list(hopper_rows.arrays(R, C, seed)),
        error=_rows_error,
        source=_source(hopper_rows),
        bytes=2 * 4 * R * C,
    )


def _split_error(X: Any, Y: Any, S: Any) -> float:
    x = X.double()
    wanted = x / x.sum(-1, keepdim=True)
    rows = ((Y.double() - wanted).abs() / (X.shape[1] * 2.0**-23 * wanted)).max()
    total = x.sum()
    sums = (S.double().sum() - total).abs() / (X.numel() * 2.0**-23 * total)
    return float(rows.maximum(sums))  # NaN if one of them is


def _split(R: int, C: int, clusters: int) -> Judge:
    def arrays(seed: int = 1) -> list[np.ndarray]:
        X, Y, _ = hopper_split.arrays(R, C, seed)
        return [X, Y, np.full(clusters, np.nan, np.float32)]

    return Judge(
        name="fixtures/hopper_split",
        shape={"R": R, "C": C, "clusters": clusters},
        dtype="float32",
        build=partial(hopper_split.build, R, C, clusters=clusters),
        arrays=arrays,
        error=_split_error,
        source=_source(hopper_split),
        bytes=2 * 4 * R * C + 4 * clusters,
        outputs=2,
    )


# ---------------------------------------------------------------------------------- micro-kernels


def _micro(name: str, flop_each: int = 0, **shape: int) -> Judge:
    micro = hopper_micro.KERNELS[name]
    X, Y = (tuple(p.shape) for p in _parameters(micro.build(**shape)))

    def error(x: Any, y: Any) -> float:
        return micro.error(x.double(), y.double(), **shape)

    elements = int(np.prod(X))
    return Judge(
        name=f"micro/{name}",
        shape=shape,
        dtype="float32",
        build=partial(micro.build, **shape),
        arrays=lambda seed=1: list(micro.arrays(seed, **shape)),
        error=error,
        source=_source(hopper_micro),
        bytes=4 * (elements + int(np.prod(Y))),
        flop=flop_each * elements or None,
    )


def _parameters(kernel: Any) -> Any:
    from mlsys_gpu.lowering import parameters

    return parameters(kernel)


# Numbers in X: 256 MiB of traffic for a copy, many times the L2, and 16 MiB.
_LARGE, _SMALL = 2**25, 2**21
# Matrices of as many numbers.
_WIDE, _NARROW = {"R": 8192, "C": 4096}, {"R": 2048, "C": 1024}


def _both(name: str, flop_each: int = 0, matrix: bool = False, **options: int) -> list[Judge]:
    """A micro-kernel at both sizes."""
    sizes = (_WIDE, _NARROW) if matrix else ({"n": _LARGE}, {"n": _SMALL})
    return [_micro(name, flop_each, **size, **options) for size in sizes]


#: What judges the model.
JUDGES: list[Judge] = [
    *(_step(3, n, n, n) for n in (1024, 2048, 4096, 8192)),
    *_both("copy_vector"),
    *_both("copy_tma", matrix=True, ctas=4 * SMS),
    *_both("copy_bulk", ctas=4 * SMS),
    *_both("row_sum", matrix=True),
    *_both("transpose", matrix=True, padding=1),
    *_both("transpose", matrix=True, padding=0),
    *_both("exp_chain", flop_each=64, count=64),  # an exponential counts one
    *_both("fma_chain", flop_each=2 * 256, count=256),
    *(_persistent(n, 3) for n in (1024, 2048, 4096)),
    *(_cluster(n, SMS) for n in (1024, 2048, 4096)),
    _attention(2 * SMS * 64, 2048),
    _attention(6 * SMS * 64, 4096),
    _rows(16384, 2048),
    _rows(2048, 1024),
    _split(16384, 2048, SMS),
    _split(2048, 1024, SMS),
    _step(1, 128, 128, 64),
    _step(2, 128, 128, 64),
    _step(2, 128, 128, 448),
    _step(2, 128, 128, 4096),
    _step(3, 2048, 4096, 1024),
    *_both("copy_cp_async", ctas=8 * SMS),
    *_both("total", ctas=8 * SMS),
    *_both("copy_vector", ctas=8 * SMS),
    *(_persistent(n, stages) for stages in (2, 4) for n in (1024, 2048, 4096)),
    _cluster(2048, SMS // 2),
    _cluster(4096, SMS // 2),
]
_BY_ID = {judge.id: judge for judge in JUDGES}
