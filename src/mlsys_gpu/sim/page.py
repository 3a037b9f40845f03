"""HTML of reports and debug sessions: one style, self-contained, light and dark, no scripts.

The style follows the page that it stands in: the book's ``data-theme``, JupyterLab's and VS Code's
themes, and elsewhere the system's. Whatever a colour says is said in words or by a pattern too.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from mlsys_gpu.sim.report import Location

_LIGHT = (
    "--o-fg:#1b1f24;--o-muted:#4d5761;--o-bg:#fff;--o-panel:#f5f7f9;--o-line:#8a949e;"
    "--o-soft:#d4dae0;--o-accent:#0a4f94;--o-accent-bg:#d9ecfd;--o-warm:#8a4600;"
    "--o-warm-bg:#ffe6c7;--o-good:#17612f;--o-good-bg:#d8f3df;--o-bad:#9c1c1c;--o-bad-bg:#fde1df"
)
_DARK = (
    "--o-fg:#e8edf2;--o-muted:#aeb8c2;--o-bg:#14181d;--o-panel:#1e242b;--o-line:#75808b;"
    "--o-soft:#3a434c;--o-accent:#8cc8ff;--o-accent-bg:#12395c;--o-warm:#ffc277;"
    "--o-warm-bg:#543208;--o-good:#86dc9d;--o-good-bg:#143d20;--o-bad:#ffa9a3;--o-bad-bg:#551a19"
)
_IN_LIGHT = (
    'html[data-theme="light"] .mg-out,body[data-jp-theme-light="true"] .mg-out,'
    "body.vscode-light .mg-out"
)
_IN_DARK = (
    'html[data-theme="dark"] .mg-out,body[data-jp-theme-light="false"] .mg-out,'
    "body.vscode-dark .mg-out"
)

STYLE = f"""<style>
.mg-out{{{_LIGHT};box-sizing:border-box;max-width:100%;margin:.6rem 0;padding:.7rem .9rem;
border:1px solid var(--o-soft);border-radius:8px;background:var(--o-bg);color:var(--o-fg);
font:14px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;
text-align:left;overflow-wrap:anywhere}}
@media (prefers-color-scheme:dark){{.mg-out{{{_DARK}}}}}
{_IN_LIGHT}{{{_LIGHT}}}
{_IN_DARK}{{{_DARK}}}
.mg-out *{{box-sizing:border-box}}
.mg-out p{{margin:.35rem 0;color:inherit}}
.mg-out p.o-title,.mg-out p.o-lead{{margin:.8rem 0 .3rem;font-size:15px;font-weight:650}}
.mg-out p.o-lead{{margin-top:0;font-size:14px;font-weight:400}}
.mg-out .o-head{{margin-top:0}}
.mg-out .o-muted{{color:var(--o-muted)}}
.mg-out .o-tag{{display:inline-block;padding:.05rem .55rem;border:1px solid currentColor;
border-radius:999px;font-size:12px;font-weight:650;white-space:nowrap}}
.mg-out .o-good{{background:var(--o-good-bg);color:var(--o-good)}}
.mg-out .o-bad{{background:var(--o-bad-bg);color:var(--o-bad)}}
.mg-out .o-warm{{background:var(--o-warm-bg);color:var(--o-warm)}}
.mg-out .o-info{{background:var(--o-accent-bg);color:var(--o-accent)}}
.mg-out .o-card{{margin:.6rem 0;padding:.5rem .7rem;border:1px solid var(--o-soft);
border-left:4px solid var(--o-bad);border-radius:6px}}
.mg-out .o-card.o-of-warning{{border-left-color:var(--o-warm)}}
.mg-out .o-card.o-plain{{border-left-color:var(--o-accent)}}
.mg-out pre{{margin:.3rem 0;padding:.35rem .5rem;border:0;border-radius:4px;
background:var(--o-panel);color:var(--o-fg);font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,
"DejaVu Sans Mono",monospace;white-space:pre;overflow-x:auto;overflow-wrap:normal}}
.mg-out code{{padding:0;border:0;background:none;color:inherit;font-family:ui-monospace,
SFMono-Regular,Menlo,"DejaVu Sans Mono",monospace;font-size:13px}}
.mg-out mark{{background:var(--o-warm-bg);color:inherit}}
.mg-out .o-ln{{color:var(--o-muted);user-select:none}}
.mg-out dl{{display:grid;grid-template-columns:5.2rem minmax(0,1fr);gap:.15rem .6rem;
margin:.3rem 0}}
.mg-out dt{{margin:0;color:var(--o-muted);font-weight:500}}
.mg-out dd{{margin:0}}
.mg-out ul{{margin:.25rem 0;padding-left:1.1rem}}
.mg-out li{{margin:.15rem 0;color:inherit}}
.mg-out summary{{width:fit-content;cursor:pointer;color:var(--o-muted)}}
.mg-out :focus-visible{{outline:3px solid var(--o-accent);outline-offset:2px}}
.mg-out .o-scroll{{overflow-x:auto}}
.mg-out table{{width:auto;margin:.3rem 0;border-collapse:collapse;color:var(--o-fg);
font-size:13px;font-variant-numeric:tabular-nums}}
.mg-out caption{{caption-side:top;padding:.1rem 0;color:var(--o-muted);text-align:left}}
.mg-out th,.mg-out td{{padding:.2rem .55rem;border:0;border-bottom:1px solid var(--o-soft);
background:none;color:var(--o-fg);text-align:left;vertical-align:top;white-space:nowrap}}
.mg-out td.o-wrap{{min-width:14rem;white-space:normal}}
.mg-out td.o-num{{text-align:right}}
.mg-out svg{{display:block;max-width:100%;height:auto}}
.mg-out .o-chain{{display:flex;flex-wrap:wrap;align-items:center;gap:.3rem;margin:.3rem 0;
padding:0;list-style:none}}
.mg-out .o-chain li{{margin:0;padding:.15rem .5rem;border:1px solid var(--o-line);
border-radius:5px;background:var(--o-panel)}}
.mg-out .o-chain li+li{{margin-left:1.1rem;position:relative}}
.mg-out .o-chain li+li::before{{content:"→";position:absolute;left:-1.15rem;border:0}}
@media (max-width:480px){{.mg-out{{padding:.55rem .6rem}}.mg-out dl{{grid-template-columns:
minmax(0,1fr)}}.mg-out dt{{margin-top:.25rem}}}}
</style>"""


def esc(text: Any) -> str:
    return html.escape(str(text))


def page(kind: str, body: str) -> str:
    """One output: its style and its content. ``kind`` names it (``mg-report``, ``mg-debug``)."""
    return f'{STYLE}<div class="mg-out {kind}">{body}</div>'


def title(text: str) -> str:
    """The title of a part. No heading: an output stands at any depth of a page's headings."""
    return f'<p class="o-title">{esc(text)}</p>'


