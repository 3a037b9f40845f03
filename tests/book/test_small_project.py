"""The extension in a small project of its own: fresh outputs, numbers, listings, refusals."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]

CONF = """
import sys
from pathlib import Path
sys.path.insert(0, {ext!r})
import mlsys_book
mlsys_book.inputs_hash = lambda: Path({key!r}).read_text()
project = "small"
extensions = ["myst_nb", "mlsys_book"]
nb_execution_mode = "cache"
html_theme = "alabaster"
mlsys_page_seconds = {seconds}
"""

HEAD = """---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---
"""


class Small:
    """A project in a folder; ``build`` returns its page's HTML and what Sphinx warned of."""

    def __init__(self, folder: Path):
        self.source = folder / "source"
        self.source.mkdir()
        self.out = folder / "build" / "html"
        self.key = folder / "key"
        self.key.write_text("first")
        self.seconds = 120.0

    def page(self, text: str, name: str = "index") -> None:
        (self.source / f"{name}.md").write_text(HEAD + text, encoding="utf-8")

    def build(self, name: str = "index") -> tuple[str, str]:
        conf = CONF.format(ext=str(ROOT / "book/_ext"), key=str(self.key), seconds=self.seconds)
        (self.source / "conf.py").write_text(conf)
        done = subprocess.run(
            [sys.executable, "-m", "sphinx", "-q", "-N", str(self.source), str(self.out)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        told = [line for line in done.stderr.splitlines() if "WARNING:" in line or "ERROR:" in line]
        return (self.out / f"{name}.html").read_text(encoding="utf-8"), "\n".join(told)


@pytest.fixture
def small(tmp_path):
    pytest.importorskip("myst_nb")
    return Small(tmp_path)


def test_an_output_is_as_new_as_the_package_and_no_newer_than_needed(small, tmp_path):
    module = tmp_path / "module.txt"  # stands for src/mlsys_gpu: neither page nor cell changes
    small.page(f"# T\n\n```{{code-cell}}\nprint(open({str(module)!r}).read())\n```\n")
    module.write_text("answer-one")
    assert "answer-one" in small.build()[0]
    module.write_text("answer-two")
    assert "answer-one" in small.build()[0]  # the key says that nothing changed: not executed again
    small.key.write_text("second")
    assert "answer-two" in small.build()[0]
    assert [p.name for p in (small.out.parent / ".jupyter_cache").iterdir()] == ["second"]


def test_a_slow_page_is_reported(small):
    small.seconds = 0.05
    small.page("# T\n\n```{code-cell}\nimport time; time.sleep(0.2)\n```\n")
    assert "the limit is 0.05 s" in small.build()[1]


def test_chapters_are_numbered_by_their_file(small):
    small.page("# Start\n\n```{toctree}\n12-tiles\n13-pipes\n```\n")
    small.page("# Tiles\n\nSee {doc}`13-pipes`.\n", "12-tiles")
    small.page("# 13. Pipes\n", "13-pipes")
    text, told = small.build("12-tiles")
    assert "<h1>12. Tiles" in text
    assert "13. Pipes</span>" in text  # named by its number, once
    assert told == ""


def test_listing_part_diff_badge_and_missing_results(small):
    small.page(
        "# T\n\n"
        "```{kernel} gemm/hopper/step2\n:part: check\n```\n\n"
        "```{kernel-diff} gemm/hopper/step1 gemm/hopper/step2\n```\n\n"
        "{badge}`recorded H200`\n\n"
        "```{recorded} b200/gemm.json\n```\n"
    )
    text, told = small.build()
    assert told == ""
    listing = re.search(r"<pre>(.*?)</pre>", text, re.S).group(1)
    assert "check_equal" in listing
    assert "prim_func" not in listing
    assert 'class="gi"' in text
    assert "mg-badge-recorded" in text
    assert "No figures from B200 have been recorded yet" in text


@pytest.mark.parametrize(
    ("markup", "words"),
    [
        ("```{kernel} gemm/hopper/step77\n```", "step77"),
        ("```{kernel-diff} gemm/hopper/step1 gemm/hopper/step77\n```", "step77"),
        ("{badge}`guessed`", "guessed"),
        ("```{recorded} h200/gemm.json\n:kernels: gemm/hopper/step77\n```", "no row has"),
    ],
)
def test_a_mistake_in_a_page_is_an_error_of_the_build(small, markup, words):
    small.page(f"# T\n\n{markup}\n")
    told = small.build()[1]
    assert "ERROR" in told
    assert words in told
