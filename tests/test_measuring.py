"""How measurements are taken, on a clock made for the test."""

import json
import statistics
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

import mlsys_gpu as mg
from mlsys_gpu import benchmarking, device, measuring
from mlsys_gpu.kernels.baselines.config import Config

STEPS = [mg.gemm.step(n, arch="hopper") for n in (1, 2, 3)]


@pytest.mark.parametrize(
    ("bytes_per_set", "l2_bytes", "sets"),
    [(65_536, 62_914_560, 1921), (6 * 2**20, 50 * 2**20, 17), (10**9, 50 * 2**20, 2)],
)
def test_input_sets_exceed_twice_the_cache(bytes_per_set, l2_bytes, sets):
    assert measuring.input_sets(bytes_per_set, l2_bytes) == sets
    assert sets * bytes_per_set > 2 * l2_bytes


# -------------------------------------------------------------------------------- taking samples


class Clock:
    """A GPU that works through a queue, and a host; both in milliseconds."""

    def __init__(self, host_ms_per_launch, gpu_ms_per_launch):
        self.host_cost, self.gpu_cost = host_ms_per_launch, gpu_ms_per_launch
        self.host = self.gpu = 0.0
        self.recorded: list[float] | None = None  # while a graph is captured: times on the GPU
        self.replayed = None  # what else happens in a replay

    def contender(self, A, B, D):
        if self.recorded is not None:
            self.recorded.append(self.gpu_cost)
            return
        self.host += self.host_cost
        self.gpu = max(self.gpu, self.host) + self.gpu_cost

    def capture(self, launches):
        clock, self.recorded = self, []
        launches()
        work, self.recorded = sum(self.recorded or []), None

        class Graph:
            def replay(self):
                clock.host += 0.02
                clock.gpu = max(clock.gpu, clock.host) + work
                if clock.replayed is not None:
                    clock.replayed(launches)

        return Graph()

    def sleep(self, cycles):
        self.gpu = max(self.gpu, self.host) + cycles / 2e6  # at 2 GHz

    def synchronize(self):
        self.host = max(self.host, self.gpu)

    def event(self, enable_timing):
        clock = self

        class Event:
            def record(self):
                self.at = max(clock.gpu, clock.host)

            def query(self):
                return self.at <= clock.host

            def elapsed_time(self, end):
                return end.at - self.at

        return Event()


@pytest.fixture
def clock(monkeypatch):
    torch = pytest.importorskip("torch")

    def install(host_ms, gpu_ms):
        made = Clock(host_ms, gpu_ms)
        monkeypatch.setattr(torch.cuda, "Event", made.event)
        monkeypatch.setattr(torch.cuda, "_sleep", made.sleep)
        monkeypatch.setattr(torch.cuda, "synchronize", made.synchronize)
        monkeypatch.setattr(measuring.time, "perf_counter", lambda: made.host / 1e3)
        monkeypatch.setattr(measuring, "captured", made.capture)
        return made

    return install


@pytest.fixture
def rotation():
    pytest.importorskip("torch")
    (case,) = benchmarking.cases(STEPS[0], None, None)
    return measuring.Rotation(case, l2_bytes=100_000, seed=0, place="cpu")


@pytest.mark.parametrize(
    ("host_ms", "gpu_ms", "launches"),
    [
        (0.01, 0.004, 400),  # the host is slower than the kernel: only holding helps
        (0.04, 0.5, 10),
        (0.01, 40.0, 1),
    ],
)
def test_the_gpu_is_timed_and_not_the_host(clock, rotation, host_ms, gpu_ms, launches):
    made = clock(host_ms, gpu_ms)
    timer = measuring.Timer(rotation, made.contender, clock_khz=2_000_000)
    assert timer.launches == pytest.approx(launches, abs=1)
    measuring.take_samples([timer], seconds=0.5)
    assert len(timer.samples) >= measuring.FEWEST_SAMPLES
    assert timer.samples == pytest.approx([gpu_ms] * len(timer.samples))


