"""What each exercise's check draws, expects and says.

This package is imported by the process that judges, never by one that runs a submission. An
exercise's check is an object in one of its modules, named in the manifest as ``ch01:thread_index``:
a :class:`~mlsys_gpu.grading.checks.base.Predict` (functions of numbers) or a
:class:`~mlsys_gpu.grading.checks.base.Kernel` (a function that builds a kernel).
"""

from __future__ import annotations

import importlib
import re

from mlsys_gpu.grading.checks.base import Check, Kernel, Outcome, Predict

__all__ = ["Check", "Kernel", "Outcome", "Predict", "load"]


def load(name: str) -> Check:
    """The check that the manifest calls ``name`` (``module:object``).

    Raises ``ValueError`` where there is no such check.
    """
    found = re.fullmatch(r"(\w+):(\w+)", name)
    if not found:
        raise ValueError(f"a check is named module:object, not {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{found[1]}")
        check = getattr(module, found[2])
    except (ImportError, AttributeError) as error:
        raise ValueError(f"there is no check {name!r}: {error}") from error
    if not isinstance(check, Predict | Kernel):
        raise ValueError(f"{name!r} is a {type(check).__name__}, not a check")
    return check
