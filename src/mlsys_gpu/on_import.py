"""Actions that wait until another package is imported, by whomever."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


class _Loader(importlib.abc.Loader):
    """A package's own loader, and the action after it."""

    def __init__(self, loader: importlib.abc.Loader, action: Callable[[], None]):
        self.loader, self.action = loader, action

    def __getattr__(self, name: str) -> Any:  # get_source, get_resource_reader, …
        return getattr(self.loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        self.action()


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, action: Callable[[], None]):
        self.name, self.action = name, action

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)  # once; and the search below must not come here again
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.action)
        return spec


def when_imported(name: str, action: Callable[[], None]) -> None:
    """Call ``action`` now if the top-level package ``name`` is imported, else once it has been."""
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Finder(name, action))
