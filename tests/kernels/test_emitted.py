"""A step's idea is visible in what it emits: what each step's PTX must and must not contain.

A new step adds a row. Numbers are counts of PTX instructions in the text; where the compiler may
unroll the loop over K, a count is that of one turn and the test takes multiples of it.
"""

import re

import pytest

from mlsys_gpu.kernels import gemm

DTYPES = {"float16": "f16", "bfloat16": "bf16"}
CASES = [(a, s.number, d) for a in gemm.ARCHS for s in gemm.steps(a) for d in DTYPES]

# Each table is by the step from which on its row holds, up to the next row. {t} is f16 or bf16.
#
# Of one turn of the loop over K: groups of instructions that come together.
COPY = {
    r"ld\.global\.v4\.u32": 16,  # 2 tiles x 16 KB / (128 threads x 16 bytes)
    r"st\.shared\.v4\.u32": 16,
    r"fence\.proxy\.async\.shared::cta": 1,
}
TMA_LOAD = {
    r"mbarrier\.arrive\.expect_tx\.shared\.b64": 1,
    r"cp\.async\.bulk\.tensor\.2d\.shared::cluster\.global\S*complete_tx::bytes": 2,
}
TCGEN05 = {
    r"elect\.sync": 1,
    r"tcgen05\.mma\.cta_group::1\.kind::f16": 4,  # 64 / 16 values of K
    r"tcgen05\.commit\.cta_group::1\.mbarrier::arrive::one": 1,
    r"mbarrier\.try_wait\.parity": 1,
}
WGMMA = {
    r"wgmma\.fence\.sync\.aligned": 1,
    r"wgmma\.mma_async\.sync\.aligned\.m64n128k16\.f32\.{t}\.{t}": 8,  # 2 halves of M x 4 of K
    r"wgmma\.commit_group\.sync\.aligned": 1,
    r"wgmma\.wait_group\.sync\.aligned +0": 1,
}
WAIT = {r"mbarrier\.try_wait\.parity": 1}
TCGEN05_ALONE = {
    r"tcgen05\.mma\.cta_group::1\.kind::f16": 4,
    r"tcgen05\.commit\.cta_group::1\.mbarrier::arrive::one": 1,  # empty
    r"mbarrier\.try_wait\.parity": 2,  # full, empty
}
TURN = {
    "blackwell": {1: [COPY | TCGEN05], 4: [TMA_LOAD | TCGEN05_ALONE]},
    "hopper": {
        1: [COPY | WGMMA],
        4: [TMA_LOAD | WAIT | WGMMA],
        5: [TMA_LOAD, WAIT | WGMMA],  # a load may stand apart from the MMA that it is ahead of
    },
}
# Of those instructions, what stands outside the loop too.
BESIDES = {
    "blackwell": {
        1: {},
        4: {  # mma_bar
            r"tcgen05\.commit\.cta_group::1\.mbarrier::arrive::one": 1,
            r"mbarrier\.try_wait\.parity": 1,
        },
    },
    "hopper": {1: {}},
}
TMA_STORE = {
    r"fence\.proxy\.async\.shared::cta": 1,
    r"cp\.async\.bulk\.tensor\.2d\.global\.shared::cta": 2,  # two halves of 64 columns
    r"cp\.async\.bulk\.commit_group": 1,
}
TMEM = {
    r"tcgen05\.alloc\.cta_group::1\S*": 1,
    r"fence\.mbarrier_init\.release\.cluster": 1,
    r"tcgen05\.ld\.sync\.aligned\.32x32b\.x128\.b32": 1,
    r"tcgen05\.wait::ld": 1,
    r"cvt\.rn\.{t}x2\.f32": 64,  # 128 values a thread, two at a time
    r"tcgen05\.relinquish_alloc_permit": 1,
    r"tcgen05\.dealloc\.cta_group::1\S*": 1,
}
TMEM_STORE = (
    TMEM
    | TMA_STORE
    | {
        r"elect\.sync": 2,  # the thread that loads and multiplies, and the one that stores
        r"st\.shared\.v4\.u32": 16,  # 128 x 16 bit = 16 x 16 bytes
        r"cp\.async\.bulk\.wait_group\.read +0": 1,
    }
)
INIT, BEFORE = r"mbarrier\.init\.shared\.b64", r"tcgen05\.fence::before_thread_sync"
ONCE = {
    "blackwell": {
        1: TMEM | {r"st\.global\.v4\.u32": 16, INIT: 1, BEFORE: 1},  # 16 x 16 bytes a row
        4: TMEM_STORE | {INIT: 3, BEFORE: 1},  # full, empty, mma_bar
        5: TMEM_STORE | {INIT: 5, BEFORE: 1},  # full and empty of two stages, mma_bar
        6: TMEM_STORE | {INIT: 5, BEFORE: 2},  # before the next tile's MMAs, and the end
    },
    "hopper": {
        1: {
            r"cvt\.rn\.{t}x2\.f32": 64,
            r"st\.global\.u32": 64,  # pairs of neighbours: the fragment has no more in a row
        },
        4: TMA_STORE
        | {
            r"mbarrier\.init\.shared\.b64": 1,
            r"fence\.mbarrier_init\.release\.cluster": 1,
            r"cvt\.rn\.{t}x2\.f32": 64,
            r"stmatrix\.sync\.aligned\.m8n8\.x4\.shared\.b16": 16,  # 64 pairs, four at a time
            r"cp\.async\.bulk\.wait_group\.read +0": 1,
        },
        5: TMA_STORE
        | {
            r"mbarrier\.init\.shared\.b64": 2,
            r"fence\.mbarrier_init\.release\.cluster": 1,
            r"cvt\.rn\.{t}x2\.f32": 64,
            r"stmatrix\.sync\.aligned\.m8n8\.x4\.shared\.b16": 16,
            r"cp\.async\.bulk\.wait_group\.read +0": 1,
        },
    },
}
# What belongs to a later idea, and from which step on; what an idea makes superfluous.
LATER = {
    r"cp\.async": 4,
    r"mbarrier\.arrive\.expect_tx": 4,
    r"setmaxnreg": 7,
    r"multicast": 8,
    r"cta_group::2": 8,
    r"barrier\.cluster": 8,
    r"mapa": 8,
}
GONE = {r"ld\.global": 4, r"st\.global": 4}
FOREIGN = {
    "blackwell": {1: [r"wgmma"]},
    # No mbarrier before TMA brings it.
    "hopper": {1: [r"tcgen05", r"mbarrier", r"elect\.sync"], 4: [r"tcgen05"]},
}
NEVER = [
    r"cvt\.rn\.b?f16\.f32",  # conversions go in pairs
    r"\.local\.",  # nothing indexed at run time lives in registers
    r"st\.global\.[bu]16",
]
# Bytes: tiles of A and B (128 x 64 x 2 each), of D, and barriers and TMEM's address before them.
SHARED = {
    "blackwell": {1: 1024 + 32768, 4: 1024 + 32768 + 32768, 5: 1024 + 2 * 32768 + 32768},
    "hopper": {1: 32768, 4: 1024 + 32768 + 32768, 5: 1024 + 2 * 32768 + 32768},
}


