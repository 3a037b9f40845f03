"""Submissions that try to pass without an answer, or to do harm. None of them may pass.

Each test is one line of the list of threats; what it relies on is said where it matters: "by
construction" (an answer is data that another process judges), the operating system (Landlock,
limits), or the audit hook.
"""

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mlsys_gpu.grading import manifest, sandbox, serial, stubs
from mlsys_gpu.grading.runner import Grader, Submission
from mlsys_gpu.grading.verdict import Verdict

ROOT = Path(__file__).resolve().parents[2]
Grade = Callable[..., Verdict]
needs_landlock = pytest.mark.skipif(
    sandbox.landlock_version() == 0, reason="this kernel has no Landlock: only the hook guards"
)


def code(text: str) -> str:
    return textwrap.dedent(text)


def solution(exercise_id: str) -> str:
    exercise = manifest.find(manifest.load(ROOT), exercise_id)
    return stubs.worked((ROOT / "solutions" / exercise.file).read_text(encoding="utf-8"))


def test_the_harness_lets_a_right_answer_pass(grade: Grade) -> None:
    assert grade("1.1", solution("1.1")).ok


# --- time, memory, processes ------------------------------------------------------------------


def test_loops_for_ever(grade: Grade) -> None:
    source = "def locate(thread_idx, block_dim):\n    while True:\n        pass\n"
    started = time.monotonic()
    verdict = grade("1.1", source, seconds=1.0)
    assert verdict.status == "failed"
    assert "did not finish within 1.0 s" in verdict.message
    assert time.monotonic() - started < 5


def test_loops_for_ever_while_it_is_loaded(grade: Grade) -> None:
    assert "did not finish" in grade("1.1", "while True: pass", seconds=1.0).message


def test_sleeps_for_ever_and_ignores_signals(grade: Grade) -> None:
    source = code(
        """
        import signal, time
        for number in range(1, 32):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        time.sleep(1000)
        """
    )
    assert "did not finish" in grade("1.1", source, seconds=1.0).message


def test_allocates_without_end(grade: Grade) -> None:
    source = code(
        """
        def locate(thread_idx, block_dim):
            kept = []
            while True:
                kept.append(bytearray(64 << 20))
        """
    )
    verdict = grade("1.1", source, memory_mb=256)
    assert verdict.status == "failed"
    assert "more memory than grading allows" in verdict.message


def test_returns_more_than_any_answer_needs(grade: Grade) -> None:
    source = "def locate(thread_idx, block_dim):\n    return 'x' * (1 << 20)\n"
    verdict = grade("1.1", source, memory_mb=2048)
    assert not verdict.ok
    assert "more data than any answer needs" in verdict.message


def test_fills_the_disk(grade: Grade) -> None:
    source = code(
        """
        def locate(thread_idx, block_dim):
            with open("big", "wb") as file:
                while True:
                    file.write(bytes(1 << 20))
        """
    )
    verdict = grade("1.1", source)
    assert not verdict.ok
    assert "File too large" in verdict.message


def test_prints_without_end(grade: Grade) -> None:
    source = "while True:\n    print('passed ' * 1000)\n"
    verdict = grade("1.1", source, seconds=2.0)
    assert not verdict.ok
    assert len(verdict.output) <= 5000


@pytest.mark.parametrize(
    ("loop", "said"),
    [
        ("while x >= 0:", "a while loop has gone round"),
        ("for i in T.serial(2_000_000_000):", "did not end within 4.0 s in the simulator"),
    ],
)
def test_a_kernel_that_never_ends(grade: Grade, loop: str, said: str) -> None:
    source = solution("1.5").replace(
        "        T.cuda.cta_sync()\n",
        f"        T.cuda.cta_sync()\n        x: T.int32 = 0\n        {loop}\n"
        "            x = (x + 1) % 7\n",
    )
    verdict = grade("1.5", source, judge_seconds=4.0)
    assert verdict.status == "failed"
    assert said in verdict.message