def test_a_first_launch_that_compiles_holds_nobody_up(clock, rotation):
    """Not the GPU for the seconds that it took, before every sample from then on."""
    made = clock(0.01, 0.5)
    compiled = []

    def contender(A, B, D):
        if not compiled:
            made.host += 3_000.0
            compiled.append(True)
        made.contender(A, B, D)

    timer = measuring.Timer(rotation, contender, 2_000_000)
    assert made.gpu < 3_000 + 100
    before = made.gpu
    for _ in range(10):
        timer.queue()
        timer.samples += timer.collect()
    assert timer.samples == pytest.approx([0.5] * 10)
    assert made.gpu - before < 10 * (5 + 2)  # samples of 5 ms, and little more

    # A hiccup of the host costs a sample, and then a hold that is bounded and goes again.
    made.host_cost = 200.0
    timer.queue()
    assert timer.collect() == []
    made.host_cost, before = 0.01, made.gpu
    for _ in range(10):
        timer.queue()
        assert timer.collect() == pytest.approx([0.5])
    assert made.gpu - before < 100 + 10 * (5 + 2)


def test_contenders_take_samples_in_turn(clock, rotation):
    made = clock(0.01, 1.0)
    order = []

    def contender(name):
        def launch(A, B, D):
            order.append(name)
            made.contender(A, B, D)

        return launch

    timers = [measuring.Timer(rotation, contender(n), 2_000_000) for n in "abc"]
    order.clear()
    measuring.take_samples(timers, seconds=1.0)
    counts = [len(t.samples) for t in timers]
    assert max(counts) == min(counts) >= measuring.FEWEST_SAMPLES
    # each takes one sample a turn, and no one always follows the same one
    turns = ["".join(order[i : i + 15 : 5]) for i in range(0, len(order), 15)]
    assert {"".join(sorted(turn)) for turn in turns} == {"abc"}
    before = {pair for turn in turns for pair in (turn[:2], turn[1:])}
    assert before == {"ab", "ac", "ba", "bc", "ca", "cb"}


def test_a_host_that_is_too_slow_is_an_error(clock, rotation, monkeypatch):
    made = clock(1.0, 0.5)
    timer = measuring.Timer(rotation, made.contender, 2_000_000)
    monkeypatch.setattr(measuring.Timer, "collect", lambda self: [])
    with pytest.raises(measuring.MeasurementError, match="too slowly"):
        measuring.take_samples([timer], seconds=0.1)


def test_launches_go_through_all_sets_in_one_cycle(rotation):
    count = rotation.count
    assert count == 2 * 100_000 // rotation.bytes_per_set + 1 > 2
    seen = []
    rotation.launch(lambda A, B, D: seen.append(A.data_ptr()), count - 1)
    rotation.launch(lambda A, B, D: seen.append(A.data_ptr()), 2)
    assert len(set(seen)) == count
    assert seen[count] == seen[0]
    assert all(t.is_contiguous() and t.data_ptr() % 16 == 0 for s in rotation.sets for t in s)
    assert rotation.A.float().std() == pytest.approx(1, abs=0.05)


def test_outputs_are_checked_on_every_set(rotation):
    def right(A, B, D):
        D.copy_((A.double() @ B.double().T).to(D.dtype))

    assert rotation.verify(right).ok
    last = rotation.sets[-1][0].data_ptr()

    def wrong_on_the_last(A, B, D):
        right(A, B, D)
        if A.data_ptr() == last:
            D[7, 9] += 1

    assert rotation.verify(wrong_on_the_last).wrong == 1
    assert rotation.verify(lambda A, B, D: None).unwritten == rotation.D.numel()


# -------------------------------------------------------------------------------------- graphs


