"""Pictures: interactive figures for the chapters, and static ones.

An interactive figure is a *kind* (a small JavaScript module in ``viz/assets/``) and *data* (plain
JSON, always computed by tested Python). One call makes one figure; as the last line of a cell it is
shown:

>>> from mlsys_gpu import viz
>>> viz.execution_hierarchy(arch="hopper")  # doctest: +SKIP
>>> viz.layout(16, 64, "float16", swizzle=128)  # doctest: +SKIP
>>> viz.gemm_tiles(512, 384, 256, tile=(128, 128, 64))  # doctest: +SKIP

The same object works in the built book (assets are bundled once, nothing is fetched from
elsewhere, ``file://`` is enough), in JupyterLab (self-contained), and with JavaScript switched off
(a static table or drawing stands in its place).

What there is
-------------

====================================  ==========================================================
``figure(kind, data, *, title, alt,   Any kind with your own data. ``title`` is the figure's
caption=None, fallback=None)``        heading, ``alt`` says in words what there is to see (it is
                                      read by screen readers and shown on request), ``caption``
                                      stands under it.
``kinds()``                           The registered kinds.
``execution_hierarchy(arch, tile,     Kind ``execution-hierarchy``: grid, cluster, CTA, warpgroup,
dtype)``                              warp, thread with the memory each of them sees; the GEMM
                                      data pipeline step by step, Hopper beside Blackwell.
``layout(rows, cols, dtype,           Kind ``layout``: element (row, column) of a tile → byte
swizzle, access)``                    address, bank, 16-byte chunk in shared memory, with and
                                      without swizzle; which thread touches it; bank conflicts.
``gemm_tiles(M, N, K, tile, dtype)``  Kind ``gemm-tiles``: output tiles, the CTA of each, the K
                                      loop step by step, bytes moved and FLOP done.
``tile_order(shapes, ctas, groups)``  Kind ``tile-order``: rounds of tiles in several orders, which
                                      rows of A and B each round reads, and how many bytes.
``timeline(data)``                    Kind ``timeline``: a modelled run cycle by cycle: roles,
                                      engines, barriers' phases, stages' contents, TMEM, and the
                                      source line of each role. The function ``page`` of its
                                      module makes one self-contained HTML file of it.
``badge(kind, note="")``              A label for an output of a cell: ``"simulated"``,
                                      ``"measured"``, ``"recorded"``, ``"modelled"`` or
                                      ``"not-on-silicon"``.
``results(name)``                     A committed result file, ``"h200/gemm"`` by default: its
                                      ``rows`` and ``provenance`` (``modelled(name)``: launches of
                                      the time model).
``benchmarked(step, shapes, dtype)``  The benchmark cell of a step: measured where its GPU is, else
                                      the recorded rows, with provenance, stale ones marked.
``ladder(rows, shape, dtype)``        Bars of TFLOP/s for every step and variant at one shape, with
                                      cuBLAS and Triton of the same runs; modelled ones hatched.
``ladder_table(rows, shape, dtype)``  The same as a table: times and spread, what each step gained,
                                      ratios to the baselines, the model's error, provenance.
``sizes(rows, kernels, dtype)``       Ratio to cuBLAS over the sizes of cubes, for the last steps
                                      and Triton; ``sizes_table`` the same in numbers, ``ratios``
                                      as a dict.
``roofline(rows, shape, dtype)``      The steps under the roof of the GPU that measured them.
``additions_table(rows, dtype)``      What each addition of the tuned kernel gives at each size
                                      (``gains``: as a dict), of ``h200/additions.json``, or
                                      modelled (``"modelled/additions_b200"``).
``static.data_path(columns, …)``      Themed SVG (light and dark): memories, and who moves data
                                      from one to the next.
``static.ladder(rows)``               Themed SVG: bars of TFLOP/s per row.
``static.roofline(points, gpu)``      Themed SVG: named points under a roof that you give.
====================================  ==========================================================

The convenience functions take ``title=``, ``alt=`` and ``caption=`` too, each with a default.

The arithmetic behind the figures is public and tested on its own: ``swizzle_offset``,
``smem_offset``, ``bank``, ``bank_conflicts`` (module ``viz.layouts``), ``tile_traffic`` (module
``viz.tiles``), ``tile_at`` and ``order_traffic`` (module ``viz.order``).

In a chapter (Sphinx, module ``book/_ext/mlsys_book.py``)
---------------------------------------------------------

::

    ```{kernel} gemm/hopper/step1
    :part: build
    ```

    ```{kernel-diff} gemm/hopper/step1 gemm/hopper/step2
    ```

    {badge}`simulated`  {badge}`measured`  {badge}`recorded H200`  {badge}`not-on-silicon`

    ```{recorded} h200/gemm.json
    :kernels: gemm/hopper/step1, gemm/hopper/step2
    :plot: ladder
    ```

``{kernel}`` lists the file that ran (``src/mlsys_gpu/kernels/gemm/hopper/step1.py``; a path from
the repository's root that ends in ``.py`` works too). ``:part:`` takes one of its top-level names;
``literalinclude``'s options work as well (``:lines:``, ``:start-after:``, ``:end-before:``,
``:emphasize-lines:``, ``:caption:``). ``{kernel-diff}`` leaves docstrings out, and a line that was
only indented anew counts as no change (``:context:`` lines around a change, 3 by default).
``{recorded}`` draws a table from ``book/results/h200/gemm.json``. Its options choose rows
(``:kernels:``, ``:dtype: float16``, ``:shapes: 4096,4096,4096; 8192,8192,8192``) and a picture
above the table (``:plot: ladder`` or ``ladder-per-sm``, ``:title:``); all may be left out.

A row of ``{recorded}`` whose ``source_sha256`` is not that of today's file is marked *stale*;
the file's provenance is printed under the table. While no result file exists the directive says
so in the page. A report or any other HTML output that brings its own colours for both themes marks
its outermost element with a class that starts with ``mg-``, and uses the variables ``--mg-fg``,
``--mg-bg``, ``--mg-panel``, ``--mg-accent``, ``--mg-good``, ``--mg-bad``, … of ``viz-figure.css``.

Adding a kind
-------------

1. ``viz/assets/viz-NAME.js``: ``mlsysViz.register("NAME", function (stage, data, ui) { … })``.
   ``stage`` is an empty element to fill; ``ui`` offers ``el``, ``svg``, ``cells``, ``stepper``,
   ``choice``, ``readout`` and ``say`` (an ARIA live region). Colours are the CSS variables
   ``--mg-…`` of ``viz-figure.css``; text is 12 px or more; Tab, arrows and Space reach everything.
2. A Python function that computes ``data`` and a static ``fallback``, with tests of its numbers.
3. Its name in ``viz.figures.KINDS``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .figures import Figure, badge, figure, kinds
from .hierarchy import execution_hierarchy
from .layouts import bank, bank_conflicts, layout, smem_offset, swizzle_offset
from .measurements import (
    additions_table,
    benchmarked,
    gains,
    ladder,
    ladder_table,
    modelled,
    ratios,
    results,
    roofline,
    sizes,
    sizes_table,
)
from .order import order_traffic, tile_at, tile_order
from .tiles import gemm_tiles, tile_traffic
from .timeline import timeline

if TYPE_CHECKING:
    from . import static

__all__ = [
    "Figure",
    "additions_table",
    "badge",
    "bank",
    "bank_conflicts",
    "benchmarked",
    "execution_hierarchy",
    "figure",
    "gains",
    "gemm_tiles",
    "kinds",
    "ladder",
    "ladder_table",
    "layout",
    "modelled",
    "order_traffic",
    "ratios",
    "results",
    "roofline",
    "sizes",
    "sizes_table",
    "smem_offset",
    "static",
    "swizzle_offset",
    "tile_at",
    "tile_order",
    "tile_traffic",
    "timeline",
]


def __getattr__(name: str):
    # matplotlib is slow to import, so that its helpers load when first asked for.
    if name == "static":
        import importlib

        return importlib.import_module(".static", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