def at(table, n):
    """The row of ``table`` that holds for step ``n``."""
    return table[max(first for first in table if first <= n)]


def count(pattern: str, dtype: str, ptx: str) -> int:
    return len(re.findall(pattern.replace("{t}", DTYPES[dtype]), ptx))


@pytest.mark.parametrize(("arch", "n", "dtype"), CASES)
def test_what_a_step_must_contain(artifacts, arch, n, dtype):
    ptx = artifacts(arch, n, dtype).ptx
    for group in at(TURN[arch], n):
        besides = at(BESIDES[arch], n)
        found = {p: count(p, dtype, ptx) - besides.get(p, 0) for p in group}
        turns = {p: found[p] / c for p, c in group.items()}
        assert len(set(turns.values())) == 1, turns
        turn = turns.popitem()[1]
        assert turn == int(turn) >= 1
        if n == 1:
            assert turn == 1
    once = at(ONCE[arch], n)
    assert {p: count(p, dtype, ptx) for p in once} == once


@pytest.mark.parametrize(("arch", "n", "dtype"), CASES)
def test_what_a_step_must_not_contain(artifacts, arch, n, dtype):
    ptx = artifacts(arch, n, dtype).ptx
    forbidden = [p for p, first in LATER.items() if n < first]
    forbidden += [p for p, first in GONE.items() if n >= first] + at(FOREIGN[arch], n) + NEVER
    assert [p for p in forbidden if count(p, dtype, ptx)] == []


@pytest.mark.parametrize(("arch", "n", "dtype"), CASES)
def test_only_from_step_3_on_a_cta_asks_which_it_is(artifacts, arch, n, dtype):
    ids = set(re.findall(r"%ctaid\.[xyz]", artifacts(arch, n, dtype).ptx))
    # From Step 6 on a CTA takes tiles by one number, its place in the order of tiles.
    assert ids == at({1: set(), 3: {"%ctaid.x", "%ctaid.y"}, 6: {"%ctaid.x"}}, n)


@pytest.mark.parametrize(("arch", "n", "dtype"), CASES)
def test_no_spills_and_no_warnings(artifacts, arch, n, dtype):
    made = artifacts(arch, n, dtype)
    resources = made.resources
    for name in ("spill_store_bytes", "spill_load_bytes", "stack_bytes", "static_shared_bytes"):
        assert resources[name] == 0, resources
    assert 128 <= resources["registers"] <= 255
    assert resources["threads"] == 128
    assert resources["dynamic_shared_bytes"] == at(SHARED[arch], n)
    assert made.warnings == ()


