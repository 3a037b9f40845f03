"""The simulator against an H200: the same kernels on the same numbers, bit for bit.

What the GPU computed is kept in ``tests/sim/vectors``; ``scripts/h200/vectors.py`` makes it anew.
Rounding, subnormal numbers, NaN, ties and zeros of both signs are among the inputs. Where bits may
differ is a table with reasons, :mod:`.vectors.units`.
"""

import re
from fnmatch import fnmatchcase

import numpy as np
import pytest
from tvm.backend.cuda.ptx import table as ptx

from . import vectors
from .vectors import compare, covered
from .vectors.units import RULES, rule_of

CASES = list(vectors.all_cases())
FAMILIES = list(dict.fromkeys(case.family for case in CASES))


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_simulator_computes_what_the_gpu_computed(case):
    held = vectors.kept(case.family)
    assert held is not None, f"no outputs are kept: {vectors.__doc__}"
    assert held.sources.get(case.name) == vectors.source_hash(case), (
        "the kernel or its inputs have changed: run scripts/h200/vectors.py on a Hopper GPU"
    )
    wrong = []
    for form, found, all_agree in compare.case_differences(case, held):
        rule = rule_of(form)
        if not found.within or (rule is None and not all_agree):
            wrong.append(f"{form}: {found}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("family", FAMILIES)
def test_where_the_outputs_come_from(family):
    held = vectors.kept(family)
    assert held is not None
    assert re.search("H100|H200", held.provenance["gpu"])
    assert {"driver", "cuda", "date", "sources"} <= set(held.provenance)
    assert vectors.file_of(family).stat().st_size < 1 << 20


@pytest.mark.parametrize("case", [c for c in CASES if c.sizes], ids=lambda c: c.name)
def test_float32_sums_are_within_units_of_the_largest_addend(case):
    """The usual reading adds in float32, in another order. Of the sum of the addends' sizes, the
    GPU's cuts take up to 17 / 2 units of 2**-24 and two for the last one, and each of 16 roundings
    here up to half a unit of a part of it; an fp16 result is a unit of its own more."""
    held = vectors.kept(case.family)
    assert held is not None
    report, results = case.simulate()
    assert not report.findings, report
    sizes = dict(zip(results, case.sizes(), strict=True))
    for form, theirs, _ in held.forms(case, results):
        half = case.formats[form] == "f16x2"
        kind = np.float16 if half else np.float32
        ours = np.ascontiguousarray(results[form]).reshape(-1)
        at = vectors.sampled(case.family, form, np.arange(ours.size))
        a, b = ours[at].view(kind).astype(np.float64), theirs.view(kind).astype(np.float64)
        size = sizes[form].reshape(ours.size, -1)[at].reshape(-1)
        sure = np.isfinite(size) & (size < (60000 if half else 2.0**126))
        bound = 16 * 2.0**-24 * size + (np.maximum(np.abs(b) * 2.0**-10, 2.0**-24) if half else 0)
        bound = bound + 2.0**-126
        assert (np.abs(a[sure] - b[sure]) <= bound[sure]).all(), form
        assert sure.sum() > sure.size // 3


def test_every_rule_is_needed():
    """A rule that no form uses, or that names forms which agree in every bit, would hide one."""
    used = {rule_of(form) for case in CASES for form in case.formats}
    assert used >= set(RULES)


def _listed(name: str) -> list[str]:
    patterns = [*(f"ptx.{p}" for p in covered.LATER_GPUS), *covered.WITHOUT]
    return [pattern for pattern in patterns if fnmatchcase(name, pattern)]


def test_every_operation_that_hopper_has_is_in_a_vector():
    """None of the list of what is modelled is left out, but for those with a reason."""
    missing = [name for name in covered.modelled() if name not in covered.used()]
    assert not [name for name in missing if not _listed(name)]
    used = {pattern for name in missing for pattern in _listed(name)}
    assert used == {*(f"ptx.{p}" for p in covered.LATER_GPUS), *covered.WITHOUT}


def test_what_is_left_to_later_gpus_is_not_assembled_for_hopper():
    for name in covered.modelled():
        if any(fnmatchcase(name, f"ptx.{pattern}") for pattern in covered.LATER_GPUS):
            needs = ptx.TABLE[name.removeprefix("ptx.")].cert_arch or ""
            assert re.match(r"sm_1\d\d", needs), name


def test_the_table_counts_forms_and_names_their_units():
    row = vectors.summary(["moves"]).splitlines()[-2]
    held = [int(number) for number in re.findall(r" (\d+)", row)]
    assert held == [1, 28, 28 * 256, 28, 0, 0]
    assert "128 ulp" in vectors.summary(["approximations"]).splitlines()[-2]
