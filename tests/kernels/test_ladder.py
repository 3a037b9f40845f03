"""The files of the ladder are the lesson: short, one order, each a small diff from the last."""

import difflib
import re
from itertools import pairwise

import pytest

from mlsys_gpu.kernels import gemm

ALL = [(arch, step.number) for arch in gemm.ARCHS for step in gemm.steps(arch)]
# "tuned" is no variant of one idea, and no small diff.
VARIANTS = [
    pytest.param(v, id=v.name) for a in gemm.ARCHS for v in gemm.variants(a) if v.variant != "tuned"
]
PAIRS = [(arch, n) for arch, n in ALL if n > 1]


def lines_of(arch: str, n: int) -> list[str]:
    return gemm.step(n, arch).source_path.read_text().splitlines()


@pytest.mark.parametrize(("arch", "n"), ALL)
def test_a_step_fits_on_a_few_screens_and_in_the_book(arch, n):
    lines = lines_of(arch, n)
    # Roles with registers of their own need loops of their own. Hopper's have those from Step 7 on.
    loops = n >= (9 if arch == "blackwell" else 7)
    assert len(lines) <= (250 if loops else 190)
    too_wide = [f"{i}: {line}" for i, line in enumerate(lines, 1) if len(line) > 78]
    assert not too_wide


def changed(before: list[str], after: list[str]) -> list[str]:
    """What the book shows of two files: indentation alone is no change."""
    old, new = ([line.strip() for line in lines if line.strip()] for lines in (before, after))
    diff = difflib.unified_diff(old, new, n=0, lineterm="")
    return [d for d in diff if d[:1] in "+-" and d[:3] not in ("+++", "---")]


@pytest.mark.parametrize(("arch", "n"), PAIRS)
def test_a_step_is_a_small_diff_from_the_one_before(arch, n):
    found = changed(lines_of(arch, n - 1), lines_of(arch, n))
    # Hopper's Step 7 takes the kernel apart, and begins to count stages, which takes a section.
    most = 125 if (arch, n) == ("hopper", 7) else 110
    assert 0 < len(found) <= most, "\n".join(found)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_is_a_small_diff_from_its_step(variant):
    lines = variant.source_path.read_text().splitlines()
    assert len(lines) <= 300
    assert max(map(len, lines)) <= 78
    assert 0 < len(changed(lines_of(variant.arch, variant.number), lines)) <= 110


@pytest.mark.parametrize(("arch", "n"), ALL)
def test_the_docstring_says_what_a_step_is(arch, n):
    text = gemm.step(n, arch).module.__doc__ or ""
    assert text.startswith(f"Step {n}, ")
    heads = re.findall(r"^([A-Z][a-z]+(?: path)?) +\S", text, re.MULTILINE)
    order = ["Idea", "Scope", "Layout", "Dispatch", "Data path", "Roles", "Barriers"]
    assert [h for h in heads if h in order] == order
    assert heads[-2:] == ["Shapes", "Limits"]


@pytest.mark.parametrize("arch", gemm.ARCHS)
def test_sections_keep_their_names_and_order(arch):
    sections = []
    for step in gemm.steps(arch):
        # The name of a section; its data path, after a colon, may change.
        found = re.findall(
            r"# --- ([^:\n]+?)(?::.*)? -+$", step.source_path.read_text(), re.MULTILINE
        )
        sections.append(found)
        assert len(found) == len(set(found))
    for before, after in pairwise(sections):
        assert [s for s in after if s in before] == before


def test_both_architectures_tell_the_same_story():
    both = set.intersection(*({s.number for s in gemm.steps(a)} for a in gemm.ARCHS))
    assert both >= {1, 2, 3}
    for n in both:
        kept = []
        for arch in gemm.ARCHS:
            found = re.findall(r"# --- (\w+)", gemm.step(n, arch).source_path.read_text())
            kept.append([s for s in found if s in ("Who", "Shared", "Load", "MMA", "Epilogue")])
        assert kept[0] == kept[1] == ["Who", "Shared", "Load", "MMA", "Epilogue"]


@pytest.mark.parametrize(("arch", "n"), ALL)
def test_no_other_step_is_mentioned_in_a_kernels_code(arch, n):
    code = gemm.step(n, arch).source_path.read_text().partition('"""\n\nfrom')[2]
    assert set(re.findall(r"[Ss]tep ?(\d)", code)) == {str(n)}
    assert set(re.findall(r"gemm_(\w+)_step", code)) == {arch}