def lead(content: str) -> str:
    """The first line of a card, as HTML."""
    return f'<p class="o-lead">{content}</p>'


def tag(text: str, colour: str) -> str:
    """A label; ``colour`` is ``good``, ``bad``, ``warm`` or ``info``."""
    return f'<span class="o-tag o-{colour}">{esc(text)}</span>'


def source_line(place: Location | None, what: str = "source line") -> str:
    """A line of source with its number."""
    if place is None or not place.text:
        return ""
    line = f'<span class="o-ln">{place.line} | </span>{esc(place.text.strip())}'
    return scrolling("pre", f"{what} {place}", line)


def source_lines(lines: Sequence[str]) -> str:
    """Numbered lines, ``>  93 |     text``, less the indentation that all have; ``>`` marks one."""
    cut = [line.partition("| ") for line in lines]
    texts = textwrap.dedent("\n".join(text for _, _, text in cut)).split("\n")
    shown = [esc(f"{head}| {text}") for (head, _, _), text in zip(cut, texts, strict=True)]
    marked = [f"<mark>{x}</mark>" if x.startswith("&gt;") else x for x in shown]
    return scrolling("pre", "source around the stop", "\n".join(marked))


def scrolling(element: str, label: str, content: str) -> str:
    """An element that may be wider than the page: the keyboard reaches and scrolls it."""
    kind = ' class="o-scroll"' if element != "pre" else ""
    return (
        f'<{element}{kind} tabindex="0" role="region" aria-label="{esc(label)}">'
        f"{content}</{element}>"
    )


