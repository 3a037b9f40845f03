"""Tiles and traffic of a GEMM against sums made one tile at a time."""

import itertools

import pytest

from mlsys_gpu.viz import tiles


@pytest.mark.parametrize(
    ("M", "N", "K", "tile"),
    [
        (512, 384, 256, (128, 128, 64)),
        (100, 200, 70, (64, 128, 32)),
        (128, 128, 64, (128, 128, 64)),
    ],
)
def test_traffic_is_the_sum_over_tiles_and_steps(M, N, K, tile):
    BM, BN, BK = tile
    loaded = stored = flop = ctas = 0
    for m0, n0 in itertools.product(range(0, M, BM), range(0, N, BN)):
        ctas += 1
        rows, cols = min(BM, M - m0), min(BN, N - n0)
        stored += rows * cols * 2
        for k0 in range(0, K, BK):
            depth = min(BK, K - k0)
            loaded += (rows * depth + cols * depth) * 2
            flop += 2 * rows * cols * depth
    found = tiles.tile_traffic(M, N, K, tile)
    assert found["ctas"] == ctas
    assert (found["loaded"], found["stored"], found["flop"]) == (loaded, stored, flop)
    assert found["intensity"] == pytest.approx(flop / (loaded + stored))
    assert found["least"] == 2 * (M * K + N * K + M * N)

    data = tiles.gemm_tiles_data(M, N, K, tile)
    assert sum(t["steps"][-1]["loaded"] for t in data["tiles"]) == loaded
    assert sum(t["steps"][-1]["flop"] for t in data["tiles"]) == flop
    assert sum(t["stored"] for t in data["tiles"]) == stored


def test_tiles_cover_the_output_once_and_k_in_order():
    data = tiles.gemm_tiles_data(300, 260, 100, (128, 128, 64))
    covered = set()
    for t in data["tiles"]:
        cells = set(
            itertools.product(
                range(t["row0"], t["row0"] + t["rows"]), range(t["col0"], t["col0"] + t["cols"])
            )
        )
        assert not cells & covered
        covered |= cells
        assert [(s["k0"], s["depth"]) for s in t["steps"]] == [(0, 64), (64, 36)]
    assert covered == set(itertools.product(range(300), range(260)))


def test_the_order_of_ctas_can_be_told():
    data = tiles.gemm_tiles_data(256, 384, 64, cta_of=lambda m, n: (n, m))
    assert [t["cta"] for t in data["tiles"]] == [[0, 0], [1, 0], [2, 0], [0, 1], [1, 1], [2, 1]]


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"M": 0}, "M is 0"),
        ({"dtype": "float63"}, "float63"),
        ({"M": 128 * 300}, "300 tiles"),
        ({"tile": (128, 128, 0)}, "BK is 0"),
    ],
)
def test_bad_input_is_refused(kwargs, words):
    with pytest.raises(ValueError, match=words):
        tiles.gemm_tiles(**{"M": 128, "N": 128, "K": 64, **kwargs})
