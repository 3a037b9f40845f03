"""What straight-line code costs: lines ``#work N`` where it runs, counts as in the machine code.

The counts of whole kernels and of functions are held to what NVRTC and ptxas make of them (fused
multiply-adds, special functions, packs), within a fifth for kernels and exactly for functions.
"""
# pyright: reportInvalidTypeForm=false
# (The annotations are TVMScript's.)

import importlib
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from tvm.script import tirx as T

from mlsys_gpu import sim
from mlsys_gpu.kernels import gemm
from mlsys_gpu.kernels.common import finish
from mlsys_gpu.lowering import lower
from mlsys_gpu.sim.frontend import work
from mlsys_gpu.sim.frontend.translate import translate
from mlsys_gpu.sim.machine import core

from . import test_control_flow, test_translation
from .fixtures import (
    blackwell_clc,
    blackwell_multicast,
    blackwell_persistent,
    blackwell_steal,
    hopper_attention,
    hopper_cluster,
    hopper_persistent,
    hopper_rows,
    hopper_split,
)

SIZES = (256, 128, 192)
FIXTURES = {
    **{
        module.__name__.rpartition(".")[2]: lambda m=module: m.build(*SIZES)
        for module in (
            blackwell_clc,
            blackwell_multicast,
            blackwell_persistent,
            hopper_cluster,
            hopper_persistent,
        )
    },
    "blackwell_steal": lambda: blackwell_steal.build(64, 512),
    "hopper_attention": lambda: hopper_attention.build(128, 192),
    "hopper_rows": lambda: hopper_rows.build(8, 96),
    "hopper_split": lambda: hopper_split.build(64, 512),
    **{
        f"step {step.number}, {arch}": lambda s=step: s.build(128, 128, 64)
        for arch in gemm.ARCHS
        for step in gemm.steps(arch)
    },
}


def outside(name):
    """A kernel of PyPI's ``tirx-kernels``."""
    pytest.importorskip("tirx_kernels")
    module, *arguments = {
        "attention": ("ported.flashattention.flash_attention4", 1, 512, 4, 1, 128, False),
        "causal attention": ("ported.flashattention.flash_attention4", 1, 512, 4, 1, 128, True),
        "gemm": ("gemm.fp16_bf16_gemm", 1024, 1024, 1024, "fp16"),
        "rmsnorm": ("norm.rmsnorm", 4096),
    }[name]
    kernel = importlib.import_module("tirx_kernels." + module)
    if name == "gemm":
        return kernel.get_kernel(**dict(zip(("M", "N", "K", "dtype"), arguments, strict=True)))
    return kernel.get_kernel(*arguments)


def well_formed(program):
    """The source with calls compiles, and says what the source with comments says."""
    lines = program.source.splitlines()
    marks = [line for line in lines if "#work" in line]
    assert all(re.fullmatch(r" +#work \d+", line) for line in marks)
    numbers = {int(line.split()[-1]) for line in marks}
    assert numbers <= set(range(len(program.work)))
    for row in program.work:
        assert row
        assert all(isinstance(n, int) and n > 0 for n in row.values())
    source = work.with_calls(program.source)
    compile(program.source, "plain", "exec")
    compile(source, "timed", "exec")
    assert source.count("work(w, ") == len(marks)
    assert len(source.splitlines()) == len(lines)
    return len(marks)


@pytest.mark.parametrize("name", FIXTURES)
def test_calls_in_place_of_comments(name):
    lowered = lower(FIXTURES[name](), keep_lines=True)
    assert well_formed(translate(lowered)) > 0
    assert well_formed(translate(lowered, debug=True)) > 0


@pytest.mark.parametrize(
    "name",
    ["attention", pytest.param("causal attention", marks=pytest.mark.slow), "gemm", "rmsnorm"],
)
def test_calls_in_place_of_comments_outside(name):
    assert well_formed(sim.compile(outside(name), "sm_100a")) > 0


AWKWARD = {**test_translation.CASES, **test_control_flow.CASES}


@pytest.mark.parametrize("name", AWKWARD)
def test_calls_in_place_of_comments_in_awkward_code(name, timed):
    """Branches, loops and masks of all kinds: what runs is the same."""
    kernel, inputs, expected = AWKWARD[name]()
    for debug in (False, True):
        program = sim.compile(kernel, "hopper", debug=debug)
        well_formed(program)
        out = np.zeros_like(np.asarray(expected))
        plain, counted = out.copy(), out.copy()
        sim.simulate(program, *[x.copy() for x in inputs], plain)
        timed(program, *[x.copy() for x in inputs], counted)
        assert plain.tobytes() == counted.tobytes()


