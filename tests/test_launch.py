"""Where kernels run, and what is refused before they do."""
# pyright: reportInvalidTypeForm=false, reportUnboundVariable=false
# (The annotations of kernels are TVMScript's.)

import re

import numpy as np
import pytest

import mlsys_gpu as mg
from mlsys_gpu import artifacts, device, launch, lowering, sim, verification

M, N, K = 128, 256, 64


@pytest.fixture(scope="module", params=["float16", "bfloat16"])
def dtype(request):
    return request.param


@pytest.fixture(scope="module")
def kernel(dtype):
    return mg.gemm.step(3, arch="hopper").build(M, N, K, dtype)


@pytest.fixture
def arrays(dtype):
    return [*verification.gemm_inputs(M, N, K, dtype), verification.poisoned((M, N), dtype)]


# ----------------------------------------------------------------------------- what is refused


def float32_output(A, B, D):
    return A, B, D.astype(np.float32)


def swapped_inputs(A, B, D):
    return B, A, D


def transposed(A, B, D):
    return A, np.asfortranarray(B), D


def strided(A, B, D):
    return A, np.repeat(B, 2, axis=0)[::2], D


def read_only_output(A, B, D):
    D.flags.writeable = False
    return A, B, D


def zero_size(A, B, D):
    return A[:0], B, D


def a_list(A, B, D):
    return A.tolist(), B, D


def one_short(A, B, D):
    return A, B


def swapped_bytes(A, B, D):
    return A.view(np.uint16).astype(">u2"), B, D


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (float32_output, "D has dtype float32, but must have"),
        (swapped_inputs, r"A has shape \(256, 64\), but the kernel is built for \(128, 64\)"),
        (transposed, "B is not contiguous"),
        (strided, "B is not contiguous"),
        (read_only_output, "output D is read-only"),
        (zero_size, r"A has shape \(0, 64\) and so no elements"),
        (a_list, "A is a list"),
        (one_short, r"takes 3 arrays \(A, B, D\), got 2"),
        (swapped_bytes, "A has dtype byte-swapped uint16"),
    ],
)
@pytest.mark.parametrize("entry", [mg.simulate, mg.run])
def test_refusals_name_value_and_rule(kernel, arrays, change, words, entry, monkeypatch):
    monkeypatch.setattr(sim, "simulate", lambda *a, **k: pytest.fail("it ran"))
    with pytest.raises(launch.ArgumentError, match=words) as caught:
        entry(kernel, *change(*arrays))
    assert "gemm_hopper_step3" in str(caught.value)


def test_uint16_is_no_float16():
    kernel = mg.gemm.step(1, arch="hopper").build(128, 128, 64, "float16")
    A, B = verification.gemm_inputs(128, 128, 64)
    with pytest.raises(launch.ArgumentError, match="A has dtype uint16, but must have float16"):
        mg.simulate(kernel, A.view(np.uint16), B, verification.poisoned((128, 128)))


def test_other_things_than_kernels_are_refused():
    with pytest.raises(launch.ArgumentError, match="a kernel is a TIRx PrimFunc, got int"):
        mg.simulate(3)


def test_tensors_elsewhere_are_refused(kernel, arrays):
    torch = pytest.importorskip("torch")
    dtype = getattr(torch, arrays[0].dtype.name)
    A, B, D = (torch.empty(a.shape, dtype=dtype, device="meta") for a in arrays)
    with pytest.raises(launch.ArgumentError, match="A is on meta"):
        mg.run(kernel, A, B, D)


class FakeCuda:
    """What launch reads of a CUDA tensor, without one."""

    def __init__(self, array, address=0x7F0000000000, gpu=0):
        self.array, self.address, self.gpu = array, address, gpu

    def data_ptr(self):
        return self.address


@pytest.fixture
def cuda(monkeypatch, h200):
    """Lets :class:`FakeCuda` objects pass for contiguous CUDA tensors on an H200."""
    original = launch._Argument.of.__func__

    def of(cls, array, label):
        if not isinstance(array, FakeCuda):
            return original(cls, array, label)
        inner = original(cls, array.array, label)
        facts = {**inner.__dict__, "array": array, "place": f"cuda:{array.gpu}", "gpu": array.gpu}
        return cls(**facts)

    monkeypatch.setattr(launch._Argument, "of", classmethod(of))
    monkeypatch.setattr(device, "devices", lambda: (h200,))
    monkeypatch.setattr(launch, "compile_for_gpu", lambda kernel: pytest.fail("it was compiled"))