@pytest.mark.parametrize("host_ms", [0.001, 0.05])
def test_a_graph_goes_through_all_sets_and_times_the_gpu(clock, rotation, host_ms):
    made = clock(host_ms, 0.004)
    timer = measuring.Timer(rotation, made.contender, 2_000_000)
    seen = []
    timer.contender = lambda A, B, D: (seen.append(A.data_ptr()), made.contender(A, B, D))
    timer.use_graph()
    assert set(seen) == {A.data_ptr() for A, _, _ in rotation.sets}
    assert len(seen) >= measuring.GRAPH_LAUNCHES
    assert len(seen) % rotation.count == 0  # a replay begins where the last one ended
    assert timer.launches % len(seen) == 0
    assert timer.launches * 0.004 == pytest.approx(measuring.SAMPLE_MS, abs=len(seen) * 0.004)
    launched = len(seen)
    measuring.take_samples([timer], seconds=0.2)
    assert timer.samples == pytest.approx([0.004] * len(timer.samples))
    assert len(seen) == launched  # replays, no launches
    timer.use_stream()
    timer.queue()
    assert len(seen) == launched + timer.launches


@pytest.mark.parametrize(
    ("gpu_ms", "wanted", "timing"),
    [
        (0.004, "auto", "graph"), (0.2, "auto", "stream"),
        (0.004, "stream", "stream"), (0.2, "graph", "graph"),
    ],
)  # fmt: skip
def test_small_kernels_are_timed_by_graphs(clock, rotation, gpu_ms, wanted, timing):
    made = clock(0.01, gpu_ms)
    timers = [measuring.Timer(rotation, made.contender, 2_000_000) for _ in range(2)]
    assert measuring._timed_by(timers, wanted) == timing
    assert {timer.timing for timer in timers} == {timing}


def test_all_contenders_of_a_row_are_timed_alike(clock, rotation, monkeypatch):
    made = clock(0.01, 0.004)
    timers = [measuring.Timer(rotation, made.contender, 2_000_000) for _ in range(3)]
    launches = [timer.launches for timer in timers]
    captures = iter([made.capture, made.capture])

    def capture(launches):
        found = next(captures, None)
        if found is None:
            raise RuntimeError("operation not permitted when stream is capturing")
        return found(launches)

    monkeypatch.setattr(measuring, "captured", capture)
    assert measuring._timed_by(timers, "auto") == "stream"
    assert {timer.timing for timer in timers} == {"stream"}
    assert [timer.launches for timer in timers] == launches
    with pytest.raises(
        measuring.MeasurementError, match="cannot be captured as a graph: operation"
    ):
        measuring._timed_by(timers, "graph")


# -------------------------------------------------------------------------------------- tuning


def right(A, B, D):
    """Fill D where it is poisoned: of hundreds of launches only those are looked at."""
    if not D[0, 0].isnan():
        return
    D.copy_((A.double() @ B.double().T).to(D.dtype))


class Tunable:
    """A baseline with configurations: milliseconds of each, and which are wrong or do not run."""

    def __init__(self, clock, ms, wrong=(), broken=()):
        self.clock, self.ms, self.wrong, self.broken = clock, ms, wrong, broken
        self.tuned = 0

    def configs(self, M, N, K):
        self.tuned += 1
        return [Config(bm, 128, 64, warps=4, stages=3) for bm in sorted({bm for bm, _ in self.ms})]

    def check(self, M, N, K):
        if K % 64:
            raise ValueError(f"K is {K}")

    def gemm(self, A, B, D, config=None):
        config = config or Config(64, 128, 64, warps=4, stages=3)
        key = config.BM, config.group
        if key in self.broken:
            raise RuntimeError("PassManager::run failed")
        self.clock.gpu_cost = self.ms.get(key, 9.0)
        self.clock.contender(A, B, D)
        right(A, B, D)
        if key in self.wrong:
            D[1, 1] += 1


