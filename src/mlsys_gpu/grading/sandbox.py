"""What a process gives up before it runs code that is not ours.

:func:`enter` is called once, in a freshly forked process, right before a submission is loaded. It
takes three steps, from the outside in:

1. **Limits** (``setrlimit``): address space, CPU seconds, size of a file, no core dump.
2. **Landlock** (Linux 5.13 or newer): the kernel itself refuses every file outside the list, so
   that neither ``solutions/`` nor the checks can be opened by any means, nor anything written
   outside the scratch directory; connecting by TCP, tracing and signalling other processes are
   refused too where the kernel's Landlock can do that.
3. **An audit hook** in Python: the same refusals with a sentence that a reader understands, and
   the only guard for files where the kernel has no Landlock (macOS, old kernels). It stops honest
   mistakes and simple tricks; native code could go around it.

None of this decides whether a submission passes. Whatever a submission does in its process, all
it can hand back is answers, and another process judges them.

Sources: Linux ``landlock(7)``, ``prctl(2)``, ``setrlimit(2)``; PEP 578 for audit hooks.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

# Landlock's file rights, in the order of the bits in <linux/landlock.h>.
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_ALL_ABI1 = (1 << 13) - 1
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_ONLY_FOR_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_NET_BIND_AND_CONNECT = 0b11
_SCOPE_SOCKETS_AND_SIGNALS = 0b11
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_PR_SET_NO_NEW_PRIVS = 38


@dataclass
class Policy:
    """What a submission may use.

    ``read`` lists files and directories that stay readable, ``listed`` directories whose names (but
    not contents) stay visible, because Python's import looks through them, ``scratch`` the one
    directory that it may write to, ``protected`` what the audit hook guards where there is no
    Landlock. Sizes are in MiB, memory on top of what the process already uses; ``cpu_seconds`` is
    CPU time.
    """

    scratch: str
    read: list[str] = field(default_factory=list)
    listed: list[str] = field(default_factory=list)
    protected: list[str] = field(default_factory=list)
    memory_mb: int = 2048
    cpu_seconds: int = 10
    file_mb: int = 16

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def enter(policy: Policy) -> dict[str, bool]:
    """Applies limits, Landlock and the audit hook to this process; there is no way back.

    Returns which of the guards hold: ``{"limits": …, "landlock": …, "hook": True}``.
    """
    held = {"limits": _limit(policy), "landlock": _landlock(policy)}
    _install_hook(policy)
    held["hook"] = True
    return held


def _limit(policy: Policy) -> bool:
    import resource

    mib = 2**20

    def cap(kind: int, value: int, above: int = 0) -> bool:
        _, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY:
            value, above = min(value, hard), min(above, max(0, hard - value))
        try:
            resource.setrlimit(kind, (value, value + above))
        except (ValueError, OSError):  # macOS does not take every limit
            return False
        return True

    cap(resource.RLIMIT_CORE, 0)
    # At the first limit comes a signal that says why, at the second one that nothing survives.
    cap(resource.RLIMIT_CPU, policy.cpu_seconds, above=1)
    cap(resource.RLIMIT_FSIZE, policy.file_mb * mib)
    return cap(resource.RLIMIT_AS, address_space() + policy.memory_mb * mib)


def address_space() -> int:
    """Bytes of address space that this process has mapped; 8 GiB where the system cannot say."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 8 * 2**30


def landlock_version() -> int:
    """The Landlock ABI of the running kernel, 0 where there is none."""
    if not sys.platform.startswith("linux"):
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1)))


def _landlock(policy: Policy) -> bool:
    version = landlock_version()
    if version < 1:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    rights = _ALL_ABI1
    rights |= _REFER if version >= 2 else 0
    rights |= _TRUNCATE if version >= 3 else 0
    rights |= _IOCTL_DEV if version >= 5 else 0
    attr = struct.pack("=Q", rights)
    if version >= 4:
        attr += struct.pack("=Q", _NET_BIND_AND_CONNECT)
    if version >= 6:
        attr += struct.pack("=Q", _SCOPE_SOCKETS_AND_SIGNALS)
    ruleset = libc.syscall(_CREATE_RULESET, attr, ctypes.c_size_t(len(attr)), ctypes.c_uint32(0))
    if ruleset < 0:
        return False

    def allow(path: str, wanted: int) -> None:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:  # not on this machine: nothing to allow
            return
        try:
            if not os.path.isdir(path):
                wanted &= _ONLY_FOR_FILES
            rule = struct.pack("=Qi", wanted & rights, fd)
            libc.syscall(_ADD_RULE, ruleset, ctypes.c_int(1), rule, ctypes.c_uint32(0))
        finally:
            os.close(fd)

    for path in policy.read:
        allow(path, _READ)
    for path in policy.listed:
        allow(path, _READ_DIR)
    for device in ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random"):
        allow(device, _READ_FILE | _WRITE_FILE)
    allow(policy.scratch, rights & ~_EXECUTE)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    restricted = libc.syscall(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0)) == 0
    os.close(ruleset)
    return restricted


# --- the audit hook --------------------------------------------------------------------------

_STARTS_A_PROCESS = (
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.exec",
    "os.system",
    "os.spawn",
    "subprocess.Popen",
    "pty.spawn",
)
_LEAVES_THE_PROCESS = (
    "os.kill",
    "os.killpg",
    "socket.connect",
    "socket.bind",
    "sys.addaudithook",
    "gc.get_objects",
    "gc.get_referrers",
)
_TAKES_A_PATH = (
    "open",
    "os.listdir",
    "os.scandir",
    "os.chdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.mkdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.chmod",
    "shutil.copyfile",
)
_CHANGES_A_PATH = frozenset(_TAKES_A_PATH) - {"open", "os.listdir", "os.scandir", "os.chdir"}
_PRIVATE_MODULES = ("solutions", "mlsys_gpu.grading")


def _install_hook(policy: Policy) -> None:
    protected = tuple(os.path.realpath(path) for path in policy.protected)
    scratch = os.path.realpath(policy.scratch)
    realpath, fspath, fsdecode = os.path.realpath, os.fspath, os.fsdecode
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    harmless = ("/dev/null", "/dev/zero", "/dev/urandom")
    private = _PRIVATE_MODULES

    def inside(path: str, roots: Sequence[str]) -> bool:
        return any(path == root or path.startswith(root + os.sep) for root in roots)

    def guard(event: str, args: tuple[Any, ...]) -> None:
        if event == "import":
            name = args[0]
            if isinstance(name, str) and any(
                name == module or name.startswith(module + ".") for module in private
            ):
                raise ImportError(f"an answer cannot import {name}: it has to stand on its own")
        elif event in _STARTS_A_PROCESS:
            raise PermissionError(f"an answer cannot start another process ({event})")
        elif event in _LEAVES_THE_PROCESS:
            raise PermissionError(f"an answer cannot use {event}")
        elif event in _TAKES_A_PATH:
            if not isinstance(args[0], str | bytes | os.PathLike):
                return  # a file descriptor that is open already
            path = realpath(fsdecode(fspath(args[0])))
            if inside(path, protected) and not inside(path, (scratch,)):
                raise PermissionError(f"an answer cannot look into {path}")
            changes = event in _CHANGES_A_PATH
            if event == "open":
                flags = args[2] if isinstance(args[2], int) else 0
                mode = args[1] if isinstance(args[1], str) else ""
                changes = bool(flags & writing) or any(c in mode for c in "wax+")
            if changes and not inside(path, (scratch,)) and path not in harmless:
                raise PermissionError(f"an answer cannot write to {path}")

    sys.addaudithook(guard)