def test_cuda_tensors_of_another_architecture_are_refused(cuda, dtype, arrays):
    kernel = mg.gemm.step(3, arch="blackwell").build(M, N, K, dtype)
    with pytest.raises(device.ArchitectureMismatch, match=r"sm_100a.*NVIDIA H200.*mg\.simulate"):
        mg.run(kernel, *(FakeCuda(a) for a in arrays))


def test_cuda_tensors_are_not_simulated(cuda, kernel, arrays):
    with pytest.raises(launch.ArgumentError, match=r"cuda:0; pass A\.cpu\(\).*mg\.run"):
        mg.simulate(kernel, *(FakeCuda(a) for a in arrays))


def test_arrays_in_different_places_are_refused(cuda, kernel, arrays):
    A, B, D = arrays
    with pytest.raises(launch.ArgumentError, match="A on cuda:0, B on the CPU, D on cuda:1"):
        mg.run(kernel, FakeCuda(A), B, FakeCuda(D, gpu=1))


def test_odd_addresses_are_refused(cuda, kernel, arrays):
    A, B, D = arrays
    with pytest.raises(launch.ArgumentError, match=r"B starts at address 0x1008.*multiple of 16"):
        mg.run(kernel, FakeCuda(A), FakeCuda(B, address=0x1008), FakeCuda(D))


# ---------------------------------------------------------------------------------- the simulator


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"schedule": "fast"}, "schedule is one of eager, lazy, seeded, not 'fast'"),
        ({"schedule_seed": 1.5}, "schedule_seed is a non-negative integer, not 1.5"),
        ({"checks": "no"}, "checks is True or False, not 'no'"),
        ({"readings": "wgmma-wait"}, "readings is a dict"),
        ({"readings": {"wgmma-wait": "mine"}}, "no reading wgmma-wait='mine'; there are"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
@pytest.mark.parametrize("call", [mg.simulate, mg.debug])
def test_options_that_are_none(call, options, words, kernel, arrays):
    with pytest.raises(Exception, match=re.escape(words)) as raised:
        call(kernel, *arrays, **options)
    assert type(raised.value).__name__ == "ArgumentError"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"element": 5}, "element is a tuple of integers, one a dimension, not 5"),
        ({"element": (1.5, 2)}, "element is a tuple of integers"),
        ({"element": (True, False)}, "element is a tuple of integers"),
        ({"tolerance": "x"}, "tolerance is a number that is not negative, not 'x'"),
        ({"reference": "x"}, "reference is an array of the output's shape, not 'x'"),
    ],
)
def test_explanations_of_nothing(options, words, kernel, arrays):
    with pytest.raises(ValueError, match=re.escape(words)):
        mg.explain(kernel, *arrays, **options)


def test_a_reading_can_be_chosen(kernel, arrays):
    report = mg.simulate(kernel, *arrays, readings={"wgmma-wait": "warp"})
    assert report.readings["wgmma-wait"].startswith("warp: ")


def test_the_simulator_gets_views_of_the_same_memory(kernel, arrays, dtype, monkeypatch):
    torch = pytest.importorskip("torch")
    seen = []
    monkeypatch.setattr(
        sim, "simulate", lambda kernel, *views, **options: seen.append((views, options))
    )
    tensors = [
        torch.from_numpy(a.view(np.uint16)).view(getattr(torch, dtype)).requires_grad_(i == 0)
        for i, a in enumerate(arrays)
    ]
    mg.simulate(kernel, *tensors, schedule="seeded", schedule_seed=4, checks=False)
    mg.run(kernel, *arrays)
    raw = [a.view(np.uint16) for a in arrays] if dtype == "bfloat16" else arrays
    mg.simulate(kernel, *raw)
    plain = {
        "schedule": "lazy",
        "schedule_seed": 0,
        "checks": True,
        "readings": None,
        "arch": None,
        "timing": False,
    }
    chosen = {"schedule": "seeded", "schedule_seed": 4, "checks": False}
    assert [options for _, options in seen] == [plain | chosen, plain, plain]
    for views, _ in seen:
        for view, array in zip(views, arrays, strict=True):
            assert view.dtype == verification.numpy_dtype(dtype)
            assert view.shape == array.shape
            assert np.shares_memory(view, array)


def test_handles_know_their_parameters(kernel, arrays, monkeypatch):
    monkeypatch.setattr(sim, "simulate", lambda handle, *views, **options: handle)
    lowered = lowering.lower(kernel)
    assert mg.simulate(lowered, *arrays) is lowered
    program = sim.Program(
        name="gemm",
        arch="sm_90a",
        source="",
        launch={},
        params=[[p.name, list(p.shape or ()), p.dtype] for p in lowered.params],
        arguments=[],
        sites=[],
        regions=[],
    )
    assert mg.simulate(program, *arrays) is program
    with pytest.raises(launch.ArgumentError, match="takes 3 arrays"):
        mg.simulate(program, *arrays[:2])


