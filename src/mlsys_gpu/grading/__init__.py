"""Exercises: the manifest, stubs made from solutions, and grading in processes apart.

What is guarded, and what is not
--------------------------------
A submission runs in a process of its own, with limits on time, memory and file size. All that this
process can hand back are *answers*: numbers for inputs that it was given, or a kernel as data. The
expected values are computed, and kernels are simulated, in processes that never run student code,
so nothing a submission does in its own process (patching the checker, writing a verdict into
the pipe, ending early with success, printing "passed") makes an answer right.

On Linux with Landlock (kernel 5.13 or newer) the submission's process cannot read ``solutions/``,
the checks, the manifest or the tests, and cannot write outside its scratch directory; the operating
system refuses that, not Python. On other systems an audit hook refuses the same to Python code;
native code could go around it. A scan of the source before it runs catches plain references to
``solutions`` everywhere.

Not guarded: copying text out of ``solutions/`` by hand, editing this package, the manifest or the
record of progress on one's own machine, and a notebook, whose own process shows the verdict and
can show anything. Where a mark depends on it, run ``mlsys-gpu check all --report`` on a clean
checkout with the student's ``exercises/`` copied in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlsys_gpu.grading.api import (
        check,
        check_exercises,
        grade_file,
        list_exercises,
        progress,
        reset,
    )

__all__ = ["check", "check_exercises", "grade_file", "list_exercises", "progress", "reset"]


def __getattr__(name: str) -> Any:
    # Late: a submission's process imports this package without the grader's side of it.
    if name in __all__:
        from mlsys_gpu.grading import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
