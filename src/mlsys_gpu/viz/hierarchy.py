"""Levels of the execution hierarchy, the memory each sees, and the path of a GEMM's data.

Sources: CUDA C++ Programming Guide, "Thread hierarchy", "Memory hierarchy" and "Compute
capabilities" (limits of 9.0 and 10.0); PTX ISA, "Warpgroup", "wgmma", "tcgen05", "Tensor memory".
"""

from __future__ import annotations

from .figures import Figure, figure, table_html
from .layouts import ITEMSIZE

ARCHES = {"hopper": "Hopper (H100, H200)", "blackwell": "Blackwell (B200)"}

WARP = 32
WARPGROUP_WARPS = 4
CTA_THREADS = 1024
PORTABLE_CLUSTER = 8
SM_REGISTERS = 65536
SM_SHARED = 228 * 1024  # per SM; a CTA may have 227 KiB of it
CTA_SHARED = 227 * 1024
TMEM_LANES, TMEM_COLUMNS = 128, 512
TMEM_BYTES = TMEM_LANES * TMEM_COLUMNS * 4


def _levels(arch: str) -> list[dict]:
    tmem = arch == "blackwell"
    mma = (
        "tcgen05.mma is issued by one elected thread for the whole CTA (or a pair of CTAs)"
        if tmem
        else "wgmma is issued by all 128 threads of a warpgroup together"
    )
    return [
        {
            "id": "grid",
            "name": "Grid",
            "count": "one per kernel launch",
            "of": "clusters (or CTAs)",
            "runs": "on the whole GPU; CTAs start in no promised order",
            "sees": ["gmem"],
            "sync": "none inside a launch but through global memory; the end of the kernel",
            "gemm": "The whole output D; each cluster or CTA takes tiles of it.",
        },
        {
            "id": "cluster",
            "name": "Cluster",
            "count": f"up to {PORTABLE_CLUSTER} CTAs (16 where a kernel opts in)",
            "of": "CTAs",
            "runs": "on SMs of one GPC, all CTAs at the same time",
            "sees": ["gmem", "dsmem"],
            "sync": "barrier.cluster; mbarriers of another CTA through mapa",
            "gemm": "CTAs that share an operand tile: loaded once, multicast to both.",
        },
        {
            "id": "cta",
            "name": "CTA (thread block)",
            "count": f"up to {CTA_THREADS:,} threads",
            "of": "warps",
            "runs": "on one SM from start to end",
            "sees": ["gmem", "dsmem", "smem"] + (["tmem"] if tmem else []),
            "sync": "bar.sync (__syncthreads), named barriers, mbarriers in shared memory",
            "gemm": "One output tile; its operand tiles pass through this CTA's shared memory.",
        },
        {
            "id": "warpgroup",
            "name": "Warpgroup",
            "count": f"{WARPGROUP_WARPS} consecutive warps, {WARP * WARPGROUP_WARPS} threads",
            "of": "warps",
            "runs": "one warp on each of the SM's four sub-partitions",
            "sees": ["gmem", "dsmem", "smem"] + (["tmem"] if tmem else []),
            "sync": "named barriers of 128 threads"
            + ("" if tmem else "; wgmma.fence, commit and wait"),
            "gemm": (
                "Reads the accumulator out of TMEM: each warp its quarter of 32 lanes."
                if tmem
                else "Issues wgmma together and holds the accumulator in its registers."
            ),
        },
        {
            "id": "warp",
            "name": "Warp",
            "count": f"{WARP} threads",
            "of": "threads",
            "runs": "on one sub-partition; its threads execute one instruction together",
            "sees": ["gmem", "dsmem", "smem"] + (["tmem"] if tmem else []),
            "sync": "__syncwarp; shuffles and votes",
            "gemm": (
                "tcgen05.ld and tcgen05.alloc are warp instructions; a warp reaches its quarter "
                "of TMEM lanes only."
                if tmem
                else "Each warp owns 16 of every 64 rows of the accumulator."
            ),
        },
        {
            "id": "thread",
            "name": "Thread",
            "count": "the smallest unit; up to 255 registers of 32 bits",
            "of": "",
            "runs": "as one lane of its warp",
            "sees": ["gmem", "dsmem", "smem"] + (["tmem"] if tmem else []) + ["reg"],
            "sync": "with itself: program order, but asynchronous copies and MMAs finish later",
            "gemm": "One elected thread issues TMA copies; " + mma + ".",
        },
    ]


