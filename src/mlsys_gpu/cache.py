"""A content-addressed cache on disk: what is expensive to make and follows from its inputs alone.

Entries are named by a SHA-256 over everything that they depend on, so nothing in here is ever out
of date, and deleting the folder is always safe. Each entry carries a digest of its own bytes: one
that was cut short or altered is made again instead of being used.

The folder is ``$MLSYS_GPU_CACHE``, else ``$XDG_CACHE_HOME/mlsys-gpu``, else
``~/.cache/mlsys-gpu``. Where it cannot be written, nothing is cached and nothing fails.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

_DIGEST_BYTES = 32


def directory() -> Path:
    """Folder of the cache; it need not exist."""
    chosen = os.environ.get("MLSYS_GPU_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "mlsys-gpu"


def key(*parts: str | bytes) -> str:
    """SHA-256 (hex) over ``parts`` and where one ends and the next begins."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def read(kind: str, name: str) -> bytes | None:
    """The entry ``name`` (a :func:`key`) among those of ``kind``, or None."""
    try:
        stored = (directory() / kind / name).read_bytes()
    except OSError:
        return None
    digest, data = stored[:_DIGEST_BYTES], stored[_DIGEST_BYTES:]
    return data if hashlib.sha256(data).digest() == digest else None


def write(kind: str, name: str, data: bytes) -> None:
    """Store ``data``; a reader at the same moment sees the old entry, the new one, or none."""
    folder = directory() / kind
    temporary = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".", delete=False) as file:
            temporary = file.name
            file.write(hashlib.sha256(data).digest() + data)
        os.replace(temporary, folder / name)
    except OSError:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