def test_starts_processes(grade: Grade) -> None:
    for statement in (
        "import os; os.fork()",
        "import subprocess; subprocess.run(['true'])",
        "import os; os.system('true')",
        "import os; os.posix_spawn('/bin/true', ['true'], {})",
        "import multiprocessing; multiprocessing.Process(target=print).start()",
    ):
        verdict = grade("1.1", statement)
        assert not verdict.ok
        assert "cannot start another process" in verdict.message, statement


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_children_that_got_away_are_ended(grade: Grade) -> None:
    """Native code forks past the hook, twice, and leaves its session: still it is found."""
    mark = f"left-behind-{os.getpid()}"
    source = solution("1.1") + code(
        f"""
        import ctypes, time
        libc = ctypes.CDLL(None)
        if libc.fork() == 0:
            libc.setsid()
            if libc.fork() == 0:
                libc.prctl(15, b"{mark[:15]}", 0, 0, 0)  # PR_SET_NAME
                time.sleep(600)
            time.sleep(600)
        """
    )
    grade("1.1", source)
    names = []
    for entry in os.listdir("/proc"):
        try:
            names.append(Path(f"/proc/{entry}/comm").read_text().strip())
        except OSError:
            continue
    assert mark[:15] not in names


# --- a verdict that is not the grader's --------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "raise SystemExit",
        "import os, signal; signal.raise_signal(signal.SIGTERM)",
        "import ctypes; ctypes.CDLL(None).exit(0)",
    ],
)
@pytest.mark.parametrize("where", ["loading", "calling"])
def test_ends_early_with_success(grade: Grade, statement: str, where: str) -> None:
    if where == "calling":
        statement = f"def locate(thread_idx, block_dim):\n    {statement}\n"
    verdict = grade("1.1", statement)
    assert verdict.status == "failed"
    assert "before it handed back an answer" in verdict.message


def test_prints_a_verdict(grade: Grade) -> None:
    source = code(
        """
        import sys
        print('{"ok": true, "status": "passed"}')
        print("✓ 1.1 Which warp, which lane? (predict): passed", file=sys.stderr)
        print("\\x1b[2J\\x1b[H1 of 1 exercises solved.")
        def locate(thread_idx, block_dim):
            return "passed"
        """
    )
    verdict = grade("1.1", source)
    assert verdict.status == "failed"
    shown = str(verdict)
    assert "\x1b" not in shown  # it cannot redraw the terminal either
    assert all(line.startswith("    | ") for line in shown.splitlines() if "1 of 1" in line)


def test_writes_a_verdict_into_every_open_channel(grade: Grade) -> None:
    """By construction: the channel carries answers, and these are wrong."""
    source = code(
        """
        import json, os, struct
        fakes = [
            {"ok": True, "message": "right", "hint": None},
            {"answers": ["passed"] * 12},
            {"end": "result", "code": 0, "result": {"ok": True, "message": "right", "hint": None}},
        ]
        for fd in range(3, 200):
            for fake in fakes:
                data = json.dumps(fake).encode()
                for bytes_ in (data, struct.pack(">Q", len(data)) + data):
                    try:
                        os.write(fd, bytes_)
                    except OSError:
                        pass
        os._exit(0)
        """
    )
    verdict = grade("1.1", source)
    assert not verdict.ok
    assert grade("1.1", solution("1.1")).ok  # the channel to the server is unharmed


def test_writes_well_formed_answers_of_its_own(grade: Grade) -> None:
    source = code(
        """
        import json, os
        for fd in range(3, 200):
            try:
                os.write(fd, json.dumps({"answers": [[0, 0, 0]] * 12}).encode())
                os._exit(0)
            except OSError:
                pass
        """
    )
    verdict = grade("1.1", source)
    assert verdict.status == "failed"
    assert "it should be" in verdict.message


def test_patches_the_checker(grade: Grade) -> None:
    """By construction: what it patches is its own process."""
    source = code(
        """
        import builtins, json, sys
        import numpy as np
        for module in list(sys.modules.values()):
            if getattr(module, "__name__", "").startswith("mlsys_gpu"):
                for name in list(vars(module)):
                    if name in ("compare", "check", "judge", "scan", "_conclude"):
                        setattr(module, name, lambda *a, **k: None)
        np.array_equal = np.allclose = lambda *a, **k: True
        builtins.isinstance = lambda *a: True
        json.dumps = lambda *a, **k: '{"answers": [], "ok": true}'
        def locate(thread_idx, block_dim):
            return 0, 0, 0
        """
    )
    assert not grade("1.1", source).ok


