"""Orders of tiles against the kernels' own schedule, and their traffic against sums over tiles."""

import pytest

from mlsys_gpu.viz import order


def walk(tiles_m, tiles_n, group):
    """Tiles in order, by the words of the docstring: loops, no division."""
    found = []
    first = 0
    while first < tiles_m:
        rows = range(first, min(first + group, tiles_m))
        found += [(m, n) for n in range(tiles_n) for m in rows]
        first += group
    return found


@pytest.mark.parametrize(
    "shape", [(32, 32, 8), (9, 3, 8), (5, 7, 2), (4, 6, 4), (3, 5, 1), (2, 2, 9)]
)
def test_the_order_goes_down_a_group_and_on_to_the_next_column(shape):
    m, n, group = shape
    found = [order.tile_at(i, m, n, group) for i in range(m * n)]
    assert found == walk(m, n, group)
    assert len(set(found)) == m * n


@pytest.mark.parametrize("group", [1, 3, 8, 10])
def test_traffic_is_the_sum_over_tiles(group):
    M, N, K, ctas = 1200, 700, 200, 7
    found = order.order_traffic((M, N, K), ctas=ctas, group=group)
    tiles = walk(10, 6, group)
    assert (found["m"], found["n"]) == (10, 6)
    block = 128 * K * 2
    loaded = distinct = 0
    for start, told in zip(range(0, 60, ctas), found["rounds"], strict=True):
        mine = tiles[start : start + ctas]
        rows, columns = {m for m, _ in mine}, {n for _, n in mine}
        assert told["tiles"] == len(mine)
        assert (told["rows"], told["columns"]) == (len(rows), len(columns))
        assert told["loaded"] == 2 * block * len(mine)
        assert told["distinct"] == block * (len(rows) + len(columns))
        covered = [
            (m, n) for m0, m1, n0, n1 in told["boxes"] for m in range(m0, m1) for n in range(n0, n1)
        ]
        assert sorted(covered) == sorted(mine)
        assert {m for a, b in told["a"] for m in range(a, b)} == rows
        assert {n for a, b in told["b"] for n in range(a, b)} == columns
        loaded += told["loaded"]
        distinct += told["distinct"]
    assert (found["loaded"], found["distinct"]) == (loaded, distinct)
    assert found["least"] == block * 16


def test_a_square_of_tiles_reads_least():
    # 16 tiles share 4 + 4 block rows as a square, 16 + 1 as a column.
    def first(group):
        found = order.order_traffic((2048, 2048, 64), ctas=16, group=group)
        return found["rounds"][0]["rows"] + found["rounds"][0]["columns"]

    assert [first(g) for g in (1, 2, 4, 8, 16)] == [17, 10, 8, 10, 17]


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"ctas": 0}, "ctas is 0"),
        ({"groups": ()}, "a shape and a group"),
        ({"groups": (0,)}, "group is 0"),
        ({"shapes": [(128, 0, 64)]}, "N is 0"),
        ({"shapes": [(128 * 65, 128, 64)]}, "65 × 1 tiles"),
        ({"dtype": "float63"}, "float63"),
    ],
)
def test_bad_input_is_refused(kwargs, words):
    with pytest.raises(ValueError, match=words):
        order.tile_order(**{"shapes": [(256, 256, 64)], "ctas": 2, "groups": (1,), **kwargs})


def test_a_tile_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="tile 6 does not exist; there are 6"):
        order.tile_at(6, 2, 3, 2)


def test_order_of_step_6_is_the_kernels():
    """Which CTA stores which tile: the simulated kernel against ``tile_at``."""
    import mlsys_gpu as mg
    from mlsys_gpu.verification import gemm_inputs

    M, N, K, ctas = 1280, 384, 64, 5  # 10 rows: a group of 8 and one of 2
    A, B = gemm_inputs(M, N, K)
    import numpy as np

    for arch in mg.gemm.ARCHS:
        kernel = mg.gemm.step(6, arch=arch).build(M, N, K, ctas=ctas)
        D = np.full((M, N), np.nan, np.float16)
        report = mg.simulate(kernel, A, B, D, timing=True)
        shown = report.timing.timeline()
        labels = [
            shown["labels"][span[2]]
            for track in shown["tracks"]
            if track["id"].endswith("tma-store")
            for span in track["spans"]
        ]
        # The timeline shows CTA 0: tiles 0, 5, 10, …, each stored as two halves.
        expected = []
        for number in range(0, 30, ctas):
            m, n = order.tile_at(number, 10, 3, 8)
            for half in (0, 64):
                c = n * 128 + half
                expected.append(f"store D[{m * 128}:{m * 128 + 128}, {c}:{c + 64}]")
        assert labels == expected
