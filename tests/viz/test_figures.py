"""The frame of a figure: what every output must carry, in the book and in a notebook."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from mlsys_gpu import viz
from mlsys_gpu.viz import figures

from .two_stage import two_stage

MAKERS = {
    "execution-hierarchy": lambda: viz.execution_hierarchy(),
    "layout": lambda: viz.layout(16, 64),
    "gemm-tiles": lambda: viz.gemm_tiles(256, 384, 192),
    "tile-order": lambda: viz.tile_order([(512, 384, 256)], ctas=4),
    "timeline": lambda: viz.timeline(two_stage()),
}


def test_every_kind_has_its_module_and_a_maker():
    assert set(viz.kinds()) == set(MAKERS)
    for kind, name in figures.KINDS.items():
        source = (figures.ASSETS / name).read_text(encoding="utf-8")
        assert f'mlsysViz.register("{kind}"' in source


class Balance(HTMLParser):
    """Checks that elements are closed in the order in which they were opened."""

    void = frozenset({"input", "br", "img", "meta", "link", "hr"})

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("kind", MAKERS)
def test_markup_in_the_book_leaves_the_assets_to_the_page(kind, monkeypatch):
    monkeypatch.setenv(figures.BOOK_VARIABLE, "1")
    figure = MAKERS[kind]()
    markup = figure._repr_html_()
    assert "mlsysViz" not in markup
    assert "<style" not in markup
    balance = Balance()
    balance.feed(markup)
    assert balance.open == []
    carried = re.search(r'class="mg-fig-data">(.*?)</script>', markup, re.S)
    assert json.loads(carried.group(1)) == json.loads(json.dumps(figure.data))
    assert "<table" in markup  # the static form
    assert figure.alt.split(".")[0] in markup


@pytest.mark.parametrize("kind", MAKERS)
def test_markup_in_a_notebook_stands_alone(kind, monkeypatch):
    monkeypatch.delenv(figures.BOOK_VARIABLE, raising=False)
    markup = MAKERS[kind]()._repr_html_()
    assert f'mlsysViz.register("{kind}"' in markup
    assert "--mg-fg" in markup
    assert not re.search(r"""(?:src|href)=["']""", markup)
    assert "http" not in re.sub(r"http://www\.w3\.org/\S+", "", markup)


def test_ids_do_not_repeat():
    ids = [re.search(r'id="(mg-fig-\d+)"', viz.layout(8, 64)._repr_html_()).group(1) for _ in "ab"]
    assert len(set(ids)) == 2


def test_data_cannot_end_the_element_that_carries_it():
    figure = viz.figure("layout", {"text": "</script><b>"}, title="t", alt="a")
    assert "</script><b>" not in figure._body()


@pytest.mark.parametrize(
    ("kwargs", "error"),
    [
        ({"kind": "pie"}, ValueError),
        ({"title": " "}, ValueError),
        ({"alt": ""}, ValueError),
        ({"data": {"x": object()}}, TypeError),
        ({"data": {"x": float("nan")}}, ValueError),
    ],
)
def test_a_figure_without_words_or_json_is_refused(kwargs, error):
    good = {"kind": "layout", "data": {}, "title": "t", "alt": "a"} | kwargs
    kind, data = good.pop("kind"), good.pop("data")
    with pytest.raises(error):
        viz.figure(kind, data, **good)


def test_badges():
    assert "measured live" in viz.badge("measured")._repr_html_()
    assert "recorded: H200 &lt;x&gt;" in viz.badge("recorded", "H200 <x>")._repr_html_()
    with pytest.raises(ValueError, match="guessed"):
        viz.badge("guessed")


def test_importing_viz_is_quick_and_brings_no_matplotlib():
    code = (
        "import sys, mlsys_gpu.viz as v; v.layout(8, 64);"
        "print([m for m in ('matplotlib', 'numpy', 'tvm', 'torch') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_tables_name_rows_where_the_first_heading_is_empty():
    text = figures.table_html(["", "a<b"], [["first", 1], ["second", 2]], "c")
    assert "<thead><tr><td></td>" in text
    assert '<th scope="col">a&lt;b</th>' in text
    assert text.count('<th scope="row">') == 2
    assert '<th scope="row">' not in figures.table_html(["x", "y"], [[1, 2]])


def test_tables_keep_short_cells_whole_and_long_ones_wide():
    sentence = "a sentence that wants room"
    text = figures.table_html(["x", "y", "z"], [["Step 9", sentence, "middling, 20 letters"]])
    assert '<td class="mg-short">Step 9</td>' in text
    assert f'<td class="mg-long">{sentence}</td><td>middling, 20 letters</td>' in text
