"""scripts/h200/additions.py without a GPU: which kernels it measures, and where they go."""

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlsys_gpu import benchmarking, device, gemm, launch

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def script() -> Any:
    spec = importlib.util.spec_from_file_location("additions", ROOT / "scripts/h200/additions.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TUNED: Any = SimpleNamespace(module=SimpleNamespace(ADDITIONS={"shape": "…", "stream": "…"}))


def test_each_addition_is_left_out_alone_and_all_together(script):
    last = object()
    assert script.kernels(TUNED, last) == [
        TUNED,
        (TUNED, {"without": ["shape"]}),
        (TUNED, {"without": ["stream"]}),
        (TUNED, {"without": ["shape", "stream"]}),
        last,
    ]


def test_rows_of_other_shapes_stay(script, monkeypatch, h200, tmp_path, capsys):
    monkeypatch.setattr(device, "require", lambda *_: h200)
    monkeypatch.setattr(launch, "torch_with_cuda", lambda purpose: None)
    monkeypatch.setattr(gemm, "tuned", lambda arch: TUNED)
    days = iter(["2026-01-01", "2026-02-02"])

    def benchmark(kernels, shapes, dtypes, *, together, baselines, after, **options):
        assert together
        assert baselines == ["cublas"]
        made = benchmarking.Benchmark([], {"date": next(days), "gpu": {"name": "NVIDIA H200"}})
        for M, N, K in shapes:
            for without in kernels[1:3]:
                made.rows.append(
                    {"kernel": "gemm/hopper/tuned", "M": M, "N": N, "K": K, "dtype": dtypes[0],
                     "options": without[1], "ms": 1.0, "ms_p20": 1.0, "ms_p80": 1.0, "tflops": 1.0,
                     "baseline": {}, "source_sha256": "x"}
                )  # fmt: skip
        after(made)
        return made

    monkeypatch.setattr(benchmarking, "benchmark", benchmark)
    path = tmp_path / "additions.json"
    for shapes in (["512", "1024"], ["1024"]):
        monkeypatch.setattr(sys, "argv", ["additions.py", "-o", str(path), "--shapes", *shapes])
        assert script.main() == 0
    rows = json.loads(path.read_text())["rows"]
    assert [(row["M"], row["options"]["without"], row["run"][:7]) for row in rows] == [
        (512, ["shape"], "2026-01"), (512, ["stream"], "2026-01"),
        (1024, ["shape"], "2026-02"), (1024, ["stream"], "2026-02"),
    ]  # fmt: skip
    assert "1 ms (1-1)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            '{"provenance": {"gpu": {"name": "NVIDIA H100"}}, "rows": [{"kernel": "k", "dtype": '
            '"float16", "ms": 1, "ms_p20": 1, "ms_p80": 1, "tflops": 1, "baseline": {}, '
            '"source_sha256": "x"}]}',
            "holds figures of NVIDIA H100, and this is NVIDIA H200",
        ),
        ("{", "is no JSON"),
    ],
)
def test_a_file_that_nothing_can_join_is_refused_before_anything_is_measured(
    script, monkeypatch, h200, tmp_path, capsys, text, words
):
    monkeypatch.setattr(device, "require", lambda *_: h200)
    monkeypatch.setattr(launch, "torch_with_cuda", lambda purpose: None)
    monkeypatch.setattr(benchmarking, "benchmark", lambda *_, **__: pytest.fail("it measured"))
    path = tmp_path / "additions.json"
    path.write_text(text)
    monkeypatch.setattr(sys, "argv", ["additions.py", "-o", str(path)])
    assert script.main() == 2
    assert words in capsys.readouterr().err
    assert path.read_text() == text


def test_a_size_that_no_kernel_takes_is_a_sentence(script, monkeypatch, h200, tmp_path, capsys):
    monkeypatch.setattr(device, "require", lambda *_: h200)
    monkeypatch.setattr(launch, "torch_with_cuda", lambda purpose: None)
    path = tmp_path / "additions.json"
    monkeypatch.setattr(sys, "argv", ["additions.py", "-o", str(path), "--shapes", "1001"])
    assert script.main() == 2
    assert "got N = 1001" in capsys.readouterr().err
    assert not path.exists()
