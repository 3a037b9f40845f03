"""The command line: exit statuses, JSON, and sentences that name value and rule."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from mlsys_gpu import __version__, benchmarking, cli, device, gemm, launch, sim


def command(*arguments, **environment):
    """Run ``mlsys-gpu`` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "mlsys_gpu.cli", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"COLUMNS": "200"} | environment,
        timeout=120,
    )


@pytest.fixture
def call(capsys):
    """Run the command in this process: exit status, standard output, standard error."""

    def run(*arguments):
        status = cli.main([str(a) for a in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture(autouse=True)
def no_gpu(request, monkeypatch):
    if request.node.get_closest_marker("gpu") is None:
        monkeypatch.setattr(device, "current", lambda: None)
        monkeypatch.setattr(device, "driver_problem", lambda: "no NVIDIA driver is installed")


# ---------------------------------------------------------------------------------------- bad use


BAD = [
    (
        ["run", "gemm", "--step", "3", "--shape", "100,256,64"],
        "M to be a positive multiple of 128, got M = 100",
    ),
    (["run", "gemm", "--step", "2", "--shape", "128,128,100"], "K"),
    (["run", "gemm", "--step", "1", "--shape", "128,128,128"], "K = 64, got K = 128"),
    (["run", "gemm", "--step", "77"], "got 77"),
    (["run", "gemm", "--step", "three"], "--step takes a whole number from 0 on, got 'three'"),
    (["run", "gemm", "--step", "1", "--variant", "clc"], "variant='clc'"),
    (["run", "gemm"], "needs --step N"),
    (["run", "gemm", "--step", "1", "--shape", "128x128x64"], "M,N,K, got '128x128x64'"),
    (["run", "gemm", "--step", "1", "--shape", "128,0,64"], "three positive numbers M,N,K"),
    (["run", "gemm", "--step", "1", "--arch", "ampere"], "hopper, blackwell, got 'ampere'"),
    (["run", "gemm", "--step", "1", "--dtype", "fp8"], "fp16 or bf16, got 'fp8'"),
    (["run", "gemm", "--step", "1", "--on", "tpu"], "--on must be one of sim, gpu, got 'tpu'"),
    (["run", "gemm", "--step", "1", "--schedule", "random"], "eager, lazy, seeded, got 'random'"),
    (["run", "gemm", "--step", "1", "--seed", "-3"], "--seed takes a whole number from 0 on"),
    (["run", "gemm", "--step", "1", "--on", "gpu", "--no-checks"], "are the simulator's"),
    (
        ["run", "gemm", "--step", "1", "--arch", "hopper", "--on", "gpu"],
        "such as an H100 or H200; here no NVIDIA driver is installed: --on sim runs it",
    ),
    (["run", "gemm", "--step", "1", "--schedule-seed", "3"], "the seed of --schedule seeded"),
    (
        ["run", "gemm", "--step", "3", "--shape", "128000,128000,64"],
        "D may have at most 2**31 - 1 elements",
    ),
    (
        ["run", "gemm", "--step", "3", "--shape", "128,8388736,64"],
        "65,537 CTAs of the grid along y; a GPU launches at most 65,535",
    ),
    (["run", "gemm", "--step", "1", "--frobnicate"], "See mlsys-gpu run --help"),
    (["run", "softmax", "--step", "1"], "KERNEL must be gemm, got 'softmax'"),
    (["run", "attention"], "attention is not part of this release yet"),
    (["run"], "KERNEL"),
    (["frobnicate"], "frobnicate"),
    (
        ["inspect", "gemm", "--step", "1", "--emit", "llvm"],
        "cuda, ptx, sass, resources, got 'llvm'",
    ),
    (["bench", "gemm", "--steps", "3-1"], "ranges that go up, got '3-1'"),
    (["bench", "gemm", "--steps", "one"], "such as 1-3 or 1,3, got 'one'"),
    (["bench", "gemm", "--shapes", "64,64"], "--shapes takes three positive numbers"),
    (["bench", "gemm", "--seconds", "0"], "more than 0 and at most 600, got '0'"),
    (["bench", "gemm", "--merge"], "--merge needs --output"),
    (["bench", "gemm", "--timing", "host"], "--timing must be one of auto, graph, stream"),
    (
        ["bench", "gemm", "--baselines", "cutlass"],
        "triton_persistent, or none alone, got 'cutlass'",
    ),
    (["bench", "gemm", "--jobs", "many"], "--jobs takes a whole number from 0 on, got 'many'"),
    (["bench", "gemm", "-o", "/proc/x/y.json"], "--output /proc/x/y.json cannot be written"),
    (["bench", "gemm", "--arch", "hopper"], "needs a Hopper (sm_90a) GPU, such as an H100 or H200"),
    (["bench", "attention"], "not part of this release yet"),
    (["check"], "12.1, chapter 12, or all"),
    (["check", "99.9"], "99.9"),
    (["reset", "99.9"], "99.9"),
    (["trace", "gemm"], "needs --step N"),
    (["trace", "gemm", "--step", "3", "-o", "t.txt"], ".json file (for Perfetto) or an .html file"),
    (["trace", "gemm", "--step", "3", "-o", "/nowhere/t.json"], "/nowhere does not"),
    (["trace", "gemm", "--step", "3", "-o", "/proc/t.html"], "'/proc/t.html' cannot be written"),
    (["trace", "gemm", "--step", "3", "--gpu", "v100"], "GPU 'v100'; there are b200, h200"),
    (
        ["trace", "gemm", "--step", "3", "--arch", "hopper", "--gpu", "b200"],
        "the kernel is for sm_90a, and B200 is of sm_100a",
    ),
    (["trace", "gemm", "--step", "3", "--clusters", "1"], "whole number from 2 on, got '1'"),
    (["trace", "gemm", "--step", "3", "--seed", "x"], "--seed takes a whole number from 0 on"),
    (["calibrate"], "calibrating needs a Hopper (sm_90a) GPU, such as an H100 or H200; here no"),
    (["calibrate", "--groups", "rings"], "calibrating needs a Hopper (sm_90a) GPU"),
    (["calibrate", "--groups", "rings,warps"], "shares, loads, mma, power, got 'warps'"),
    (["calibrate", "--groups", ""], "--groups: groups are clocks, launches,"),
    (
        ["calibrate", "-o", "/proc/constants.json"],
        "--output /proc/constants.json cannot be written",
    ),
]


@pytest.mark.parametrize(
    ("arguments", "words"), BAD, ids=lambda v: " ".join(v) if isinstance(v, list) else ""
)
def test_bad_use_is_one_sentence_and_status_2(call, arguments, words):
    status, out, err = call(*arguments)
    assert status == 2
    assert out == ""
    assert words in err
    assert err.startswith("mlsys-gpu: ")
    assert err.count("\n") == 1
    status, out, err = call(*arguments, "--json")
    assert status == 2
    assert words in json.loads(out)["error"]


def test_bad_use_from_a_shell():
    done = command("run", "gemm", "--step", "3", "--shape", "100,256,64", "--json")
    assert done.returncode == 2
    assert "multiple of 128" in json.loads(done.stdout)["error"]
    assert "Traceback" not in done.stderr
    done = command("run", "gemm", "--step", "3", "--shape")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_faults_of_ours_keep_their_traceback(call, monkeypatch):
    def broken(*_, **__):
        raise KeyError("a fault")

    monkeypatch.setattr(sim, "compile", broken)
    with pytest.raises(KeyError):
        call("run", "gemm", "--step", "1")


# -------------------------------------------------------------------------------------------- run


@pytest.mark.parametrize("arch", ["hopper", "blackwell"])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_run_is_right_in_the_simulator(call, arch, dtype):
    status, out, _ = call(
        "run", "gemm", "--step", 3, "--shape", "256,128,192", "--arch", arch, "--dtype", dtype,
        "--schedule", "seeded", "--schedule-seed", 5, "--seed", 9, "--json",
    )  # fmt: skip
    found = json.loads(out)
    assert status == 0
    assert found["ok"] is True
    assert found["kernel"] == f"gemm/{arch}/step3"
    assert found["arch"] == arch
    assert found["shape"] == [256, 128, 192]
    assert found["dtype"] == {"fp16": "float16", "bf16": "bfloat16"}[dtype]
    assert found["on"] == "sim"
    assert 0 < found["max_error"] <= 1
    assert found["findings"] == []
    assert found["seconds"] > 0
    assert (found["schedule"], found["schedule_seed"], found["seed"]) == ("seeded", 5, 9)


def test_run_from_a_shell_prints_one_object():
    done = command("run", "gemm", "--step", "1", "--arch", "hopper", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"] is True
    assert done.stdout.count("\n") == 1


@pytest.fixture
def pretend(monkeypatch):
    """A simulator that writes what the test says, and finds what the test says."""

    def install(write, findings=()):
        def simulate(program, A, B, D, **options):
            write(A.astype(float) @ B.astype(float).T, D)
            report = sim.Report("k", "sm_90a", "lazy", 0, True, {"grid": [1, 1, 1], "threads": 128})
            report.findings = list(findings)
            return report

        monkeypatch.setattr(sim, "compile", lambda kernel: kernel)
        monkeypatch.setattr(sim, "simulate", simulate)

    return install


def test_a_wrong_number_is_status_1_and_located(call, pretend):
    def one_wrong(exact, D):
        D[...] = exact
        D[3, 5] += 1

    pretend(one_wrong)
    status, out, _ = call("run", "gemm", "--step", 1, "--arch", "hopper", "--json")
    found = json.loads(out)
    assert (status, found["ok"]) == (1, False)
    assert found["max_error"] > 1
    assert found["numbers"]["wrong"] == 1
    assert found["numbers"]["first"] == [3, 5]
    status, out, _ = call("run", "gemm", "--step", 1, "--arch", "hopper")
    assert status == 1
    assert "D[3, 5]" in out


def test_unwritten_outputs_are_wrong(call, pretend):
    pretend(lambda exact, D: None)
    status, out, _ = call("run", "gemm", "--step", 1, "--json")
    found = json.loads(out)
    assert (status, found["ok"], found["max_error"]) == (1, False, None)
    assert found["numbers"]["unwritten"] == 128 * 128


def test_a_finding_is_status_1_even_where_the_numbers_are_right(call, pretend):
    finding = sim.Finding(
        code="race-smem",
        message="two accesses",
        location=sim.Location("step1.py", 7),
        threads="warp 0",
        memory="As",
        fix="synchronise",
    )

    def right(exact, D):
        D[...] = exact

    pretend(right, [finding])
    status, out, _ = call("run", "gemm", "--step", 1, "--json")
    found = json.loads(out)
    assert (status, found["ok"]) == (1, False)
    assert found["max_error"] <= 1
    assert found["findings"][0]["code"] == "race-smem"
    status, out, _ = call("run", "gemm", "--step", 1)
    assert status == 1
    assert "race-smem" in out
    assert "step1.py:7" in out


def test_outputs_are_poisoned_and_inputs_follow_the_seed(call, monkeypatch, pretend):
    seen = []

    def look(exact, D):
        seen.append((bool(np.isnan(D.astype(float)).all()), exact[0, 0]))
        D[...] = exact

    pretend(look)
    for seed in (1, 1, 2):
        call("run", "gemm", "--step", 1, "--seed", seed)
    assert [poisoned for poisoned, _ in seen] == [True] * 3
    assert seen[0][1] == seen[1][1] != seen[2][1]


def test_on_a_gpu_the_kernel_alone_is_timed(call, monkeypatch, h200):
    monkeypatch.setattr(device, "current", lambda: h200)
    monkeypatch.setattr(launch, "torch_with_cuda", lambda purpose: None)
    monkeypatch.setattr(launch, "compile_for_gpu", lambda kernel: None)

    def run_on_gpu(kernel, A, B, D):
        D[...] = A.astype(float) @ B.astype(float).T
        return launch.GpuRun("gemm_hopper_step1", h200, 3e-6)

    monkeypatch.setattr(launch, "run_on_gpu", run_on_gpu)
    # the GPU's own architecture is the default there
    status, out, _ = call("run", "gemm", "--step", 1, "--on", "gpu", "--json")
    found = json.loads(out)
    assert status == 0
    assert found["arch"] == "hopper"
    assert (found["on"], found["gpu"], found["seconds"]) == ("gpu", "NVIDIA H200", 3e-6)
    assert found["findings"] == []
    status, _, err = call("run", "gemm", "--step", 1, "--arch", "blackwell", "--on", "gpu")
    assert status == 2
    assert "B200" in err
    assert "NVIDIA H200" in err


# ------------------------------------------------------------------------------------------ trace


def test_trace_without_a_file_prints_what_would_happen(call):
    status, out, err = call("trace", "gemm", "--step", "3", "--arch", "hopper")
    assert (status, err) == (0, "")
    assert "modelled on H200" in out
    assert "TFLOP/s" in out
    assert "6 clusters, and the GPU holds" in out
    assert "warps 0-3" in out


def test_trace_as_json_and_for_perfetto(call, tmp_path):
    path = tmp_path / "trace.json"
    arguments = ["trace", "gemm", "--step", "3", "--gpu", "h200", "--shape", "512,512,128"]
    status, out, err = call(*arguments, "--clusters", "3", "-o", path, "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert found["ok"] is True
    assert found["kernel"] == "gemm/hopper/step3"
    assert found["shape"] == [512, 512, 128]
    assert found["gpu"] == "h200"
    assert found["output"] == str(path)
    modelled = found["modelled"]
    assert modelled["clusters"] == 16
    assert modelled["clusters_run"] < 16
    flops = 2 * 512 * 512 * 128
    assert modelled["tflops"] == pytest.approx(flops / modelled["microseconds"] / 1e6, rel=1e-3)
    cycles = modelled["cycles"] / modelled["clock_mhz"] + modelled["launch_microseconds"]
    assert modelled["microseconds"] == pytest.approx(cycles, rel=1e-3)
    assert {"roles", "conflicts", "bytes", "occupancy"} <= set(found["statistics"])
    trace = json.loads(path.read_text())
    assert trace["otherData"]["gpu"] == "H200"
    assert any(e["ph"] == "X" and "wgmma" in e["name"] for e in trace["traceEvents"])
    assert os.listdir(tmp_path) == ["trace.json"]


def test_trace_as_a_page_replaces_the_last_one(call, tmp_path):
    path = tmp_path / "trace.html"
    path.write_text("the last one")
    status, out, _ = call("trace", "gemm", "--step", "1", "-o", path)
    assert status == 0
    assert f"{path}: open it in a browser" in out
    assert path.read_text().startswith("<!doctype html>")
    assert os.listdir(tmp_path) == ["trace.html"]


def test_a_trace_that_fails_leaves_the_last_one(call, tmp_path, monkeypatch):
    path = tmp_path / "trace.json"
    path.write_text("the last one")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    status, out, err = call("trace", "gemm", "--step", "1", "-o", path)
    assert (status, out) == (2, "")
    assert "cannot be written: No space left on device" in err
    assert path.read_text() == "the last one"
    assert os.listdir(tmp_path) == ["trace.json"]


def test_trace_refuses_before_anything_runs(call, monkeypatch):
    monkeypatch.setattr(launch, "model", lambda *_, **__: pytest.fail("it ran"))
    assert call("trace", "gemm", "--step", "3", "-o", "t.csv")[0] == 2
    assert call("trace", "gemm", "--step", "3", "-o", "/nowhere/t.json")[0] == 2
    assert call("trace", "gemm", "--step", "3", "--arch", "blackwell", "--gpu", "h200")[0] == 2


def test_the_data_do_not_decide_about_the_time_of_a_gemm(call):
    arguments = ["trace", "gemm", "--step", "2", "--json"]
    zeros = json.loads(call(*arguments)[1])
    assert json.loads(call(*arguments, "--seed", "5")[1]) == zeros


# ------------------------------------------------------------------------------ the other verbs


def test_help_offers_what_exists_and_nothing_else(call):
    status, out, _ = call("--help")
    assert status == 0
    verbs = {"doctor", "run", "debug", "trace", "bench", "calibrate", "inspect"}
    verbs |= {"check", "reset", "progress"}
    assert set(re.findall(r"^\W*([a-z]+) {2,}[A-Z]", out, re.MULTILINE)) == verbs
    assert call()[0] == 0


def test_doctor(call):
    status, out, _ = call("doctor", "--json")
    found = json.loads(out)
    assert status == 0
    assert found["ok"] is True
    rows = {row["kernel"]: row for row in found["kernels"]}
    assert rows["gemm/blackwell/step1"]["simulator"] is True
    assert rows["gemm/blackwell/step1"]["badge"] == "not yet run on silicon"
    assert rows["gemm/hopper/step1"]["needs"] == "an H100 or H200"
    status, out, _ = call("doctor")
    assert status == 0
    assert "not yet run on silicon" in out
    assert all(name in out for name in rows)  # in full: it is what one types


def test_doctor_drops_the_badge_once_a_result_proves_it(call, monkeypatch, tmp_path):
    monkeypatch.setattr(benchmarking, "results_directory", lambda: tmp_path)
    row = {
        "kernel": "gemm/blackwell/step1", "dtype": "float16", "ms": 1, "ms_p20": 1, "ms_p80": 1,
        "tflops": 1, "baseline": {}, "source_sha256": "",
    }  # fmt: skip
    gpu = {"name": "NVIDIA B200", "arch": "sm_100a"}
    benchmarking.Benchmark([row], {"gpu": gpu}).save(tmp_path / "b200" / "gemm.json")
    rows = {r["kernel"]: r for r in json.loads(call("doctor", "--json")[1])["kernels"]}
    assert rows["gemm/blackwell/step1"]["badge"] is None
    assert rows["gemm/blackwell/step1"]["silicon"] == ["NVIDIA B200"]
    assert rows["gemm/hopper/step1"]["badge"] == "not yet run on silicon"


@pytest.mark.parametrize(
    ("emit", "words"),
    [("cuda", "__global__"), ("ptx", "wgmma.mma_async"), ("sass", "HGMMA")],
)
def test_inspect_prints_what_the_kernel_becomes(call, emit, words):
    pytest.importorskip("cuda.bindings.nvrtc", reason="assembling needs cuda-python and NVRTC")
    status, out, _ = call("inspect", "gemm", "--step", 1, "--arch", "hopper", "--emit", emit)
    assert status == 0
    assert words in out
    status, text, _ = call(
        "inspect", "gemm", "--step", 1, "--arch", "hopper", "--emit", emit, "--json"
    )
    assert words in json.loads(text)["text"]


def test_inspect_resources(call):
    pytest.importorskip("cuda.bindings.nvrtc", reason="assembling needs cuda-python and NVRTC")
    status, out, _ = call("inspect", "gemm", "--step", 1, "--emit", "resources", "--json")
    found = json.loads(out)
    assert status == 0
    assert found["kernel"] == "gemm/blackwell/step1"
    assert found["resources"]["spill_store_bytes"] == 0
    assert found["resources"]["threads"] == 128
    assert "registers" in call("inspect", "gemm", "--step", 1)[1]


@pytest.fixture
def fake_bench(monkeypatch, h200):
    """``mlsys-gpu bench`` on no GPU: what was asked for; rows of 1 ms, and the ways to fail."""
    asked = {"fails": [], "date": "2026-01-01T00:00:00Z", "gpu": h200.to_dict()}

    def benchmark(ladder, shapes, dtypes, *, progress, after, keep_going, **options):
        asked.update(options, kernels=[s.name for s in ladder], shapes=shapes, dtypes=dtypes)
        assert keep_going
        made = benchmarking.Benchmark(
            [], {"gpu": asked["gpu"], "date": asked["date"], "sources": {}}
        )
        todo = [(s.name, *shape, d) for s in ladder for shape in shapes for d in dtypes]
        for number, (name, M, N, K, dtype) in enumerate(todo):
            progress(number, len(todo), f"{name} {M},{N},{K} {dtype}")
            what = {"kernel": name, "M": M, "N": N, "K": K, "dtype": dtype}
            if name in asked["fails"]:
                made.failures.append(what | {"error": "MeasurementError: wrong"})
            else:
                figures = {"ms": 1.0, "ms_p20": 1.0, "ms_p80": 1.0, "tflops": 1.0}
                figures |= {"tflops_per_sm": 1.0, "baseline": {"cublas": {"ms": 2.0}}}
                made.rows.append(what | figures | {"timing": "stream", "source_sha256": "x"})
            after(made)
            if asked.get("interrupt") == number:
                raise KeyboardInterrupt
        return made

    monkeypatch.setattr(benchmarking, "benchmark", benchmark)
    return asked


def test_bench_writes_rows_of_all_dtypes(call, fake_bench, tmp_path):
    path = tmp_path / "new" / "gemm.json"
    status, out, err = call(
        "bench", "gemm", "--arch", "hopper", "--steps", "1-2,3", "--dtype", "fp16,bf16",
        "--shapes", "1024 256,384,128", "--shapes", "512", "--seconds", "0.5", "-o", path, "--json",
    )  # fmt: skip
    assert status == 0
    assert err == ""
    assert fake_bench["kernels"] == [f"gemm/hopper/step{n}" for n in (1, 2, 3)]
    assert fake_bench["shapes"] == [(1024, 1024, 1024), (256, 384, 128), (512, 512, 512)]
    assert fake_bench["dtypes"] == ["float16", "bfloat16"]
    assert (fake_bench["seconds"], fake_bench["timing"]) == (0.5, "auto")
    assert fake_bench["baselines"] == ["cublas", "triton", "triton_persistent"]
    assert fake_bench["tune"]
    assert not fake_bench["together"]
    assert [row["dtype"] for row in json.loads(out)["rows"]] == ["float16", "bfloat16"] * 9
    assert benchmarking.load(path).to_dict() == json.loads(out)


def test_bench_takes_variants_by_name_and_all_kernels_where_none_is_named(call, fake_bench):
    everything = [s.name for s in gemm.everything("hopper")]
    assert call("bench", "gemm", "--arch", "hopper", "--baselines", "none")[0] == 0
    assert fake_bench["kernels"] == everything
    assert fake_bench["baselines"] == []
    for one in gemm.variants("hopper"):
        assert call("bench", "gemm", "--arch", "hopper", "--steps", f"3,{one.variant}")[0] == 0
        assert fake_bench["kernels"] == ["gemm/hopper/step3", one.name]
    # of a range, what there is
    assert call("bench", "gemm", "--arch", "hopper", "--steps", "3-99")[0] == 0
    assert fake_bench["kernels"] == [s.name for s in gemm.steps("hopper") if s.number >= 3]
    options = ["--together", "--no-tuning", "--timing", "graph", "--jobs", "3"]
    assert call("bench", "gemm", "--arch", "hopper", "--steps", "3", *options)[0] == 0
    assert (fake_bench["together"], fake_bench["tune"]) == (True, False)
    assert (fake_bench["timing"], fake_bench["processes"]) == ("graph", 3)


def test_bench_says_how_far_it_is_and_loses_nothing_to_one_failure(call, fake_bench, tmp_path):
    fake_bench["fails"] = ["gemm/hopper/step2"]
    path = tmp_path / "gemm.json"
    arguments = ["bench", "gemm", "--arch", "hopper", "--steps", "1-3", "-o", path]
    status, out, err = call(*arguments)
    assert status == 1
    assert "[2/3] gemm/hopper/step2 4096,4096,4096 float16" in err
    assert "× cuBLAS" in out
    assert "1 ms (1-1), 1 TFLOP/s, x cuBLAS 2.000" in err
    assert "not measured: gemm/hopper/step2 4096,4096,4096 float16: MeasurementError: wrong" in err
    assert [row["kernel"][-1] for row in benchmarking.load(path).rows] == ["1", "3"]
    status, out, err = call(*arguments, "--json")
    assert status == 1
    assert json.loads(out)["failures"][0]["error"] == "MeasurementError: wrong"


def test_an_interrupted_bench_keeps_its_rows(call, fake_bench, tmp_path):
    fake_bench["interrupt"] = 1
    path = tmp_path / "gemm.json"
    assert call("bench", "gemm", "--arch", "hopper", "--steps", "1-3", "-o", path)[0] == 130
    assert [row["kernel"][-1] for row in benchmarking.load(path).rows] == ["1", "2"]


def test_bench_merges_into_a_file(call, fake_bench, tmp_path, monkeypatch, h200):
    path = tmp_path / "gemm.json"
    arguments = ["bench", "gemm", "--arch", "hopper", "--merge", "-o", path, "--json"]
    assert call(*arguments, "--steps", "1-2")[0] == 0  # there is none yet
    fake_bench["date"] = "2026-02-02T00:00:00Z"
    status, out, _ = call(*arguments, "--steps", "2-3")
    assert status == 0
    rows = json.loads(out)["rows"]
    assert [(row["kernel"][-1], row["run"][:10]) for row in rows] == [
        ("1", "2026-01-01"), ("2", "2026-02-02"), ("3", "2026-02-02"),
    ]  # fmt: skip
    assert benchmarking.load(path).to_dict() == json.loads(out)
    h100 = device.Device(**{**h200.__dict__, "name": "NVIDIA H100"})
    monkeypatch.setattr(device, "current", lambda: h100)
    status, out, _ = call(*arguments, "--steps", "1")
    assert status == 2
    assert "holds figures of NVIDIA H200, and this is NVIDIA H100" in json.loads(out)["error"]
    assert len(benchmarking.load(path).rows) == 3
    assert call(*arguments[:-3], "--steps", "1")[0] == 2  # --merge without a file
    path.write_text("[]")
    status, out, _ = call(*arguments, "--steps", "1")
    assert status == 2
    assert "needs provenance and rows" in json.loads(out)["error"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--shapes", "100"], "got N = 100"),
        (["--shapes", "4096 128,128,4"], "got K = 4"),
        (["--steps", "1", "--shapes", "128,128,4"], "got K = 4"),
        (["--shapes", ""], "--shapes names no shape"),
        (["--baselines", "none,cublas"], "or none alone, got 'none'"),
        (["--baselines", ""], "or none alone, got ''"),
    ],
)
def test_bench_refuses_what_it_would_leave_out(call, fake_bench, options, words):
    status, _, err = call("bench", "gemm", "--arch", "hopper", *options)
    assert status == 2
    assert words in err
    assert "kernels" not in fake_bench


@pytest.mark.parametrize("text", ["", "{", "[]", '{"provenance": [], "rows": []}',
                                  '{"provenance": {"gpu": "x"}, "rows": []}'])  # fmt: skip
def test_bench_names_a_broken_result_file_and_leaves_it(call, fake_bench, tmp_path, text):
    path = tmp_path / "gemm.json"
    path.write_text(text)
    status, _, err = call("bench", "gemm", "--arch", "hopper", "--merge", "-o", path)
    assert status == 2
    assert str(path) in err
    assert path.read_text() == text
    assert "kernels" not in fake_bench


def test_bench_refuses_a_folder_as_its_result_file(call, tmp_path):
    status, _, err = call("bench", "gemm", "-o", tmp_path)
    assert status == 2
    assert "is a folder" in err


# -------------------------------------------------------------------------------------- exercises


def test_check_lists_exercises(call):
    status, out, _ = call("check", "--list", "--json")
    found = json.loads(out)["exercises"]
    assert status == 0
    assert all(e.keys() == {"id", "chapter", "kind", "title"} for e in found)
    assert {e["chapter"] for e in found} >= {1}
    first = found[0]
    status, out, _ = call("check", "chapter", first["chapter"], "--list")
    assert status == 0
    assert first["id"] in out
    assert first["title"] in out


def test_check_reports_and_fails_on_a_stub(call, tmp_path):
    first = json.loads(call("check", "--list", "--json")[1])["exercises"][0]["id"]
    report = tmp_path / "report.json"
    status, out, _ = call("check", first, "--report", report, "--json")
    found = json.loads(out)
    assert status in (0, 1)
    assert found["ok"] is (status == 0)
    assert json.loads(report.read_text()) == found
    status, _, err = call("check", first, "--report", tmp_path / "missing" / "report.json")
    assert status == 2
    assert "--report" in err


def test_progress(call):
    status, out, _ = call("progress", "--json")
    assert status == 0
    assert json.loads(out)["total"] > 0
    assert call("progress")[0] == 0


def with_output(stream):
    """``mlsys-gpu --help`` into a stream: its exit status and what it says on standard error."""
    result = subprocess.run(
        [sys.executable, "-m", "mlsys_gpu.cli", "--help"],
        stdout=stream,
        stderr=subprocess.PIPE,
        timeout=120,
    )
    return result.returncode, result.stderr.decode()


def test_version():
    result = command("--version")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.strip() == f"mlsys-gpu {__version__}"


def test_a_reader_that_closes_the_pipe_gets_no_traceback():
    reading, writing = os.pipe()
    os.close(reading)
    status, said = with_output(writing)
    os.close(writing)
    assert status != 0
    assert said == ""


def test_a_full_disk_is_one_sentence():
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    with open("/dev/full", "w") as full:
        status, said = with_output(full)
    assert status == 2
    assert said.startswith("mlsys-gpu: the output cannot be written: ")
    assert len(said.splitlines()) == 1


def test_a_terminal_without_our_characters():
    """The multiplication sign of a shape is no ASCII."""
    code = "import sys; from mlsys_gpu import cli; cli._prepare_streams(); print('128 × 64')"
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        timeout=60,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (result.returncode, result.stdout.strip()) == (0, b"128 ? 64")