CTAS = {"blackwell": 148, "hopper": 2 * 132}  # one an SM of a B200, two an SM of an H200


@pytest.mark.parametrize(("arch", "n", "dtype"), CASES)
def test_launch(artifacts, arch, n, dtype):
    launch = artifacts(arch, n, dtype).launch
    assert launch.block == (128, 1, 1)
    assert launch.cluster == (1, 1, 1)
    M, N, _ = gemm.step(n, arch).default_shape
    m_tiles, n_tiles = -(-M // 128), -(-N // 128)
    if n < 6:
        assert launch.grid == (m_tiles, n_tiles, 1)
    else:
        assert launch.grid == (min(CTAS[arch], m_tiles * n_tiles), 1, 1)
        assert launch.grid[0] < m_tiles * n_tiles


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
    """The conditions around each statement that matches, outermost first.

    Only those on who a thread is: conditions on counters hold for all threads alike.
    """
    found, stack = set(), []
    for line in script.splitlines():
        depth = len(line) - len(line.lstrip())
        stack = [(d, c) for d, c in stack if d < depth]
        if head := re.match(r"\s*if (.+):$", line):
            who = [c for c in head[1].split(" and ") if re.search(r"warp_id|threadIdx|elect", c)]
            stack += [(depth, c) for c in who]
        elif re.search(pattern, line):
            # Which turn of the loop over K it is says nothing about who.
            found.add(tuple(c for _, c in stack if not re.search(r"\bk\b", c)))
    return found


EVERYONE, WARP_0, THREAD_0 = {()}, {("warp_id_in_cta == 0",)}, {("threadIdx_x == 0",)}
ONE_THREAD = {("warp_id_in_cta == 0", "T.cuda.elect_sync()")}
ROLES = {
    "blackwell": {
        1: {
            r"T\.ptx\.ld\(": EVERYONE,
            r"T\.ptx\.st\(": EVERYONE,
            r'"mma", "cta_group::1"': ONE_THREAD,
            r'"commit", "cta_group::1"': ONE_THREAD,
            r"T\.cuda\.mbarrier_wait": EVERYONE,
            r'"ld", "sync", "aligned", "32x32b"': EVERYONE,
            r'"alloc", "cta_group::1"': WARP_0,
            r'"dealloc", "cta_group::1"': WARP_0,
            r'"init", "", "shared"': THREAD_0,
        },
        4: {
            r'"async", "bulk"': ONE_THREAD,  # loads, the store, its group and the wait for it
            r'"arrive", "expect_tx"': ONE_THREAD,
            r'"mma", "cta_group::1"': ONE_THREAD,
            r'"commit", "cta_group::1"': ONE_THREAD,
            r"T\.cuda\.mbarrier_wait\(T\.address_of\((full|empty)": ONE_THREAD,
            r"T\.cuda\.mbarrier_wait\(T\.address_of\(mma_bar": EVERYONE,
            r'"ld", "sync", "aligned", "32x32b"': EVERYONE,
            r"T\.ptx\.st\(": EVERYONE,
            r'"alloc", "cta_group::1"': WARP_0,
            r'"dealloc", "cta_group::1"': WARP_0,
            r'"init", "", "shared"': THREAD_0,
        },
    },
    "hopper": {
        1: {
            r"T\.ptx\.ld\(": EVERYONE,
            r"T\.ptx\.st\(": EVERYONE,
            r"T\.ptx\.wgmma\(": EVERYONE,
        },
        4: {
            r'"async", "bulk"': ONE_THREAD,  # loads, the store, its group and the wait for it
            r'"arrive", "expect_tx"': ONE_THREAD,
            r"T\.cuda\.mbarrier_wait": EVERYONE,
            r"T\.ptx\.wgmma\(": EVERYONE,
            r"T\.ptx\.stmatrix": EVERYONE,
            r'"init", "", "shared"': THREAD_0,
        },
    },
}


@pytest.mark.parametrize(("arch", "n"), sorted({(a, n) for a, n, _ in CASES}))
def test_roles(artifacts, arch, n):
    script = artifacts(arch, n, "float16").lowered.device.script()
    assert {p: guards(script, p) for p in at(ROLES[arch], n)} == at(ROLES[arch], n)
    # … and the roles that the step announces speak of the same groups.
    announced = " ".join(who for who, _ in gemm.step(n, arch).roles)
    assert "all 128 threads" in announced
    assert ("one thread of warp 0" in announced) == (arch == "blackwell" or n >= 4)
