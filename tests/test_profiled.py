"""scripts/h200/profiled.py without a GPU: what it reads of what ncu prints."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from mlsys_gpu import gemm

ROOT = Path(__file__).resolve().parents[1]

HEAD = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",'
    '"Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"'
)


def seen(number: int, kernel: str, cycles: str, us: str, tensor: str, l2: str) -> list[str]:
    place = (
        f'"{number}","506","python3.12","127.0.0.1","{kernel}","1","7","(128, 1, 1)","(32, 32, 1)"'
    )
    place += ',"0","9.0","Command line profiler metrics"'
    return [
        f'{place},"gpu__time_duration.sum","ns","{us}"',
        f'{place},"lts__t_bytes.sum","byte","{l2}"',
        f'{place},"sm__cycles_elapsed.max","cycle","{cycles}"',
        f'{place},"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed","%","{tensor}"',
    ]


FIVE, SIX = (f"gemm_hopper_step{n}_kernel" for n in (5, 6))
PRINTED = "\n".join(
    [
        "==PROF== Connected to process 506", HEAD,
        *seen(0, FIVE, "302,674", "197,568", "84.65", "1,720,844,512"),
        *seen(1, SIX, "300,000", "195,000", "85.00", "1,500,000,000"),
        *seen(2, FIVE, "301,000", "196,000", "85.65", "1,700,000,000"),
        *seen(3, SIX, "310,000", "199,000", "83.00", "1,400,000,000"),
    ]
)  # fmt: skip


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("profiled", ROOT / "scripts/h200/profiled.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def wanted(script) -> list[Any]:
    return list(script.launches(gemm.selected("5,6", "hopper"), [4096], 2))


def test_rows_are_medians_in_units_of_their_names(script, wanted):
    five, six = script.rows(script.read(PRINTED), wanted, "float16")
    assert (five["kernel"], five["M"], five["launches"]) == ("gemm/hopper/step5", 4096, 2)
    assert five["cycles"] == (302674 + 301000) / 2
    assert five["cycles_spread"] == [301000, 302674]
    assert five["us"] == pytest.approx((197.568 + 196) / 2)
    assert five["tensor_active"] == pytest.approx((0.8465 + 0.8565) / 2)
    assert five["l2_bytes"] == pytest.approx((1720844512 + 1.7e9) / 2, rel=1e-5)
    assert six["l2_bytes"] == 1.45e9


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ((FIVE, "gemm_hopper_step7_kernel"), "ncu saw .*step7"),
        ((PRINTED, "\n".join(PRINTED.splitlines()[:-4])), "ncu saw"),
        ((PRINTED, "\n".join(PRINTED.splitlines()[:-1])), "lacks sm__pipe_tensor"),
        ((PRINTED, "==ERROR== no permission"), "printed no table: ==ERROR== no permission"),
        (('"ns"', '"us"'), "is in 'us'"),
    ],
)
def test_what_is_not_what_was_launched_is_refused(script, wanted, change, words):
    with pytest.raises(ValueError, match=words):
        script.rows(script.read(PRINTED.replace(*change)), wanted, "float16")


@pytest.mark.parametrize(
    ("options", "words"),
    [([], "GPU"), (["--launches", "0"], "at least 1, got 0"), (["--steps", "12"], "12")],
)
def test_what_cannot_be_measured_is_said_in_a_line(script, monkeypatch, capsys, options, words):
    monkeypatch.setattr("sys.argv", ["profiled.py", *options])
    assert script.main() == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_the_committed_profile_is_of_these_kernels():
    content = json.loads((ROOT / "book/results/h200/profile.json").read_text())
    assert content["provenance"]["gpu"]["arch"] == "sm_90a"
    assert len(content["rows"]) == 12
    for row in content["rows"]:
        assert 0 < row["tensor_active"] <= 1
        # At 4,096 FLOP a clock and SM they do the product's own work, and hardly more.
        work = 2 * row["M"] ** 3 / (132 * 4096) / row["cycles"]
        assert work == pytest.approx(row["tensor_active"], rel=0.03)
