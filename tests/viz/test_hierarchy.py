"""Facts of the execution hierarchy that follow from one another or from published limits."""

import itertools

import pytest

from mlsys_gpu.viz import hierarchy


@pytest.mark.parametrize("arch", ["hopper", "blackwell"])
def test_levels_and_memories_fit_together(arch):
    data = hierarchy.hierarchy_data(arch)
    shown = next(a for a in data["arches"] if a["id"] == arch)
    assert [v["id"] for v in shown["levels"]] == [
        "grid", "cluster", "cta", "warpgroup", "warp", "thread",
    ]  # fmt: skip
    known = {m["id"] for m in shown["memories"]}
    seen_above: set[str] = set()
    for level in shown["levels"]:
        assert set(level["sees"]) <= known
        # Whoever is further in sees what the outer level sees, and possibly more.
        assert seen_above <= set(level["sees"])
        seen_above = set(level["sees"])
    assert seen_above == known
    assert ("tmem" in known) == (arch == "blackwell")


def test_the_example_is_a_legal_launch():
    data = hierarchy.hierarchy_data()
    clusters, ctas, warpgroups, warps, lanes = data["counts"]
    assert (warps, lanes) == (4, 32)
    assert warpgroups * warps * lanes <= 1024
    assert ctas <= 8
    assert clusters >= 1
    assert all(0 <= at < n for at, n in zip(data["start"], data["counts"], strict=True))


@pytest.mark.parametrize("arch", ["hopper", "blackwell"])
def test_the_pipeline_is_one_connected_way_from_gmem_to_gmem(arch):
    data = hierarchy.hierarchy_data(arch)
    steps = next(a for a in data["arches"] if a["id"] == arch)["pipeline"]
    way = [s for s in steps if not s.get("loop")]
    assert way[0]["from"] == way[-1]["to"] == "gmem"
    for before, after in itertools.pairwise(way):
        assert before["to"] == after["from"]
    assert ("tmem" in {s["to"] for s in steps}) == (arch == "blackwell")


def test_bytes_of_the_pipeline():
    assert hierarchy.pipeline_bytes((128, 128, 64), "float16") == {
        "a": 16384, "b": 16384, "acc": 65536, "d": 32768,
    }  # fmt: skip
    assert hierarchy.pipeline_bytes((128, 256, 32), "float8_e4m3")["b"] == 8192


def test_tensor_memory_is_128_lanes_of_512_words():
    assert hierarchy.TMEM_BYTES == 262144


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="ampere"):
        hierarchy.execution_hierarchy("ampere")
    with pytest.raises(ValueError, match="at least 1"):
        hierarchy.execution_hierarchy(tile=(0, 1, 1))