def _memories(arch: str) -> list[dict]:
    memories = [
        {
            "id": "gmem",
            "name": "Global memory",
            "short": "GMEM",
            "size": "141 GB on H200" if arch == "hopper" else "180 GB on B200",
            "scope": "every thread of every kernel; cached in L2",
        },
        {
            "id": "dsmem",
            "name": "Distributed shared memory",
            "short": "DSMEM",
            "size": "the shared memory of all CTAs of the cluster",
            "scope": "threads of the cluster",
        },
        {
            "id": "smem",
            "name": "Shared memory",
            "short": "SMEM",
            "size": f"{CTA_SHARED // 1024} KiB a CTA at most, of {SM_SHARED // 1024} KiB an SM",
            "scope": "threads of the CTA",
        },
    ]
    if arch == "blackwell":
        memories.append(
            {
                "id": "tmem",
                "name": "Tensor memory",
                "short": "TMEM",
                "size": f"{TMEM_LANES} lanes × {TMEM_COLUMNS} columns × 32 bits = "
                f"{TMEM_BYTES // 1024} KiB an SM",
                "scope": "the CTA that allocated it; each warp of a warpgroup 32 of the lanes",
            }
        )
    memories.append(
        {
            "id": "reg",
            "name": "Registers",
            "short": "RF",
            "size": f"{SM_REGISTERS:,} × 32 bits = {SM_REGISTERS * 4 // 1024} KiB an SM",
            "scope": "one thread each",
        }
    )
    return memories


def pipeline_bytes(tile: tuple[int, int, int], dtype: str) -> dict:
    """Bytes of one CTA's tiles: ``a``, ``b`` (operand tiles), ``acc`` (fp32), ``d`` (output).

    Raises ValueError for an unknown dtype or a tile with a size below 1.
    """
    if dtype not in ITEMSIZE:
        raise ValueError(f"dtype is {dtype!r}; there are {', '.join(ITEMSIZE)}")
    if min(tile) < 1:
        raise ValueError(f"tile is {tile}; each of BM, BN, BK must be at least 1")
    BM, BN, BK = tile
    size = ITEMSIZE[dtype]
    return {"a": BM * BK * size, "b": BN * BK * size, "acc": BM * BN * 4, "d": BM * BN * size}


def _pipeline(arch: str, tile: tuple[int, int, int], dtype: str) -> list[dict]:
    BM, BN, BK = tile
    b = pipeline_bytes(tile, dtype)
    kib = lambda n: f"{n / 1024:g} KiB"  # noqa: E731
    tmem = arch == "blackwell"
    acc = "tmem" if tmem else "reg"
    steps = [
        {
            "title": "Load the operand tiles",
            "from": "gmem",
            "to": "smem",
            "who": "one elected thread through TMA, or all threads with plain loads (Steps 1 to 3)",
            "what": f"A {BM} × {BK} and B {BN} × {BK} in {dtype}",
            "bytes": b["a"] + b["b"],
            "size": f"{kib(b['a'])} + {kib(b['b'])}",
            "wait": "an mbarrier counts the bytes of a TMA copy; plain stores need a CTA barrier "
            "and a proxy fence before the tensor core may read",
        },
        {
            "title": "Multiply and accumulate",
            "from": "smem",
            "to": acc,
            "via": "tc",
            "who": "one elected thread (tcgen05.mma)" if tmem else "a warpgroup (wgmma)",
            "what": f"{BM} × {BN} += A · Bᵀ over {BK} of K, accumulated in fp32",
            "bytes": b["acc"],
            "size": f"accumulator of {kib(b['acc'])} in "
            + ("TMEM" if tmem else f"registers: {BM * BN // 128} a thread of one warpgroup"),
            "wait": "tcgen05.commit makes an mbarrier complete when the MMAs are done"
            if tmem
            else "wgmma.commit_group, then wgmma.wait_group",
        },
        {
            "title": "Next step of K",
            "from": "gmem",
            "to": "smem",
            "loop": True,
            "who": "the same as at first",
            "what": f"the next {BK} of K, until K is through; the accumulator stays where it is",
            "bytes": b["a"] + b["b"],
            "size": f"{kib(b['a'] + b['b'])} a step",
            "wait": "the tile in shared memory may be overwritten only when the MMA has read it",
        },
    ]
    if tmem:
        steps.append(
            {
                "title": "Read the accumulator",
                "from": "tmem",
                "to": "reg",
                "who": "four warps (tcgen05.ld), each its 32 lanes",
                "what": f"{BM} × {BN} in fp32, one row a thread",
                "bytes": b["acc"],
                "size": kib(b["acc"]),
                "wait": "tcgen05.wait::ld before the registers are used",
            }
        )
    steps.append(
        {
            "title": "Convert and store",
            "from": "reg",
            "to": "gmem",
            "who": "all threads of the warpgroup; through shared memory and TMA from Step 4 on",
            "what": f"D {BM} × {BN} in {dtype}",
            "bytes": b["d"],
            "size": kib(b["d"]),
            "wait": "the end of the kernel, or of the bulk group that stores",
        }
    )
    return steps


