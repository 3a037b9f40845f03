"""What :mod:`mlsys_gpu.viz.measurements` draws, by matplotlib: ladder, sizes, roofline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from .measurements import BASELINES, baselines, kernel_title, number
from .static import ACCENT, BG, FG, GOOD, MUTED, VIOLET, WARM, Picture, style, themed

if TYPE_CHECKING:
    from .measurements import Rungs

#: colour, line and marker of each baseline: told apart without colour, too
_LINES = {
    "cublas": (WARM, "-", "s"),
    "cudnn": (WARM, "-", "s"),
    "triton": (VIOLET, "--", "^"),
    "triton_persistent": (VIOLET, ":", "v"),
    "flash_attention2": (GOOD, "-.", "D"),
}
_OTHER = (MUTED, "-.", "x")


def _ticks(title: str) -> str:
    """A kernel's title below its bar: a word a line."""
    return title.replace("Step ", "").replace(", ", "\n")


def ladder(rungs: Rungs, value: str, title: str | None, alt: str | None) -> Picture:
    """The picture of :func:`mlsys_gpu.viz.ladder`."""
    unit = "TFLOP/s" if value == "tflops" else "TFLOP/s per SM"
    measured = {k: float(row[value]) for k, row in rungs.rows.items()}
    modelled, cited = {}, {}
    if value == "tflops":
        modelled = {k: v for k in rungs.kernels if (v := rungs.modelled_tflops(k)) is not None}
        cited = {k: v for k in rungs.kernels if (v := rungs.cited_tflops(k)) is not None}
    kernels = [k for k in rungs.kernels if k in measured or k in modelled or k in cited]
    at = {kernel: float(i) for i, kernel in enumerate(kernels)}
    with style():
        figure = Figure(figsize=(max(6.2, 0.78 * len(kernels) + 1.1), 4.3))
        axes = figure.subplots()
        top = max([*measured.values(), *modelled.values(), *cited.values()])
        legend: list[Patch] = []
        words = []
        for kernel in kernels:
            x, said = at[kernel], []
            both = kernel in measured and kernel in modelled
            width = 0.4 if both else 0.66
            stale = rungs.state(kernel) == "stale"
            if kernel in measured:
                axes.bar(
                    x - both * width / 2,
                    measured[kernel],
                    width,
                    facecolor="none" if stale else ACCENT,
                    edgecolor=ACCENT,
                    linewidth=1.5,
                )
                _over(axes, x - both * width / 2, measured[kernel])
                said.append(f"{number(measured[kernel])}" + (" (stale)" if stale else ""))
            if kernel in modelled:
                axes.bar(
                    x + both * width / 2,
                    modelled[kernel],
                    width,
                    facecolor="none",
                    edgecolor=MUTED,
                    hatch="///",
                    linewidth=1,
                )
                if kernel not in measured:
                    _over(axes, x + both * width / 2, modelled[kernel])
                said.append(f"modelled {number(modelled[kernel])}")
            if kernel in cited:
                axes.plot(
                    [x], [cited[kernel]], "D", color=GOOD, markerfacecolor="none", markersize=9
                )
                said.append(f"published {number(cited[kernel])}")
            words.append(f"{kernel_title(kernel)} {', '.join(said)}")
        if measured:
            legend.append(Patch(facecolor=ACCENT, edgecolor=ACCENT, label="measured"))
        if any(rungs.state(k) == "stale" for k in kernels if k in measured):
            legend.append(Patch(facecolor="none", edgecolor=ACCENT, label="measured, stale"))
        if modelled:
            label = "modelled, not measured"
            legend.append(Patch(facecolor="none", edgecolor=MUTED, hatch="///", label=label))
        handles: list = [*legend]
        if cited:
            handles += axes.plot([], [], "D", color=GOOD, markerfacecolor="none", label="published")
        if value == "tflops":
            top = max(top, _baseline_lines(axes, rungs, at, handles, words))
        labels = []
        for kernel in kernels:
            label, row = _ticks(kernel_title(kernel)), rungs.rows.get(kernel)
            if row is not None and (row["M"], row["N"], row["K"]) != rungs.shape:
                label += f"\n{row['M']}×\n{row['N']}×\n{row['K']}"
            labels.append(label)
        axes.set_xticks(list(at.values()), labels)
        axes.set_xlabel("Step")
        axes.set_ylabel(unit)
        axes.set_ylim(0, top * 1.12)
        axes.grid(axis="y", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.legend(
            handles=handles,
            loc="lower center",
            bbox_to_anchor=(0.5, 1.0),
            ncols=min(3, len(handles)),
        )
        size = " × ".join(map(str, rungs.shape))
        words[0] = f"{unit} at {size}, {rungs.dtype}: {words[0]}"
        return themed(figure, alt=alt or "; ".join(words) + ".", title=title, note=rungs.badges)


def _over(axes, x: float, y: float) -> None:
    """The figure over a bar, and over the lines that pass there."""
    axes.annotate(
        f"{number(y)}",
        (x, y),
        xytext=(0, 4),
        textcoords="offset points",
        ha="center",
        va="bottom",
        bbox={"facecolor": BG, "edgecolor": "none", "pad": 1},
        zorder=5,
    )


def _baseline_lines(axes, rungs: Rungs, at: dict[str, float], handles: list, words: list) -> float:
    """A line for each baseline through what it reached beside each step; the highest of them."""
    top = 0.0
    for name in baselines(rungs.rows.values()):
        reached = {
            kernel: row["tflops"] * row["ms"] / row["baseline"][name]["ms"]
            for kernel, row in rungs.rows.items()
            if kernel in at and row["baseline"].get(name, {}).get("ms")
        }
        if not reached:
            continue
        colour, line, marker = _LINES.get(name, _OTHER)
        label = BASELINES.get(name, name)
        handles += axes.plot(
            [at[k] for k in reached],
            list(reached.values()),
            linestyle=line,
            marker=marker,
            markersize=6,
            color=colour,
            linewidth=2,
            label=f"{label}, same run",
        )
        low, high = min(reached.values()), max(reached.values())
        words.append(f"{label} in the same runs {number(low)} to {number(high)}")
        top = max(top, high)
    return top


def sizes(
    found: Mapping[str, Mapping[int, float]],
    names: Mapping[str, str],
    against: str,
    note: str,
    title: str | None,
    alt: str | None,
) -> Picture:
    """The picture of :func:`mlsys_gpu.viz.sizes`: a line for each name of ``found``."""
    ours = iter([(ACCENT, "-", "o"), (FG, "--", "D"), (GOOD, "-.", "P"), (MUTED, ":", "X")] * 9)
    every = sorted({n for of in found.values() for n in of})
    with style():
        figure = Figure(figsize=(7.0, 4.2))
        axes = figure.subplots()
        axes.axhline(1, color=WARM, linewidth=2, label=f"{against} = 1")
        for name, of in found.items():
            colour, line, marker = _LINES[name] if name in _LINES else next(ours)
            axes.plot(
                list(of),
                list(of.values()),
                linestyle=line,
                marker=marker,
                markersize=7,
                color=colour,
                linewidth=2,
                label=names[name],
            )
        axes.set_xscale("log", base=2)
        axes.set_xticks(every, [str(n) for n in every])
        axes.set_xticks([], minor=True)
        axes.set_xlabel("M = N = K")
        axes.set_ylabel(f"speed as a multiple of {against}'s")
        low = min(value for of in found.values() for value in of.values())
        high = max(value for of in found.values() for value in of.values())
        pad = 0.08 * max(high, 1) - 0.08 * min(low, 1) + 0.01
        axes.set_ylim(min(low, 1) - pad, max(high, 1) + pad)
        axes.grid(linewidth=0.8)
        axes.set_axisbelow(True)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
        words = "; ".join(
            f"{names[name]}: " + ", ".join(f"{ratio:.2f} at {n}" for n, ratio in of.items())
            for name, of in found.items()
        )
        return themed(
            figure,
            alt=alt or f"Speed as a multiple of {against}'s in the same run. {words}.",
            title=title,
            note=note,
        )


def roofline(
    points: Sequence[tuple[str, float, float]],
    roofs: Mapping[str, float | None],
    bandwidth: float,
    traffic: str,
    note: str,
    title: str | None,
    alt: str | None,
) -> Picture:
    """The picture of :func:`mlsys_gpu.viz.roofline`.

    points: (name, FLOP per byte, TFLOP/s). roofs: TFLOP/s at the highest clock and at the one that
    was seen (None where it was not). bandwidth: TB/s.
    """
    peak, seen = roofs["highest"], roofs["seen"]
    assert peak is not None
    ridge = peak / bandwidth
    xs = [x for _, x, _ in points]
    low, high = min([*xs, ridge]) / 2.5, max([*xs, ridge]) * 4
    bottom = min([*(y for _, _, y in points), low * bandwidth]) / 1.5
    with style():
        figure = Figure(figsize=(7.0, 4.6))
        axes = figure.subplots()
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(low, high)
        axes.set_ylim(bottom, peak * 1.6)
        axes.plot([low, ridge, high], [low * bandwidth, peak, peak], color=FG, linewidth=2)
        _said(axes, f"tensor cores, highest clock: {peak:,.0f}", ridge, peak, 5)
        if seen is not None and seen < 0.99 * peak:
            axes.plot([seen / bandwidth, high], [seen, seen], color=MUTED, linestyle="--")
            _said(axes, f"at the clock seen: {seen:,.0f}", high, seen, 4, "right")
        _said(axes, f"{traffic}: {bandwidth:.3g} TB/s", low * 1.35, low * 1.25 * bandwidth, -6)
        _labelled_points(axes, points)
        _plain_ticks(axes.xaxis, low, high)
        _plain_ticks(axes.yaxis, bottom, peak * 1.6)
        axes.set_xlabel(f"FLOP per byte of {traffic}")
        axes.set_ylabel("TFLOP/s")
        axes.grid(which="major", linewidth=0.8)
        words = "; ".join(
            f"{n} at {number(x)} FLOP a byte reaches {number(y)} TFLOP/s" for n, x, y in points
        )
        lower = "" if seen is None else f", {seen:.0f} at the clock that was seen under load"
        return themed(
            figure,
            alt=alt
            or f"Roofline with its ridge at {ridge:.0f} FLOP a byte of {traffic} and {peak:.0f} "
            f"TFLOP/s{lower}. {words}.",
            title=title,
            note=note,
        )


def _said(axes, words: str, x: float, y: float, up: int, side: str = "left") -> None:
    """Words beside a roof, ``up`` points above it."""
    axes.annotate(words, (x, y), xytext=(2, up), textcoords="offset points", ha=side)


def _plain_ticks(axis, low: float, high: float) -> None:
    """1000 rather than 10 to the third, whose exponent would be too small to read; 1, 2, 5, 10."""
    ticks = [m * 10.0**e for e in range(-4, 6) for m in (1, 2, 5)]
    axis.set_ticks([tick for tick in ticks if low <= tick <= high])
    axis.set_ticks([], minor=True)
    axis.set_major_formatter(lambda tick, _: f"{tick:g}")


def _labelled_points(axes, points: Sequence[tuple[str, float, float]]) -> None:
    """Points with their names beside them, none over another: moved down where they are close."""
    low, high = axes.get_ylim()
    height = math.log(high / low)
    least = 0.062  # of the picture's height: a line of text
    for column in sorted({round(math.log10(x), 1) for _, x, _ in points}):
        own = [p for p in points if round(math.log10(p[1]), 1) == column]
        own.sort(key=lambda point: -point[2])
        places: list[float] = []
        for _, _, y in own:
            highest = places[-1] - least if places else 1.0
            places.append(min(math.log(y / low) / height, highest))
        for (name, x, y), place in zip(own, places, strict=True):
            axes.plot([x], [y], "o", color=ACCENT, markersize=7)
            axes.annotate(
                f"{name}: {number(y)}",
                (x, y),
                xytext=(x * 1.25, low * math.exp(place * height)),
                textcoords="data",
                va="center",
                arrowprops={
                    "arrowstyle": "-",
                    "color": MUTED,
                    "linewidth": 0.8,
                    "relpos": (0, 0.5),
                    "shrinkA": 0,
                },
            )