def test_the_fastest_configuration_that_is_right_is_chosen(clock, rotation):
    made = clock(0.001, 1.0)
    ms = {(16, 8): 0.5, (32, 8): 0.1, (64, 8): 0.3, (64, 4): 0.25, (64, 16): 0.35, (128, 8): 0.2}
    module = Tunable(made, ms, wrong=[(32, 8), (32, 4), (32, 16)], broken=[(128, 8)])
    config, tried = measuring.tuned(module, rotation, 2_000_000)
    # 32 is fastest and wrong; so are its groups, which are tried since it came first
    assert (config.BM, config.group) == (64, 8)
    assert tried == 5
    module = Tunable(made, ms, broken=[(32, 8)])
    config, tried = measuring.tuned(module, rotation, 2_000_000)
    assert (config.BM, config.group) == (128, 8)
    ms[(128, 16)] = 0.19
    assert measuring.tuned(module, rotation, 2_000_000)[0].group == 16
    with pytest.raises(
        measuring.LeftOut, match=r"no configuration works; .*PassManager::run failed"
    ):
        measuring.tuned(Tunable(made, {(16, 8): 1.0}, broken=[(16, 8)]), rotation, 2_000_000)


def test_a_configuration_that_hangs_or_crashes_is_passed_over(clock, rotation, monkeypatch):
    """Each is tried in a process of its own first; what that says keeps it out of the choice."""
    made = clock(0.001, 1.0)
    module = Tunable(made, {(16, 8): 0.5, (32, 8): 0.1, (64, 8): 0.3})
    monkeypatch.setattr(module, "__name__", "a.triton.module", raising=False)
    _, fastest, _ = module.configs(128, 128, 64)
    known = {("a.triton.module", fastest, "float16"): "it did not end within 60 s"}
    monkeypatch.setattr(measuring, "_unusable", known)
    config, _ = measuring.tuned(module, rotation, 2_000_000)
    assert config.BM == 64
    # A process that fails says why; one that does not end is ended.
    said = measuring._try_apart("no.such.module", fastest, [])
    assert said is None  # no dtype, nothing to run
    said = measuring._try_apart("no.such.module", fastest, ["float16"])
    assert said is not None
    monkeypatch.setattr(measuring, "TRIAL_SECONDS", 0.01)
    said = measuring._try_apart("no.such.module", fastest, ["float16"])
    assert said == "it did not end within 0 s"


# -------------------------------------------------------------------------------------- rows


@pytest.fixture
def bench(clock, monkeypatch, h200):
    """A GPU that is no GPU: (the clock, kernels by name, Triton's module) behind mg.benchmark."""
    from mlsys_gpu import launch
    from mlsys_gpu.kernels.baselines import cublas

    made = clock(0.01, 0.25)

    def contender(ms, wrong=False):
        def run(A, B, D):
            made.gpu_cost = ms
            made.contender(A, B, D)
            right(A, B, D)
            if wrong:
                D[3, 5] = 1e4

        return run

    def recompute(launches):
        """Outputs as a replay makes them, once each, and in no time."""
        for tensors in rotations[-1].sets:
            right(*tensors)

    rotations = []

    def rotation(*arguments):
        rotations.append(real_rotation(*arguments, place="cpu"))
        return rotations[-1]

    real_rotation = measuring.Rotation
    small = device.Device(**{**h200.__dict__, "l2_bytes": 200_000})
    kernels = {}
    found = SimpleNamespace(
        clock=made,
        kernels=kernels,
        contender=contender,
        recompute=recompute,
        triton=Tunable(made, {(64, 8): 0.5}),
    )
    monkeypatch.setattr(measuring, "Rotation", rotation)
    monkeypatch.setattr(
        launch, "compile_for_gpu", lambda func: kernels[str(func.attrs["global_symbol"])]
    )
    monkeypatch.setattr(cublas, "gemm", contender(0.125))
    monkeypatch.setattr(measuring, "nvidia_smi", lambda query: ["1755", "[N/A]"])
    monkeypatch.setattr(benchmarking, "_gpu_for", lambda wanted: small)
    monkeypatch.setattr(measuring, "_tuned", {})
    real = measuring.importlib.import_module
    monkeypatch.setattr(
        measuring.importlib, "import_module",
        lambda name: found.triton if name.endswith("triton_gemm") else real(name),
    )  # fmt: skip
    for n in (1, 2, 3):
        kernels[f"gemm_hopper_step{n}"] = contender(0.25)
    return found


