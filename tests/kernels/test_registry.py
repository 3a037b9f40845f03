"""Which kernels there are, what they are called, and what they refuse."""

import subprocess
import sys
from typing import Any

import pytest

from mlsys_gpu.kernels import gemm

NUMBERS = {"blackwell": [1, 2, 3, 4, 5, 6, 7, 8, 9], "hopper": [1, 2, 3, 4, 5, 6, 7, 8, 9]}
ALL = [(arch, n) for arch, numbers in NUMBERS.items() for n in numbers]


def test_the_ladder_has_the_same_steps_on_both_architectures():
    assert gemm.ARCHS == ("blackwell", "hopper")
    found = {arch: gemm.steps(arch) for arch in gemm.ARCHS}
    assert {arch: [s.number for s in steps] for arch, steps in found.items()} == NUMBERS
    for blackwell, hopper in zip(*found.values(), strict=True):
        assert blackwell.title == hopper.title
        assert blackwell.default_shape == hopper.default_shape


@pytest.mark.parametrize(("arch", "n"), ALL)
def test_a_step_says_who_it_is(arch, n):
    step = gemm.step(n, arch)
    assert step.name == f"gemm/{arch}/step{n}"
    assert (step.number, step.arch, step.variant) == (n, arch, None)
    assert step.source_path.is_file()
    assert step.source_path.parts[-2:] == (arch, f"step{n}.py")
    assert step.title in step.source_path.read_text().splitlines()[0]
    assert all(len(role) == 2 and all(role) for role in step.roles)
    func: Any = step.build(*step.default_shape)
    assert func.attrs["global_symbol"] == f"gemm_{arch}_step{n}"
    target = func.attrs["target"].attrs["arch"]
    assert target == {"blackwell": "sm_100a", "hopper": "sm_90a"}[arch]
    shapes = [tuple(int(d) for d in p.shape) for p in func.params]
    M, N, K = step.default_shape
    assert [str(p.name) for p in func.params] == ["A", "B", "D"]
    assert shapes == [(M, K), (N, K), (M, N)]


def test_blackwell_is_the_default():
    assert gemm.step(1).arch == "blackwell"
    assert gemm.steps()[0].arch == "blackwell"


@pytest.mark.parametrize("n", [0, 10, -1, "3", None])
def test_an_unknown_step_names_those_that_exist(n):
    with pytest.raises(ValueError, match=r"step must be one of 1, 2, 3.*, got") as error:
        gemm.step(n)
    assert repr(n) in str(error.value)


def test_an_unknown_architecture_or_variant_is_refused():
    with pytest.raises(ValueError, match="arch must be one of blackwell, hopper, got 'ampere'"):
        gemm.step(1, "ampere")
    with pytest.raises(ValueError, match="arch must be one of blackwell, hopper, got 'ampere'"):
        gemm.steps("ampere")
    with pytest.raises(ValueError, match="Step 3 has no variants on blackwell, got variant='clc'"):
        gemm.step(3, variant="clc")
    # a variant that is there, but for the other architecture: where it is
    for ask in (lambda: gemm.step(9, variant="dynamic"), lambda: gemm.selected("3-9,dynamic")):
        with pytest.raises(ValueError, match="'dynamic', which Step 9 has on hopper"):
            ask()
    with pytest.raises(ValueError, match="got 'nothing'; the variants on hopper are dynamic"):
        gemm.selected("nothing", "hopper")