def hierarchy_data(
    arch: str = "hopper", tile: tuple[int, int, int] = (128, 128, 64), dtype: str = "float16"
) -> dict:
    """What the ``execution-hierarchy`` figure draws. Parameters as :func:`execution_hierarchy`."""
    if arch not in ARCHES:
        raise ValueError(f"arch is {arch!r}; there are {', '.join(ARCHES)}")
    return {
        "arch": arch,
        "tile": list(tile),
        "dtype": dtype,
        # An example of 16 CTAs of 384 threads: how many children each level has, where one starts.
        "counts": [8, 2, 3, WARPGROUP_WARPS, WARP],
        "start": [3, 1, 0, 2, 17],
        "arches": [
            {
                "id": a,
                "name": name,
                "levels": _levels(a),
                "memories": _memories(a),
                "pipeline": _pipeline(a, tile, dtype),
            }
            for a, name in ARCHES.items()
        ],
    }


def execution_hierarchy(
    arch: str = "hopper",
    tile: tuple[int, int, int] = (128, 128, 64),
    dtype: str = "float16",
    *,
    title: str | None = None,
    alt: str | None = None,
    caption: str | None = None,
) -> Figure:
    """Interactive figure: from the grid down to a thread, and the way of a GEMM's data.

    arch: the one shown first, "hopper" or "blackwell"; the reader can switch. tile: (BM, BN, BK)
    of one CTA in elements. dtype: of A, B and D.
    Raises ValueError for another arch, an unknown dtype, or a tile size below 1.
    """
    data = hierarchy_data(arch, tile, dtype)
    shown = next(a for a in data["arches"] if a["id"] == arch)
    names = {m["id"]: m["name"].lower() for m in shown["memories"]}
    path = " → ".join(
        ["GMEM", "SMEM", "tensor core"]
        + (["TMEM", "registers"] if arch == "blackwell" else ["registers"])
        + ["GMEM"]
    )
    return figure(
        "execution-hierarchy",
        data,
        title=title or "Who runs where, and which memory it sees",
        alt=alt
        or (
            "Six nested levels: a grid holds clusters, a cluster CTAs, a CTA warps, four of which "
            "make a warpgroup, and a warp 32 threads. Every level sees global memory; a cluster "
            "adds distributed shared memory, a CTA shared memory (on Blackwell tensor memory too), "
            f"a thread its registers. A GEMM's data takes the way {path}."
        ),
        caption=caption,
        fallback=table_html(
            ["level", "how many", "runs", "sees"],
            [
                [v["name"], v["count"], v["runs"], ", ".join(names[s] for s in v["sees"])]
                for v in shown["levels"]
            ],
            ARCHES[arch],
        )
        + table_html(
            ["step", "from", "to", "who", "bytes"],
            [
                [s["title"], names[s["from"]], names[s["to"]], s["who"], s["size"]]
                for s in shown["pipeline"]
            ],
            "The GEMM data pipeline",
        ),
    )