def test_clock_and_power_are_read_while_the_kernel_runs(monkeypatch):
    """However long nvidia-smi takes to start and to answer."""
    began, left = threading.Event(), [20]

    class Running:
        def queue(self):
            pass

        def collect(self):
            if began.is_set():
                left[0] -= 1
                time.sleep(0.001)

    def slow(query):
        began.set()
        while left[0] > 0:  # for ever, if nothing runs meanwhile
            time.sleep(0.001)
        return ["1500", "690.5"]

    monkeypatch.setattr(measuring, "nvidia_smi", slow)
    timer: Any = Running()
    assert measuring.under_load(timer, 0.01) == {"sm_clock_mhz": 1500.0, "power_w": 690.5}
    assert left[0] <= 0


def test_a_whole_row(bench):
    """One measurement from beginning to end, on tensors of the CPU and time of the test's."""
    made = mg.benchmark(STEPS[0], dtype="bfloat16", baselines=["cublas"], seconds=0.1)
    assert isinstance(made, benchmarking.Benchmark)
    (row,) = made.rows
    assert row["ms"] == row["ms_p20"] == row["ms_p80"] == pytest.approx(0.25)
    assert row["tflops"] == pytest.approx(2 * 128 * 128 * 64 / 0.25e-3 / 1e12)
    assert row["sms"] == 1  # one CTA
    assert row["tflops_per_sm"] == row["tflops"]
    assert row["baseline"]["cublas"]["ms"] == pytest.approx(0.125)
    assert row["max_error"] <= 1
    assert row["timing"] == "stream"
    assert row["launches_per_sample"] == pytest.approx(20, abs=1)
    assert row["input_sets"] == 2 * 200_000 // (4 * 128 * 64 + 2 * 128 * 128) + 1
    assert (row["sm_clock_mhz"], row["power_w"]) == (1755, None)
    assert row["source_sha256"] == benchmarking.source_sha256("gemm/hopper/step1")
    assert made.provenance["sources"] == {"gemm/hopper/step1": row["source_sha256"]}
    assert made.provenance["gpu"]["name"] == "NVIDIA H200"
    json.dumps(made.to_dict(), allow_nan=False)
    assert "cuBLAS 0.500; " in benchmarking.line(row)
    assert "(stream), 1755.0 MHz" in benchmarking.line(row)
    bench.kernels["gemm_hopper_step1"] = lambda A, B, D: D.zero_()
    with pytest.raises(measuring.MeasurementError, match="is not measured, its output is wrong"):
        mg.benchmark(STEPS[0], baselines=[])


def test_a_small_kernels_row_says_that_graphs_were_replayed(bench):
    bench.kernels["gemm_hopper_step1"] = bench.contender(0.01)
    bench.clock.replayed = bench.recompute
    (row,) = mg.benchmark(STEPS[0], baselines=["cublas"], seconds=0.1).rows
    assert row["timing"] == "graph"
    assert row["ms"] == pytest.approx(0.01)
    assert row["baseline"]["cublas"]["ms"] == pytest.approx(0.125)
    (row,) = mg.benchmark(STEPS[0], baselines=[], seconds=0.1, timing="stream").rows
    assert row["timing"] == "stream"
    # a kernel that works once, and does nothing when its launch is replayed
    bench.clock.replayed = None
    words = "replay of gemm/hopper/step1 gives other outputs: wrong"
    with pytest.raises(measuring.MeasurementError, match=words):
        mg.benchmark(STEPS[0], baselines=[], seconds=0.1)