# step, shape -> the rule and the value that the message must name
REFUSED = [
    (1, (256, 128, 64), "M = 128", "M = 256"),
    (1, (128, 64, 64), "N = 128", "N = 64"),
    (1, (128, 128, 128), "K = 64", "K = 128"),
    (1, (128, 128, 0), "K = 64", "K = 0"),
    (2, (256, 128, 64), "M = 128", "M = 256"),
    (2, (128, 256, 64), "N = 128", "N = 256"),
    (2, (128, 128, 96), "K to be a positive multiple of 64", "K = 96"),
    (2, (128, 128, 0), "K to be a positive multiple of 64", "K = 0"),
    (2, (128, 128, -64), "K to be a positive multiple of 64", "K = -64"),
    (3, (100, 256, 64), "M to be a positive multiple of 128", "M = 100"),
    (3, (128, 192, 64), "N to be a positive multiple of 128", "N = 192"),
    (3, (128, 256, 72), "K to be a positive multiple of 64", "K = 72"),
    (3, (0, 256, 64), "M to be a positive multiple of 128", "M = 0"),
    (3, (128.0, 256, 64), "M to be a positive multiple of 128", "M = 128.0"),
    (3, ("128", 256, 64), "M to be a positive multiple of 128", "M = '128'"),
    *(
        (n, *case)
        for n in range(4, 10)
        for case in [
            ((0, 256, 64), "M to be a positive number", "M = 0"),
            ((True, 256, 64), "M to be a positive number", "M = True"),
            ((128, 132, 64), "N to be a positive multiple of 8 (TMA", "N = 132"),
            ((128, -8, 64), "N to be a positive multiple of 8 (TMA", "N = -8"),
            ((128, 256, 100), "K to be a positive multiple of 8 (TMA", "K = 100"),
            ((128, 256, 0), "K to be a positive multiple of 8 (TMA", "K = 0"),
        ]
    ),
]


@pytest.mark.parametrize(
    ("arch", "n", "shape", "rule", "value"),
    [(arch, *case) for arch, numbers in NUMBERS.items() for case in REFUSED if case[0] in numbers],
)
def test_a_shape_that_does_not_fit_names_rule_and_value(arch, n, shape, rule, value):
    step = gemm.step(n, arch)
    for refuse in (step.build, step.check_shape):
        with pytest.raises(ValueError, match=f"Step {n}") as error:
            refuse(*shape)
        assert rule in str(error.value)
        assert value in str(error.value)


@pytest.mark.parametrize(("arch", "n"), [(arch, n) for arch, n in ALL if n >= 6])
def test_a_persistent_step_takes_a_number_of_ctas(arch, n):
    step = gemm.step(n, arch)
    step.build(512, 512, 64, ctas=3)
    refused: list[Any] = [0, -1, 2.5, True]
    for wrong in refused:
        with pytest.raises(ValueError, match=f"ctas must be a positive number, got {wrong!r}"):
            step.build(512, 512, 64, ctas=wrong)
    with pytest.raises(TypeError, match="ctas"):
        gemm.step(5, arch).build(512, 512, 64, ctas=3)


@pytest.mark.parametrize(("arch", "n"), ALL)
@pytest.mark.parametrize("dtype", ["float32", "fp16", "float8_e4m3fn", None])
def test_another_dtype_is_refused(arch, n, dtype):
    step = gemm.step(n, arch)
    with pytest.raises(ValueError, match="dtype must be 'float16' or 'bfloat16'") as error:
        step.build(*step.default_shape, dtype)
    assert repr(dtype) in str(error.value)


def test_importing_the_registry_imports_no_compiler():
    code = (
        "import sys; from mlsys_gpu.kernels import gemm; gemm.step(3, 'hopper').roles;"
        "print(sorted({'tvm', 'torch', 'triton', 'cuda'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("arch", gemm.ARCHS)
def test_kernels_are_selected_by_number_range_and_name(arch):
    def names(words):
        return [s.name.rsplit("/", 1)[-1] for s in gemm.selected(words, arch)]

    assert gemm.selected(None, arch) == gemm.everything(arch)
    assert names("1-2,3") == ["step1", "step2", "step3"]
    assert names(" 3 , 1 - 2,2") == ["step3", "step1", "step2"]
    assert names("2-99") == [f"step{s.number}" for s in gemm.steps(arch) if s.number > 1]
    for variant in gemm.variants(arch):
        assert gemm.selected(f"{variant.variant},1", arch) == (variant, gemm.step(1, arch))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("3-1", "ranges that go up, got '3-1'"),
        ("one", "such as 1-3 or 1,3, got 'one'"),
        ("", "got ''"),
        ("99", "step must be one of 1, 2"),
        ("77-99", "got 77"),
    ],
)
def test_a_selection_of_nothing_is_refused(words, said):
    with pytest.raises(ValueError, match=said):
        gemm.selected(words, "hopper")