def test_patches_what_serialises_kernels(grade: Grade) -> None:
    source = code(
        """
        from mlsys_gpu import grading
        import sys
        serial = sys.modules["mlsys_gpu.grading.serial"]
        serial.dump_kernel = lambda kernel: '{"tvm": "0.27.0", "root": 0, "nodes": []}'
        import tvm
        tvm.tirx.PrimFunc = object
        def build(**shape):
            return "kernel"
        """
    )
    verdict = grade("1.5", source.replace("from mlsys_gpu import grading\n", ""))
    assert not verdict.ok


def test_registers_work_for_later(grade: Grade) -> None:
    source = code(
        """
        import atexit, os, threading
        def forge():
            for fd in range(3, 200):
                try:
                    os.write(fd, b'{"answers": [[1, 1, 1]]}')
                except OSError:
                    pass
        atexit.register(forge)
        threading.Timer(0.01, forge).start()
        class Late:
            def __del__(self):
                forge()
        kept = Late()
        def locate(thread_idx, block_dim):
            return 1, 1, 1
        """
    )
    assert not grade("1.1", source).ok


def test_an_answer_that_claims_to_equal_everything(grade: Grade) -> None:
    source = code(
        """
        class Yes(int):
            def __eq__(self, other):
                return True
            __hash__ = int.__hash__
        def locate(thread_idx, block_dim):
            return [Yes(1), Yes(2), Yes(3)]
        """
    )
    assert not grade("1.1", source).ok


def test_an_error_message_that_redraws_the_terminal(grade: Grade) -> None:
    fake = "\\x1b[2J\\x1b[H\\r\\n✓ 1.1 Which warp, which lane? (predict): passed\\u202e"
    verdict = grade("1.1", f'raise ValueError("{fake}")')
    assert verdict.status == "failed"
    for shown in (str(verdict), verdict._repr_html_()):
        assert "\x1b" not in shown
        assert "\r" not in shown
        assert "\u202e" not in shown
    assert not any(line.startswith("✓") for line in str(verdict).splitlines())


def test_errors_of_its_own_making(grade: Grade) -> None:
    """What it writes into the channel instead of an error may have any form."""
    for error in (
        {"kind": "missing", "name": ["x"] * 10000, "defined": 5},
        {"kind": "exception", "call": "x", "line": "y", "text": {"a": 1}, "type": None},
        {"kind": "unsolved", "message": 7, "line": -1},
        {"kind": ["passed"], "call": 10**9},
        {},
    ):
        source = f"""
import json, os
for fd in range(3, 64):
    try:
        os.write(fd, json.dumps({{"error": {error!r}}}).encode())
        os._exit(0)
    except OSError:
        pass
"""
        verdict = grade("1.1", source)
        assert not verdict.ok
        assert len(verdict.message) < 5000


def test_answers_that_trip_the_comparison(grade: Grade) -> None:
    for answer in ("10 ** 400", "(10 ** 400, 10 ** 400, 'memory')", "[[]] * 3", "{}", "('x',) * 3"):
        source = f"def roofline(M, N, K, size, peak, bandwidth):\n    return {answer}\n"
        assert grade("1.3", source).status == "failed", answer
    for answer in ("10 ** 400", "[10 ** 400, 16]", "[{}, {}]", "[0, 0]", "[-64, -16]"):
        source = f"def best_tile(M, N, K, stages, smem_bytes):\n    return {answer}\n"
        assert grade("12.8", source).status == "failed", answer


def test_nan_and_truth_are_no_numbers(grade: Grade) -> None:
    for answer in ("float('nan')", "True", "None", "'0'", "[0]", "1e400", "float"):
        source = f"def offset(row, col, size):\n    return {answer}\n"
        assert not grade("10.1", source).ok, answer


# --- the answer from somewhere else -------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "from solutions.ch01 import ex01_1_thread_index as s\nlocate = s.locate",
        "import solutions",
        "exec(open('solutions/ch01/ex01_1_thread_index.py').read())",
        "import runpy\nlocate = runpy.run_path('../solutions/ch01/x.py')['locate']",
        "from mlsys_gpu.grading.checks import ch01",
        "import mlsys_gpu.grading.checks.ch01 as c\nlocate = c._locate",
    ],
)
def test_names_the_solution(grade: Grade, source: str) -> None:
    verdict = grade("1.1", source)
    assert verdict.status == "refused"
    assert "an answer has to stand on its own" in verdict.message


