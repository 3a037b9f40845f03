"""What happens in a submission's process: load the file, call its functions, hand back answers.

Nothing here is trusted. The other side takes the reply for what the submission claims: values for
inputs that it was given, or kernels as data.
"""

from __future__ import annotations

import linecache
import re
import sys
import traceback
import types
from typing import Any

from mlsys_gpu.grading import serial  # here, not later: the sandbox hides this package's files

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class NotPlain(TypeError):
    """An answer that is neither a number, a string, a list nor a dictionary of these."""


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """Runs a job of kind ``submission``.

    ``job`` holds ``path`` (the file, a copy), ``calls`` (``[{"function", "args", "kwargs"}]``) and
    ``collect`` (``values`` or ``kernels``). Returns ``{"answers": [...]}`` or ``{"error": {...}}``.
    """
    path = job["path"]
    try:
        with open(path, encoding="utf-8") as file:
            source = file.read()
        module = types.ModuleType("submission")
        module.__file__ = path
        sys.modules["submission"] = module
        sys.argv = [path]
        exec(compile(source, path, "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        return {"error": _describe(error, path, while_="loading")}
    answers = []
    for number, call in enumerate(job["calls"]):
        function = getattr(module, call["function"], None)
        if not callable(function):
            return {
                "error": {"kind": "missing", "name": call["function"], "defined": _public(module)}
            }
        try:
            returned = function(*call["args"], **call.get("kwargs", {}))
            answers.append(_kernel(returned) if job["collect"] == "kernels" else plain(returned))
        except MemoryError:
            raise
        except (Exception, SystemExit) as error:
            return {"error": {**_describe(error, path, while_="calling"), "call": number}}
    return {"answers": answers}


def _public(module: types.ModuleType) -> list[str]:
    return sorted(
        name
        for name, value in vars(module).items()
        if isinstance(value, types.FunctionType) and value.__module__ == "submission"
    )


def _describe(error: BaseException, path: str, while_: str) -> dict[str, Any]:
    """An exception as the reader needs it: what, and the last line of the student's own file."""
    line, text = None, None
    # TVM's parser wraps what a kernel raises while it is built: look behind that.
    inner = error
    while inner.__cause__ or inner.__context__:
        inner = inner.__cause__ or inner.__context__ or inner
        if isinstance(inner, NotImplementedError):
            error = inner
            break
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == path:
            line, text = frame.lineno, frame.line
    message = _ANSI.sub("", str(error)).strip()
    if isinstance(error, SyntaxError) and error.filename == path:
        line, text, message = error.lineno, (error.text or "").strip(), error.msg
    pointed = re.search(re.escape(path) + r":(\d+)", message)
    drawn = type(error).__name__ == "DiagnosticError"
    if pointed and (line is None or drawn):
        line = int(pointed.group(1))
        text = linecache.getline(path, line).strip() or None
    if drawn:  # TVM draws the place: keep its first line
        first = message.splitlines()[0] if message else ""
        message = first.removeprefix("error:").strip()
    kind = "exit" if isinstance(error, SystemExit) else "exception"
    if isinstance(error, NotImplementedError):
        kind = "unsolved"
    if isinstance(error, MemoryError):
        kind = "memory"
    return {
        "kind": kind,
        "while": while_,
        "type": type(error).__name__,
        "message": message[:2000],
        "line": line,
        "text": text,
    }


def plain(value: Any, depth: int = 0) -> Any:
    """A value as JSON can carry it; NumPy's scalars and arrays become Python's."""
    if depth > 8:
        raise NotPlain("the answer is nested too deeply")
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if hasattr(value, "tolist"):  # NumPy
        return plain(value.tolist(), depth + 1)
    if isinstance(value, list | tuple):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item, depth + 1) for key, item in value.items()}
    raise NotPlain(
        f"the answer is of type {type(value).__name__}; numbers, strings, lists, tuples and "
        "dictionaries of these can be graded"
    )


def _kernel(value: Any) -> str:
    import tvm

    if value is None:
        raise NotPlain("the function returned nothing; did you forget `return kernel`?")
    if not isinstance(value, tvm.tirx.PrimFunc):
        raise NotPlain(
            f"the function returned a {type(value).__name__}; a kernel is what @T.prim_func makes, "
            "a tvm.tirx.PrimFunc"
        )
    return serial.dump_kernel(value)