def test_a_tuned_baseline_names_its_configuration_and_is_tuned_once(bench):
    bench.triton.ms = {(16, 8): 0.6, (64, 8): 0.5, (64, 4): 0.4}
    again = [STEPS[2], STEPS[2]]
    made = mg.benchmark(again, [(128, 128, 64)], baselines=["triton"], seconds=0.1)
    for row in made.rows:
        triton = row["baseline"]["triton"]
        assert triton["ms"] == pytest.approx(0.4)
        assert (triton["config"]["BM"], triton["config"]["group"]) == (64, 4)
        assert triton["configs_tried"] == 4
    assert bench.triton.tuned == 1
    made = mg.benchmark(STEPS[0], baselines=["triton"], seconds=0.1, tune=False)
    assert made.rows[0]["baseline"]["triton"]["ms"] == pytest.approx(0.5)
    assert "config" not in made.rows[0]["baseline"]["triton"]


def test_a_baseline_that_cannot_run_is_left_out_and_named(bench, monkeypatch):
    bench.triton.broken = [(64, 8)]
    (row,) = mg.benchmark(STEPS[0], baselines=["cublas", "triton"], seconds=0.1).rows
    assert row["baseline"].keys() == {"cublas"}
    assert "PassManager::run failed" in row["left_out"]["triton"]
    monkeypatch.setitem(measuring.BASELINES, "triton_persistent", "mlsys_gpu.no_such_module")
    (row,) = mg.benchmark(STEPS[0], baselines=["triton_persistent"], seconds=0.1).rows
    assert row["left_out"] == {"triton_persistent": "not installed: mlsys_gpu.no_such_module"}
    bench.triton.check = lambda M, N, K: (_ for _ in ()).throw(ValueError("N is odd"))
    (row,) = mg.benchmark(STEPS[0], baselines=["triton"], seconds=0.1).rows
    assert row["left_out"] == {"triton": "N is odd"}


def test_kernels_measured_together_share_their_baselines(bench):
    bench.kernels["gemm_hopper_step3"] = bench.contender(0.2)
    made = mg.benchmark(STEPS, [(128, 128, 64)], baselines=["cublas"], seconds=0.1, together=True)
    names = ["gemm/hopper/step1", "gemm/hopper/step2", "gemm/hopper/step3"]
    assert [row["kernel"] for row in made.rows] == names
    assert [row["together"] for row in made.rows] == [names] * 3
    assert [row["ms"] for row in made.rows] == pytest.approx([0.25, 0.25, 0.2])
    first, *others = (row["baseline"] for row in made.rows)
    assert all(other == first for other in others)


def test_one_kernel_built_in_several_ways(bench, monkeypatch):
    from mlsys_gpu import launch

    step = mg.gemm.step(6, arch="hopper")
    times = iter([0.25, 0.5, 0.4])
    kernels = {}

    def compiled(func):
        return kernels.setdefault(id(func), bench.contender(next(times)))

    monkeypatch.setattr(launch, "compile_for_gpu", compiled)
    made = mg.benchmark(
        [step, (step, {"ctas": 4}), (step, {"ctas": 8})], [(512, 512, 64)], baselines=[],
        seconds=0.1, together=True,
    )  # fmt: skip
    assert isinstance(made, benchmarking.Benchmark)
    assert [row.get("options") for row in made.rows] == [None, {"ctas": 4}, {"ctas": 8}]
    assert [row["ms"] for row in made.rows] == pytest.approx([0.25, 0.5, 0.4])
    assert [row["sms"] for row in made.rows] == [16, 4, 8]
    assert {row["kernel"] for row in made.rows} == {"gemm/hopper/step6"}
    assert made.rows[0]["together"][1] == "gemm/hopper/step6 (ctas 4)"
    assert made.merged(made).rows == made.rows  # three measurements, not one
    assert 'step6 {"ctas": 4} 512,512,64' in benchmarking.line(made.rows[1])
    (alone,) = benchmarking.cases((step, {"ctas": 4}), [(512, 512, 64)], None)
    assert alone.options == {"ctas": 4}


