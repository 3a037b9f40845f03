"""What an H200 computes, instruction by instruction, and what the simulator makes of the same.

One definition for both sides: a :class:`~.case.Case` is a TIRx kernel with inputs drawn from a seed
and outputs. ``scripts/h200/vectors.py`` compiles the kernels, runs them on a Hopper GPU and keeps
the outputs in this folder; ``tests/sim/test_vectors.py`` runs the same kernels in the simulator and
compares bits. What may differ, by how much and why, is in :mod:`.units`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from . import accesses, barriers, copies, matrix, memory, scalar
from .case import Case, array_of, rng_of

FOLDER = Path(__file__).parent
#: Elements that are kept of an output with more: a sample, and the digest of all.
SAMPLE = 384
SAMPLED = {"wgmma", "mma.sync"}


def all_cases(families: Sequence[str] = ()) -> Iterator[Case]:
    modules = (scalar, matrix, memory, copies, barriers, accesses)
    for case in itertools.chain.from_iterable(module.cases() for module in modules):
        if not families or case.family in families:
            yield case


def source_hash(case: Case) -> str:
    """Over what the case computes: its inputs, and the kernel's text without where it lies."""
    digest = hashlib.sha256()
    digest.update(case.text.encode())
    for argument in case.arguments():
        array = array_of(argument)
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
        digest.update(repr(getattr(argument, "fields", "")).encode())
    return digest.hexdigest()[:16]


def file_of(family: str) -> Path:
    return FOLDER / (re.sub(r"\W+", "_", family) + ".npz")


def sampled(family: str, form: str, values: np.ndarray) -> np.ndarray:
    """The elements of a form that are kept, flat."""
    flat = np.ascontiguousarray(values).reshape(-1)
    if family not in SAMPLED or flat.size <= SAMPLE:
        return flat
    return flat[np.sort(rng_of(form).choice(flat.size, SAMPLE, replace=False))]


def digest(values: np.ndarray) -> np.uint64:
    return np.uint64(int.from_bytes(hashlib.sha256(values.tobytes()).digest()[:8]))


def write(family: str, cases: dict[str, Any], provenance: dict[str, Any]) -> int:
    """Keep a family's outputs: for each case all elements kept, and the digest of each form."""
    known = {case.name: case for case in all_cases([family])}
    held: dict[str, np.ndarray] = {}
    sources = {}
    for name, (source, arrays) in cases.items():
        sources[name] = source
        results = known[name].results(arrays)
        parts: dict[int, list[np.ndarray]] = {}
        for form, values in results.items():
            flat = sampled(family, form, values)
            parts.setdefault(flat.itemsize, []).append(flat.view(f"u{flat.itemsize}"))
        for size, flats in parts.items():
            held[f"{name}/{8 * size}"] = np.concatenate(flats)
        held[f"{name}/digests"] = np.array([digest(v) for v in results.values()], np.uint64)
    record = json.dumps({**provenance, "sources": sources})
    held["provenance"] = np.frombuffer(record.encode(), np.uint8)
    path = file_of(family)
    np.savez_compressed(path, allow_pickle=False, **held)
    return path.stat().st_size


class Kept:
    """What is kept of a family."""

    def __init__(self, family: str):
        with np.load(file_of(family)) as held:
            self.arrays = {key: held[key] for key in held.files}
        self.provenance = json.loads(self.arrays.pop("provenance").tobytes())
        self.sources: dict[str, str] = self.provenance["sources"]

    def forms(self, case: Case, results: dict[str, np.ndarray]) -> Iterator[tuple[str, Any, int]]:
        """For each form the elements that are kept, in the type of ``results``, and the digest of
        all of them."""
        at: dict[int, int] = {}
        digests = self.arrays[f"{case.name}/digests"]
        for (form, values), whole in zip(results.items(), digests, strict=True):
            size = values.itemsize
            count = sampled(case.family, form, values).size
            start = at.get(size, 0)
            at[size] = start + count
            flat = self.arrays[f"{case.name}/{8 * size}"][start : start + count]
            yield form, flat.view(values.dtype), int(whole)


@cache
def kept(family: str) -> Kept | None:
    return Kept(family) if file_of(family).exists() else None


def summary(families: Sequence[str] = (), details: bool = False) -> str:
    from .compare import summary as of

    return of(families, details)
