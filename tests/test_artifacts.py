"""CUDA, PTX, SASS and resources without a GPU, a driver or a CUDA toolkit."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="assembling needs cuda-python and NVRTC")

from mlsys_gpu import artifacts, lowering
from mlsys_gpu.kernels import gemm

KEYS = {
    "registers",
    "spill_store_bytes",
    "spill_load_bytes",
    "stack_bytes",
    "static_shared_bytes",
    "dynamic_shared_bytes",
    "threads",
}
GOOD = 'extern "C" __global__ void f(float* p) { p[threadIdx.x] *= 2.0f; }'
# 200 values alive at once, where 1,024 threads leave 64 registers for each.
SPILLS = """
extern "C" __global__ void __launch_bounds__(1024, 1) f(float* p) {
  float v[200];
  #pragma unroll
  for (int i = 0; i < 200; ++i) v[i] = p[i * 1024 + threadIdx.x];
  __syncthreads();
  #pragma unroll
  for (int i = 0; i < 200; ++i) p[i * 1024 + threadIdx.x + 7] = v[i] * v[(i * 7) % 200];
}
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MLSYS_GPU_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def kernel():
    return gemm.step(1, "hopper").build(128, 128, 64)


def test_every_stage_of_a_kernel(kernel):
    made = artifacts.inspect(kernel)
    assert (made.name, made.arch) == ("gemm_hopper_step1", "sm_90a")
    assert "gemm_hopper_step1_kernel" in made.cuda
    assert "__launch_bounds__(128)" in made.cuda
    assert ".target sm_90a" in made.ptx
    assert made.ptx.rstrip().endswith("}")
    assert made.cubin[:4] == b"\x7fELF"
    assert "HGMMA" in made.sass
    assert set(made.resources) == KEYS
    assert all(type(value) is int for value in made.resources.values())
    json.dumps(made.resources)
    assert made.resources["threads"] == 128
    assert made.resources["dynamic_shared_bytes"] == 32768
    assert "gemm_hopper_step1" in repr(made)


def test_stages_are_made_when_first_read(kernel, monkeypatch):
    monkeypatch.setattr(artifacts, "cuda_source", lambda lowered: pytest.fail("too early"))
    artifacts.inspect(kernel)


def test_a_lowered_kernel_will_do(kernel):
    lowered = lowering.lower(kernel)
    assert artifacts.inspect(lowered).cuda == artifacts.inspect(kernel).cuda
    with pytest.raises(ValueError, match="has its architecture already"):
        artifacts.inspect(lowered, arch="hopper")


@pytest.mark.parametrize("thing", [3, "gemm", None])
def test_what_is_no_kernel_is_refused(thing):
    with pytest.raises(TypeError, match=type(thing).__name__):
        artifacts.inspect(thing)


def test_the_second_time_nothing_is_compiled(kernel, monkeypatch, own_cache):
    first = artifacts.inspect(kernel)
    sass, resources, ptx = first.sass, first.resources, first.ptx
    monkeypatch.setattr(artifacts, "_run_nvrtc", lambda *_: pytest.fail("compiled again"))
    monkeypatch.setattr(artifacts.subprocess, "run", lambda *_, **__: pytest.fail("read again"))
    second = artifacts.inspect(kernel)
    assert (second.sass, second.resources, second.ptx) == (sass, resources, ptx)
    assert list(own_cache.rglob("*"))


def test_other_source_or_architecture_is_compiled_anew():
    hopper = artifacts.compile_cuda(GOOD, "sm_90a")
    assert artifacts.compile_cuda(GOOD, "sm_100a").cubin != hopper.cubin
    assert artifacts.compile_cuda(GOOD.replace("2.0", "3.0"), "sm_90a").cubin != hopper.cubin


def test_a_damaged_cache_entry_is_made_again(own_cache):
    before = artifacts.compile_cuda(GOOD, "sm_90a")
    (entry,) = (p for p in own_cache.rglob("*") if p.is_file())
    entry.write_bytes(entry.read_bytes()[:100])
    after = artifacts.compile_cuda(GOOD, "sm_90a")
    assert (after.cubin, after.ptx) == (before.cubin, before.ptx)


def test_an_unwritable_cache_costs_time_only(monkeypatch):
    monkeypatch.setenv("MLSYS_GPU_CACHE", "/proc/no/such/place")
    assert artifacts.compile_cuda(GOOD, "sm_90a").cubin[:4] == b"\x7fELF"