@pytest.mark.parametrize("exercise_id", ["12.4", "12.5", "12.6", "12.7", "12.9"])
def test_borrows_a_kernel_of_the_course(grade: Grade, exercise_id: str) -> None:
    """The ladder may be read and imported; by shape or target, its kernels are no answers."""
    arch = "blackwell" if exercise_id in ("12.4", "12.6") else "hopper"
    source = code(
        f"""
        import mlsys_gpu as mg
        def build(K, M=128, N=64):
            return mg.gemm.step(3, arch="{arch}").build(M, N, K)
        """
    )
    verdict = grade(exercise_id, source)
    assert verdict.status == "failed"
    assert "positive multiple of 128" in verdict.message or "it loads" in verdict.message


def test_reads_the_solution_by_a_hidden_path(grade: Grade) -> None:
    hidden = str(ROOT / "solutions" / "ch01" / "ex01_1_thread_index.py")
    quoted = repr([ord(c) for c in hidden])
    for read in (
        "exec(open(path).read())",
        "import os; fd = os.open(path, os.O_RDONLY); exec(os.read(fd, 10000))",
        "import runpy; locate = runpy.run_path(path)['locate']",
        "import shutil; shutil.copyfile(path, 'here.py'); exec(open('here.py').read())",
        "import os; os.symlink(path, 'here.py'); exec(open('here.py').read())",
        "import io; exec(io.FileIO(path).readall())",
        "import linecache; exec(''.join(linecache.getlines(path)))",
        "import numpy as np; exec(np.fromfile(path, dtype='uint8').tobytes())",
    ):
        verdict = grade("1.1", f"path = ''.join(map(chr, {quoted}))\n{read}\n")
        assert not verdict.ok, read
        refused = "Permission" in verdict.message or "has no function `locate`" in verdict.message
        assert refused, (read, verdict.message)


def test_imports_the_checks_by_a_hidden_name(grade: Grade) -> None:
    for expression in (
        "importlib.import_module('mlsys_gpu.' + 'grading.checks.ch01')",
        "__import__('mlsys_gpu.grad' + 'ing.checks.ch01', fromlist=['x'])",
        "sys.modules['mlsys_gpu.grad' + 'ing.checks.ch01']",
        "importlib.util.spec_from_file_location('c', path).loader.load_module()",
    ):
        path = str(ROOT / "src" / "mlsys_gpu" / "grading" / "checks" / "ch01.py")
        source = f"import importlib.util, sys\npath = {path!r}\nc = {expression}\n"
        source += "locate = lambda *a: c._locate('', *a)\n"
        verdict = grade("1.1", source)
        assert verdict.status == "failed", (expression, verdict)


@needs_landlock
def test_native_code_reads_the_solution(grade: Grade) -> None:
    """Past the audit hook: here the operating system says no."""
    hidden = [ord(c) for c in str(ROOT / "solutions" / "ch01" / "ex01_1_thread_index.py")]
    source = code(
        f"""
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        path = bytes({hidden})
        fd = libc.open(path, 0)
        text = ctypes.create_string_buffer(10000)
        if fd < 0:
            raise OSError(ctypes.get_errno(), "open")
        libc.read(fd, text, 10000)
        exec(text.value)
        """
    )
    verdict = grade("1.1", source)
    assert verdict.status == "failed"
    assert "Errno 13" in verdict.message


@pytest.mark.parametrize(
    "path", ["exercises/manifest.toml", "tests/exercises/test_exercises.py", ".git/HEAD"]
)
def test_reads_the_manifest_or_the_tests(grade: Grade, path: str) -> None:
    verdict = grade("1.1", f"open({str(ROOT / path)!r}).read()")
    assert verdict.status == "failed"
    assert "PermissionError" in verdict.message


