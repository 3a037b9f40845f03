"""How measurements are taken and written down, on a clock made for the test; GPU tests last."""

import hashlib
import json
from typing import Any

import pytest

import mlsys_gpu as mg
from mlsys_gpu import benchmarking, device

STEPS = [mg.gemm.step(n, arch="hopper") for n in (1, 2, 3)]


def a_row(**changes):
    row = {
        "kernel": "gemm/hopper/step3",
        "M": 256,
        "N": 384,
        "K": 192,
        "dtype": "float16",
        "ms": 0.02,
        "ms_p20": 0.019,
        "ms_p80": 0.022,
        "tflops": 1.9,
        "tflops_per_sm": 0.3,
        "baseline": {"cublas": {"ms": 0.01}},
        "source_sha256": hashlib.sha256(STEPS[2].source_path.read_bytes()).hexdigest(),
    }
    return row | changes


# ------------------------------------------------------------------------------------- what is run


def test_steps_are_measured_at_every_shape_that_they_take():
    shapes = [(256, 256, 128), (384, 128, 64)]
    found = benchmarking.cases(STEPS, shapes, "bfloat16")
    assert [(c.name, c.M, c.N, c.K, c.dtype, c.arch) for c in found] == [
        ("gemm/hopper/step1", 128, 128, 64, "bfloat16", "sm_90a"),
        ("gemm/hopper/step2", *STEPS[1].default_shape, "bfloat16", "sm_90a"),
        ("gemm/hopper/step3", 256, 256, 128, "bfloat16", "sm_90a"),
        ("gemm/hopper/step3", 384, 128, 64, "bfloat16", "sm_90a"),
    ]
    assert found[2].flop == 2 * 256 * 256 * 128


def test_kernels_of_a_shape_and_dtype_stand_beside_each_other():
    two = [mg.gemm.step(n, arch="hopper") for n in (3, 4)]
    found = benchmarking.cases(two, [(256, 256, 128), (384, 128, 64)], ["float16", "bfloat16"])
    assert [(c.name[-1], c.M, c.dtype) for c in found] == [
        ("3", 256, "float16"), ("4", 256, "float16"), ("3", 256, "bfloat16"),
        ("4", 256, "bfloat16"), ("3", 384, "float16"), ("4", 384, "float16"),
        ("3", 384, "bfloat16"), ("4", 384, "bfloat16"),
    ]  # fmt: skip
    assert found[0].label == "gemm/hopper/step3 256,256,128 float16"
    assert str(found[0].func.attrs["global_symbol"]) == "gemm_hopper_step3"
    assert found[0].func is found[0].func


def test_built_kernels_say_their_own_shape():
    kernel = STEPS[2].build(256, 384, 64, "bfloat16")
    (case,) = benchmarking.cases(kernel, None, None)
    assert (case.name, case.M, case.N, case.K) == ("gemm/hopper/step3", 256, 384, 64)
    assert case.dtype == "bfloat16"
    assert case.source_sha256 == benchmarking.source_sha256("gemm/hopper/step3")
    with pytest.raises(ValueError, match="leave shapes and dtype out"):
        benchmarking.cases(kernel, [(128, 128, 64)], None)


def test_the_hash_is_of_the_source_file():
    digest = hashlib.sha256(STEPS[0].source_path.read_bytes()).hexdigest()
    assert benchmarking.source_sha256("gemm/hopper/step1") == digest
    assert benchmarking.source_sha256("gemm/hopper/step77") is None


# --------------------------------------------------------------------------------- without a GPU


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(device, "current", lambda: None)
    monkeypatch.setattr(device, "driver_problem", lambda: "no NVIDIA driver is installed")


def test_without_a_gpu_it_says_what_it_would_need(no_gpu):
    words = r"gemm/hopper/step1 needs a Hopper \(sm_90a\) GPU, such as an H100 or H200; here no"
    with pytest.raises(device.NeedsGpu, match=words):
        mg.benchmark(STEPS[0])


def test_in_a_notebook_the_sentence_is_what_the_cell_shows(no_gpu, monkeypatch):
    monkeypatch.setattr(benchmarking, "_in_notebook", lambda: True)
    shown = mg.benchmark(STEPS)
    assert isinstance(shown, benchmarking.Unavailable)
    assert not shown
    assert list(shown.rows) == []
    assert "needs a Hopper (sm_90a) GPU" in shown._repr_html_()
    assert "needs a Hopper (sm_90a) GPU" in repr(shown)


def test_another_architecture_is_refused(monkeypatch, h200):
    monkeypatch.setattr(device, "current", lambda: h200)
    with pytest.raises(device.ArchitectureMismatch, match=r"B200; this machine has NVIDIA H200"):
        mg.benchmark(mg.gemm.step(1, arch="blackwell"))


