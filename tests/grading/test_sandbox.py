"""The guards of a submission's process, each by itself, in a real forked process."""

import os
from pathlib import Path

import pytest

from mlsys_gpu.grading import paths, sandbox, server

ROOT = Path(__file__).resolve().parents[2]
SECRET = ROOT / "solutions" / "ch01" / "ex01_1_thread_index.py"


def run(scratch: Path, source: str, seconds: float = 5, **policy) -> dict:
    """Runs source (which defines ``f``) as a submission and returns the server's reply."""
    answer = scratch / "answer.py"
    answer.write_text(source)
    read, listed = paths.readable_paths()
    settings = sandbox.Policy(
        scratch=str(scratch),
        read=read,
        listed=listed,
        protected=paths.protected_paths(ROOT),
        **policy,
    )
    return server.run_job(
        {
            "kind": "submission",
            "path": str(answer),
            "calls": [{"function": "f", "args": [], "kwargs": {}}],
            "collect": "values",
            "limits": {"seconds": seconds, "memory_mb": 256, "answer_mb": 1},
            "policy": settings.to_dict(),
        }
    )


def test_a_plain_answer(tmp_path: Path) -> None:
    reply = run(tmp_path, "print('hello')\ndef f():\n    return [1, 2.5, 'x', None, True]\n")
    assert reply["end"] == "result"
    assert reply["result"] == {"answers": [[1, 2.5, "x", None, True]]}
    assert reply["output"] == "hello\n"


@pytest.mark.parametrize("landlock", [True, False])
def test_solutions_cannot_be_read(
    landlock: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Landlock, and with the audit hook alone (macOS, old kernels)."""
    if landlock and not sandbox.landlock_version():
        pytest.skip("this kernel has no Landlock")
    if not landlock:
        monkeypatch.setattr(sandbox, "_landlock", lambda policy: False)
    for read in (
        f"open({str(SECRET)!r}).read()",
        f"__import__('os').open({str(SECRET)!r}, 0)",
        f"__import__('pathlib').Path({str(SECRET)!r}).read_text()",
        f"__import__('os').listdir({str(SECRET.parent)!r})",
        f"__import__('os').symlink({str(SECRET)!r}, 'x') or open('x').read()",
        f"__import__('os').link({str(SECRET)!r}, 'y') or open('y').read()",
        f"__import__('os').chdir({str(SECRET.parent)!r}) or open({SECRET.name!r}).read()",
    ):
        for leftover in ("x", "y"):
            (tmp_path / leftover).unlink(missing_ok=True)
        reply = run(tmp_path, f"def f():\n    return str({read})\n")
        error = reply["result"]["error"]
        assert error["type"] == "PermissionError", (read, error)


def test_landlock_alone_hides_what_it_should(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the hook: what is not on the list is unreadable, and packages are readable."""
    if not sandbox.landlock_version():
        pytest.skip("this kernel has no Landlock")
    monkeypatch.setattr(sandbox, "_install_hook", lambda policy: None)
    source = f"""
import os
def tried(path):
    try:
        with open(path, "rb") as file:
            file.read(1)
        return "read"
    except OSError as error:
        return type(error).__name__
def f():
    import mlsys_gpu, numpy, json, tvm.tirx.layout, mlsys_gpu.kernels.common
    return [
        tried({str(SECRET)!r}),
        tried({str(ROOT / "exercises" / "manifest.toml")!r}),
        tried({str(ROOT / "src/mlsys_gpu/grading/checks/ch01.py")!r}),
        tried({str(ROOT / "tests/exercises/test_exercises.py")!r}),
        tried("/etc/passwd"),
        tried({str(ROOT / "src/mlsys_gpu/release.py")!r}),
        tried(numpy.__file__),
    ]
"""
    reply = run(tmp_path, source, seconds=120, cpu_seconds=120)  # imports TVM
    assert reply["result"] == {"answers": [["PermissionError"] * 5 + ["read"] * 2]}, reply


def test_limits_hold(tmp_path: Path) -> None:
    source = """
import resource
def f():
    return [resource.getrlimit(r)[0] for r in
            (resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE)]
"""
    reply = run(tmp_path, source, cpu_seconds=7, file_mb=3)
    assert reply["result"] == {"answers": [[7, 3 << 20, 0]]}


def test_processor_time_is_limited_too(tmp_path: Path) -> None:
    reply = run(tmp_path, "def f():\n    while True:\n        pass\n", cpu_seconds=1)
    assert reply["end"] == "timeout"
    assert reply["seconds"] < 4


def test_memory_is_limited(tmp_path: Path) -> None:
    reply = run(tmp_path, "def f():\n    return len(bytearray(1 << 30))\n", memory_mb=128)
    assert reply["end"] == "memory"


def test_nothing_is_left_open(tmp_path: Path) -> None:
    """Besides its three standard streams, the child has the channel for its answers only."""
    source = """
import os
def f():
    count = 0
    for fd in range(256):
        try:
            os.fstat(fd)
            count += 1
        except OSError:
            pass
    return count
"""
    with open(os.devnull), open(os.devnull):
        reply = run(tmp_path, source)
    assert reply["result"] == {"answers": [4]}


def test_readable_paths_leave_out_what_grades() -> None:
    read, listed = paths.readable_paths()
    for hidden in ("src/mlsys_gpu/grading", "solutions", "exercises", "tests"):
        whole = str(ROOT / hidden)
        for path in read:
            assert not (whole + "/").startswith(path + "/"), (path, hidden)
            assert not path.startswith(whole + "/"), (path, hidden)
    assert str(ROOT / "src" / "mlsys_gpu") in listed
