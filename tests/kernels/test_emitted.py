"""A step's idea is visible in what it emits: what each step's PTX must and must not contain.

A new step adds a row. Numbers are counts of PTX instructions in the text; where the compiler may
unroll the loop over K, a count is that of one turn and the test takes multiples of it.
"""

import re

import pytest

from mlsys_gpu.kernels import gemm

DTYPES = {"float16": "f16", "bfloat16": "bf16"}
CASES = [(a, s.number, d) for a in gemm.ARCHS for s in gemm.steps(a) for d in DTYPES]

COPY = {
    r"ld\.global\.v4\.u32": 16,  # 2 tiles x 16 KB / (128 threads x 16 bytes)
    r"st\.shared\.v4\.u32": 16,
    r"fence\.proxy\.async\.shared::cta": 1,
}
# {t} is f16 or bf16
MMA = {
    "blackwell": {
        r"elect\.sync": 1,
        r"tcgen05\.mma\.cta_group::1\.kind::f16": 4,  # 64 / 16 values of K
        r"tcgen05\.commit\.cta_group::1\.mbarrier::arrive::one": 1,
        r"mbarrier\.try_wait\.parity": 1,
    },
    "hopper": {
        r"wgmma\.fence\.sync\.aligned": 1,
        r"wgmma\.mma_async\.sync\.aligned\.m64n128k16\.f32\.{t}\.{t}": 8,  # 2 halves of M x 4 of K
        r"wgmma\.commit_group\.sync\.aligned": 1,
        r"wgmma\.wait_group\.sync\.aligned +0": 1,
    },
}
ONCE = {
    "blackwell": {
        r"tcgen05\.alloc\.cta_group::1\S*": 1,
        r"mbarrier\.init\.shared\.b64": 1,
        r"fence\.mbarrier_init\.release\.cluster": 1,
        r"tcgen05\.ld\.sync\.aligned\.32x32b\.x128\.b32": 1,
        r"tcgen05\.wait::ld": 1,
        r"cvt\.rn\.{t}x2\.f32": 64,  # 128 values a thread, two at a time
        r"st\.global\.v4\.u32": 16,  # 128 x 16 bit = 16 x 16 bytes
        r"tcgen05\.fence::before_thread_sync": 1,
        r"tcgen05\.relinquish_alloc_permit": 1,
        r"tcgen05\.dealloc\.cta_group::1\S*": 1,
    },
    "hopper": {
        r"cvt\.rn\.{t}x2\.f32": 64,
        r"st\.global\.u32": 64,  # pairs of neighbours: the fragment has no more in a row
    },
}
# What belongs to a later idea, and from which step on.
LATER = {
    r"cp\.async": 4,
    r"mbarrier\.arrive\.expect_tx": 4,
    r"setmaxnreg": 7,
    r"multicast": 8,
    r"cta_group::2": 8,
    r"barrier\.cluster": 8,
    r"mapa": 8,
}
FOREIGN = {
    "blackwell": [r"wgmma"],
    "hopper": [r"tcgen05", r"mbarrier", r"elect\.sync"],  # no mbarrier before TMA brings it
}
NEVER = [
    r"cvt\.rn\.b?f16\.f32",  # conversions go in pairs
    r"\.local\.",  # nothing indexed at run time lives in registers
    r"st\.global\.[bu]16",
]


def count(pattern: str, dtype: str, ptx: str) -> int:
    return len(re.findall(pattern.replace("{t}", DTYPES[dtype]), ptx))


@pytest.mark.parametrize(("arch", "n", "dtype"), CASES)
def test_what_a_step_must_contain(artifacts, arch, n, dtype):
    ptx = artifacts(arch, n, dtype).ptx
    turns = {p: count(p, dtype, ptx) / c for p, c in (COPY | MMA[arch]).items()}
    assert len(set(turns.values())) == 1, turns
    turn = turns.popitem()[1]
    assert turn == int(turn) >= 1
    if n == 1:
        assert turn == 1
    assert {p: count(p, dtype, ptx) for p in ONCE[arch]} == ONCE[arch]


@pytest.mark.parametrize(("arch", "n", "dtype"), CASES)
def test_what_a_step_must_not_contain(artifacts, arch, n, dtype):
    ptx = artifacts(arch, n, dtype).ptx
    forbidden = [p for p, first in LATER.items() if n < first] + FOREIGN[arch] + NEVER
    assert [p for p in forbidden if count(p, dtype, ptx)] == []


