"""scripts/h200/division.py without a GPU: the kernels that it makes compute the same."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from mlsys_gpu import benchmarking, gemm, sim, verification
from mlsys_gpu.lowering import content_key

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("division", ROOT / "scripts/h200/division.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("number", [7, 8])
def test_a_divided_step_is_right_and_silent(script, number, tmp_path):
    step = script.Divided(gemm.step(number, arch="hopper"), tmp_path)
    text = step.changed.read_text()
    assert "advance" not in text
    assert text.count("% PIPE_DEPTH)") == 3  # the stage of a load, of a wgmma, and the last one's
    M, N, K = 264, 400, 1000  # several tiles of D, more K tiles than stages, no size divides
    A, B = verification.gemm_inputs(M, N, K)
    D = verification.poisoned((M, N))
    report = sim.simulate(step.build(M, N, K, divide=True), A, B, D)
    assert verification.compare_gemm(A, B, D).ok
    assert report.findings == []


def test_what_is_measured_stands_beside_the_step_itself(script, tmp_path):
    step = gemm.step(7, arch="hopper")
    other = script.Divided(step, tmp_path), {"divide": True}
    found = benchmarking.cases([step, other], [(4096, 4096, 4096)], "float16")
    assert [case.title for case in found] == [
        "gemm/hopper/step7",
        "gemm/hopper/step7 (divide True)",
    ]
    assert found[0].source_sha256 == found[1].source_sha256  # of which both are made
    one, other = (content_key(case.func, case.arch) for case in found)
    assert one != other


def test_a_source_that_counts_in_another_way_is_refused(script):
    step = gemm.step(6, arch="hopper")
    with pytest.raises(ValueError, match=r"occurs 0 times in the source, not 1"):
        script.divided(step.source_path.read_text())


def test_without_a_gpu_it_says_what_it_needs(script, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["division.py"])
    assert script.main() == 2
    assert "Hopper" in capsys.readouterr().err
