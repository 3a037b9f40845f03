"""One place takes a PrimFunc through TVM's pipeline: launch, arguments, lines, keys, errors."""
# pyright: reportInvalidTypeForm=false
# (The annotations of kernels are TVMScript's.)

import re
from typing import Any

import pytest

from mlsys_gpu import lowering, parameters
from mlsys_gpu.kernels import gemm
from mlsys_gpu.kernels.gemm import step

tvm = pytest.importorskip("tvm")
from tvm.script import tirx as T  # noqa: E402  (after TVM is known to be there)


def plain(M=64, N=32):
    @T.prim_func
    def kernel(X: T.Buffer((M, N), "float16"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        bm, bn = T.cta_id([3, 2])
        tid = T.thread_id([96])
        pool = T.SMEMPool()
        row = pool.alloc((96,), "int32")
        pool.commit()
        row[tid] = tid
        T.cuda.cta_sync()
        if tid < N:
            Y[tid] = row[tid] + T.cast(X[bm, tid], "int32") + bn

    return kernel


# ----------------------------------------------------------------------------- parameters


def test_a_workspace_is_a_tensor_of_the_kernels_own():
    found = lowering.parameters(plain().with_attr(lowering.WORKSPACE, ["Y"]))
    assert [(p.name, p.workspace) for p in found] == [("X", False), ("Y", True)]
    assert not any(p.workspace for p in lowering.parameters(plain()))
    with pytest.raises(lowering.LoweringError, match="the workspace Z is no parameter"):
        lowering.parameters(plain().with_attr(lowering.WORKSPACE, ["Z"]))


# ----------------------------------------------------------------------------- architecture


def test_architecture_from_the_argument_the_target_and_the_instructions():
    hopper: Any
    blackwell: Any
    hopper, blackwell = (step(1, arch).build(128, 128, 64) for arch in ("hopper", "blackwell"))
    assert lowering.arch_of(hopper) == "sm_90a"
    assert lowering.arch_of(blackwell) == "sm_100a"
    assert lowering.arch_of(hopper, "hopper") == lowering.arch_of(hopper, "sm_90a") == "sm_90a"
    for other in ("sm_100a", "sm_100f", "sm_103a", "sm_110a"):
        assert lowering.arch_of(blackwell.without_attr("target"), other) == other
    assert lowering.arch_of(plain(), "blackwell") == "sm_100a"
    assert lowering.arch_of(plain(), "sm_120a") == "sm_120a"
    assert lowering.arch_of(hopper.without_attr("target")) == "sm_90a"
    assert lowering.arch_of(blackwell.without_attr("target")) == "sm_100a"
    assert lowering.arch_of(plain()) == "sm_90a"


@pytest.mark.parametrize("arch", ["volta", "", "sm_", "sm_90 a", 90, 9.0, ["sm_90a"], b"sm_90a"])
def test_an_unknown_architecture_is_an_error(arch):
    said = re.escape(f"unknown architecture {arch!r}: name hopper, blackwell, or an sm_")
    with pytest.raises(ValueError, match=said):
        lowering.arch_of(plain(), arch)


@pytest.mark.parametrize(
    ("of", "given", "said"),
    [
        ("hopper", "sm_80", "uses wgmma, which sm_80 lacks: it exists on sm_90a"),
        ("hopper", "sm_90", "uses wgmma, which sm_90 lacks: it exists on sm_90a"),
        ("hopper", "blackwell", "uses wgmma, which sm_100a lacks: it exists on sm_90a"),
        ("blackwell", "hopper", "uses tcgen05, which sm_90a lacks: it exists on sm_100a"),
        ("blackwell", "sm_100", "uses tcgen05, which sm_100 lacks: it exists on sm_100a"),
        ("blackwell", "sm_120a", "uses tcgen05, which sm_120a lacks: it exists on sm_100a"),
    ],
)
def test_an_architecture_without_the_kernels_instructions(of, given, said):
    func: Any = step(1, of).build(128, 128, 64)
    with pytest.raises(ValueError, match=f"gemm_{of}_step1 {said}"):
        lowering.arch_of(func.without_attr("target"), given)


def test_a_target_that_contradicts_the_architecture():
    func: Any = step(1, "hopper").build(128, 128, 64)
    said = "gemm_hopper_step1 has the target sm_90a, which contradicts arch 'sm_100a'"
    for entry in (lowering.arch_of, lowering.lower):
        with pytest.raises(ValueError, match=said):
            entry(func, "blackwell")
    wrong = func.with_attr("target", lowering.cuda_target("sm_100a"))
    with pytest.raises(ValueError, match="uses wgmma, which sm_100a lacks"):
        lowering.lower(wrong)
    assert lowering.arch_of(plain().with_attr("target", "cuda")) == "sm_90a"


def test_names_are_no_instructions():
    @T.prim_func
    def wgmma(X: T.Buffer((32,), "int32")):
        T.device_entry()
        _cta = T.cta_id([1])
        tcgen05 = T.thread_id([32])
        X[tcgen05] = 1

    for arch in ("sm_80", "hopper", "blackwell"):
        lowering.lower(wgmma, arch)


# ----------------------------------------------------------------------------------- launch


@pytest.mark.parametrize("arch", gemm.ARCHS)
@pytest.mark.parametrize(("n", "shape"), [(1, (128, 128, 64)), (3, (384, 256, 128))])
def test_launch_of_the_ladder(arch, n, shape):
    lowered = lowering.lower(step(n, arch).build(*shape))
    M, N, K = shape
    assert lowered.name == f"gemm_{arch}_step{n}"
    assert lowered.arch == {"hopper": "sm_90a", "blackwell": "sm_100a"}[arch]
    assert lowered.launch.grid == ((M // 128, N // 128, 1) if n == 3 else (1, 1, 1))
    assert lowered.launch.block == (128, 1, 1)
    assert lowered.launch.cluster == (1, 1, 1)
    assert lowered.launch.threads == 128
    assert lowered.launch.ctas == M * N // 128**2
    # Two tiles of 128 x 64 fp16 are 32 KiB; Blackwell's barrier and address stand before them.
    extra = lowered.launch.shared_bytes - 2 * 128 * 64 * 2
    assert extra == (0 if arch == "hopper" else 1024)
    assert [(p.name, p.shape, p.dtype) for p in lowered.params] == [
        ("A", (M, K), "float16"),
        ("B", (N, K), "float16"),
        ("D", (M, N), "float16"),
    ]
    assert not any("tma" in str(a) or "map" in str(a) for a in lowered.arguments)


def test_launch_and_regions_of_any_kernel():
    lowered = lowering.lower(plain())
    assert lowered.launch.grid == (3, 2, 1)
    assert lowered.launch.threads == 96
    assert lowered.launch.ctas == 6
    assert lowered.launch.shared_bytes == 96 * 4
    (region,) = (r for r in lowered.shared_regions if r.name == "row")
    assert (region.offset, region.nbytes, region.shape, region.dtype) == (0, 384, (96,), "int32")


def test_clusters():
    @T.prim_func
    def kernel(X: T.Buffer((128,), "int32")):
        T.device_entry()
        cluster = T.cluster_id([2])
        rank = T.cta_id_in_cluster([2])
        tid = T.thread_id([32])
        X[(cluster * 2 + rank) * 32 + tid] = rank

    lowered = lowering.lower(kernel)
    assert lowered.launch.cluster == (2, 1, 1)
    assert lowered.launch.grid == (4, 1, 1)


def test_a_module_of_one_function():
    func = plain()
    module = tvm.IRModule({"main": func})
    assert lowering.lower(module).launch == lowering.lower(func).launch
    two = tvm.IRModule({"one": plain(), "two": plain()})
    with pytest.raises(lowering.LoweringError, match="holds 2 functions"):
        lowering.lower(two)


@pytest.mark.parametrize("what", [None, 3, "kernel"])
def test_what_is_no_kernel(what):
    for entry in (lowering.lower, lowering.arch_of):
        for error in (TypeError, ValueError):
            with pytest.raises(error, match=f"a kernel is a .*, not {type(what).__name__}"):
                entry(what)


def test_scalars_and_open_shapes():
    @T.prim_func
    def kernel(a: T.handle, b: T.handle, n: T.int32, scale: T.float32):
        m = T.int32()
        A = T.match_buffer(a, (m, n), "float32")
        B = T.match_buffer(b, (m * 2,), "float32")
        T.device_entry()
        cta = T.cta_id([(m + 127) // 128])
        tid = T.thread_id([128])
        B[cta * 128 + tid] = A[cta, tid] * scale

    lowered = lowering.lower(kernel)
    assert [(p.name, p.shape, p.dtype) for p in lowered.params] == [
        ("A", ("m", "n"), "float32"),
        ("B", ("(m * 2)",), "float32"),
        ("n", None, "int32"),
        ("scale", None, "float32"),
    ]
    assert [p.kind for p in lowered.params] == ["tensor", "tensor", "scalar", "scalar"]
    extent, *rest = lowered.launch.grid
    assert parameters.evaluate(extent, {"d0_0": 300, "d0_1": 5, "a2": 5}) == 3
    assert rest == [1, 1]
    assert ("scalar", "a3", "float32") in lowered.arguments
    with pytest.raises(lowering.LoweringError, match="depends on the kernel's arguments"):
        lowered.launch.ctas


def test_tvms_own_message_comes_along(monkeypatch):
    def pipeline(module):
        raise ValueError("no schedule for this primitive")

    monkeypatch.setattr(tvm.tirx, "get_tir_pipeline", lambda name: (pipeline, None, None))
    with pytest.raises(lowering.LoweringError) as caught:
        lowering.lower(plain())
    said = str(caught.value)
    assert said.startswith("TVM could not lower kernel for sm_90a: no schedule")


# --------------------------------------------------------------------------- lines and keys


def test_the_authors_lines_survive_tile_primitives():
    func = step(1, "hopper").build(128, 128, 64)
    source = step(1, "hopper").source_path.read_text().splitlines()
    from mlsys_gpu import sim

    program = sim.compile(func)
    lines = {line for places in program.sites for file, line in places if "step1" in file}
    wanted = ["Tx.cta.copy(As", "Tx.cta.copy(Bs", "wgmma(", "Tx.cast(", "Tx.wg.copy(D"]
    for text in wanted:
        (number,) = (i for i, line in enumerate(source, 1) if line.strip().startswith(text))
        assert number in lines, text
    library = [file for places in program.sites for file, _ in places if "/tvm/" in file]
    assert not library


def test_lines_cost_the_compiler_nothing():
    func = step(2, "blackwell").build(128, 128, 128)
    with_lines, without = (lowering.lower(func, keep_lines=keep) for keep in (True, False))
    cleaned = re.sub(
        r"\s*with T\.attr\(.*pragma_mlsys_gpu_line.*\n", "\n", with_lines.device.script()
    )
    assert lowering.LINE_KEY not in without.device.script()
    assert cleaned.count("T.ptx") == without.device.script().count("T.ptx")
    assert with_lines.key == without.key


def test_keys_follow_the_content():
    one, same = plain(), plain()
    assert lowering.content_key(one, "sm_90a") == lowering.content_key(same, "sm_90a")
    keys = {
        lowering.content_key(one, "sm_90a"),
        lowering.content_key(one, "sm_100a"),
        lowering.content_key(plain(M=32), "sm_90a"),
        lowering.content_key(step(1, "hopper").build(128, 128, 64), "sm_90a"),
        lowering.content_key(step(1, "hopper").build(128, 128, 64, "bfloat16"), "sm_90a"),
    }
    assert len(keys) == 5
    assert all(re.fullmatch(r"[0-9a-f]{64}", key) for key in keys)


@pytest.mark.parametrize("waits", [False, True])
def test_a_kernel_that_waits_for_the_grid_before_it_is_launched_so(waits):
    """TVM's runtime reads the launch attribute from the device function's list of parameters."""
    from mlsys_gpu.kernels.gemm.hopper import tuned

    func = tuned.build(256, 128, 64, without=() if waits else ("overlap",))
    assert lowering.lower(func).launch.programmatic == waits
    for pipeline, added in (("tirx", False), (lowering.pipeline_for_launch(), waits)):
        module = lowering._run_pipeline(func, "kernel", "sm_90a", pipeline)
        (tags,) = (
            [str(tag) for tag in f.attrs["tirx.kernel_launch_params"]]
            for f in module.functions.values()
            if "tirx.is_entry_func" not in f.attrs
        )
        assert ("tirx.use_programtic_dependent_launch" in tags) == added
        assert tags[-1] == "tirx.use_dyn_shared_memory"  # what the runtime insists on
