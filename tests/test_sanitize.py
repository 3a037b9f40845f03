"""scripts/h200/sanitize.py without a GPU: how it reads the tools' reports, and what it keeps."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlsys_gpu import device, gemm
from mlsys_gpu.viz import measurements

ROOT = Path(__file__).resolve().parents[1]
CLEAN = "========= COMPUTE-SANITIZER\noutput: right\n========= ERROR SUMMARY: 0 errors\n"
RACES = (
    "========= COMPUTE-SANITIZER\n"
    "========= Error: Race reported between Write access at gemm_hopper_step1_kernel+0x90\n"
    "output: right\n"
    "========= RACECHECK SUMMARY: 3 hazards displayed (2 errors, 1 warning)\n"
)
BLIND = "========= COMPUTE-SANITIZER\n========= Error: Device not supported. Please refer to the\n"


@pytest.fixture
def sanitize(monkeypatch, h200) -> Any:
    spec = importlib.util.spec_from_file_location("sanitize", ROOT / "scripts/h200/sanitize.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(device, "require", lambda *_: h200)
    monkeypatch.setattr(device, "current", lambda: h200)
    return module


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (CLEAN, {"verdict": "clean", "errors": 0}),
        (RACES, {"verdict": "findings", "errors": 2, "warnings": 1}),
        (
            RACES.replace("3 hazards displayed (2 errors, 1 warning)",
                          "0 hazards displayed (0 errors, 0 warnings)"),
            {"verdict": "clean", "errors": 0, "warnings": 0},
        ),
        (CLEAN.replace("0 errors", "1 error"), {"verdict": "findings", "errors": 1}),
        (CLEAN.replace("right", "wrong: 3 of 9 elements"), {"verdict": "wrong output"}),
        (BLIND, {"verdict": "not available"}),
        ("Traceback (most recent call last):\nImportError: torch\n", {"verdict": "failed"}),
    ],
)  # fmt: skip
def test_reports_are_read(sanitize, text, found):
    made = sanitize.verdict(text, 1)
    assert made | found == made


def test_what_was_found_is_kept_in_its_own_words(sanitize):
    assert any("Race reported" in line for line in sanitize.verdict(RACES, 0)["said"])


@pytest.fixture
def tools(monkeypatch, sanitize, tmp_path):
    """Instead of compute-sanitizer: reports by (tool, kernel or "planted"), and the commands."""
    reports, lines = {}, []

    def run(line, **options):
        lines.append((line, options))
        if "--version" in line:
            return SimpleNamespace(stdout="NVIDIA (R) Compute Sanitizer\nVersion 2025.3.1\n")
        if "--tool" not in line:
            return SimpleNamespace(stdout="", returncode=0)
        tool = line[line.index("--tool") + 1]
        what = "planted" if "--planted" in line else line[line.index("--run") + 1]
        text = reports.get((tool, what), RACES if what == "planted" else CLEAN)
        if text is None:
            raise subprocess.TimeoutExpired(line, 1)
        return SimpleNamespace(stdout=text, returncode=0)

    def main(*arguments):
        path = tmp_path / "sanitizer.json"
        monkeypatch.setattr(sys, "argv", ["sanitize.py", "-o", str(path), *arguments])
        status = sanitize.main()
        return status, json.loads(path.read_text()) if path.exists() else None

    monkeypatch.setattr(sanitize.subprocess, "run", run)
    monkeypatch.setattr(sanitize, "find_sanitizer", lambda: "/usr/bin/compute-sanitizer")
    return SimpleNamespace(reports=reports, lines=lines, main=main)


def test_every_kernel_meets_every_tool(tools):
    status, made = tools.main("--steps", "1-3")
    assert status == 0
    assert [row["kernel"] for row in made["rows"]] == [f"gemm/hopper/step{n}" for n in (1, 2, 3)]
    for row in made["rows"]:
        assert {row[t]["verdict"] for t in ("memcheck", "racecheck", "synccheck")} == {"clean"}
    facts = made["provenance"]
    assert facts["compute_sanitizer"] == ["Version 2025.3.1"]
    assert set(facts["planted_faults"].values()) == {"findings"}
    watched = [(line, options) for line, options in tools.lines if "--tool" in line]
    assert len(watched) == 3 + 9
    for line, options in watched:
        assert options["env"]["PYTORCH_NO_CUDA_MEMORY_CACHING"] == "1"
        name = line[line.index("--kernel-name") + 1]
        what = line[line.index("--run") + 1] if "--run" in line else None
        symbols = {s.name: s.symbol for s in gemm.everything("hopper")}
        assert name == f"kernel_substring={symbols[what] if what else 'planted_fault'}"
    html = measurements.recorded_html(made, made["rows"], "h200/sanitizer")
    assert html.count("<td>clean</td>") == 9


def test_findings_wrong_outputs_and_hangs_are_failures(tools, capsys):
    tools.reports["racecheck", "gemm/hopper/step2"] = RACES
    tools.reports["memcheck", "gemm/hopper/step1"] = None
    status, made = tools.main("--steps", "1-2")
    assert status == 1
    out = capsys.readouterr().out
    assert "FAILED gemm/hopper/step2 float16 racecheck: findings" in out
    assert "FAILED gemm/hopper/step1 float16 memcheck: timeout" in out
    assert "2 FAILURES" in out
    html = measurements.recorded_html(made, made["rows"], "h200/sanitizer")
    assert "findings: 2 errors, 1 warning" in html
    # looked at again, alone: the other rows stay
    del tools.reports["racecheck", "gemm/hopper/step2"]
    status, made = tools.main("--steps", "2")
    assert status == 0
    assert [row["racecheck"]["verdict"] for row in made["rows"]] == ["clean", "clean"]
    assert made["rows"][0]["memcheck"]["verdict"] == "timeout"


def test_a_tool_that_is_blind_says_nothing_of_kernels(tools):
    tools.reports["synccheck", "planted"] = CLEAN
    tools.reports["memcheck", "planted"] = BLIND
    status, made = tools.main("--steps", "1")
    assert status == 0
    (row,) = made["rows"]
    assert row["synccheck"]["verdict"] == row["memcheck"]["verdict"] == "not available"
    assert row["racecheck"]["verdict"] == "clean"


def test_shapes_are_small_and_show_what_each_step_does(sanitize):
    for step in gemm.everything("hopper"):
        M, N, K = sanitize.shape_of(step)
        assert M * N * K < 1e8
        step.build(M, N, K, **sanitize.options_of(step))
        assert sanitize.options_of(step) == ({"ctas": 4} if step.number >= 6 else {}), step.name


def test_a_file_that_nothing_can_join_is_refused_before_anything_runs(tools, tmp_path, capsys):
    path = tmp_path / "sanitizer.json"
    text = json.dumps(
        {
            "provenance": {"gpu": {"name": "NVIDIA H100"}},
            "rows": [{"kernel": "gemm/hopper/step1", "dtype": "float16"}],
        }
    )
    path.write_text(text)
    assert tools.main("--steps", "1")[0] == 2
    assert "holds figures of NVIDIA H100, and this is" in capsys.readouterr().err
    assert path.read_text() == text
    assert not tools.lines