def test_bad_requests_are_refused_before_a_gpu_is_looked_for(no_gpu):
    with pytest.raises(ValueError, match="triton, triton_persistent, got 'cutlass'"):
        mg.benchmark(STEPS[0], baselines=["cutlass"])
    with pytest.raises(ValueError, match="timing is auto, graph, stream, got 'events'"):
        mg.benchmark(STEPS[0], timing="events")
    with pytest.raises(ValueError, match="one architecture at a time"):
        mg.benchmark([STEPS[0], mg.gemm.step(1, arch="blackwell")])
    with pytest.raises(ValueError, match="dtype must be"):
        mg.benchmark(STEPS[0], dtype="float64")


# ----------------------------------------------------------------------------------- result files


def test_files_come_back_as_they_were_written(tmp_path):
    made = benchmarking.Benchmark([a_row()], {"gpu": {"name": "NVIDIA H200"}, "date": "today"})
    path = made.save(tmp_path / "results" / "h200" / "gemm.json")
    assert benchmarking.load(path) == made
    assert json.loads(path.read_text()).keys() == {"provenance", "rows"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"rows": []}, "needs provenance and rows"),
        ([], "needs provenance and rows"),
        ({"provenance": {}, "rows": [{"kernel": "x"}]}, "row 0 lacks baseline, dtype, ms"),
        ({"provenance": [], "rows": []}, "provenance is an object, and rows are a list"),
        ({"provenance": {}, "rows": 5}, "provenance is an object, and rows are a list"),
        ({"provenance": {}, "rows": {}}, "provenance is an object, and rows are a list"),
        ({"provenance": {}, "rows": [1]}, "row 0 must be an object, got 1"),
        ({"provenance": {"gpu": "H200"}, "rows": []}, "gpu in provenance must be an object"),
        ({"provenance": {"runs": []}, "rows": []}, "runs in provenance must be objects"),
        ({"provenance": {"runs": {"a": 1}}, "rows": []}, "runs in provenance must be objects"),
        ({"provenance": {"runs": {"a": {"gpu": 1}}}, "rows": []}, "gpu in provenance must be"),
        ({"provenance": {"runs": {"a": {}}}, "rows": [a_row()]}, "row 0 names no run .*: None"),
        ({"provenance": {}, "rows": [a_row(), a_row(kernel=5)]}, "row 1 has a kernel .*: 5"),
        ({"provenance": {}, "rows": [a_row(dtype=None)]}, "row 0 has a dtype .*: None"),
        ({"provenance": {}, "rows": [a_row(ms="fast")]}, "no positive number as ms: 'fast'"),
        ({"provenance": {}, "rows": [a_row(ms=0)]}, "no positive number as ms: 0"),
        ({"provenance": {}, "rows": [a_row(ms_p80=float("nan"))]}, "number as ms_p80: nan"),
        ({"provenance": {}, "rows": [a_row(tflops=True)]}, "number as tflops: True"),
        ({"provenance": {}, "rows": [a_row(baseline=[])]}, r"baseline that is no object: \[\]"),
        ({"provenance": {}, "rows": [a_row(baseline={"cublas": "x"})]}, "as ms of cublas: 'x'"),
        ({"provenance": {}, "rows": [a_row(baseline={"cublas": {}})]}, "as ms of cublas: None"),
        ({"provenance": {}, "rows": [a_row(M=-1)]}, "no positive whole number as M: -1"),
        ("", "is no JSON"),
        ("{", "is no JSON"),
        ("\udcff", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
    ],
)
def test_files_that_are_no_results_are_refused(tmp_path, content, words):
    path = tmp_path / "x.json"
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=f"x.json.*{words}"):
        benchmarking.load(path)


