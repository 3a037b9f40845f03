"""What the build left: pages, outputs of every cell, nothing that asks another host."""

import ast
import re
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup

from mlsys_gpu.grading import manifest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


class Elements(HTMLParser):
    """Every start tag with its attributes."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, {name: value or "" for name, value in attrs}))

    def of_class(self, name: str) -> list[dict[str, str]]:
        return [a for _, a in self.found if name in a.get("class", "").split()]


def notebook(book: Path, page_name: str):
    """The executed notebook of a page, or None for a page without cells."""
    path = book.parent / "jupyter_execute" / f"{page_name}.ipynb"
    return nbformat.read(path, as_version=4) if path.is_file() else None


def shows_something(source: str) -> bool:
    """Whether a cell must have an output: it prints, or its last line is a value."""
    plain = re.sub(r"^[%!].*$", "", source, flags=re.M)
    body = ast.parse(plain).body
    if not body:
        return False
    if isinstance(body[-1], ast.Expr) and not source.rstrip().endswith(";"):
        called = body[-1].value.func if isinstance(body[-1].value, ast.Call) else None
        # A method called for its effect returns nothing to show.
        return not (isinstance(called, ast.Attribute) and called.attr in {"append", "fill", "seed"})
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
        for statement in body
        for node in ast.walk(statement)
        if not isinstance(statement, (ast.FunctionDef, ast.ClassDef))
    )


def test_every_page_of_the_table_of_contents_exists(book, page_name):
    text = (book / f"{page_name}.html").read_text(encoding="utf-8")
    assert "<h1>" in text
    number = re.match(r"(\d+)-", Path(page_name).name)
    if number:
        assert re.search(rf"<h1>{int(number.group(1))}\. ", text)


def test_the_front_door_leads_to_the_first_page(book):
    text = (book / "index.html").read_text(encoding="utf-8")
    assert "chapters/index.html" in text


def test_every_code_cell_ran_and_shows_what_it_should(book, page_name):
    made = notebook(book, page_name)
    source = (ROOT / f"{page_name}.md").read_text(encoding="utf-8")
    cells_in_source = len(re.findall(r"^(?:`{3,}|:{3,})\{code-cell\}", source, flags=re.M))
    if made is None:
        assert cells_in_source == 0, "the page has cells but no executed notebook"
        return
    cells = [c for c in made.cells if c.cell_type == "code"]
    assert len(cells) == cells_in_source
    for cell in cells:
        tags = cell.metadata.get("tags", [])
        for output in cell.outputs:
            assert output.output_type != "error" or "raises-exception" in tags, output
            assert output.get("name") != "stderr", output
        if shows_something(cell.source) and "raises-exception" not in tags:
            assert cell.outputs, f"no output for:\n{cell.source}"

    # And what the notebook has, the page has: caches once left such places empty.
    shown = [
        c
        for c in cells
        if c.outputs and not {"remove-output", "remove-cell"} & set(c.metadata.get("tags", []))
    ]
    text = (book / f"{page_name}.html").read_text(encoding="utf-8")
    assert len(Elements(text).of_class("cell_output")) == len(shown)


def all_pages(book: Path) -> list[Path]:
    return [p for p in book.rglob("*.html") if "_static" not in p.parts]


def test_every_exercise_stands_in_its_chapter(book, pages):
    """A chapter tells what its exercises are and where their files lie."""
    chapters = {number.group(1): name for name in pages if (number := re.search(r"/(\d+)-", name))}
    for exercise in manifest.load(ROOT):
        name = chapters[f"{exercise.chapter:02d}"]
        page = BeautifulSoup((book / f"{name}.html").read_text(encoding="utf-8"), "html.parser")
        section = page.select_one("section#exercises")
        assert section is not None, name
        text = " ".join(section.get_text(" ").replace("’", "'").split())
        for expected in (exercise.id, exercise.title, f"exercises/{exercise.file}"):
            assert expected in text, f"{exercise.id}: {expected!r} is not among those of {name}"


def test_no_page_loads_anything_from_another_host(book):
    for path in all_pages(book):
        for tag, attrs in Elements(path.read_text(encoding="utf-8")).found:
            if tag == "a":
                continue
            for name in ("src", "href", "data", "poster", "srcset"):
                assert not re.match(r"(https?:)?//", attrs.get(name, "")), (path, tag, attrs)
    for path in (book / "_static").glob("*.css"):
        text = path.read_text(encoding="utf-8", errors="replace")
        assert not re.search(r"@import[^;]*//|url\(['\"]?(https?:)?//", text), path


def test_links_inside_the_book_lead_somewhere(book):
    for path in all_pages(book):
        page = Elements(path.read_text(encoding="utf-8"))
        for tag, attrs in page.found:
            target = attrs.get("href", "") if tag == "a" else attrs.get("src", "")
            if not target or re.match(r"[a-z]+:|//|#", target):
                continue
            file = (path.parent / re.sub(r"[?#].*", "", target)).resolve()
            assert file.exists(), (path.relative_to(book), target)


def test_figures_bring_a_static_form_and_words(book):
    figures = 0
    for path in (book / "chapters").rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        for piece in re.findall(r'<figure class="mg-fig".*?</figure>', text, re.S):
            figures += 1
            words = re.search(
                r'<details class="mg-fig-alt">.*?<p id="[^"]+">(.*?)</p>', piece, re.S
            )
            assert len(words.group(1)) > 40
            # a timeline first says that it is modelled
            assert re.search(r'class="mg-fig-static">(<p>.*?</p>)?<(table|svg|img)', piece)
    assert figures >= 3


def test_what_is_vendored_carries_its_licence():
    static = ROOT / "book" / "_static"
    for folder in (p for p in static.iterdir() if p.is_dir()):
        assert (folder / "LICENSE").is_file(), folder
    for path in (ROOT / "src/mlsys_gpu/viz/assets").iterdir():
        assert "SPDX-License-Identifier: Apache-2.0" in path.read_text(encoding="utf-8"), path
