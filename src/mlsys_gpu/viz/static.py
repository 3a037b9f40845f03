"""Static pictures: SVG by matplotlib that follows the page's light or dark theme.

Matplotlib draws with stand-in colours, which are then replaced by the CSS variables of
``viz-figure.css``; text stays text, so that it can be selected, searched and read aloud.
"""

from __future__ import annotations

import hashlib
import html
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mlsys_gpu.kernels.baselines import TITLES as BASELINES

# Stand-in -> CSS variable and the colour it has where no style sheet is loaded.
_THEME = {
    "#010203": ("--mg-fg", "#1b1f24"),
    "#010204": ("--mg-muted", "#4d5761"),
    "#010205": ("--mg-soft", "#d4dae0"),
    "#010206": ("--mg-accent", "#0a4f94"),
    "#010207": ("--mg-warm", "#8a4600"),
    "#010208": ("--mg-good", "#17612f"),
    "#010209": ("--mg-violet", "#5b3a9e"),
    "#01020a": ("--mg-bg", "#ffffff"),
}
FG, MUTED, SOFT, ACCENT, WARM, GOOD, VIOLET, BG = _THEME

TEXT = 13  #: size of all text, in units of the picture

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "mlsys-gpu",  # the same picture in every build
    "font.family": "sans-serif",
    "font.size": TEXT,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": FG,
    "axes.titlecolor": FG,
    "text.color": FG,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": FG,
    "ytick.labelcolor": FG,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": SOFT,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "legend.frameon": False,
}


class Picture:
    """A themed SVG with a description; the last expression of a cell shows it.

    Attributes: ``svg`` (text), ``alt``, ``title``, ``note`` (HTML above the picture, such as where
    its figures come from).
    """

    def __init__(self, svg: str, *, alt: str, title: str | None = None, note: str = ""):
        if not alt.strip():
            raise ValueError("alt is empty; every picture needs one in words")
        self.svg = svg
        self.alt = alt
        self.title = title
        self.note = note

    def __repr__(self) -> str:
        return f"<picture: {self.title or 'untitled'}>\n{self.alt}"

    def _repr_html_(self) -> str:
        title = f"<p><strong>{html.escape(self.title)}</strong></p>" if self.title else ""
        note = f"<p>{self.note}</p>" if self.note else ""
        # A label on the region that scrolls: at a phone's width the picture is wider than it.
        return (
            f'<div class="mg-static">{title}{note}'
            f'<div class="mg-scroll" tabindex="0" role="img" aria-label="{html.escape(self.alt)}">'
            f"{self.svg}</div></div>"
        )


