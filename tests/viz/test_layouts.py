"""Addresses, banks and conflicts against tables of the PTX ISA and against TVM's own layouts."""

import random

import pytest

from mlsys_gpu.viz import layouts

# PTX ISA, "Shared memory swizzling modes": chunk that stands at each place of each 128-byte line.
PTX_128B = [
    "0 1 2 3 4 5 6 7",
    "1 0 3 2 5 4 7 6",
    "2 3 0 1 6 7 4 5",
    "3 2 1 0 7 6 5 4",
    "4 5 6 7 0 1 2 3",
    "5 4 7 6 1 0 3 2",
    "6 7 4 5 2 3 0 1",
    "7 6 5 4 3 2 1 0",
]
PTX_64B = [
    "0 1 2 3 4 5 6 7",
    "1 0 3 2 5 4 7 6",
    "2 3 0 1 6 7 4 5",
    "3 2 1 0 7 6 5 4",
]
PTX_32B = ["0 1 2 3 4 5 6 7", "1 0 3 2 5 4 7 6"]


@pytest.mark.parametrize(("swizzle", "table"), [(128, PTX_128B), (64, PTX_64B), (32, PTX_32B)])
def test_swizzle_follows_the_table_of_the_isa(swizzle, table):
    for line in range(16):
        row = [int(c) for c in table[line % len(table)].split()]
        for place, chunk in enumerate(row):
            source = line * 128 + chunk * 16
            assert layouts.swizzle_offset(source, swizzle) == line * 128 + place * 16
            assert layouts.swizzle_offset(source + 7, swizzle) == line * 128 + place * 16 + 7


def test_no_swizzle_changes_nothing():
    assert [layouts.swizzle_offset(n, 0) for n in range(300)] == list(range(300))


@pytest.mark.parametrize("swizzle", [32, 64, 128])
def test_swizzle_is_its_own_inverse(swizzle):
    offsets = range(4096)
    assert sorted(layouts.swizzle_offset(n, swizzle) for n in offsets) == list(offsets)
    for n in offsets:
        assert layouts.swizzle_offset(layouts.swizzle_offset(n, swizzle), swizzle) == n


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
@pytest.mark.parametrize(("swizzle", "mode"), [(32, 1), (64, 2), (128, 3)])
def test_offsets_equal_those_of_the_layout_that_tvm_gives_the_tensor_core(swizzle, mode, dtype):
    tma_utils = pytest.importorskip("tvm.backend.cuda.tile_primitive.tma_utils")
    itemsize = layouts.ITEMSIZE[dtype]
    rows, cols = 24, 3 * 128 // itemsize
    theirs = tma_utils.mma_shared_layout(dtype, mode, [rows, cols])
    pick = random.Random(swizzle)
    for _ in range(200):
        r, c = pick.randrange(rows), pick.randrange(cols)
        (element,) = theirs.apply(r, c, shape=[rows, cols]).values()
        ours = layouts.smem_offset(r, c, rows=rows, cols=cols, itemsize=itemsize, swizzle=swizzle)
        assert ours == int(element) * itemsize, (r, c)


def test_every_element_has_a_place_of_its_own():
    for swizzle in layouts.SWIZZLES:
        seen = {
            layouts.smem_offset(r, c, rows=16, cols=64, swizzle=swizzle)
            for r in range(16)
            for c in range(64)
        }
        assert seen == set(range(0, 16 * 64 * 2, 2))


def test_banks_are_four_bytes_wide_and_repeat_after_128():
    assert [layouts.bank(b) for b in (0, 3, 4, 127, 128, 132, 1020)] == [0, 0, 1, 31, 0, 1, 31]


@pytest.mark.parametrize(
    ("offsets", "width", "wavefronts", "ways"),
    [
        ([4 * lane for lane in range(32)], 4, 1, 1),  # one word each: no conflict
        ([0] * 32, 4, 1, 1),  # the same word: broadcast
        ([8 * lane for lane in range(32)], 4, 2, 2),  # every second bank, twice
        ([128 * lane for lane in range(32)], 4, 32, 32),  # all in bank 0
        ([132 * lane for lane in range(32)], 4, 1, 1),  # a row padded by one word
        ([16 * lane for lane in range(32)], 16, 4, 1),  # 512 bytes take four passes at least
        ([128 * lane for lane in range(32)], 16, 32, 8),  # eight lanes of a pass in four banks
        ([2 * lane for lane in range(32)], 2, 1, 1),  # two lanes share a word
        ([8 * lane for lane in range(32)], 8, 2, 1),
        ([0, 128], 4, 2, 2),  # two active lanes
    ],
)
def test_bank_conflicts(offsets, width, wavefronts, ways):
    found = layouts.bank_conflicts(offsets, width)
    assert (found.wavefronts, found.ways) == (wavefronts, ways)


def test_swizzle_is_what_takes_the_conflicts_out_of_a_column():
    data = layouts.layout_data(16, 64, "float16")
    down, along = data["accesses"]
    assert down["cost"]["0"] == {"wavefronts": 32, "ideal": 4, "ways": 8}
    assert down["cost"]["128"] == {"wavefronts": 4, "ideal": 4, "ways": 1}
    assert along["cost"]["0"]["wavefronts"] == along["cost"]["128"]["wavefronts"] == 4


def test_data_of_the_figure_holds_each_chunk_once():
    data = layouts.layout_data(16, 64, "float16")
    assert [m["swizzle"] for m in data["modes"]] == [0, 32, 64, 128]
    for mode in data["modes"]:
        flat = [offset for row in mode["offsets"] for offset in row]
        assert sorted(flat) == list(range(0, 2048, 16))
    assert data["modes"][3]["offsets"][3][5] == 3 * 128 + (5 ^ 3) * 16


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: layouts.swizzle_offset(0, 96), "96"),
        (lambda: layouts.swizzle_offset(-1, 32), "-1"),
        (lambda: layouts.smem_offset(4, 0, rows=4, cols=64), r"\(4, 0\)"),
        (lambda: layouts.smem_offset(0, 0, rows=4, cols=48), "multiple of 128"),
        (lambda: layouts.bank_conflicts([0], 3), "3"),
        (lambda: layouts.bank_conflicts([2], 4), "aligned"),
        (lambda: layouts.bank_conflicts([0] * 33, 4), "33"),
        (lambda: layouts.layout(8, 64, "float12"), "float12"),
        (lambda: layouts.layout(8, 32, "float16", swizzle=128), "64 bytes"),
        (lambda: layouts.layout(8, 7, "float16"), "14 bytes"),
        (lambda: layouts.layout(0, 64), "0 x 64"),
    ],
)
def test_bad_input_is_refused_with_the_value_in_the_message(call, words):
    with pytest.raises(ValueError, match=words):
        call()