def test_a_file_of_another_gpu_is_not_merged_into(tmp_path, h200):
    path = tmp_path / "x.json"
    assert benchmarking.earlier(path, h200) == benchmarking.Benchmark()
    made = benchmarking.Benchmark([a_row()], {"gpu": {"name": "NVIDIA H100"}, "date": "one"})
    made.save(path)
    assert benchmarking.earlier(path, None) == made
    with pytest.raises(ValueError, match=r"x\.json holds figures of NVIDIA H100, and this is"):
        benchmarking.earlier(path, h200)
    # nor where one of several runs is of another
    newer = benchmarking.Benchmark([a_row(M=512)], {"gpu": {"name": h200.name}, "date": "two"})
    made.merged(newer).save(path)
    with pytest.raises(ValueError, match="holds figures of NVIDIA H100"):
        benchmarking.earlier(path, h200)
    newer.save(path)
    assert benchmarking.earlier(path, h200) == newer
    # rows without times, as the comparison with the simulator has them
    bare = {"kernel": "gemm/hopper/step3", "dtype": "float16", "max_ulps": 1}
    benchmarking.Benchmark([bare], newer.provenance).save(path)
    assert benchmarking.earlier(path, h200, timed=False).rows == [bare]
    with pytest.raises(ValueError, match="row 0 lacks baseline"):
        benchmarking.earlier(path, h200)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ([(128, 100, 64)], "N to be a positive multiple of 8 .* got N = 100"),
        ([(4096, 4096, 4096), (128, 128, 4)], "K to be a positive multiple of 8 .* got K = 4"),
        ([(1 << 17, 1 << 17, 64)], r"D may have at most 2\*\*31 - 1 elements"),
        ([(-8, 128, 64)], r"three positive whole numbers \(M, N, K\), got \(-8, 128, 64\)"),
        ([(128, 64)], r"three positive whole numbers .* got \(128, 64\)"),
        ([(128, 64, 64.0)], r"three positive whole numbers .* got \(128, 64, 64.0\)"),
        ((4096, 4096, 4096), "three positive whole numbers .* got 4096"),
        (4096, r"shapes is a list of \(M, N, K\), got 4096"),
        ("4096", r"shapes is a list of \(M, N, K\), got '4096'"),
    ],
)
@pytest.mark.parametrize("number", [1, 3, 9])
def test_a_shape_that_nobody_takes_is_refused_and_not_replaced(no_gpu, shapes, words, number):
    with pytest.raises(ValueError, match=words):
        mg.benchmark(mg.gemm.step(number, "hopper"), shapes)


def test_other_requests_that_name_nothing_are_refused(no_gpu):
    with pytest.raises(ValueError, match="kernels is empty"):
        mg.benchmark([])
    refused: list[Any] = [0, -1.0, float("nan"), float("inf"), "2"]
    for seconds in refused:
        with pytest.raises(ValueError, match=f"seconds must be a positive number, got {seconds!r}"):
            mg.benchmark(STEPS[0], seconds=seconds)
    with pytest.raises(ValueError, match="processes must be a whole number from 0 on, got -1"):
        mg.benchmark(STEPS[0], processes=-1)


def test_a_row_is_stale_once_its_source_changes():
    assert not benchmarking.is_stale(a_row())
    assert benchmarking.is_stale(a_row(source_sha256="0" * 64))
    assert benchmarking.is_stale(a_row(kernel="gemm/hopper/gone"))


@pytest.mark.parametrize(
    ("arch", "kernel", "expected"),
    [
        ("sm_100a", "gemm/blackwell/step1", ["NVIDIA B200"]),
        ("sm_100a", "gemm/hopper/step1", []),
        ("sm_90a", "gemm/blackwell/step1", []),
    ],
)
def test_silicon_is_what_result_files_prove(tmp_path, monkeypatch, arch, kernel, expected):
    monkeypatch.setattr(benchmarking, "results_directory", lambda: tmp_path)
    assert benchmarking.silicon("blackwell") == []
    gpu = {"name": "NVIDIA B200", "arch": arch}
    benchmarking.Benchmark([a_row(kernel=kernel)], {"gpu": gpu}).save(
        tmp_path / "b200" / "gemm.json"
    )
    (tmp_path / "b200" / "broken.json").write_text("{")
    assert benchmarking.silicon("blackwell") == expected


def run_of(date, *rows, **more):
    gpu = {"gpu": {"name": "NVIDIA H200"}, "date": date}
    sources = {row["kernel"]: row["source_sha256"] for row in rows}
    return benchmarking.Benchmark(list(rows), gpu | {"sources": sources} | more)


def test_rows_of_a_newer_run_replace_the_older_and_each_keeps_its_provenance(tmp_path):
    old = run_of("2026-01-01", a_row(), a_row(M=512), a_row(dtype="bfloat16"), command="one")
    new = run_of("2026-02-02", a_row(ms=1.0, M=512), a_row(kernel="gemm/hopper/step2"))
    both = old.merged(new)
    assert [(r["kernel"][-1], r["M"], r["dtype"], r["ms"], r["run"]) for r in both.rows] == [
        ("3", 256, "float16", 0.02, "2026-01-01"), ("3", 512, "float16", 1.0, "2026-02-02"),
        ("3", 256, "bfloat16", 0.02, "2026-01-01"), ("2", 256, "float16", 0.02, "2026-02-02"),
    ]  # fmt: skip
    assert both.provenance["runs"] == {"2026-01-01": old.provenance, "2026-02-02": new.provenance}
    assert both.provenance["date"] == "2026-02-02"
    assert both.provenance["sources"].keys() == {"gemm/hopper/step2", "gemm/hopper/step3"}
    assert old.rows == run_of("", a_row(), a_row(M=512), a_row(dtype="bfloat16")).rows
    assert benchmarking.load(both.save(tmp_path / "x.json")) == both
    # a third run; the first one keeps one row, and the second none
    third = run_of("2026-03-03", a_row(M=512), a_row(), a_row(kernel="gemm/hopper/step2", ms=3.0))
    every = both.merged(third)
    assert every.provenance["runs"].keys() == {"2026-01-01", "2026-03-03"}
    assert [r["run"][5:7] for r in every.rows] == ["03", "03", "01", "03"]
    # nothing is left of the older ones: as if it had never been merged
    last = every.merged(run_of("2026-04-04", *(a_row(**{k: r[k] for k in ("kernel", "M", "dtype")})
                                               for r in every.rows)))  # fmt: skip
    assert "runs" not in last.provenance
    assert last.provenance["date"] == "2026-04-04"
    assert all("run" not in row for row in last.rows)


