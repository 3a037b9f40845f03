"""The Sphinx extension's parts that need no build."""

import hashlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from mlsys_gpu.viz import measurements

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def ext():
    pytest.importorskip("sphinx")
    spec = importlib.util.spec_from_file_location("mlsys_book", ROOT / "book/_ext/mlsys_book.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_key_of_the_cache_follows_what_cells_depend_on(ext, tmp_path):
    package = tmp_path / "src/mlsys_gpu"
    package.mkdir(parents=True)
    (package / "a.py").write_text("x = 1\n")
    first = ext.inputs_hash(tmp_path)
    assert ext.inputs_hash(tmp_path) == first

    (package / "__pycache__").mkdir()
    (package / "__pycache__/a.cpython-311.pyc").write_bytes(b"compiled")
    assert ext.inputs_hash(tmp_path) == first

    (package / "a.py").write_text("x = 2\n")
    edited = ext.inputs_hash(tmp_path)
    assert edited != first

    (package / "a.py").rename(package / "b.py")
    assert ext.inputs_hash(tmp_path) not in (first, edited)

    results = tmp_path / "book/results/h200"
    results.mkdir(parents=True)
    before = ext.inputs_hash(tmp_path)
    (results / "gemm.json").write_text("{}")
    assert ext.inputs_hash(tmp_path) != before


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_diff_leaves_docstrings_out_and_sees_through_indentation(ext, tmp_path):
    old = write(
        tmp_path,
        "old.py",
        '"""Step one.\n\nLong story.\n"""\n\n'
        "setup = 1\nload(tile)\nmultiply(tile)\n# --- Store -----\nstore()\n",
    )
    new = write(
        tmp_path,
        "new.py",
        '"""Another story."""\n\n'
        "setup = 1\nfor k in range(n):\n    load(tile)\n    multiply(tile)\n"
        "# --- Store ---\nstore()\n",
    )
    lines, count = ext.kernel_diff(old, new)
    assert count == {"added": 1, "removed": 0, "moved": 3}
    text = "".join(lines)
    assert "story" not in text
    assert "+for k in range(n):\n~    load(tile)\n~    multiply(tile)\n" in text
    assert " setup = 1\n" in text


def test_diff_of_equal_files_is_empty(ext, tmp_path):
    old = write(tmp_path, "a.py", "x = 1\n")
    assert ext.kernel_diff(old, old) == ([], {"added": 0, "removed": 0, "moved": 0})


def test_diff_rebuilds_the_new_file(ext):
    """Nothing is lost: context, moved and added lines are the new file, in order."""
    for arch in ("hopper", "blackwell"):
        for step in (1, 2):
            old = ext.kernel_path(f"gemm/{arch}/step{step}")
            new = ext.kernel_path(f"gemm/{arch}/step{step + 1}")
            lines, _ = ext.kernel_diff(old, new, context=10_000)
            body = [line[1:] for line in lines if line[0] in " ~+"]
            assert body == ext.without_docstring(new.read_text(encoding="utf-8"))


def test_unknown_kernels_are_refused_by_name(ext):
    with pytest.raises(FileNotFoundError, match="step77"):
        ext.kernel_path("gemm/hopper/step77")


@pytest.fixture
def result(ext):
    source = ext.kernel_path("gemm/hopper/step3").read_bytes()
    row = {
        "kernel": "gemm/hopper/step3",
        "M": 4096, "N": 4096, "K": 4096,
        "dtype": "float16",
        "ms": 2.0, "ms_p20": 1.98, "ms_p80": 2.05,
        "tflops": 68.7, "tflops_per_sm": 0.52,
        "baseline": {"cublas": {"ms": 0.2}, "triton": {"ms": 0.5}},
        "source_sha256": hashlib.sha256(source).hexdigest(),
    }  # fmt: skip
    return {"provenance": {"gpu": {"name": "H200"}, "date": "2026-11-30"}, "rows": [row]}


def test_recorded_rows_show_spread_ratios_and_provenance(ext, result):
    text = measurements.recorded_html(result, result["rows"], "h200/gemm")
    for part in ("2 ms<br>(1.98–2.05)", "68.7", "0.52", "× cuBLAS", "<td>0.1</td>", "<td>0.25</td>",
                 "H200", "2026-11-30", "float16"):  # fmt: skip
        assert part in text
    assert "stale" not in text
    assert "dtype" not in text  # one dtype: it stands beside the GPU, not in a column


def test_a_row_whose_source_changed_is_marked_stale(ext, result):
    result["rows"][0]["source_sha256"] = "0" * 64
    assert "mg-badge-stale" in measurements.recorded_html(result, result["rows"], "h200/gemm")


def test_rows_can_be_chosen(ext, result):
    result["rows"].append(dict(result["rows"][0], kernel="gemm/hopper/step2"))
    result["rows"].append(dict(result["rows"][0], dtype="bfloat16", M=512))
    assert len(measurements.chosen_rows(result)) == 3
    assert len(measurements.chosen_rows(result, ["gemm/hopper/step2"])) == 1
    assert len(measurements.chosen_rows(result, dtype="bfloat16")) == 1
    assert len(measurements.chosen_rows(result, shapes=["512,4096,4096", "4096,4096,4096"])) == 3
    refused: list[dict[str, Any]] = [
        {"kernels": ["gemm/hopper/step9"]},
        {"dtype": "int8"},
        {"shapes": ["1,2,3"]},
    ]
    for wrong in refused:
        with pytest.raises(ValueError, match="no row has"):
            measurements.chosen_rows(result, **wrong)


def test_committed_results_are_as_the_book_reads_them(ext):
    for path in (ROOT / "book/results").rglob("*.json"):
        data = json.loads(path.read_text(encoding="utf-8"))
        if "rows" not in data:
            continue
        assert data["provenance"], path
        for row in data["rows"]:
            assert measurements.source_state(row, ext.kernel_path) in ("current", "stale"), (
                path,
                row["kernel"],
            )
        assert "mg-recorded" in measurements.recorded_html(
            data, data["rows"], path.stem, path_of=ext.kernel_path
        )