@pytest.fixture
def timed(monkeypatch):
    """``timed(kernel, *arrays)`` runs with calls: the counts of all warps together."""

    def run(kernel, *arrays, **options):
        program = kernel if isinstance(kernel, sim.Program) else sim.compile(kernel)
        total = Counter()
        monkeypatch.setitem(core.OPS, "work", lambda w, n: total.update(program.work[n]))
        source = work.with_calls(program.source)
        report = sim.simulate(replace(program, source=source), *arrays, checks=False, **options)
        assert report.completed
        return total

    return run


def test_step_3_packs_what_it_stores(timed):
    """A pair of float32 becomes one register: an F2FP for 2 numbers of each of 32 lanes."""
    M, N, K = 256, 384, 128
    A, B = (np.ones((n, K), np.float16) for n in (M, N))
    D = np.zeros((M, N), np.float16)
    for arch in gemm.ARCHS:
        total = timed(gemm.step(3, arch).build(M, N, K), A, B, D)
        assert total["pack"] == M * N // (32 * 2)
        assert total["xu"] == total["fma"] == 0


def test_softmax_of_rows(timed):
    R, C = 12, 96
    X, Y = hopper_rows.arrays(R, C, seed=0)
    total = timed(hopper_rows.build(R, C), X, Y)
    assert hopper_rows.right(X, Y)
    per_lane = C // 32
    # an exponential and a reciprocal for each number
    assert total["xu"] == R * per_lane * 2
    # (x - top) * log2(e), the sum, and the product with the reciprocal; 5 exchanges
    assert total["fma"] == R * (per_lane * 4 + 5)


