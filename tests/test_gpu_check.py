"""scripts/gpu_check.py without a GPU: what it asks for, keeps, and says when something fails."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import mlsys_gpu as mg
from mlsys_gpu import benchmarking, device, launch, measuring

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def check(monkeypatch, h200, tmp_path):
    """The script as a module, on a GPU that is NumPy; ``check.run(…)`` is its command line."""
    spec = importlib.util.spec_from_file_location("gpu_check", ROOT / "scripts/gpu_check.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(device, "current", lambda: h200)
    monkeypatch.setattr(device, "require", lambda *_: h200)
    monkeypatch.setattr(launch, "torch_with_cuda", lambda purpose: None)
    module.wrong = []

    def run_on_gpu(kernel, A, B, D):
        D[...] = (A.astype(float) @ B.astype(float).T).astype(D.dtype)
        if str(kernel.attrs["global_symbol"]) in module.wrong:
            D[1, 2] += 1
        return launch.GpuRun("it", h200, 1e-5)

    monkeypatch.setattr(launch, "run_on_gpu", run_on_gpu)
    monkeypatch.setattr(measuring, "compile_ahead", lambda cases, processes: None)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["gpu_check.py", "-o", str(tmp_path), *arguments])
        return module.main()

    module.run = run
    return module


def contents(path):
    return json.loads(path.read_text())


def test_slices_add_up_to_one_file(check, tmp_path, capsys):
    only = ["--only", "right", "--cubes"]
    assert check.run(*only, "--steps", "1-2") == 0
    rows = contents(tmp_path / "right.json")["rows"]
    assert [(r["kernel"][-1], r["K"], r["dtype"]) for r in rows] == [
        ("1", 64, "float16"), ("1", 64, "bfloat16"),
        ("2", 64, "float16"), ("2", 64, "bfloat16"), ("2", 128, "float16"), ("2", 128, "bfloat16"),
        ("2", 448, "float16"), ("2", 448, "bfloat16"),
    ]  # fmt: skip
    assert all(r["max_error"] <= 1 and r["elements"] == 128 * 128 for r in rows)
    assert check.run(*only, "--steps", "2,3", "--dtype", "bfloat16") == 0
    made = contents(tmp_path / "right.json")
    assert [r["kernel"][-1] for r in made["rows"]] == ["1"] * 2 + ["2"] * 6 + ["3"] * 4
    assert "NumPy" in made["provenance"]["method"]
    assert check.run(*only, "--steps", "1", "--fresh") == 0
    assert len(contents(tmp_path / "right.json")["rows"]) == 2
    assert "ALL RIGHT" in capsys.readouterr().out


def test_a_kernel_that_is_wrong_stops_nothing(check, tmp_path, capsys):
    check.wrong = ["gemm_hopper_step1"]
    assert check.run("--only", "right", "--steps", "1-2", "--cubes") == 1
    assert {r["kernel"][-1] for r in contents(tmp_path / "right.json")["rows"]} == {"2"}
    out = capsys.readouterr().out
    assert "FAILED gemm/hopper/step1 128x128x64 float16: FAILED, AssertionError: wrong: 1 of" in out
    assert "right: 2 FAILED" in out


def test_the_simulator_is_compared_with_the_gpu(check, tmp_path):
    assert check.run("--only", "simulator", "--steps", "1", "--dtype", "float16") == 0
    (row,) = contents(tmp_path / "simulator.json")["rows"]
    assert row["elements"] == 128 * 128
    assert row["max_partial_sum_ulps"] <= 1


def test_ragged_shapes_are_looked_at_from_step_4_on(check):
    for step in mg.gemm.everything("hopper"):
        shapes = check.small_shapes(step)
        for shape in shapes:
            step.check_shape(*shape)
        ragged = [s for s in shapes if s[0] % 128 and s[1] % 128]
        assert len(ragged) >= (3 if step.number >= 4 else 0), step.name


def test_benchmarks_are_written_as_they_come_and_stop_in_time(check, tmp_path, monkeypatch, capsys):
    asked = {}

    def benchmark(kernels, shapes, dtypes, *, progress, after, keep_going, **options):
        asked.update(options, kernels=[k.name for k in kernels], shapes=shapes, dtypes=dtypes)
        made = benchmarking.Benchmark([], {"gpu": {"name": "NVIDIA H200"}, "date": asked["date"]})
        for number, kernel in enumerate(kernels):
            progress(number, len(kernels), kernel.name)
            what = {"kernel": kernel.name, "M": 512, "N": 512, "K": 512, "dtype": "float16"}
            if kernel.number == 2:
                made.failures.append(what | {"error": "MeasurementError: no"})
            else:
                figures = {"ms": 1.0, "ms_p20": 1.0, "ms_p80": 1.0, "tflops": 1.0, "baseline": {}}
                made.rows.append(what | figures | {"source_sha256": "x"})
            after(made)
            if kernel.number == asked.get("slow"):
                monkeypatch.setattr(check.Checks, "left", lambda self: 0)
        return made

    monkeypatch.setattr(mg, "benchmark", benchmark)
    asked["date"] = "2026-01-01T00:00:00Z"
    run = ["--only", "benchmarks", "--cubes", "512", "--seconds", "0.5"]
    assert check.run(*run, "--steps", "1-3", "--together", "--jobs", "3") == 1
    assert asked["shapes"] == [(512, 512, 512)]
    assert (asked["seconds"], asked["together"], asked["processes"]) == (0.5, True, 3)
    assert [r["kernel"][-1] for r in contents(tmp_path / "gemm.json")["rows"]] == ["1", "3"]
    assert "FAILED gemm/hopper/step2 [512, 512, 512] float16: MeasurementError: no" in (
        capsys.readouterr().out
    )
    asked.update(date="2026-02-02T00:00:00Z", slow=3)
    assert check.run(*run, "--steps", "3-5") == 1
    assert "NoTimeLeft: 2 of 3 measurements, from gemm/hopper/step4 on" in capsys.readouterr().out
    rows = contents(tmp_path / "gemm.json")["rows"]
    assert [(r["kernel"][-1], r["run"][:7]) for r in rows] == [("1", "2026-01"), ("3", "2026-02")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            '{"provenance": {"gpu": {"name": "NVIDIA H100"}}, "rows": '
            '[{"kernel": "gemm/hopper/step1", "dtype": "float16"}]}',
            "holds figures of NVIDIA H100, and this is NVIDIA H200: say --fresh",
        ),
        ("", "is no JSON"),
        ('{"rows": []}', "needs provenance and rows"),
        ('{"provenance": {}, "rows": [{"kernel": "x"}]}', "row 0 lacks dtype"),
    ],
)
def test_a_file_that_nothing_can_join_is_refused_before_anything_runs(
    check, tmp_path, capsys, monkeypatch, text, words
):
    monkeypatch.setattr(launch, "run_on_gpu", lambda *_: pytest.fail("it ran"))
    path = tmp_path / "right.json"
    path.write_text(text)
    assert check.run("--only", "right", "--steps", "1", "--cubes") == 2
    assert words in capsys.readouterr().err
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--cubes", "-8", "must be a positive multiple of 8, got '-8'"),
        ("--cubes", "1001", "must be a positive multiple of 8, got '1001'"),
        ("--minutes", "nan", "must be a positive number, got 'nan'"),
        ("--seconds", "0", "must be a positive number, got '0'"),
    ],
)
def test_a_size_or_a_time_that_is_none_is_refused(check, capsys, option, value, words):
    with pytest.raises(SystemExit, match="2"):
        check.run(option, value)
    assert words in capsys.readouterr().err


def test_an_output_folder_that_is_a_file_is_refused(check, tmp_path, capsys):
    (tmp_path / "taken").write_text("mine")
    assert check.run("--only", "right", "--steps", "1", "-o", str(tmp_path / "taken")) == 2
    assert "taken" in capsys.readouterr().err
    assert (tmp_path / "taken").read_text() == "mine"


def test_bad_use_is_a_sentence(check, capsys):
    assert check.run("--steps", "nine") == 2
    assert "steps are numbers and ranges such as 1-3 or 1,3, got 'nine'" in capsys.readouterr().err