def test_what_the_compiler_says_reaches_the_reader():
    with pytest.raises(artifacts.CompileError, match=r"sm_90a") as error:
        artifacts.compile_cuda(GOOD.replace("threadIdx", "threadIdy"), "sm_90a")
    assert 'identifier "threadIdy" is undefined' in str(error.value)
    # tcgen05 on Hopper gets as far as ptxas.
    wrong = GOOD.replace("p[", 'asm volatile("tcgen05.wait::ld.sync.aligned;"); p[')
    with pytest.raises(artifacts.CompileError, match=r"tcgen05"):
        artifacts.compile_cuda(wrong, "sm_90a")


def test_a_loss_that_ptxas_calls_information_is_a_warning():
    # Registers can be divided only where their number at the start is known.
    ignored = GOOD.replace("p[", 'asm volatile("setmaxnreg.dec.sync.aligned.u32 40;"); p[')
    (warning,) = artifacts._warnings(artifacts.compile_cuda(ignored, "sm_90a").log)
    assert "setmaxnreg" in warning
    assert artifacts._warnings(artifacts.compile_cuda(GOOD, "sm_90a").log) == ()


def test_spills_are_reported():
    log = artifacts.compile_cuda(SPILLS, "sm_90a").log
    found = artifacts._resources(log, "f")
    assert found["spill_store_bytes"] > 0
    assert found["spill_load_bytes"] > 0
    assert found["stack_bytes"] > 0
    assert found["registers"] <= 64  # 65,536 registers / 1,024 threads


def test_static_shared_memory_is_reported():
    source = """extern "C" __global__ void f(float* p) {
      __shared__ float s[96];
      s[threadIdx.x] = p[threadIdx.x]; __syncthreads(); p[threadIdx.x] = s[95 - threadIdx.x]; }"""
    found = artifacts._resources(artifacts.compile_cuda(source, "sm_90a").log, "f")
    assert found["static_shared_bytes"] == 96 * 4


def test_a_missing_tool_says_what_to_install(monkeypatch, tmp_path):
    import cuda.pathfinder as pathfinder

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(pathfinder, "find_nvidia_binary_utility", lambda name: None)
    with pytest.raises(artifacts.MissingTool, match="nvidia-cuda-nvdisasm; pip install"):
        artifacts.disassemble(b"x")
    monkeypatch.setattr(
        artifacts.importlib, "import_module", lambda name: (_ for _ in ()).throw(ImportError(name))
    )
    with pytest.raises(artifacts.MissingTool, match="cuda-python and NVRTC; pip install"):
        artifacts.compile_cuda(GOOD, "sm_90a")


@pytest.mark.parametrize(
    ("present", "missing"),
    [
        ([], "cuda_fp16.h of nvidia-cuda-runtime"),
        (["cuda_fp16.h"], "crt/host_defines.h of nvidia-cuda-crt"),
        (["cuda_fp16.h", "crt/host_defines.h"], "cccl/cuda/std/cstdint of nvidia-cuda-cccl"),
    ],
)
def test_a_missing_header_names_its_wheel(monkeypatch, tmp_path, present, missing):
    import cuda.pathfinder as pathfinder

    for header in present:
        (tmp_path / header).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / header).touch()
    monkeypatch.setattr(pathfinder, "find_nvidia_header_directory", lambda name: str(tmp_path))
    monkeypatch.setattr(artifacts, "_HEADERS", artifacts._HEADERS | {"none/such.h": "nobody"})
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    artifacts._include_paths.cache_clear()
    with pytest.raises(artifacts.MissingTool, match=missing):
        artifacts.compile_cuda(GOOD, "sm_90a")


def test_a_cubin_that_is_none_is_refused():
    with pytest.raises(artifacts.CompileError, match="nvdisasm could not read"):
        artifacts.disassemble(b"no cubin")


def test_no_toolkit_is_needed(tmp_path):
    """A process that finds no nvcc, no ptxas and no toolkit: all there is comes from wheels."""
    code = """
import os, sys, shutil
assert not shutil.which("nvcc") and not shutil.which("ptxas")
opened = []
sys.addaudithook(lambda name, args: opened.append(str(args[0])) if name == "open" else None)
import mlsys_gpu as mg
made = mg.inspect(mg.gemm.step(1, "blackwell").build(128, 128, 64))
assert made.resources["spill_store_bytes"] == 0 and "UTCHMMA" in made.sass
from mlsys_gpu.artifacts import _include_paths, _nvdisasm
for path in (*_include_paths(), _nvdisasm()):
    assert path.startswith(sys.prefix), path
libraries = {line.split()[-1] for line in open("/proc/self/maps") if "nvrtc" in line}
assert libraries and all(path.startswith(sys.prefix) for path in libraries), libraries
assert not [path for path in opened if path.startswith(("/usr/local/cuda", "/opt/cuda"))]
print("ok")
"""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA", "TVM", "LD_LIBRARY"))}
    env |= {"PATH": str(tmp_path), "MLSYS_GPU_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "ok"