def themed(figure: Any, *, alt: str, title: str | None = None, note: str = "") -> Picture:
    """Turn a matplotlib figure, drawn with this module's colours, into a :class:`Picture`.

    figure: a matplotlib Figure (made under :func:`style`). alt: the picture in words, required.
    note: HTML that stands above it.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    for stand_in, (variable, fallback) in _THEME.items():
        svg = svg.replace(stand_in, f"var({variable}, {fallback})")
    # The page's own font, and no ids that two pictures of a page could share.
    svg = re.sub(r"font-family: [^;\"]+", "font-family: system-ui, sans-serif", svg)
    svg = re.sub(r'(<g) id="[^"]*"', r"\1", svg)
    own = hashlib.sha256(svg.encode()).hexdigest()[:8]
    svg = re.sub(r' id="([^"]*)"', rf' id="{own}-\1"', svg)
    svg = re.sub(r"#(?=[mph][0-9a-f]{10}\b)", f"#{own}-", svg)
    # Below this width the picture scrolls rather than shrink its text under 12 px.
    drawn = re.search(r'viewBox="0 0 ([\d.]+)', svg)
    assert drawn is not None, "matplotlib writes a viewBox"
    sizes = [float(size) for size in re.findall(r"font-size: ([\d.]+)px", svg)]
    least = math.ceil(float(drawn.group(1)) * 12.1 / min(sizes, default=TEXT))
    svg = svg.replace(
        "<svg ", f'<svg aria-hidden="true" focusable="false" style="min-width: {least}px" ', 1
    )
    return Picture(svg, alt=alt, title=title, note=note)


def style() -> Any:
    """Context manager: matplotlib parameters for a themed picture."""
    import matplotlib

    return matplotlib.rc_context(_STYLE)


_VALUES = {"tflops": "TFLOP/s", "tflops_per_sm": "TFLOP/s per SM"}


def _step_name(kernel: str) -> str:
    match = re.search(r"step(\d+)$", kernel)
    return f"Step {match.group(1)}" if match else kernel.rsplit("/", 1)[-1].replace("_", " ")


def ladder(
    rows: Iterable[Mapping[str, Any]],
    *,
    value: str = "tflops",
    title: str | None = None,
    alt: str | None = None,
) -> Picture:
    """Bars of TFLOP/s, one for each row of a result file (``kernel``, ``ms``, ``tflops``, …).

    value: ``tflops`` or ``tflops_per_sm`` (Steps 1 and 2 keep one SM busy, so that only the latter
    compares them with the rest). Where a row has baselines, a mark shows what each of them reached
    on the same shape in the same run; per SM there are no marks, since a row does not say how many
    SMs a baseline used. Raises ValueError for no rows, or a row without the value.
    """
    from matplotlib.figure import Figure as MplFigure

    listed = list(rows)
    if not listed:
        raise ValueError("no rows to draw")
    if value not in _VALUES:
        raise ValueError(f"value is {value!r}; there are {', '.join(_VALUES)}")
    for row in listed:
        if row.get(value) is None:
            raise ValueError(f"the row of {row.get('kernel')} has no {value}")
    shapes = {tuple(row.get(k) for k in ("M", "N", "K", "seqlen")) for row in listed}
    labels = []
    for row in listed:
        label = _step_name(row["kernel"])
        if len(shapes) > 1 and "M" in row:
            label += f"\n{row['M']}×{row['N']}×{row['K']}"
        labels.append(label)
    values = [float(row[value]) for row in listed]
    colours = {"cublas": WARM, "cudnn": WARM, "flash_attention2": GOOD}
    colours |= {"triton": VIOLET, "triton_persistent": GOOD}
    with style():
        height = 0.9 + (0.62 if len(shapes) > 1 else 0.46) * len(listed)
        figure = MplFigure(figsize=(6.2, height))
        axes = figure.subplots()
        y = range(len(listed))
        axes.barh(y, values, color=ACCENT, height=0.6)
        used: set[str] = set()
        top = max(values)
        for i, row in enumerate(listed):
            axes.annotate(
                f"{values[i]:.3g}",
                (values[i], i),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
            )
            for name, entry in row.get("baseline", {}).items():
                if value != "tflops" or not entry.get("ms") or not row.get("ms"):
                    continue
                reached = values[i] * row["ms"] / entry["ms"]
                top = max(top, reached)
                axes.plot(
                    [reached, reached],
                    [i - 0.38, i + 0.38],
                    linewidth=3,
                    color=colours.get(name, MUTED),
                    label=None if name in used else BASELINES.get(name, name),
                )
                used.add(name)
        axes.set_yticks(list(y), labels)
        axes.invert_yaxis()
        axes.set_xlim(0, top * 1.15)
        axes.set_xlabel(_VALUES[value])
        axes.grid(axis="x", linewidth=0.8)
        axes.set_axisbelow(True)
        if used:
            axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(used))
        words = "; ".join(
            f"{label.replace(chr(10), ' ')} {value:.3g}"
            for label, value in zip(labels, values, strict=True)
        )
        return themed(figure, alt=alt or f"{_VALUES[value]}: {words}.", title=title)


def roofline(
    points: Sequence[tuple[str, float, float]],
    *,
    peak_tflops: float,
    bandwidth_tbs: float,
    title: str | None = None,
    alt: str | None = None,
) -> Picture:
    """Kernels on a roofline.

    points: (name, intensity in FLOP per byte, TFLOP/s). peak_tflops: the machine's peak.
    bandwidth_tbs: memory bandwidth in TB/s. Raises ValueError for values that are not positive.
    """
    from matplotlib.figure import Figure as MplFigure

    for name, x, y in [*points, ("the machine", peak_tflops, bandwidth_tbs)]:
        if not (x > 0 and y > 0):
            raise ValueError(f"{name}: {x} and {y} must both be above 0")
    ridge = peak_tflops / bandwidth_tbs
    xs = [x for _, x, _ in points]
    low, high = min([*xs, ridge]) / 3, max([*xs, ridge]) * 3
    with style():
        figure = MplFigure(figsize=(6.2, 4.0))
        axes = figure.subplots()
        axes.plot([low, ridge, high], [low * bandwidth_tbs, peak_tflops, peak_tflops], color=FG)
        for name, x, y in points:
            axes.plot([x], [y], "o", color=ACCENT, markersize=8)
            axes.annotate(name, (x, y), xytext=(8, -4), textcoords="offset points")
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            # 1000 rather than 10 to the third: its exponent would be too small to read.
            axis.set_major_formatter(lambda tick, _: f"{tick:g}")
            axis.set_minor_formatter(lambda tick, _: "")
        axes.set_xlabel("FLOP per byte of global memory")
        axes.set_ylabel("TFLOP/s")
        axes.grid(which="major", linewidth=0.8)
        words = "; ".join(
            f"{n} at {x:.3g} FLOP a byte reaches {y:.3g} TFLOP/s" for n, x, y in points
        )
        return themed(
            figure,
            alt=alt
            or f"Roofline with its ridge at {ridge:.0f} FLOP a byte and {peak_tflops:.0f} TFLOP/s. "
            f"{words}.",
            title=title,
        )


#: Colours of the memories in a :func:`data_path`, by the word that a stop's name begins with.
_MEMORIES = {"GMEM": MUTED, "SMEM": WARM, "TMEM": ACCENT, "registers": GOOD}


def data_path(columns: dict[str, list[tuple[str, str] | None]], *, title: str, alt: str) -> Picture:
    """Paths of data side by side: boxes for memories, and between them who moves the data, how.

    columns: heading -> stops from top to bottom, ``(name, how it goes on)``; a name begins with
    GMEM, SMEM, TMEM or registers. None leaves a row out, so that stops of two columns align.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyBboxPatch

    most = max(map(len, columns.values()))
    with style():
        figure = Figure(figsize=(4.3 * len(columns), 0.42 + 1.03 * most))
        axes = figure.subplots()
        axes.set_axis_off()
        axes.set_xlim(0, 5.2 * len(columns) - 0.2)
        axes.set_ylim(-0.35, 2.1 * most - 0.5)
        for number, (heading, stops) in enumerate(columns.items()):
            x = 0.1 + 5.2 * number
            axes.text(x, 2.1 * most - 0.85, heading, fontsize=14, fontweight="bold")
            above = None
            for row, stop in enumerate(stops):
                if stop is None:
                    continue
                name, how = stop
                y = 2.1 * (most - 1 - row) - 0.1
                colour = _MEMORIES[name.split(":")[0].split()[0]]
                axes.add_patch(
                    FancyBboxPatch(
                        (x, y), 4.3, 0.8, boxstyle="round,pad=0.06", facecolor="none",
                        edgecolor=colour, linewidth=2,
                    )
                )  # fmt: skip
                axes.text(x + 2.15, y + 0.38, name, ha="center", va="center")
                if above is not None:
                    top, words = above
                    arrow = {"arrowstyle": "->", "color": FG, "linewidth": 1.5}
                    axes.annotate("", (x + 0.5, y + 0.9), (x + 0.5, top - 0.08), arrowprops=arrow)
                    axes.text(x + 0.75, (top + y + 0.82) / 2, words, va="center", fontsize=12)
                above = (y, how)
        return themed(figure, title=title, alt=alt)