# -------------------------------------------------------------------------------------- workspace


@pytest.fixture(scope="module")
def counting():
    """Y = X + 1, and a workspace that counts threads and wraps to 0 behind the last."""
    from tvm.script import tirx as T

    from mlsys_gpu.kernels.common import draw, finish

    @T.prim_func
    def kernel(
        X: T.Buffer((64,), "float32"), Y: T.Buffer((64,), "float32"), count: T.Buffer((1,), "int32")
    ):
        T.device_entry()
        cta = T.cta_id([2])
        tid = T.thread_id([32])
        old: T.uint32
        draw(old, count.ptr_to([0]), 64)
        Y[T.Cast("int32", old)] = X[T.Cast("int32", old)] + T.float32(1)

    return finish(kernel, "counting", "hopper", workspace=("count",))


def test_a_workspace_may_be_left_out(counting):
    X = np.arange(64, dtype=np.float32)
    for handle in (counting, sim.compile(counting)):
        Y = np.full(64, np.nan, np.float32)
        assert mg.simulate(handle, X, Y).ok
        assert np.array_equal(Y, X + 1)
    report = mg.run(counting, X, np.full(64, np.nan, np.float32))
    assert isinstance(report, mg.Report)
    assert report.ok
    assert mg.model(counting, X, np.zeros(64, np.float32)).microseconds > 0
    assert mg.explain(counting, X, Y, reference=X).tensor == "Y"


def test_a_workspace_may_be_given(counting):
    X, Y = np.arange(64, dtype=np.float32), np.full(64, np.nan, np.float32)
    count = np.full(1, 60, np.int32)
    assert mg.simulate(counting, X, Y, count).ok
    assert count[0] == 60
    with pytest.raises(launch.ArgumentError, match="count has dtype float32, but must have int32"):
        mg.simulate(counting, X, Y, np.zeros(1, np.float32))


@pytest.mark.parametrize("given", [1, 4])
def test_the_number_of_arguments_leaves_workspaces_out(counting, given):
    X = np.zeros(64, np.float32)
    with pytest.raises(launch.ArgumentError, match=rf"takes 2 arrays \(X, Y\), got {given}"):
        mg.simulate(counting, *[X] * given)


def test_the_output_is_no_workspace(counting):
    X = np.zeros(64, np.float32)
    Y = np.zeros(64, np.float32)
    Y.flags.writeable = False
    with pytest.raises(launch.ArgumentError, match="the output Y is read-only"):
        mg.simulate(counting, X, Y)


def test_a_compiled_kernel_keeps_its_workspace(counting):
    class Tensor:
        def __init__(self, device):
            self.device = device

    calls = []
    compiled = launch.Compiled(
        "counting",
        "sm_90a",
        lambda *given: calls.append(given),
        None,
        lowering.parameters(counting),
    )
    X, Y = Tensor("cuda:0"), Tensor("cuda:0")
    compiled(X, Y)
    compiled(X, Y)
    compiled(Tensor("cuda:1"), Tensor("cuda:1"))
    mine = np.zeros(1, np.int32)
    compiled(X, Y, mine)
    first, second, elsewhere, own = (call[2] for call in calls)
    assert [call[:2] for call in calls[:2]] == [(X, Y)] * 2
    assert first is second
    assert (first.shape, first.dtype, int(first[0])) == ((1,), np.dtype(np.int32), 0)
    assert elsewhere is not first
    assert own is mine


@pytest.mark.parametrize("arch", ["hopper", "blackwell"])
def test_a_simulated_kernel_is_right(arch, dtype, arrays):
    kernel = mg.gemm.step(3, arch=arch).build(M, N, K, dtype)
    A, B, D = arrays
    report = mg.run(kernel, A, B, D)
    assert isinstance(report, mg.Report)
    assert report.findings == []
    assert verification.compare_gemm(A, B, D).ok


def test_torch_outputs_are_filled(kernel, arrays, dtype):
    torch = pytest.importorskip("torch")
    A, B, _ = arrays
    out = torch.full((M, N), torch.nan, dtype=getattr(torch, dtype))
    tensors = [torch.from_numpy(a.view(np.uint16)).view(out.dtype) for a in (A, B)]
    mg.simulate(kernel, *tensors, out)
    filled = out.view(torch.uint16).numpy().view(A.dtype)
    assert verification.compare_gemm(A, B, filled).ok


# ------------------------------------------------------------------------------------ compilation