def test_no_expected_value_travels_to_the_submission(
    grader: Grader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the submission's process is sent: the file, the calls, the limits, and nothing else."""
    jobs = []
    run = Grader._run

    def record(self, kind, job, *rest):
        jobs.append((kind, job))
        return run(self, kind, job, *rest)

    monkeypatch.setattr(Grader, "_run", record)
    exercises = manifest.load(ROOT)
    for exercise_id in ("1.1", "1.5"):
        exercise = manifest.find(exercises, exercise_id)
        assert grader.grade(exercise, Submission(solution(exercise_id), "answer.py")).ok
    sent = [job for kind, job in jobs if kind == "submission"]
    assert len(sent) == 2
    for job in sent:
        assert set(job) == {"path", "calls", "collect"}
        for call in job["calls"]:
            assert set(call) == {"function", "args", "kwargs"}
    # Kernels are built for a shape; the arrays they will see are drawn where they are judged.
    assert sent[1]["calls"][0]["args"] == []
    assert set(sent[1]["calls"][0]["kwargs"]) == {"M", "N"}


def test_returns_the_input(grade: Grade) -> None:
    assert not grade("1.1", "def locate(thread_idx, block_dim):\n    return thread_idx\n").ok
    kernel = solution("1.5").replace("line[THREADS - 1 - tid]", "line[tid]")
    kernel = kernel.replace("N - THREADS - part * THREADS + tid", "part * THREADS + tid")
    verdict = grade("1.5", kernel)
    assert verdict.status == "failed"
    assert "wrong elements" in verdict.message


def test_leaves_outputs_unwritten(grade: Grade) -> None:
    lines = [line for line in solution("1.5").splitlines() if not line.strip().startswith("D[")]
    verdict = grade("1.5", "\n".join(lines))
    assert verdict.status == "failed"
    assert "D is never written" in verdict.message


def test_leaves_some_outputs_unwritten(grade: Grade) -> None:
    kernel = solution("1.5").replace(
        "        D[r, N - THREADS", "        if tid < 100:\n            D[r, N - THREADS"
    )
    verdict = grade("1.5", kernel)
    assert "is never written" in verdict.message


def test_changes_its_input(grade: Grade) -> None:
    kernel = solution("1.5").replace(
        "        T.cuda.cta_sync()\n",
        "        T.cuda.cta_sync()\n        A[r, part * THREADS + tid] = T.float32(0)\n",
    )
    assert "changed its input A" in grade("1.5", kernel).message


def test_takes_another_shape_than_asked(grade: Grade) -> None:
    kernel = solution("1.5").replace("def build(M, N):", "def build(M, N):\n    M, N = 1, 128")
    verdict = grade("1.5", kernel)
    assert "the exercise asks for A float32[" in verdict.message


# --- other people's memory and files --------------------------------------------------------------


def test_writes_outside_its_scratch_directory(grade: Grade) -> None:
    target = ROOT / "exercises" / "ch01" / "planted.py"
    for source in (
        f"open({str(target)!r}, 'w').write('x')",
        f"import os; os.open({str(target)!r}, os.O_CREAT | os.O_WRONLY)",
        f"import pathlib; pathlib.Path({str(target)!r}).touch()",
        f"import os; os.rename('answer.py', {str(target)!r})",
        f"import os; os.mkdir({str(target)!r})",
    ):
        verdict = grade("1.1", source)
        assert not verdict.ok
        assert "PermissionError" in verdict.message, source
        assert not target.exists()


@needs_landlock
def test_native_code_writes_outside(grade: Grade, tmp_path: Path) -> None:
    target = tmp_path / "planted"
    source = code(
        f"""
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.creat({str(target).encode()!r}, 0o644) < 0:
            raise OSError(ctypes.get_errno(), "creat")
        """
    )
    assert "Errno 13" in grade("1.1", source).message
    assert not target.exists()


@pytest.mark.skipif(sandbox.landlock_version() < 6, reason="Landlock guards signals from ABI 6 on")
def test_ends_or_traces_the_grader(grade: Grade) -> None:
    source = solution("1.1") + code(
        """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.kill(os.getppid(), 9) == -1
        assert libc.ptrace(16, os.getppid(), 0, 0) == -1  # PTRACE_ATTACH
        try:
            open(f"/proc/{os.getppid()}/mem", "rb")
        except PermissionError:
            pass
        else:
            raise AssertionError("the grader's memory is open")
        """
    )
    assert grade("1.1", source).ok  # it was refused all three, and its answer is right
    assert grade("1.1", solution("1.1")).ok


def test_connects_to_the_network(grade: Grade) -> None:
    source = "import socket; socket.create_connection(('127.0.0.1', 9), timeout=1)"
    verdict = grade("1.1", source)
    assert "PermissionError" in verdict.message


def test_nothing_of_the_callers_environment_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_CALLER", "42")
    exercise = manifest.find(manifest.load(ROOT), "1.1")
    source = "import os\nraise ValueError(sorted(os.environ))\n"
    with Grader(ROOT) as fresh:
        message = fresh.grade(exercise, Submission(source, "answer.py")).message
    assert "SECRET" not in message
    assert "HOME" in message


def test_the_judge_shares_no_cache_with_a_submission(grader: Grader, grade: Grade) -> None:
    """The simulator caches Python source: it must come from nowhere that a submission can write."""
    source = "import os\nraise ValueError(os.environ['HOME'] == os.getcwd())\n"
    assert "True" in grade("1.1", source).message
    for planted in (grader.home + "/planted", grader.home + "/cache/planted"):
        assert "PermissionError" in grade("1.1", f"open({planted!r}, 'w')").message


# --- kernels as data ------------------------------------------------------------------------------


def _serialised() -> dict:
    path = ROOT / "solutions" / "ch10" / "ex10_4_first_kernel.py"
    spec = importlib.util.spec_from_file_location("kernel_of_10_4", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return json.loads(serial.dump_kernel(module.build(n=100)))


def test_hostile_kernels_are_refused() -> None:
    good = _serialised()
    serial.load_kernel(json.dumps(good))
    var = next(i for i, (key, _) in enumerate(good["nodes"]) if key == "ir.Var")

    def changed(**change) -> str:
        data = json.loads(json.dumps(good))
        data.update(change)
        return json.dumps(data)

    nodes = json.loads(json.dumps(good["nodes"]))
    nodes[var][1]["name"] = "x); import os; (y"
    for text, said in (
        ("not json", "no serialised kernel"),
        ("[]", "no serialised kernel"),
        (changed(tvm="0.1"), "written by TVM 0.1"),
        (changed(nodes=nodes), "is no identifier"),
        (changed(nodes=[["ffi.Function", {}]], root=0), "cannot hold an object of type"),
        (changed(nodes=[["runtime.Module", {}]], root=0), "cannot hold an object of type"),
        (changed(nodes=[["ffi.Array", [{"r": 5}]]], root=0), "points at nothing"),
        (changed(nodes=[["ffi.Array", []]], root=0), "expected a PrimFunc"),
        (changed(root=10**9), "cannot be rebuilt"),
    ):
        with pytest.raises(serial.SerialError, match=said):
            serial.load_kernel(text)


def test_a_translated_kernel_with_code_in_it_is_refused() -> None:
    from mlsys_gpu.grading.judge import _refuse_strange_source

    _refuse_strange_source("def kernel(w):\n    x = np.add(w.lanes, 1)\n    yield\n")
    for bad in ("import os", "open('x')", "x = ().__class__", "eval('1')", "global y"):
        with pytest.raises(ValueError, match="no kernel needs"):
            _refuse_strange_source(bad)


def test_grader_is_not_importable_code_of_the_student(course: Path) -> None:
    """Files beside the exercise, named like modules that the grader uses, are never imported."""
    for name in ("json", "numpy", "mlsys_gpu", "tomllib", "sitecustomize"):
        (course / f"{name}.py").write_text("raise SystemExit('imported')\n")
        (course / "exercises" / "ch01" / f"{name}.py").write_text("raise SystemExit('imported')\n")
    exercise = manifest.find(manifest.load(course), "1.1")
    (course / "exercises" / exercise.file).write_text(solution("1.1"))
    command = [
        sys.executable,
        "-P",
        "-c",
        "import sys; from mlsys_gpu.cli import main; sys.exit(main(['check', '1.1']))",
    ]
    done = subprocess.run(command, cwd=course, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_answers_are_compared_in_the_parent_with_fresh_inputs(grader: Grader) -> None:
    """The same submission sees other numbers each time, and a table of the last ones is no use."""
    exercise = manifest.find(manifest.load(ROOT), "1.1")
    source = "def locate(thread_idx, block_dim):\n    raise ValueError((thread_idx, block_dim))\n"
    seen = {grader.grade(exercise, Submission(source, "a.py")).message for _ in range(4)}
    assert len(seen) > 1


def test_seed_reproduces_a_failure() -> None:
    exercise_id, source = "1.1", "def locate(thread_idx, block_dim):\n    return 0, 0, 0\n"
    exercise = manifest.find(manifest.load(ROOT), exercise_id)
    messages = []
    for _ in range(2):
        with Grader(ROOT, seed=5) as fixed:
            messages.append(fixed.grade(exercise, Submission(source, "a.py")).message)
    assert messages[0] == messages[1]
