"""Kernels from source text."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def module_from(path: Path, text: str) -> ModuleType:
    """The module that a source text makes, from a file of its own at ``path``."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(f"_from_text_{abs(hash(path))}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # TVMScript looks the source up by module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    return module