def test_a_second_compilation_costs_nothing(kernel, monkeypatch):
    first = launch.compile_for_gpu(kernel)
    monkeypatch.setattr(launch, "_compile", lambda kernel: pytest.fail("compiled again"))
    assert launch.compile_for_gpu(kernel) is first
    assert (first.name, first.arch) == ("gemm_hopper_step3", "sm_90a")


def test_the_kernels_used_last_stay_compiled(monkeypatch):
    monkeypatch.setattr(launch, "_compiled", type(launch._compiled)())
    monkeypatch.setattr(launch, "_COMPILED_LIMIT", 2)
    made = []
    monkeypatch.setattr(launch, "_compile", lambda kernel: made.append(kernel) or kernel)
    a, b, c = object(), object(), object()
    for kernel in (a, b, a, c, a, b):
        launch.compile_for_gpu(kernel)
    assert made == [a, b, c, b]  # b was the one unused for longest when c came


def test_tvm_compiles_through_artifacts_and_only_meanwhile(monkeypatch):
    import tvm
    import tvm_ffi

    calls = []

    def compile_cuda(source, arch):
        calls.append((source, arch))
        return artifacts.Compiled("", b"cubin", "")

    monkeypatch.setattr(artifacts, "compile_cuda", compile_cuda)
    before = tvm_ffi.get_global_func(launch._CALLBACK)
    tvm_ffi.register_global_func(launch._CALLBACK, lambda code: b"TVM's own", override=True)
    try:
        with tvm.target.Target({"kind": "cuda", "arch": "sm_90a"}):
            with launch._our_compiler("sm_90a"):
                inside = tvm_ffi.get_global_func(launch._CALLBACK)
                assert bytes(inside("the source")) == b"cubin"
            outside = tvm_ffi.get_global_func(launch._CALLBACK)
            assert bytes(outside("another")) == b"TVM's own"
    finally:
        tvm_ffi.register_global_func(launch._CALLBACK, before, override=True)
    assert calls == [("the source", "sm_90a")]


@pytest.mark.parametrize("error", [artifacts.MissingTool("no headers"), RuntimeError("older")])
def test_without_header_wheels_tvm_finds_a_toolkit_itself(monkeypatch, error):
    import tvm
    import tvm_ffi

    def missing(source, arch):
        raise error

    monkeypatch.setattr(artifacts, "compile_cuda", missing)
    before = tvm_ffi.get_global_func(launch._CALLBACK)
    tvm_ffi.register_global_func(launch._CALLBACK, lambda code: b"from the toolkit", override=True)
    try:
        with launch._our_compiler("sm_90a"), tvm.target.Target({"kind": "cuda", "arch": "sm_90a"}):
            inside = tvm_ffi.get_global_func(launch._CALLBACK)
            assert bytes(inside("the source")) == b"from the toolkit"
    finally:
        tvm_ffi.register_global_func(launch._CALLBACK, before, override=True)


# -------------------------------------------------------------------------------------------- GPU


def test_without_a_gpu_run_on_gpu_says_what_would_run_it(kernel, arrays, monkeypatch):
    monkeypatch.setattr(device, "current", lambda: None)
    with pytest.raises(device.NeedsGpu, match=r"gemm_hopper_step3 needs .*H100 or H200"):
        launch.run_on_gpu(kernel, *arrays)


def test_torch_without_cuda_is_said_to_be(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(device.NeedsGpu, match=r"PyTorch with CUDA; torch .* is built without it"):
        launch.torch_with_cuda("running")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(device.NeedsGpu, match="sees no GPU"):
        launch.torch_with_cuda("running")


@pytest.mark.gpu("hopper")
@pytest.mark.parametrize("number", [1, 2, 3])
def test_hopper_kernels_are_right_on_silicon(number, dtype):
    step = mg.gemm.step(number, arch="hopper")
    M, N, K = step.default_shape
    A, B = verification.gemm_inputs(M, N, K, dtype, seed=number)
    D = verification.poisoned((M, N), dtype)
    ran = launch.run_on_gpu(step.build(M, N, K, dtype), A, B, D)
    assert verification.compare_gemm(A, B, D).ok
    assert ran.seconds is not None
    assert 0 < ran.seconds < 1


@pytest.mark.gpu("hopper")
def test_cuda_tensors_run_on_their_gpu(kernel, dtype):
    import torch

    kind = getattr(torch, dtype)
    A, B = torch.randn(M, K, device="cuda").to(kind), torch.randn(N, K, device="cuda").to(kind)
    D = torch.full((M, N), torch.nan, device="cuda", dtype=kind)
    ran = mg.run(kernel, A, B, D)
    assert isinstance(ran, launch.GpuRun)
    assert verification.compare_gemm_tensors(A, B, D).ok
