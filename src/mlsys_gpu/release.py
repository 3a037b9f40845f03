"""The one TVM release that this course is written for, and the refusal of any other.

TIRx's dialect changes between releases: a kernel that parses under one release may not parse,
or may mean something else, under the next. So the release is pinned here, in one place, and a
wrong one is refused before any kernel is built. Nothing here imports TVM; reading the installed
distribution's metadata takes a few milliseconds.
"""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

TVM_DISTRIBUTION = "apache-tvm"
TVM_VERSION = "0.27.0.post1"


class WrongTvmRelease(ImportError):
    """Another release of TVM than :data:`TVM_VERSION` is installed."""


def installed_tvm() -> str | None:
    """Version of the installed ``apache-tvm`` distribution, or None where there is none."""
    try:
        return importlib.metadata.version(TVM_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return None


def require_tvm() -> None:
    """Refuse another TVM release.

    A missing TVM passes: what needs none of it (``doctor``, grading of *predict* exercises, the
    machine half of the simulator) keeps working, and what needs it fails where it imports it.

    Raises:
        WrongTvmRelease: another release is installed; the sentence names the pin.
    """
    found = installed_tvm()
    if found is not None and found != TVM_VERSION:
        raise WrongTvmRelease(
            f"mlsys_gpu is written for {TVM_DISTRIBUTION}=={TVM_VERSION} but {found} is installed: "
            f'run `pip install "{TVM_DISTRIBUTION}=={TVM_VERSION}"`.'
        )


def started_as_command() -> bool:
    """Whether this process is the ``mlsys-gpu`` command.

    The command answers a wrong release itself (one sentence and exit status 2, and `doctor`
    still lists what else is there), so the package's import must not stop it with a traceback.
    """
    return bool(sys.argv) and Path(sys.argv[0]).stem == "mlsys-gpu"
