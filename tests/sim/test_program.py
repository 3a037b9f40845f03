"""Programs: one value that survives JSON, runs without TVM, and is cached by content."""
# pyright: reportInvalidTypeForm=false
# (The annotations of kernels are TVMScript's.)

import json
import subprocess
import sys

import numpy as np
import pytest
from tvm.script import tirx as T

from mlsys_gpu import cache, sim
from mlsys_gpu.kernels import gemm
from mlsys_gpu.sim import program as programs
from mlsys_gpu.sim.frontend import table
from mlsys_gpu.verification import compare_gemm, gemm_inputs, poisoned

from .sources import module_from

SHAPE = (128, 128, 64)


def test_round_trip_through_json():
    program = sim.compile(gemm.step(1, "hopper").build(*SHAPE))
    again = sim.Program.from_json(program.to_json())
    assert again == program
    A, B = gemm_inputs(*SHAPE, dtype="float16", seed=0)
    D = poisoned(SHAPE[:2], "float16")
    assert sim.simulate(again, A, B, D).ok
    assert compare_gemm(A, B, D).max_error <= 1


WITHOUT_TVM = """
import builtins, json, sys
real = builtins.__import__
def refuse(name, *rest, **more):
    if name.split(".")[0] in ("tvm", "torch", "triton"):
        raise ImportError(f"{name} must not be imported")
    return real(name, *rest, **more)
builtins.__import__ = refuse
import numpy as np
from mlsys_gpu import sim
program = sim.Program.from_json(open(sys.argv[1]).read())
rng = np.random.default_rng(0)
A, B = (rng.standard_normal((128, 64)).astype(np.float16) for _ in range(2))
D = np.full((128, 128), np.nan, np.float16)
report = sim.simulate(program, A, B, D, schedule="seeded", schedule_seed=3)
error = np.abs(D.astype(float) - A.astype(float) @ B.astype(float).T).max()
print(json.dumps({"ok": report.ok, "error": float(error),
                  "loaded": sorted(m for m in sys.modules if m in ("tvm", "torch", "triton"))}))
"""


@pytest.mark.parametrize("arch", gemm.ARCHS)
def test_the_machine_needs_numpy_alone(arch, tmp_path):
    file = tmp_path / "program.json"
    file.write_text(sim.compile(gemm.step(1, arch).build(*SHAPE)).to_json())
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TVM, str(file)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["ok"]
    assert said["loaded"] == []
    assert said["error"] < 0.05


# ------------------------------------------------------------------------------- the cache

TEXT = """\
from tvm.script import tirx as T


@T.prim_func
def kernel(X: T.Buffer((32,), "int32"), Y: T.Buffer((32,), "int32")):
    T.device_entry()
    cta = T.cta_id([1])
    tid = T.thread_id([32])
    Y[tid] = X[tid] + {by}
"""


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """An empty cache on disk and in memory, and a count of translations."""
    monkeypatch.setenv("MLSYS_GPU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(programs, "_MEMORY", {})
    from mlsys_gpu.sim.frontend import translate as front

    made = []
    real = front.translate

    def counted(lowered):
        made.append(lowered.name)
        return real(lowered)

    monkeypatch.setattr(front, "translate", counted)
    return made


def forget(monkeypatch):
    monkeypatch.setattr(programs, "_MEMORY", {})


def plus(tmp_path, by: int, name: str = "kernel"):
    return module_from(tmp_path / f"{name}.py", TEXT.format(by=by)).kernel


def test_a_second_translation_costs_nothing(fresh, tmp_path, monkeypatch):
    kernel = plus(tmp_path, 1)
    first = sim.compile(kernel)
    assert sim.compile(kernel) is first  # from memory
    forget(monkeypatch)
    assert sim.compile(kernel) == first  # from disk
    assert len(fresh) == 1


def test_another_content_is_another_entry(fresh, tmp_path):
    one, two = sim.compile(plus(tmp_path, 1)), sim.compile(plus(tmp_path, 2))
    assert len(fresh) == 2
    assert one.key != two.key
    Y = np.zeros(32, np.int32)
    sim.simulate(two, np.arange(32, dtype=np.int32), Y)
    assert np.array_equal(Y, np.arange(32) + 2)


def test_the_same_kernel_on_another_line_is_another_entry(fresh, tmp_path):
    """Findings name lines: a kernel that moved in its file must not get the old ones."""
    sim.compile(plus(tmp_path, 1, "here"))
    moved = module_from(tmp_path / "there.py", "\n\n" + TEXT.format(by=1)).kernel
    program = sim.compile(moved)
    assert len(fresh) == 2
    assert {line for places in program.sites for _, line in places} >= {11}


def test_a_damaged_entry_is_made_again(fresh, tmp_path, monkeypatch):
    kernel = plus(tmp_path, 1)
    program = sim.compile(kernel)
    (entry,) = (cache.directory() / "programs").iterdir()
    for damage in (b"", b"short", entry.read_bytes()[:-1], entry.read_bytes() + b"x"):
        entry.write_bytes(damage)
        forget(monkeypatch)
        assert sim.compile(kernel) == program
    assert len(fresh) == 5


def test_without_a_cache_everything_works(fresh, tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    monkeypatch.setenv("MLSYS_GPU_CACHE", str(blocked))
    kernel = plus(tmp_path, 3)
    sim.compile(kernel)
    forget(monkeypatch)
    sim.compile(kernel)
    assert len(fresh) == 2


# ------------------------------------------------------------------- what is not modelled


def refused(kernel) -> str:
    with pytest.raises(sim.Unsupported) as caught:
        sim.compile(kernel)
    return str(caught.value)


def line_of(text: str) -> int:
    from pathlib import Path

    lines = Path(__file__).read_text().splitlines()
    (found,) = (i for i, line in enumerate(lines, 1) if line.strip() == text)
    return found


def test_inline_cuda_without_an_equivalent_is_refused_by_name():
    code = "__device__ void nobody_knows(int x) {}"

    @T.prim_func
    def kernel(X: T.Buffer((32,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([32])
        X[tid] = 1
        T.cuda.func_call("nobody_knows", tid, source_code=code)

    said = refused(kernel)
    assert "the inline CUDA function nobody_knows" in said
    line = line_of('T.cuda.func_call("nobody_knows", tid, source_code=code)')
    assert f"test_program.py:{line}" in said


@pytest.mark.parametrize(
    ("row", "said", "line"),
    [
        ("tirx.ptx.fence_proxy", "fence.proxy.async", "T.ptx.fence.proxy.async_.shared__cta()"),
        ("tirx.cuda.cta_sync", "cuda.cta_sync", "T.cuda.cta_sync()"),
    ],
)
def test_operations_outside_the_table_are_refused_by_name(fresh, monkeypatch, row, said, line):
    @T.prim_func
    def kernel(X: T.Buffer((32,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([32])
        T.ptx.fence.proxy.async_.shared__cta()
        T.cuda.cta_sync()
        X[tid] = 1

    table.load()
    monkeypatch.delitem(table.ROWS, row)
    message = refused(kernel)
    assert message.startswith(f"the simulator does not model {said}")
    assert f"test_program.py:{line_of(line)}" in message


def test_the_table_names_its_operations():
    names = sim.operations()
    assert names == sorted(names)
    assert {"cuda.cta_sync", "ptx.tcgen05_commit", "inline mlsys_register_fence"} <= set(names)