def test_merging_into_nothing_changes_nothing():
    made = run_of("2026-01-01", a_row())
    assert benchmarking.Benchmark().merged(made) == made


def test_two_runs_of_one_second_stay_two():
    both = run_of("now", a_row(), command="a").merged(run_of("now", a_row(M=512), command="b"))
    assert [row["run"] for row in both.rows] == ["now", "now-2"]
    assert [run["command"] for run in both.provenance["runs"].values()] == ["a", "b"]


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "gemm.json"
    made = run_of("2026-01-01", a_row())
    made.save(path)
    assert path.stat().st_mode & 0o777 == 0o644
    before = path.read_text()
    broken = run_of("2026-01-01", a_row(ms=object()))
    with pytest.raises(TypeError):
        broken.save(path)
    assert path.read_text() == before
    assert [p.name for p in tmp_path.iterdir()] == ["gemm.json"]


def test_tables_name_the_gpu_and_the_distance_to_cublas():
    made = benchmarking.Benchmark([a_row()], {"gpu": {"name": "NVIDIA H200"}, "date": "2026-01-02"})
    header, (cells,) = made.table()
    assert dict(zip(header, cells, strict=True))["× cuBLAS"] == "0.5"
    for text in (str(made), made._repr_html_()):
        assert "NVIDIA H200" in text
        assert "2026-01-02" in text


def test_provenance_names_everything(monkeypatch, h200):
    monkeypatch.setattr(benchmarking, "nvidia_smi", lambda query: ["580.1"])
    monkeypatch.setattr(benchmarking.sys, "argv", ["/home/somebody/bin/mlsys-gpu", "bench", "gemm"])
    found = benchmarking.provenance(h200, {"gemm/hopper/step1": "abc"})
    assert found["gpu"] == h200.to_dict()
    assert found["driver"] == "580.1"
    assert found["command"] == "mlsys-gpu bench gemm"
    assert found["sources"] == {"gemm/hopper/step1": "abc"}
    assert found["date"].endswith("Z")
    assert found["libraries"]["apache-tvm"] == "0.27.0.post1"
    json.dumps(found, allow_nan=False)


# -------------------------------------------------------------------------------------------- GPU


@pytest.mark.gpu("hopper")
def test_a_row_measured_on_silicon():
    made = mg.benchmark(STEPS[2], [(512, 512, 512)], "bfloat16", seconds=0.3)
    assert isinstance(made, benchmarking.Benchmark)
    (row,) = made.rows
    assert (row["kernel"], row["M"], row["dtype"]) == ("gemm/hopper/step3", 512, "bfloat16")
    assert 0 < row["ms_p20"] <= row["ms"] <= row["ms_p80"]
    assert row["tflops"] == pytest.approx(2 * 512**3 / row["ms"] / 1e9)
    assert row["tflops_per_sm"] == pytest.approx(row["tflops"] / 16)  # 4 × 4 tiles
    assert row["baseline"].keys() == {"cublas", "triton", "triton_persistent"}
    assert row["timing"] == "graph"
    assert all(other["max_error"] <= 1 for other in row["baseline"].values())
    assert row["working_set_bytes"] > 2 * device.devices()[0].l2_bytes
    json.dumps(made.to_dict(), allow_nan=False)


@pytest.mark.gpu("hopper")
@pytest.mark.parametrize("timing", ["graph", "stream"])
def test_every_kernel_is_measured_both_ways(timing):
    made = mg.benchmark(
        mg.gemm.everything("hopper"), [(1024, 1024, 1024)], seconds=0.1, timing=timing,
        together=True, tune=False,
    )  # fmt: skip
    assert isinstance(made, benchmarking.Benchmark)
    assert {row["timing"] for row in made.rows} == {timing}


@pytest.mark.gpu("hopper")
def test_a_wrong_kernel_is_not_measured(monkeypatch):
    from mlsys_gpu import launch

    monkeypatch.setattr(launch, "compile_for_gpu", lambda kernel: lambda A, B, D: D.fill_(0))
    with pytest.raises(benchmarking.MeasurementError, match="is not measured, its output is wrong"):
        mg.benchmark(STEPS[0], seconds=0.1)
