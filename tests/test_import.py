"""Importing the package: quick, lazy, and only with the pinned TVM."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mlsys_gpu as mg
from mlsys_gpu import release

ROOT = Path(__file__).resolve().parents[1]


def python(code, *arguments, **environment):
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=60,
    )


def test_importing_loads_nothing_heavy():
    done = python(
        "import sys, mlsys_gpu, mlsys_gpu.cli, mlsys_gpu.launch, mlsys_gpu.benchmarking;"
        "print(sorted({'tvm', 'torch', 'triton', 'numpy', 'matplotlib'} & set(sys.modules)))"
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_importing_is_quick():
    # the interpreter's own start apart; the best of three, for machines with other work to do
    code = "import time; t = time.perf_counter(); import mlsys_gpu; print(time.perf_counter() - t)"
    assert min(float(python(code).stdout) for _ in range(3)) < 0.3


@pytest.mark.parametrize("name", sorted(set(mg.__all__) - {"__version__"}))
def test_every_public_name_loads(name):
    assert getattr(mg, name) is getattr(mg, name)


def test_host_code_of_others_finds_an_encoder_of_tensor_maps():
    """Whichever package is imported first, and before anything of ours is used."""
    ask = "print(tvm.get_global_func('runtime.cuTensorMapEncodeTiled', allow_missing=True))"
    for imports in ("import mlsys_gpu, tvm", "import tvm, mlsys_gpu"):
        done = python(f"{imports}; {ask}")
        assert "Function" in done.stdout, (done.stdout, done.stderr)
    one = python(f"import mlsys_gpu, tvm, tvm.tirx, tvm.runtime; {ask}; print(tvm.__file__)")
    assert one.stdout.strip().endswith("tvm/__init__.py"), one.stderr


def test_unknown_names_say_what_there_is():
    with pytest.raises(AttributeError, match=r"no attribute 'simulator'; it has .*simulate"):
        mg.simulator


def test_the_pin_is_the_same_everywhere():
    pin = f"apache-tvm=={release.TVM_VERSION}"
    assert re.search(rf"^{re.escape(pin)}$", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    assert f'"{pin}"' in (ROOT / "pyproject.toml").read_text()
    assert f'version = "{mg.__version__}"' in (ROOT / "pyproject.toml").read_text()


@pytest.fixture
def other_tvm(tmp_path):
    """A folder in which another TVM release is installed, as far as metadata goes."""
    info = tmp_path / "apache_tvm-0.28.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: apache-tvm\nVersion: 0.28.0\n")
    return str(tmp_path)


def test_another_tvm_release_is_refused_at_import(other_tvm):
    done = python("import mlsys_gpu", PYTHONPATH=other_tvm)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert release.TVM_VERSION in last
    assert "0.28.0" in last
    assert last.count(". ") == 0  # one sentence


@pytest.fixture
def command():
    """The installed command, as a shell would start it."""
    path = Path(sys.executable).with_name("mlsys-gpu")
    if not path.exists():
        pytest.skip("the mlsys-gpu command is not installed beside this Python")
    return str(path)


def test_the_command_refuses_another_release_without_a_traceback(other_tvm, command):
    done = subprocess.run(
        [command, "run", "gemm", "--step", "1", "--json"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": other_tvm},
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stdout.startswith('{"error": "mlsys_gpu is written for apache-tvm==')
    assert "Traceback" not in done.stderr


def test_doctor_names_another_release(other_tvm, command):
    done = subprocess.run(
        [command, "doctor"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": other_tvm, "COLUMNS": "200"},
        timeout=120,
    )
    assert done.returncode == 1
    assert "0.28.0, but the kernels are written for 0.27.0.post1" in done.stdout
    assert "Traceback" not in done.stderr


def test_without_tvm_the_import_works_and_doctor_says_so(monkeypatch):
    monkeypatch.setattr(release, "installed_tvm", lambda: None)
    release.require_tvm()
    from mlsys_gpu import doctor

    item = doctor._tvm()
    assert not item.ok
    assert item.required
    assert item.fix == 'pip install "apache-tvm==0.27.0.post1"'