def test_one_kernel_that_fails_does_not_lose_the_others(bench):
    bench.kernels["gemm_hopper_step2"] = bench.contender(0.25, wrong=True)
    seen, lines = [], []
    for together in (False, True):
        made = mg.benchmark(
            STEPS, [(128, 128, 64)], ["float16", "bfloat16"], baselines=["cublas"], seconds=0.1,
            together=together, keep_going=True, after=lambda part: seen.append(len(part.rows)),
            progress=lambda *step: lines.append(step),
        )  # fmt: skip
        assert isinstance(made, benchmarking.Benchmark)
        assert [(row["kernel"][-1], row["dtype"]) for row in made.rows] == [
            ("1", "float16"), ("3", "float16"), ("1", "bfloat16"), ("3", "bfloat16"),
        ]  # fmt: skip
        assert [(f["kernel"], f["dtype"]) for f in made.failures] == [
            ("gemm/hopper/step2", "float16"), ("gemm/hopper/step2", "bfloat16"),
        ]  # fmt: skip
        assert "MeasurementError: gemm/hopper/step2 at 128,128,64" in made.failures[0]["error"]
    assert seen == [1, 1, 2, 3, 3, 4, 2, 4]
    assert lines[0] == (0, 6, "gemm/hopper/step1 128,128,64 float16")
    assert lines[6] == (
        0, 2, "gemm/hopper/step1, gemm/hopper/step2, gemm/hopper/step3 128,128,64 float16",
    )  # fmt: skip


def test_tensors_are_made_once_for_neighbours(bench, monkeypatch):
    made = []
    real = measuring.Rotation
    monkeypatch.setattr(measuring, "Rotation", lambda *a: made.append(a) or real(*a))
    mg.benchmark(STEPS, [(128, 128, 64)], ["float16", "bfloat16"], baselines=[], seconds=0.1)
    assert [(a[0].name, a[0].dtype) for a in made] == [
        ("gemm/hopper/step1", "float16"), ("gemm/hopper/step1", "bfloat16"),
    ]  # fmt: skip


@pytest.mark.slow
def test_kernels_are_assembled_ahead_into_the_cache(tmp_path, monkeypatch):
    pytest.importorskip("cuda.bindings.nvrtc", reason="assembling needs cuda-python and NVRTC")
    from mlsys_gpu import artifacts, cache

    monkeypatch.setenv("MLSYS_GPU_CACHE", str(tmp_path))
    wanted = benchmarking.cases(STEPS[:2], None, ["float16"])
    measuring.compile_ahead(wanted, processes=1)
    assert not list(tmp_path.iterdir())  # here, when they are needed
    measuring.compile_ahead(wanted, processes=2)

    def nothing(*_):
        raise AssertionError("the cache has it")

    monkeypatch.setattr(cache, "write", nothing)
    for case in wanted:
        assert artifacts.inspect(case.func).cubin


def test_median_and_spread():
    found = measuring.figures([float(n) for n in range(1, 102)], flop=51 * 10**9)
    assert found == {"ms": 51.0, "ms_p20": 21.0, "ms_p80": 81.0, "tflops": 1.0}
    assert statistics.median([1.0, 2.0]) == 1.5


def test_faster_than_the_chip_is_refused(h200):
    (case,) = benchmarking.cases(STEPS[0], None, None)
    measuring._refuse_impossible(case, 1000, h200)
    with pytest.raises(measuring.MeasurementError, match=r"2000 TFLOP/s is more than NVIDIA H200"):
        measuring._refuse_impossible(case, 2000, h200)


def test_what_nvidia_smi_does_not_say_is_none(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: SimpleNamespace(uuid="u"))
    for outcome in (FileNotFoundError(), measuring.subprocess.TimeoutExpired("x", 1)):

        def fail(*_, outcome=outcome, **__):
            raise outcome

        monkeypatch.setattr(measuring.subprocess, "run", fail)
        assert measuring.nvidia_smi("clocks.sm") is None
    done = SimpleNamespace(returncode=0, stdout="1980, [N/A]\n")
    monkeypatch.setattr(measuring.subprocess, "run", lambda *_, **__: done)
    assert measuring.nvidia_smi("clocks.sm,power.draw") == ["1980", "[N/A]"]
    assert measuring._number("[N/A]") is None
    assert measuring._number("1980") == 1980