def folded(title: str, content: str) -> str:
    """Content that a click or Enter on its title shows."""
    return f"<details><summary>{esc(title)}</summary>{content}</details>"


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """A definition list; the values are HTML. Pairs without a value are left out."""
    rows = "".join(f"<dt>{esc(name)}</dt><dd>{value}</dd>" for name, value in pairs if value)
    return f"<dl>{rows}</dl>" if rows else ""


def table(
    header: Sequence[str], rows: Sequence[Sequence[Any]], caption: str, wrap: Sequence[int] = ()
) -> str:
    """A table in a region that scrolls; the columns ``wrap`` hold sentences."""
    head = "".join(f'<th scope="col">{esc(name)}</th>' for name in header)
    lines = []
    for row in rows:
        cells = []
        for i, cell in enumerate(row):
            kind = ' class="o-wrap"' if i in wrap else ""
            if isinstance(cell, (int, float)) and not isinstance(cell, bool):
                kind = ' class="o-num"'
            cells.append(f"<td{kind}>{esc(cell)}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    content = (
        f"<table><caption>{esc(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table>"
    )
    return scrolling("div", caption, content)


#: Cells of a map: what each character means, its fill, and a mark that needs no colour.
CELLS = {
    "#": ("written once", "var(--o-good-bg)", ""),
    "-": ("written in part", "var(--o-warm-bg)", "half"),
    ".": ("never written", "var(--o-bg)", "cross"),
    "2": ("written by several CTAs", "var(--o-bad-bg)", "two"),
    "x": ("wrong", "var(--o-bad-bg)", "cross"),
    "~": ("wrong in part", "var(--o-warm-bg)", "half"),
    "o": ("right", "var(--o-good-bg)", ""),
}


def cell_map(cells: Sequence[str], label: str, meanings: dict[str, str] | None = None) -> str:
    """A map of tiles as SVG, one character a tile (see :data:`CELLS`), with its legend.

    ``label`` says in words what there is to see.
    """
    rows, cols = len(cells), max(len(row) for row in cells)
    size = max(7, min(22, 336 // max(1, cols)))
    parts = []
    for r, row in enumerate(cells):
        for c, kind in enumerate(row):
            parts.append(_cell(kind, 1 + c * size, 1 + r * size, size))
    width, height = cols * size + 2, rows * size + 2
    used = [kind for kind in CELLS if any(kind in row for row in cells)]
    legend = "".join(
        f'<li style="display:flex;gap:.35rem;align-items:center;margin:0">'
        f'<svg width="16" height="16" aria-hidden="true">{_cell(kind, 1, 1, 14)}</svg>'
        f"{esc((meanings or {}).get(kind, CELLS[kind][0]))}</li>"
        for kind in used
    )
    return (
        f'<div style="display:flex;flex-wrap:wrap;gap:.6rem 1rem;align-items:flex-start">'
        f'<svg role="img" aria-label="{esc(label)}" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">{"".join(parts)}</svg>'
        f'<ul style="list-style:none;margin:0;padding:0;font-size:13px">{legend}</ul></div>'
    )


def _cell(kind: str, x: int, y: int, size: int) -> str:
    _, fill, mark = CELLS[kind]
    box = (
        f'<rect x="{x}" y="{y}" width="{size - 1}" height="{size - 1}" fill="{fill}" '
        'stroke="var(--o-line)"/>'
    )
    a, b = size * 0.25, size * 0.75 - 1
    lines = {
        "cross": [(a, a, b, b), (a, b, b, a)],
        "half": [(a, b, b, a)],
        "two": [(a, size * 0.38, b, size * 0.38), (a, size * 0.6, b, size * 0.6)],
    }.get(mark, [])
    drawn = "".join(
        f'<line x1="{x + x1:.1f}" y1="{y + y1:.1f}" x2="{x + x2:.1f}" y2="{y + y2:.1f}" '
        'stroke="var(--o-fg)" stroke-width="1.2"/>'
        for x1, y1, x2, y2 in lines
    )
    return box + drawn
