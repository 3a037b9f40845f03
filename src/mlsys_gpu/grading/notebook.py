"""Answers that stand in a notebook cell: a value, or a function with what it refers to.

A function is graded like a file: its source, and the source of every helper, constant and import
that it names, are put together into one file that runs in a process of its own.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Callable
from typing import Any


class NotebookError(TypeError):
    """An answer that cannot be taken out of the notebook; the message says what to do instead."""


def source_of(function: Callable[..., Any], name: str) -> str:
    """A Python file that defines ``function`` under ``name``, with all that it refers to.

    Raises
    ------
    NotebookError
        A name it uses is bound to something that has no source: an array, an object, a lambda.
    """
    if not isinstance(function, types.FunctionType):
        raise NotebookError(
            f"{type(function).__name__} is no plain function: define the answer with `def`"
        )
    parts: dict[str, str] = {}
    _collect(function, function.__name__, parts)
    lines = [*parts.values()]
    if function.__name__ != name:
        lines.append(f"{name} = {function.__name__}")
    return "\n\n".join(lines) + "\n"


def _collect(obj: Any, name: str, parts: dict[str, str]) -> None:
    """Adds the definition of ``name``, after those that it needs."""
    if name in parts:
        return
    if isinstance(obj, types.ModuleType):
        parts[name] = f"import {obj.__name__} as {name}"
        return
    if isinstance(obj, types.FunctionType | type) and not _is_local(obj):
        qualified = getattr(obj, "__qualname__", "")
        if "." in qualified or not getattr(obj, "__module__", None):
            raise NotebookError(f"`{name}` is defined inside something else; import its parent")
        suffix = "" if qualified == name else f" as {name}"
        parts[name] = f"from {obj.__module__} import {qualified}{suffix}"
        return
    if isinstance(obj, types.FunctionType):
        parts[name] = ""  # entered now, so that recursion ends; filled below, after its needs
        needs = _references(obj)
        for other, value in needs.items():
            if other != name:
                _collect(value, other, parts)
        del parts[name]
        parts[name] = _source(obj, name)
        return
    if isinstance(obj, type):
        parts[name] = _source(obj, name)
        for method in vars(obj).values():
            if isinstance(method, types.FunctionType):
                for other, value in _references(method).items():
                    _collect(value, other, parts)
        return
    module = getattr(obj, "__module__", None)
    if module and module != "__main__" and getattr(_module(module), name, None) is obj:
        parts[name] = f"from {module} import {name}"
        return
    text = repr(obj)
    try:
        same = ast.literal_eval(text) == obj
    except (ValueError, SyntaxError, MemoryError):
        same = False
    if not same or len(text) > 10_000:
        raise NotebookError(
            f"the answer uses `{name}`, a {type(obj).__name__} of this notebook, which cannot be "
            "taken along: make it inside the function"
        )
    parts[name] = f"{name} = {text}"


def _module(name: str) -> Any:
    import sys

    return sys.modules.get(name)


def _is_local(obj: Any) -> bool:
    """Whether it was defined in the notebook (or script) rather than in an importable module."""
    if obj.__module__ == "__main__":
        return True
    file = getattr(_module(obj.__module__), "__file__", None)
    return file is None and not isinstance(obj, type)


def _references(function: types.FunctionType) -> dict[str, Any]:
    """Global and closure names that a function uses, and what they are bound to now."""
    names: list[str] = []

    def walk(code: types.CodeType) -> None:
        names.extend(code.co_names)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                walk(constant)

    walk(function.__code__)
    found = {n: function.__globals__[n] for n in names if n in function.__globals__}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not bound yet
            continue
    return found


def _source(obj: Any, name: str) -> str:
    if getattr(obj, "__name__", "") == "<lambda>":
        raise NotebookError(f"`{name}` is a lambda: define it with `def`, so that it has a source")
    try:
        text = textwrap.dedent(inspect.getsource(obj)).rstrip()
    except (OSError, TypeError) as error:
        raise NotebookError(
            f"the source of `{name}` is out of reach here: define it in a notebook cell or a file"
        ) from error
    if obj.__name__ != name:
        text += f"\n\n\n{name} = {obj.__name__}"
    return text
