"""Where the exercises are, and what a submission may read."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]  # …/mlsys_gpu
ROOT_VARIABLE = "MLSYS_GPU_COURSE"
_SYSTEM = (
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/share/zoneinfo",
    "/System/Library",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/self",
    "/sys/devices/system/cpu",
)


class CourseNotFound(FileNotFoundError):
    """There is no ``exercises/manifest.toml`` in or above the working directory."""


def find_root(start: str | Path | None = None) -> Path:
    """The course's directory: the one that holds ``exercises/manifest.toml``.

    Looked for in ``$MLSYS_GPU_COURSE``, in ``start`` (default: the working directory) and its
    parents, and where an editable install of the package lies, in this order.

    Raises
    ------
    CourseNotFound
        None of these holds a manifest.
    """
    named = os.environ.get(ROOT_VARIABLE)
    if named and start is None:
        if (Path(named) / "exercises" / "manifest.toml").is_file():
            return Path(named).resolve()
        raise CourseNotFound(f"${ROOT_VARIABLE} is {named}, which holds no exercises/manifest.toml")
    here = Path(start or Path.cwd()).resolve()
    candidates = [here, *here.parents]
    if start is None:
        candidates += PACKAGE.parents
    for candidate in candidates:
        if (candidate / "exercises" / "manifest.toml").is_file():
            return candidate
    raise CourseNotFound(
        f"no exercises/manifest.toml in {here} or above it: run this inside the course's "
        f"directory, or name that directory in ${ROOT_VARIABLE}"
    )


def readable_paths() -> tuple[list[str], list[str]]:
    """What a submission needs to see: ``(readable, listed)`` paths.

    Readable are Python, its packages and the public part of this package; the grading package,
    ``exercises/``, ``solutions/`` and ``tests/`` are not. Of the directories in ``listed`` only the
    names are visible, which Python's import looks through.
    """
    read: list[Path] = []
    listed: list[Path] = [PACKAGE.parent, PACKAGE]
    for prefix in {sys.prefix, sys.base_prefix}:
        # A prefix itself may hold the course (`/`, a home directory); its libraries do not.
        read += [Path(prefix) / "bin", Path(prefix) / "pyvenv.cfg"]
    read.append(Path(sys.base_prefix) / "lib" / f"libpython3.{sys.version_info.minor}.so.1.0")
    for name in ("stdlib", "platstdlib"):
        directory = Path(sysconfig.get_paths()[name])
        listed.append(directory)
        read += [p for p in directory.glob("*") if p.name not in ("site-packages", "dist-packages")]
    for directory in {Path(entry) for entry in [*sys.path, *_site_directories()]}:
        if directory.name in ("site-packages", "dist-packages") and directory.is_dir():
            listed.append(directory)
            read += [p for p in directory.iterdir() if p.name != "mlsys_gpu"]
    read += [p for p in PACKAGE.iterdir() if p.name != "grading"]
    read += [Path(p) for p in _SYSTEM]
    grading = str(PACKAGE / "grading") + os.sep
    kept = {str(path) for path in read if path.exists()}
    return (
        sorted(path for path in kept if not grading.startswith(path + os.sep)),
        sorted({str(path) for path in listed if path.is_dir()}),
    )


def protected_paths(root: Path) -> list[str]:
    """What the audit hook guards where the operating system cannot."""
    names = ("solutions", "exercises", "tests", ".git")
    return [str(PACKAGE / "grading"), *(str(root / name) for name in names)]


def _site_directories() -> list[str]:
    try:
        return [*site.getsitepackages(), site.getusersitepackages()]
    except AttributeError:  # a frozen or embedded Python
        return []
