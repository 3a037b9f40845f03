"""A step's idea is visible in what it emits: what each step's PTX must and must not contain.

A new step adds a row. Numbers are counts of PTX instructions in the text; where the compiler may
unroll the loop over K, a count is that of one turn and the test takes multiples of it.
"""

import re

import pytest

from mlsys_gpu.artifacts import inspect
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
# One group runs on; one arrival says for a whole warpgroup that a stage has been read.
WGMMA_AHEAD = {
    r"wgmma\.fence\.sync\.aligned": 1,
    r"wgmma\.commit_group\.sync\.aligned": 1,
    r"wgmma\.wait_group\.sync\.aligned +1": 1,
}
N128 = {r"wgmma\.mma_async\.sync\.aligned\.m64n128k16\.f32\.{t}\.{t}": 8}
N256 = {r"wgmma\.mma_async\.sync\.aligned\.m64n256k16\.f32\.{t}\.{t}": 4}  # 64 rows a warpgroup
READ_HERE = {r"mbarrier\.arrive\.shared\.b64": 1}
READ_IN_BOTH = {r"mapa\.shared::cluster\.u32": 1, r"mbarrier\.arrive\.shared::cluster\.b64": 1}
MULTICAST = {r"cp\.async\.bulk\.tensor\S*multicast::cluster": 1}  # of the two loads
TCGEN05_ALONE = {
    r"tcgen05\.mma\.cta_group::1\.kind::f16": 4,
    r"tcgen05\.commit\.cta_group::1\.mbarrier::arrive::one": 1,  # empty
    r"mbarrier\.try_wait\.parity": 2,  # full, empty
}
TCGEN05_MMA = {
    r"tcgen05\.mma\.cta_group::1\.kind::f16": 4,
    r"tcgen05\.commit\.cta_group::1\.mbarrier::arrive::one": 1,  # empty
}
PAIR_LOAD = {
    r"mapa\.shared::cluster\.u32": 1,  # CTA 0's full
    r"mbarrier\.arrive\.expect_tx\.shared::cluster\.b64": 1,
    r"cp\.async\.bulk\.tensor\.2d\.shared::cluster\.global\S*complete_tx::bytes\.cta_group::2": 2,
}
PAIR_MMA = {
    r"tcgen05\.mma\.cta_group::2\.kind::f16": 4,
    r"tcgen05\.commit\.cta_group::2\S*\.multicast::cluster\.b64": 1,
}
TURN = {
    "blackwell": {
        1: [COPY | TCGEN05],
        4: [TMA_LOAD | TCGEN05_ALONE],
        7: [TMA_LOAD, TCGEN05_MMA],
        8: [PAIR_LOAD, PAIR_MMA],
    },
    "hopper": {
        1: [COPY | WGMMA],
        4: [TMA_LOAD | WAIT | WGMMA],
        5: [TMA_LOAD, WAIT | WGMMA],  # a load may stand apart from the MMA that it is ahead of
        7: [TMA_LOAD, WGMMA_AHEAD | N128 | READ_HERE],  # the waits are in two loops
        8: [TMA_LOAD | MULTICAST, WGMMA_AHEAD | N128 | READ_IN_BOTH],
        9: [TMA_LOAD | MULTICAST, WGMMA_AHEAD | N256 | READ_IN_BOTH],
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
        7: {r"tcgen05\.commit\.cta_group::1\.mbarrier::arrive::one": 1},  # tmem_full
        8: {
            r"mapa\.shared::cluster\.u32": 1,  # CTA 0's tmem_empty
            r"tcgen05\.commit\.cta_group::2\S*\.multicast::cluster\.b64": 1,  # tmem_full
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
ROLES_PART = {
    r"fence\.mbarrier_init\.release\.cluster": 1,
    r"wgmma\.wait_group\.sync\.aligned +0": 1,  # the tile's last
    r"cvt\.rn\.{t}x2\.f32": 64,
    r"stmatrix\.sync\.aligned\.m8n8\.x4\.shared\.b16": 16,
}
READ = r"cp\.async\.bulk\.wait_group\.read +"
CLUSTER = {r"barrier\.cluster\.arrive": 2, r"barrier\.cluster\.wait": 2}  # start and end
ROLES_APART = TMEM_STORE | {
    r"elect\.sync": 2,  # the thread that loads, and the one that multiplies
    r"bar\.sync\s+%r\d+, 128": 2,  # a warpgroup's: Ds is free, Ds is written
    r"bar\.sync\s+0": 2,  # the CTA's: the barriers are there, all is done
    r"mbarrier\.arrive\.shared\.b64": 1,  # tmem_empty
}
PAIR = {
    r"tcgen05\.alloc\.cta_group::2\S*": 1,
    r"tcgen05\.dealloc\.cta_group::2\S*": 1,
    r"tcgen05\.relinquish_alloc_permit\.cta_group::2": 1,
    r"fence\.mbarrier_init\.release\.cluster": 1,
    r"elect\.sync": 2,
    r"bar\.sync\s+%r\d+, 128": 2 * 4,
    r"bar\.sync\s+0": 0,
    r"mbarrier\.arrive\.shared::cluster\.b64": 1,  # CTA 0's tmem_empty
    # 256 columns leave in four pieces.
    r"tcgen05\.ld\.sync\.aligned\.32x32b\.x64\.b32": 4,
    r"tcgen05\.wait::ld": 4,
    r"cvt\.rn\.{t}x2\.f32": 4 * 32,
    r"st\.shared\.v4\.u32": 4 * 8,
    r"fence\.proxy\.async\.shared::cta": 4,
    r"cp\.async\.bulk\.tensor\.2d\.global\.shared::cta": 4,
    r"cp\.async\.bulk\.commit_group": 4,
    r"cp\.async\.bulk\.wait_group\.read +0": 4,
}
INIT, BEFORE = r"mbarrier\.init\.shared\.b64", r"tcgen05\.fence::before_thread_sync"
ONCE = {
    "blackwell": {
        1: TMEM | {r"st\.global\.v4\.u32": 16, INIT: 1, BEFORE: 1},  # 16 x 16 bytes a row
        4: TMEM_STORE | {INIT: 3, BEFORE: 1},  # full, empty, mma_bar
        5: TMEM_STORE | {INIT: 5, BEFORE: 1},  # full and empty of two stages, mma_bar
        6: TMEM_STORE | {INIT: 5, BEFORE: 2},  # before the next tile's MMAs, and the end
        7: ROLES_APART | {INIT: 16, BEFORE: 2},  # two for six stages and for two accumulators
        8: PAIR | CLUSTER | {INIT: 16, BEFORE: 2},
        9: PAIR  # four stages; an accumulator's columns in registers at once
        | CLUSTER
        | {INIT: 12, BEFORE: 2}
        | {r"setmaxnreg\.dec\S* +72": 1, r"setmaxnreg\.inc\S* +216": 1},
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
        7: TMA_STORE | ROLES_PART | {INIT: 12, READ + "0": 2},  # full and empty of six stages
        8: TMA_STORE | ROLES_PART | CLUSTER | {INIT: 12, READ + "0": 2},  # before writing, the end
        9: dict.fromkeys(TMA_STORE, 4)  # four times 64 columns, a group each
        | ROLES_PART
        | CLUSTER
        | {INIT: 8, READ + "1": 4, READ + "0": 1}
        | {r"setmaxnreg\.dec\.sync\.aligned\.u32 +40": 1}
        | {r"setmaxnreg\.inc\.sync\.aligned\.u32 +232": 1},
    },
}
# What belongs to a later idea, and from which step on; what an idea makes superfluous.
LATER = {
    r"cp\.async": 4,
    r"mbarrier\.arrive\.expect_tx": 4,
    r"setmaxnreg": 9,
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
    "blackwell": {
        1: 1024 + 32768,
        4: 1024 + 32768 + 32768,
        5: 1024 + 2 * 32768 + 32768,
        7: 1024 + 6 * 32768 + 32768,
        8: 1024 + 6 * 32768 + 16384,  # 64 columns of D
        9: 1024 + 4 * 49152 + 2 * 16384,  # 256 rows of A; two warpgroups
    },
    "hopper": {
        1: 32768,
        4: 1024 + 32768 + 32768,
        5: 1024 + 2 * 32768 + 32768,
        7: 1024 + 6 * 32768 + 32768,
        9: 1024 + 4 * 49152 + 32768,  # B's tile is twice as large; D's leaves in parts
    },
}
THREADS = {"blackwell": {1: 128, 7: 256, 9: 384}, "hopper": {1: 128, 7: 256, 9: 384}}


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
    threads = at(THREADS[arch], n)
    assert 128 <= resources["registers"] <= min(255, 65536 // threads)
    assert resources["threads"] == threads
    assert resources["dynamic_shared_bytes"] == at(SHARED[arch], n)
    assert made.warnings == ()


@pytest.mark.parametrize("step", gemm.everything("hopper")[6:], ids=lambda step: step.name)
@pytest.mark.parametrize("shape", [(8, 8, 8), (1024,) * 3, (4096,) * 3, (8192, 8192, 4096)])
def test_no_spills_and_no_warnings_at_any_size(step, shape):
    """Registers depend on the shape: it decides how indices are computed and loops unrolled."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="assembling needs cuda-python and NVRTC")
    made = inspect(step.build(*shape))
    assert {v for k, v in made.resources.items() if k.startswith(("spill", "stack"))} == {0}
    assert made.warnings == ()
    # What moves registers to the consumers, and ptxas would drop with no more than a remark.
    assert ("USETMAXREG" in made.sass) == ("setmaxnreg" in made.ptx)
    assert "setmaxnreg" in made.ptx or step.number < 9 or step.variant == "tuned"


# From Step 6 on. An SM of a B200 has one, an SM of an H200 two and from Step 7 on one.
CTAS = {"blackwell": {6: 148}, "hopper": {6: 2 * 132, 7: 132}}
CLUSTERS = {"blackwell": {1: 1, 8: 2}, "hopper": {1: 1, 8: 2}}  # CTAs of a cluster
# Rows and columns of D that a cluster computes at a time.
TILES = {
    "blackwell": {1: (128, 128), 8: (256, 256), 9: (512, 256)},
    "hopper": {1: (128, 128), 8: (256, 128), 9: (256, 256)},
}


@pytest.mark.parametrize(("arch", "n", "dtype"), CASES)
def test_launch(artifacts, arch, n, dtype):
    launch = artifacts(arch, n, dtype).launch
    cluster = at(CLUSTERS[arch], n)
    assert launch.block == (at(THREADS[arch], n), 1, 1)
    assert launch.cluster == (cluster, 1, 1)
    M, N, _ = gemm.step(n, arch).default_shape
    rows, columns = at(TILES[arch], n)
    m_tiles, n_tiles = -(-M // rows), -(-N // columns)
    if n < 6:
        assert launch.grid == (m_tiles, n_tiles, 1)
    else:
        assert launch.grid == (at(CTAS[arch], n), 1, 1)
        assert launch.grid[0] < cluster * m_tiles * n_tiles


@pytest.mark.parametrize(("arch", "n", "dtype"), CASES)
def test_the_tensor_core_works_in_machine_code(artifacts, arch, n, dtype):
    made = artifacts(arch, n, dtype)
    assert made.arch == {"blackwell": "sm_100a", "hopper": "sm_90a"}[arch]
    operations = {
        "blackwell": {1: ("UTCHMMA ", 4), 8: ("UTCHMMA.2CTA ", 4)},
        "hopper": {1: ("HGMMA.64x128x16", 8), 9: ("HGMMA.64x256x16", 4)},
    }
    operation, per_turn = at(operations[arch], n)
    found = len(re.findall(re.escape(operation), made.sass))
    assert found
    assert found % per_turn == 0


LINE = re.compile(r"^\s*(?:(cse_v\d+)(: T\.let\[.*?\] = ))?(.*)$")


def guards(script: str, pattern: str) -> set[tuple[str, ...]]:
    """The conditions around each statement that matches, outermost first.

    Only those on who a thread is: conditions on counters hold for all threads alike. Names that
    the compiler gave to parts of expressions are replaced by what they stand for.
    """
    found, stack = set(), []
    meaning: dict[str, str] = {}
    for line in script.splitlines():
        depth = len(line) - len(line.lstrip())
        name, let, text = LINE.findall(line)[0]
        text = re.sub(r"cse_v\d+", lambda part: meaning.get(part[0], part[0]), text)
        if let:
            meaning[name] = text
            continue
        stack = [(d, c) for d, c in stack if d < depth]
        if head := re.match(r"if (.+):$", text):
            who = [
                c
                for c in head[1].split(" and ")
                if re.search(r"warp_id|threadIdx|elect|clusterCtaIdx", c)
            ]
            stack += [(depth, c) for c in who]
        elif re.search(pattern, text):
            # Which turn of the loop over K it is says nothing about who.
            found.add(tuple(c for _, c in stack if not re.search(r"\bk\b", c)))
    return found


EVERYONE, WARP_0, THREAD_0 = {()}, {("warp_id_in_cta == 0",)}, {("threadIdx_x == 0",)}
ONE_THREAD = {("warp_id_in_cta == 0", "T.cuda.elect_sync()")}
# A TMA load has an mbarrier; a store, its group and the wait for it are one thread's.
LOAD, STORE = r'"bulk", "tensor".*mbarrier', r'"bulk", "(tensor".*bulk_group|commit|wait)'
CONSUMER = {("warp_id_in_cta // 4 == 1",)}  # of two warpgroups
CONSUMERS = {("3 < warp_id_in_cta",)}
ONE_OF_4 = ("warp_id_in_cta % 4 == 0", "T.cuda.elect_sync()")
# Blackwell's, from Step 7 on.
LOAD_ONE = {("warp_id_in_cta == 4", "T.cuda.elect_sync()")}
MMA_ONE = {("warp_id_in_cta == 5", "T.cuda.elect_sync()")}
LEADERS_MMA_ONE = {("warp_id_in_cta == 5", "clusterCtaIdx_x == 0", "T.cuda.elect_sync()")}
EPILOGUE = {("warp_id_in_cta // 4 == 0",)}
STORE_ONE = {("warp_id_in_cta // 4 == 0", "threadIdx_x == 0")}
LOAD_ONE_9 = {("warp_id_in_cta // 4 == 2", "warp_id_in_cta == 10", "T.cuda.elect_sync()")}
CONSUMERS_ONE = {
    (
        "warp_id_in_cta // 4 == 2",
        "warp_id_in_cta < 10",
        "clusterCtaIdx_x == 0",
        "T.cuda.elect_sync()",
    )
}
EPILOGUES = {("warp_id_in_cta < 8",)}
STORES_ONE = {("warp_id_in_cta < 8", "threadIdx_x % 128 == 0")}


def apart(load, mma, epilogue, store, pair):
    """The roles of Step 7 and later: who loads, multiplies, reads and writes, stores."""
    return {
        r'"tensor", "2d", "shared::cluster"': load,
        r'"arrive", "expect_tx"': load,
        r"T\.cuda\.mbarrier_wait\(T\.address_of\(empty": load,
        rf'"mma", "cta_group::{pair}"': mma,
        rf'"commit", "cta_group::{pair}"': mma,
        r"T\.cuda\.mbarrier_wait\(T\.address_of\((full|tmem_empty)": mma,
        r"T\.cuda\.mbarrier_wait\(T\.address_of\(tmem_full": epilogue,
        r'"ld", "sync", "aligned", "32x32b"': epilogue,
        r'tmem_empty.*"arrive"|"arrive", "", "", "shared::cluster"': epilogue,
        r"T\.ptx\.st\(": epilogue,
        r'"tensor", "2d", "global"': store,
        r'"bulk", "(commit|wait)_group"': store,
        rf'"alloc", "cta_group::{pair}"': WARP_0,
        rf'"dealloc", "cta_group::{pair}"': WARP_0,
        r'"init", "", "shared"': THREAD_0,
    }


ROLES = {
    "blackwell": {
        7: apart(LOAD_ONE, MMA_ONE, EPILOGUE, STORE_ONE, 1),
        8: apart(LOAD_ONE, LEADERS_MMA_ONE, EPILOGUE, STORE_ONE, 2),
        9: apart(LOAD_ONE_9, CONSUMERS_ONE, EPILOGUES, STORES_ONE, 2),
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
        7: {
            LOAD: ONE_THREAD,
            r'"arrive", "expect_tx"': ONE_THREAD,
            r"T\.cuda\.mbarrier_wait\(T\.address_of\(empty": ONE_THREAD,
            r"T\.cuda\.mbarrier_wait\(T\.address_of\(full": CONSUMER,
            r"T\.ptx\.wgmma\(": CONSUMER,
            r'"arrive", "",': {(*next(iter(CONSUMER)), "threadIdx_x % 128 == 0")},
            r"T\.ptx\.stmatrix": CONSUMER,
            STORE: {(*next(iter(CONSUMER)), *ONE_OF_4)},
            r'"init", "", "shared"': THREAD_0,
        },
        8: {
            LOAD: ONE_THREAD,
            r'"arrive", "expect_tx"': ONE_THREAD,
            r"T\.cuda\.mbarrier_wait\(T\.address_of\(empty": ONE_THREAD,
            r"T\.cuda\.mbarrier_wait\(T\.address_of\(full": CONSUMER,
            r"T\.ptx\.wgmma\(": CONSUMER,
            r'"arrive", "",': {(*next(iter(CONSUMER)), "threadIdx_x % 128 < 2")},
            r"T\.ptx\.stmatrix": CONSUMER,
            STORE: {(*next(iter(CONSUMER)), *ONE_OF_4)},
            r'"init", "", "shared"': THREAD_0,
            r"T\.cuda\.cluster_sync": EVERYONE,
        },
        9: {
            r"setmaxnreg\(40": {("warp_id_in_cta // 4 == 0",)},
            LOAD: ONE_THREAD,
            r'"arrive", "expect_tx"': ONE_THREAD,
            r"T\.cuda\.mbarrier_wait\(T\.address_of\(empty": ONE_THREAD,
            r"setmaxnreg\(232": CONSUMERS,
            r"T\.cuda\.mbarrier_wait\(T\.address_of\(full": CONSUMERS,
            r"T\.ptx\.wgmma\(": CONSUMERS,
            r'"arrive", "",': {(*next(iter(CONSUMERS)), "threadIdx_x % 128 < 2")},
            r"T\.ptx\.stmatrix": CONSUMERS,
            STORE: {(*next(iter(CONSUMERS)), *ONE_OF_4)},
            r'"init", "", "shared"': THREAD_0,
            r"T\.cuda\.cluster_sync": EVERYONE,
        },
    },
}


ANNOUNCED = {
    "blackwell": {
        1: {"all 128 threads", "one thread of warp 0", "warp 0"},
        7: {"one thread of warp 4", "one thread of warp 5", "warps 0-3", "thread 0", "warp 0"},
        8: {
            "one thread of warp 4",
            "one thread of CTA 0's warp 5",
            "warps 0-3",
            "thread 0",
            "warp 0",
        },
        9: {
            "warps 8-11",
            "one thread of warp 10",
            "one thread each of CTA 0's warps 8 and 9",
            "warps 0-3 and 4-7",
            "threads 0 and 128",
            "warp 0",
        },
    },
    "hopper": {
        1: {"all 128 threads", "all four warps together"},
        4: {"all 128 threads", "all four warps together", "one thread of warp 0"},
        7: {"one thread of warpgroup 0", "warpgroup 1", "one thread of warpgroup 1"},
        9: {
            "one thread of warpgroup 0",
            "warpgroup 0",
            "warpgroups 1 and 2",
            "one thread of each",
        },
    },
}


@pytest.mark.parametrize(("arch", "n"), sorted({(a, n) for a, n, _ in CASES}))
def test_roles(artifacts, arch, n):
    script = artifacts(arch, n, "float16").lowered.device.script()
    assert {p: guards(script, p) for p in at(ROLES[arch], n)} == at(ROLES[arch], n)
    # … and the roles that the step announces speak of the same groups.
    announced = [who for who, _ in gemm.step(n, arch).roles]
    assert set(announced) == at(ANNOUNCED[arch], n)
