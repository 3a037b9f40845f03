"""The frame around every interactive figure: HTML, assets, accessibility, static fallback."""

from __future__ import annotations

import html
import itertools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ASSETS = Path(__file__).parent / "assets"

#: kind -> its JavaScript module in ``viz/assets``. The book bundles all of them.
KINDS: dict[str, str] = {
    "execution-hierarchy": "viz-execution-hierarchy.js",
    "layout": "viz-layout.js",
    "gemm-tiles": "viz-gemm-tiles.js",
    "tile-order": "viz-tile-order.js",
    "timeline": "viz-timeline.js",
}

#: Set by the book's Sphinx extension: the page loads the assets itself, so outputs leave them out.
BOOK_VARIABLE = "MLSYS_GPU_BOOK"

BADGES: dict[str, str] = {
    "simulated": "simulated",
    "measured": "measured live",
    "recorded": "recorded",
    "modelled": "modelled",
    "not-on-silicon": "not yet run on silicon",
}

BADGE_MEANING: dict[str, str] = {
    "simulated": "computed by the course's simulator on this machine; no GPU took part",
    "measured": "measured on the GPU of the machine that executed this page",
    "recorded": "read from a committed result file that names its GPU, versions and date",
    "modelled": "computed by the time model, not measured",
    "not-on-silicon": "assembled and simulated; no B200 has run it for this course so far",
}

_ids = itertools.count(1)


class Html:
    """A piece of HTML that a notebook shows as it is, with a plain-text form beside it."""

    def __init__(self, markup: str, text: str):
        self.markup = markup
        self.text = text

    def _repr_html_(self) -> str:
        return self.markup

    def __repr__(self) -> str:
        return self.text


def kinds() -> tuple[str, ...]:
    """Names of the registered kinds of figure."""
    return tuple(KINDS)


def badge(kind: str, note: str = "") -> Html:
    """Label saying where an output comes from.

    kind: ``simulated``, ``measured``, ``recorded``, ``modelled`` or ``not-on-silicon``.
    note: a few words after it, such as the GPU and date of a recording.
    Raises ValueError for another kind.
    """
    return Html(badge_html(kind, note), f"[{BADGES.get(kind, kind)}{', ' + note if note else ''}]")


def badge_html(kind: str, note: str = "") -> str:
    """The markup of :func:`badge`, for the Sphinx extension too."""
    if kind not in BADGES:
        raise ValueError(f"badge kind is {kind!r}; there are {', '.join(BADGES)}")
    words = BADGES[kind] + (f": {note}" if note else "")
    return (
        f'<span class="mg-badge mg-badge-{kind}" title="{html.escape(BADGE_MEANING[kind])}">'
        f"{html.escape(words)}</span>"
    )


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _json_for_html(data: Any) -> str:
    # "</script>" or "<!--" inside a string must not end the element that carries the JSON.
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c")


class Figure:
    """An interactive figure; the last expression of a cell shows it.

    Attributes: ``kind``, ``data`` (JSON-able), ``title``, ``alt``, ``caption``, ``fallback`` (HTML
    that stands where JavaScript does not run).
    """

    def __init__(
        self,
        kind: str,
        data: Mapping[str, Any],
        *,
        title: str,
        alt: str,
        caption: str | None = None,
        fallback: str | None = None,
    ):
        if kind not in KINDS:
            raise ValueError(f"figure kind is {kind!r}; there are {', '.join(KINDS)}")
        for name, value in (("title", title), ("alt", alt)):
            if not value.strip():
                raise ValueError(f"{name} is empty; every figure needs one in words")
        self.kind = kind
        self.data = dict(data)
        self.title = title
        self.alt = alt
        self.caption = caption
        self.fallback = fallback or ""
        _json_for_html(self.data)  # anything that JSON cannot hold shows up here, not in the page

    def __repr__(self) -> str:
        return f"<{self.kind} figure: {self.title}>\n{self.alt}"

    def _body(self) -> str:
        ident = f"mg-fig-{next(_ids)}"
        caption = f'<p class="mg-fig-caption">{self.caption}</p>' if self.caption else ""
        return (
            f'<figure class="mg-fig" id="{ident}" data-kind="{self.kind}" role="group" '
            # JupyterLab would take the arrow keys for itself.
            'data-lm-suppress-shortcuts="true" '
            f'aria-labelledby="{ident}-t" aria-describedby="{ident}-a">'
            f'<figcaption class="mg-fig-title" id="{ident}-t">{html.escape(self.title)}'
            "</figcaption>"
            f'<div class="mg-fig-stage"><div class="mg-fig-static">{self.fallback}</div></div>'
            f"{caption}"
            f'<details class="mg-fig-alt"><summary>In words</summary>'
            f'<p id="{ident}-a">{html.escape(self.alt)}</p></details>'
            f'<script type="application/json" class="mg-fig-data">{_json_for_html(self.data)}'
            "</script></figure>"
        )

    def _repr_html_(self) -> str:
        if os.environ.get(BOOK_VARIABLE):
            return self._body()
        # A notebook has no page of ours around it: bring style and code along, each time, so
        # that any one output works on its own.
        return self.standalone()

    def standalone(self) -> str:
        """The figure with its style and code, for a page that has neither."""
        return (
            f"<style>{_asset('viz-figure.css')}</style>{self._body()}"
            f"<script>{_asset('viz-core.js')}\n{_asset(KINDS[self.kind])}\n"
            "mlsysViz.start();</script>"
        )


def figure(
    kind: str,
    data: Mapping[str, Any],
    *,
    title: str,
    alt: str,
    caption: str | None = None,
    fallback: str | None = None,
) -> Figure:
    """Make an interactive figure.

    kind: one of :func:`kinds`. data: what the kind's JavaScript draws, plain JSON values.
    title, alt: heading, and the same content in words; both required. caption: HTML under the
    figure. fallback: HTML shown where JavaScript does not run.
    Raises ValueError for an unknown kind, an empty title or alt, or data that JSON cannot hold.
    """
    return Figure(kind, data, title=title, alt=alt, caption=caption, fallback=fallback)


def _kind_of(text: str) -> str:
    """The class of a table's cell by the length of its text, as an attribute."""
    kind = "mg-short" if len(text) <= 12 else "mg-long" if len(text) > 24 else ""
    return f' class="{kind}"' if kind else ""


def table_html(header: list[str], rows: list[list[Any]], caption: str = "") -> str:
    """A plain HTML table, the usual static fallback of a figure.

    Where the first heading is empty, the first column holds the titles of the rows. On a narrow
    page a short cell stays on one line and a long one keeps a width to be read in; the table
    scrolls rather than squeeze them.
    """
    titled = bool(header) and not str(header[0]).strip()

    def heading(text: Any, scope: str) -> str:
        return f'<th scope="{scope}">{html.escape(str(text))}</th>'

    def line(row: list[Any]) -> str:
        cells = [f"<td{_kind_of(str(cell))}>{html.escape(str(cell))}</td>" for cell in row]
        if titled:
            cells[0] = heading(row[0], "row")
        return f"<tr>{''.join(cells)}</tr>"

    head = [heading(h, "col") if str(h).strip() else "<td></td>" for h in header]
    words = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    return (
        f'<table class="mg-table">{words}<thead><tr>{"".join(head)}</tr></thead>'
        f"<tbody>{''.join(line(row) for row in rows)}</tbody></table>"
    )