def test_attention(timed):
    M, N = 64, 192
    Q, K, V, O = hopper_attention.arrays(M, N)
    total = timed(hopper_attention.build(M, N), Q, K, V, O)
    assert hopper_attention.right(Q, K, V, O)
    warps, turns = M // 16, N // 64
    # exponentials of 16 x 64 scores for a warp, and of two rows' rescaling; 2 reciprocals
    assert total["xu"] == warps * (turns * (16 * 64 // 32 + 2) + 2)
    # P in pairs; O number by number, as it is stored
    assert total["pack"] == warps * (turns * 16 * 64 // 64 + 16 * 64 // 32)


@pytest.fixture(scope="module")
def branches():
    @T.prim_func
    def kernel(
        X: T.Buffer((128,), "float32"),
        n: T.Buffer((2,), "int32"),
        Y: T.Buffer((128,), "float32"),
    ):
        T.device_entry()
        cta = T.cta_id([2])
        tid = T.thread_id([64])
        x: T.float32 = X[cta * 64 + tid]
        if cta == 1:
            x = T.exp2(x)  # one CTA: two warps
        if tid < 32:
            x = T.rsqrt(x)  # one warp of each
        if tid % 2 == 0:
            x = T.sqrt(x)  # half of the lanes of each, in one instruction
        if tid > 64:
            x = T.tanh(x)  # nobody
        count: T.int32 = n[cta]
        i: T.int32 = 0
        while i < count:
            x = x * x + x
            i = i + 1
        Y[cta * 64 + tid] = x

    return finish(kernel, "branches", "hopper")


def test_counts_follow_branches_and_loops(branches, timed):
    X, n = np.full(128, 0.5, np.float32), np.array([3, 5], np.int32)
    total = timed(branches, X, n, np.zeros(128, np.float32))
    assert total["xu"] == 2 + 2 + 4
    assert total["fma"] == 2 * 3 + 2 * 5  # a product and a sum in one, for two warps of each CTA


def test_work_stands_before_what_comes_later():
    """Counts do not pass an operation of the runtime: the exponentials lie between shuffles."""
    program = sim.compile(hopper_attention.build(64, 192))
    lines = [x.strip() for x in program.source.splitlines()]
    at = [i for i, x in enumerate(lines) if x.startswith("#work")]
    mixed = next(i for i in at if program.work[int(lines[i].split()[1])].get("xu", 0) > 10)
    before = [x for x in lines[:mixed] if re.search(r"\b(shuffle|wgmma_wait)\(w", x)]
    assert "shuffle" in before[-1]
    assert any("shuffle(w" in x for x in lines[mixed : mixed + 3])


# ------------------------------------------------------------------------- against machine code

PIPES = {
    "FADD": "fma", "FMUL": "fma", "FFMA": "fma", "FADD2": "fma2", "FMUL2": "fma2", "FFMA2": "fma2",
    "MUFU": "xu", "F2FP": "pack", "F2I": "cvt", "FRND": "cvt", "F2F": "cvt", "FMNMX": "alu",
    "FMNMX3": "alu", "FSETP": "alu", "FSEL": "alu", "LOP3": "alu", "IADD3": "alu", "ISETP": "alu",
    "SHF": "alu", "I2FP": "alu", "LEA": "alu", "IMAD": "imad",
}  # fmt: skip


def instructions(sass):
    """``(operation, operands)`` of machine code; labels as ``("label", name)``."""
    found = []
    for line in sass.splitlines():
        label = re.match(r"\s*\.?(L_x_\d+):", line)
        one = re.match(r"\s*/\*[0-9a-f]{4,5}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_.]+)\s*(.*);", line)
        if label:
            found.append(("label", label[1]))
        elif one:
            found.append((one[1], one[2]))
    return found


def by_pipe(found):
    pipes = Counter(PIPES.get(name.split(".")[0], "") for name, _ in found)
    return {pipe: pipes[pipe] for pipe in ("fma", "fma2", "xu", "pack", "cvt") if pipes[pipe]}


def loops(found):
    """The instructions of each loop, the longest first."""
    labels = {name: i for i, (kind, name) in enumerate(found) if kind == "label"}
    bodies = []
    for i, (name, operands) in enumerate(found):
        target = re.search(r"L_x_\d+", operands) if name.startswith("BRA") else None
        if target and labels.get(target[0], i) < i:
            bodies.append(found[labels[target[0]] : i])
    return sorted(bodies, key=len, reverse=True)


def counted(program, head=""):
    """Counts of a block (the whole kernel, or the first loop that begins so), each branch once.

    Loops inside count as often as they run where that is a number: the compiler unrolls them.
    """
    lines = program.source.splitlines()
    start = next(i for i, x in enumerate(lines) if x.strip().startswith(head)) if head else 0
    total, times = Counter(), []

    def level(line):
        return len(line) - len(line.lstrip())

    for line in lines[start + 1 :]:
        if level(line) <= level(lines[start]):
            break
        while times and times[-1][0] >= level(line):
            times.pop()
        loop = re.match(r" *for \w+ in range\((\d+), (\d+)\):", line)
        if loop:
            times.append((level(line), int(loop[2]) - int(loop[1])))
        mark = re.match(r" *#work (\d+)", line)
        if mark:
            often = int(np.prod([n for _, n in times]))
            total.update({k: n * often for k, n in program.work[int(mark[1])].items()})
    return {pipe: total[pipe] for pipe in ("fma", "fma2", "xu", "pack", "cvt") if total[pipe]}


def near(ours, theirs):
    """Within a fifth, pipe by pipe."""
    print(f"counted {ours}, in the machine code {theirs}")
    assert set(ours) == set(theirs)
    for pipe, count in theirs.items():
        assert abs(ours[pipe] - count) <= max(1, 0.2 * count), pipe


@pytest.fixture
def inspect():
    pytest.importorskip("cuda.bindings.nvrtc", reason="assembling needs cuda-python and NVRTC")
    from mlsys_gpu.artifacts import inspect

    return inspect


def test_step_3_as_the_machine_code_has_it(inspect):
    kernel = gemm.step(3, "hopper").build(256, 256, 128)
    near(counted(sim.compile(kernel)), by_pipe(instructions(inspect(kernel).sass)))


def test_attention_as_the_machine_code_has_it(inspect):
    """The whole kernel, and the loop over keys, with 16 turns that the compiler does not unroll."""
    kernel = hopper_attention.build(64, 64 * 16)
    program, found = sim.compile(kernel), instructions(inspect(kernel).sass)
    near(counted(program, "for j_0 in range(0, 16)"), by_pipe(loops(found)[0]))
    # the loop's body counts once, as it stands in the machine code once
    once = replace(program, source=program.source.replace("for j_0 in range(0, 16)", "if True"))
    near(counted(once), by_pipe(found))


def test_softmax_as_the_machine_code_has_it(inspect):
    kernel = hopper_rows.build(800, 96)
    near(counted(sim.compile(kernel)), by_pipe(instructions(inspect(kernel).sass)))


def test_quotients_as_the_machine_code_has_them(inspect):
    """Eight quotients by one sum, in a loop that the compiler unrolls: one reciprocal."""
    kernel = hopper_split.build(64, 512)
    program, found = sim.compile(kernel), instructions(inspect(kernel).sass)
    ours = counted(program, "for i_0 in range(0, 16)")
    assert ours["xu"] == 1
    near(ours, by_pipe(loops(found)[0]))


@pytest.mark.parametrize("name", ["silu", "gelu_tanh"])
def test_activations_as_the_machine_code_has_them(name, inspect):
    """Kernels of ``tirx-kernels``: PTX's instructions and expressions mixed."""
    pytest.importorskip("tirx_kernels")
    module = importlib.import_module("tirx_kernels.ported.flashinfer.activation.act_and_mul")
    kernel = module.get_kernel(name, "float16", 3, 264)
    found = instructions(inspect(kernel, "sm_100a").sass)
    near(counted(sim.compile(kernel, "sm_100a")), by_pipe(found))


@pytest.mark.slow
def test_flash_attention_4_as_the_machine_code_has_it(inspect):
    """A turn of the softmax warps: exponentials by MUFU and by polynomials of pairs."""
    kernel = outside("attention")
    program = sim.compile(kernel, "sm_100a")
    heads = [line.strip() for line in program.source.splitlines() if re.match(r" *for ", line)]
    turns = [counted(program, head) for head in heads]
    ours = max(turns, key=lambda c: (c.get("xu", 0) and c.get("fma2", 0) > 100, c.get("fma2", 0)))
    bodies = [by_pipe(body) for body in loops(instructions(inspect(kernel, "sm_100a").sass))]
    inner = min((b for b in bodies if b.get("xu", 0) > 64), key=lambda b: b["xu"])
    for pipe in ("fma2", "xu", "pack"):
        assert abs(ours[pipe] - inner[pipe]) <= 0.2 * inner[pipe], (pipe, ours, inner)


#: CUDA's spelling of the functions in the table, with which TVM's come out.
SPELLING = {"div": "a / b", "pow": "powf(a, b)", "fma": "fmaf(a, b, c)", "floor": "floorf(a)",
            "ceil": "ceilf(a)", "trunc": "truncf(a)", "round": "rintf(a)",
            "nearbyint": "nearbyintf(a)", "copysign": "copysignf(a, b)",
            "sigmoid": "1.0f / (1.0f + expf(-a))"}  # fmt: skip


@pytest.fixture(scope="module", params=["sm_90a", "sm_100a"])
def machine_code(request):
    """``machine_code(bodies)``: instructions by pipe of each body, which computes r of a, b, c."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="assembling needs cuda-python and NVRTC")
    from mlsys_gpu.artifacts import compile_cuda, disassemble

    def compiled(bodies):
        text = "".join(
            f'extern "C" __global__ void k{i}(const float* x, float* y) {{\n'
            "  int i = threadIdx.x; float a = x[i], b = x[i + 64], c = x[i + 128], r;\n"
            f"  {body}; y[i] = r; }}\n"
            for i, body in enumerate(bodies)
        )
        sass = disassemble(compile_cuda(text, request.param).cubin)
        parts = re.split(r"\.section\s+\.text\.k(\d+)", sass)[1:]
        found = {int(n): instructions(part) for n, part in zip(*[iter(parts)] * 2, strict=True)}
        return [by_pipe(found[i]) for i in range(len(bodies))]

    return compiled


def test_functions_as_the_machine_code_has_them(machine_code):
    names = [name for name in work.FUNCTIONS if name != "fabs"]
    bodies = [f"r = {SPELLING.get(name, f'{name}f(a)')}" for name in names]
    for name, theirs in zip(names, machine_code(bodies), strict=True):
        ours = {k: n for k, n in work.FUNCTIONS[name].items() if k != "alu"}
        assert ours == theirs, name


def test_ptx_as_the_machine_code_has_it(machine_code):
    """Those without a slow path, which the table leaves out."""
    rows = [row for row in work.PTX if row[1] != "rn"]
    bodies = []
    for name, mode, ftz in rows:
        flush = ".ftz" if ftz and name != "tanh" else ""
        spelt = f"{name.removesuffix('_f')}.{mode}{flush}.f32"
        b, given = ("%2", ', "f"(b)') if name == "div_f" else ("", "")
        operands = ", ".join(x for x in ("%0", "%1", b) if x)
        bodies.append(f'asm("{spelt} {operands};" : "=f"(r) : "f"(a){given})')
    for row, theirs in zip(rows, machine_code(bodies), strict=True):
        assert {k: n for k, n in work.PTX[row].items() if k != "alu"} == theirs, row