@pytest.mark.parametrize(("arch", "n", "dtype"), CASES)
def test_only_step_3_asks_which_cta_it_is(artifacts, arch, n, dtype):
    ids = set(re.findall(r"%ctaid\.[xyz]", artifacts(arch, n, dtype).ptx))
    assert ids == ({"%ctaid.x", "%ctaid.y"} if n >= 3 else set())


@pytest.mark.parametrize(("arch", "n", "dtype"), CASES)
def test_no_spills_and_no_warnings(artifacts, arch, n, dtype):
    made = artifacts(arch, n, dtype)
    resources = made.resources
    for name in ("spill_store_bytes", "spill_load_bytes", "stack_bytes", "static_shared_bytes"):
        assert resources[name] == 0, resources
    assert 128 <= resources["registers"] <= 255
    assert resources["threads"] == 128
    # Two tiles of 128 x 64 x 2 bytes; on Blackwell the barrier and TMEM's address before them.
    assert resources["dynamic_shared_bytes"] == (32768 if arch == "hopper" else 32768 + 1024)
    assert made.warnings == ()


@pytest.mark.parametrize(("arch", "n", "dtype"), CASES)
def test_launch(artifacts, arch, n, dtype):
    launch = artifacts(arch, n, dtype).launch
    assert launch.block == (128, 1, 1)
    assert launch.cluster == (1, 1, 1)
    M, N, _ = gemm.step(n, arch).default_shape
    assert launch.grid == ((M // 128, N // 128, 1) if n >= 3 else (1, 1, 1))


@pytest.mark.parametrize(("arch", "n", "dtype"), CASES)
def test_the_tensor_core_works_in_machine_code(artifacts, arch, n, dtype):
    made = artifacts(arch, n, dtype)
    assert made.arch == {"blackwell": "sm_100a", "hopper": "sm_90a"}[arch]
    operation = {"blackwell": "UTCHMMA", "hopper": "HGMMA.64x128x16"}[arch]
    per_turn = {"blackwell": 4, "hopper": 8}[arch]
    found = len(re.findall(re.escape(operation), made.sass))
    assert found
    assert found % per_turn == 0


def guards(script: str, pattern: str) -> set[tuple[str, ...]]:
    """The conditions around each statement that matches, outermost first."""
    found, stack = set(), []
    for line in script.splitlines():
        depth = len(line) - len(line.lstrip())
        stack = [(d, c) for d, c in stack if d < depth]
        if head := re.match(r"\s*if (.+):$", line):
            stack.append((depth, head[1]))
        elif re.search(pattern, line):
            found.add(tuple(c for _, c in stack))
    return found


EVERYONE, WARP_0 = {()}, {("warp_id_in_cta == 0",)}
ROLES = {
    "blackwell": {
        r"T\.ptx\.ld\(": EVERYONE,
        r"T\.ptx\.st\(": EVERYONE,
        r'"mma", "cta_group::1"': {("warp_id_in_cta == 0", "T.cuda.elect_sync()")},
        r'"commit", "cta_group::1"': {("warp_id_in_cta == 0", "T.cuda.elect_sync()")},
        r"T\.cuda\.mbarrier_wait": EVERYONE,
        r'"ld", "sync", "aligned", "32x32b"': EVERYONE,
        r'"alloc", "cta_group::1"': WARP_0,
        r'"dealloc", "cta_group::1"': WARP_0,
        r'"init", "", "shared"': {("threadIdx_x == 0",)},
    },
    "hopper": {
        r"T\.ptx\.ld\(": EVERYONE,
        r"T\.ptx\.st\(": EVERYONE,
        r"T\.ptx\.wgmma\(": EVERYONE,
    },
}


@pytest.mark.parametrize(("arch", "n"), sorted({(a, n) for a, n, _ in CASES}))
def test_roles(artifacts, arch, n):
    script = artifacts(arch, n, "float16").lowered.device.script()
    assert {p: guards(script, p) for p in ROLES[arch]} == ROLES[arch]
    # … and the roles that the step announces speak of the same groups.
    announced = " ".join(who for who, _ in gemm.step(n, arch).roles)
    assert "all 128 threads" in announced
    assert ("one thread of warp 0" in announced) == (arch == "blackwell")
