"""A modelled run as a file: a trace for Perfetto, or a page of our own."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

#: What a file's suffix makes of it, and how a reader opens it.
OPENED = {
    ".json": "open it at https://ui.perfetto.dev",
    ".html": "open it in a browser",
}


def check(path: str | Path) -> Path:
    """Whether a trace can be written there, without writing anything.

    Raises ``ValueError`` for a suffix that is none of :data:`OPENED`, and for a folder that is not
    there or cannot be written to; the message names the path and the rule.
    """
    path = Path(path)
    if path.suffix.lower() not in OPENED:
        raise ValueError(
            f"a trace is a .json file (for Perfetto) or an .html file (a page), not {str(path)!r}"
        )
    if path.is_dir():
        raise ValueError(f"a trace needs the name of a file, and {str(path)!r} is a folder")
    folder = path.resolve().parent
    if not folder.is_dir():
        raise ValueError(f"a trace is written into a folder that exists, and {folder} does not")
    if path.exists() and not os.access(path, os.W_OK):
        raise ValueError(f"{str(path)!r} may not be written")
    try:  # what permissions say is not the whole truth: some file systems take no new files
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=folder)
    except OSError as error:
        raise ValueError(f"{str(path)!r} cannot be written: {error.strerror}") from error
    os.close(handle)
    os.unlink(name)
    return path


def save(timing: Any, path: str | Path, flops: float | None = None) -> Path:
    """Write a modelled run as the suffix says: ``.json`` for Perfetto, ``.html`` for a page.

    A file of that name is replaced when the new one is complete. Returns the path. Raises what
    :func:`check` raises, before the timeline is made, and ``OSError`` where writing fails.
    """
    path = check(path)
    timeline = timing.timeline(flops)
    if path.suffix.lower() == ".json":
        from mlsys_gpu.sim.timing.trace import perfetto

        text = json.dumps(perfetto(timeline), separators=(",", ":"), allow_nan=False)
    else:
        from mlsys_gpu.viz.timeline import page

        text = page(timeline)
    _replace(path.resolve(), text)
    return path


def _replace(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~mask)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
