"""A case: a kernel, its arguments, and which of them it writes."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Mapped:
    """An argument that is a tensor map on an array; ``fields`` as for ``mlsys_gpu.TensorMap``."""

    array: np.ndarray
    fields: dict[str, Any]


def array_of(argument: np.ndarray | Mapped) -> np.ndarray:
    """The memory of an argument."""
    return argument.array if isinstance(argument, Mapped) else argument


@dataclass(frozen=True)
class Case:
    """``text`` has a TIRx PrimFunc ``kernel``, ``arguments()`` its arrays, outputs at ``outputs``.

    ``forms``: for each output the names of its rows (along the first axis), each a form of an
    instruction; without it the case as a whole is one form.
    """

    family: str
    name: str
    #: The kernel's source.
    text: str
    arguments: Callable[[], Sequence[np.ndarray | Mapped]]
    outputs: tuple[int, ...]
    forms: dict[int, list[str]] = field(default_factory=dict)
    #: For outputs that are sums: the sum of the sizes of what is added, element by element.
    sizes: Callable[[], Sequence[np.ndarray]] | None = None
    #: The number format of a form's elements, where it is one: f32, f16x2, …
    formats: dict[str, str] = field(default_factory=dict)
    #: What an output as a whole is called, where a case has several.
    labels: dict[int, str] = field(default_factory=dict)

    def kernel(self) -> Any:
        """The PrimFunc."""
        return kernel_from(self.text)

    def results(self, outputs: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """What was written, by form; ``outputs`` in the order of ``self.outputs``."""
        found = {}
        for i, array in zip(self.outputs, outputs, strict=True):
            if i in self.forms:
                found.update(zip(self.forms[i], array, strict=True))
            else:
                found[self.labels.get(i, self.name)] = array
        return found

    def simulate(self, **options: Any) -> tuple[Any, dict[str, np.ndarray]]:
        """The simulator's report, and what it wrote by form."""
        import mlsys_gpu as mg
        from mlsys_gpu import sim

        arguments = self.arguments()
        given = [
            mg.TensorMap(a.array, **a.fields) if isinstance(a, Mapped) else a for a in arguments
        ]
        report = sim.simulate(self.kernel(), *given, arch="hopper", **options)
        return report, self.results([array_of(arguments[i]) for i in self.outputs])


def rng_of(name: str) -> np.random.Generator:
    """Random numbers that depend on a case's name alone."""
    return np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]))


@cache
def kernel_from(text: str) -> Any:
    """The PrimFunc ``kernel`` of a source text (TVMScript reads its source from a file)."""
    name = "_vectors_" + hashlib.sha256(text.encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / "mlsys-gpu-vectors"
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
        path.unlink()
    return module.kernel
