"""What a replayed launch did, summed up: who was busy, who waited for what, and what moved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mlsys_gpu.sim.timing import events as E
from mlsys_gpu.sim.timing.chip import Timing
from mlsys_gpu.sim.timing.timeline import role_name, roles


def statistics(timing: Timing) -> dict[str, Any]:
    """Figures of the shown cluster and of the launch, as plain values.

    Of the shown cluster: ``roles``, for each group of warps its cycles, the part that it waits, and
    what for, in cycles; ``conflicts``, for each line that accesses shared memory its instructions,
    the cycles of the shared-memory pipe (wavefronts) and how many they would be without bank
    conflicts; ``accesses``, for each line that loads from or stores to global memory the sectors of
    32 bytes that it moves, and how many would do; ``bytes``, by space. Of the launch: ``traffic``,
    by tensor, and ``busy``, the part of the time that each unit is in use. Of an SM: ``occupancy``,
    the CTAs that it holds, what limits them, and the registers (a thread), shared memory and tensor
    memory (a CTA) that they use.
    """
    return {
        "roles": _roles(timing),
        "conflicts": _conflicts(timing),
        "accesses": _accesses(timing),
        "bytes": _bytes(timing),
        "traffic": [
            {
                "tensor": row.name,
                "direction": "write" if row.write else "read",
                "requested_bytes": round(row.requested),
                "memory_bytes": round(row.memory),
            }
            for row in timing.traffic
        ],
        "busy": {
            "tensor cores": round(timing.tensor_busy, 4),
            "device memory": round(min(1.0, timing.memory_busy), 4),
            "L2": round(timing.l2_busy, 4),
            **{name.removeprefix("the "): round(part, 4) for name, part in timing.pipes.items()},
        },
        "occupancy": {
            "ctas_per_sm": timing.occupancy.ctas,
            "limited_by": timing.occupancy.limit,
            "threads": timing.occupancy.threads,
            "registers": timing.occupancy.registers,
            "shared_bytes": timing.occupancy.shared_bytes,
            "tmem_columns": timing.occupancy.tmem_columns,
        },
    }


def summary(timing: Timing, flops: float | None = None) -> dict[str, Any]:
    """The duration of the launch and what it comes from, as plain values.

    ``flops`` of the whole launch, for ``tflops``: by default what the tensor cores execute; None
    where they do nothing. ``clusters`` of the launch, ``clusters_run`` of them in the simulator,
    ``clusters_replayed`` of those, different ones.
    """
    return {
        "gpu": timing.gpu,
        "microseconds": round(timing.microseconds, 3),
        "tflops": round(timing.tflops(flops), 3) if flops or timing.tensor_flops else None,
        "cycles": round(timing.cycles, 1),
        "clock_mhz": round(timing.clock_mhz, 1),
        "launch_microseconds": round(timing.launch_us, 3),
        "bound": timing.bound,
        "tensor_busy": round(timing.tensor_busy, 4),
        "memory_busy": round(timing.memory_busy, 4),
        "l2_busy": round(timing.l2_busy, 4),
        "memory_bytes": round(timing.memory_bytes),
        "clusters": timing.clusters,
        "clusters_run": timing.executed,
        "clusters_replayed": timing.replayed,
        "waves": round(timing.waves, 4),
        "note": timing.note,
    }


def _roles(timing: Timing) -> list[dict[str, Any]]:
    found = []
    for (rank, first), (warps, does) in roles(timing.logs).items():
        spans = timing.trace.warps.get((rank, first), [])
        if not spans:
            continue
        cycles = spans[-1][1] - spans[0][0]
        waits: dict[str, float] = {}
        for what, waited in timing.trace.waited.get((rank, first), {}).items():
            name = timing.recording.barriers[what][0] if isinstance(what, int) else str(what)
            waits[name] = waits.get(name, 0.0) + waited
        waited = min(cycles, sum(waits.values()))
        found.append(
            {
                "cta_rank": rank,
                "warps": warps,
                "name": role_name(warps, does),
                "cycles": round(cycles, 1),
                "waiting": round(waited / cycles, 4) if cycles else 0.0,
                "waits": {
                    name: round(value, 1)
                    for name, value in sorted(waits.items(), key=lambda item: -item[1])
                },
            }
        )
    return found


def _by_line(timing: Timing, load: int, store: int, counts: Any) -> Iterator[tuple[dict, Any]]:
    """Of each source line that loads or stores: its place, and the sums of its events' counts."""
    sites: dict[tuple[int, bool], list[int]] = {}
    for event in (e for cta in timing.logs for log in cta for e in log):
        if event[0] in (load, store):
            found = counts(event)
            row = sites.setdefault((event[1], event[0] == store), [0] * len(found))
            row[:] = [n + more for n, more in zip(row, found, strict=True)]
    for (site, stores), row in sorted(sites.items()):
        place = timing.program.location(site)
        where = {"location": str(place) if place else "", "access": "store" if stores else "load"}
        yield where, row


def _conflicts(timing: Timing) -> list[dict[str, Any]]:
    lines = _by_line(timing, E.SHARED_LOAD, E.SHARED_STORE, lambda e: (e[2], e[3], e[7]))
    return [
        where
        | {
            "instructions": instructions,
            "wavefronts": waves,
            "without_conflicts": min(ideal, waves),
        }
        for where, (instructions, waves, ideal) in lines
    ]


def _accesses(timing: Timing) -> list[dict[str, Any]]:
    lines = _by_line(timing, E.LOAD, E.STORE, lambda e: (e[3], max(e[2], -(-e[4] // 32))))
    return [
        where | {"sectors": sectors, "coalesced": min(least, sectors)}
        for where, (sectors, least) in lines
    ]


def _bytes(timing: Timing) -> dict[str, int]:
    found: dict[str, int] = {}

    def add(name: str, n: float) -> None:
        found[name] = found.get(name, 0) + int(n)

    for event in (e for cta in timing.logs for log in cta for e in log):
        kind = event[0]
        if kind == E.LOAD:
            add("global_load", event[4])
        elif kind == E.STORE:
            add("global_store", event[4])
        elif kind == E.COPY_IN:
            add("global_load", event[2])
            add("shared_filled_by_copies", sum(n for _, _, n, _ in event[3]))
        elif kind == E.COPY_OUT:
            add("global_store", event[2])
        elif kind == E.ASYNC_COPY:
            add("global_load", event[3])
        elif kind == E.SHARED_LOAD:
            add("shared_load", event[4])
        elif kind == E.SHARED_STORE:
            add("shared_store", event[4])
        elif kind == E.PEER:
            add("peer_shared", event[2])
        elif kind in (E.TC_LOAD, E.TC_STORE):
            add("tensor_memory", 128 * event[2])
    return dict(sorted(found.items()))


def text(timing: Timing, flops: float | None = None) -> str:
    """A modelled run in a terminal's words."""
    made = statistics(timing)
    single = timing.program.launch["cluster"] == [1, 1, 1]
    speed = f", {timing.tflops(flops):.1f} TFLOP/s" if flops or timing.tensor_flops else ""
    held = made["occupancy"]
    lines = [
        f"{timing.program.name}: {timing.microseconds:.1f} us{speed} ({timing.note})",
        f"  {timing.cycles:.0f} cycles at {timing.clock_mhz:.0f} MHz ({timing.start_cycles:.0f} of "
        f"them to start), and {timing.launch_us:.1f} us to launch; bound by {timing.bound}",
        f"  {timing.clusters} cluster{'s' * (timing.clusters != 1)}, and the GPU holds "
        f"{timing.slots} at a time ({timing.waves:.2f} waves); an SM holds {held['ctas_per_sm']} "
        f"CTA{'s' * (held['ctas_per_sm'] != 1)} (by {held['limited_by']})"
        + (f"; tensor cores busy {100 * timing.tensor_busy:.0f} %" if timing.tensor_flops else ""),
    ]
    for role in made["roles"]:
        if not role["cycles"]:
            continue
        parts = [(name, n / role["cycles"]) for name, n in role["waits"].items()]
        waits = ", ".join(f"{name} {100 * p:.0f} %" for name, p in parts[:3] if p >= 0.01)
        rank = "" if single else f"CTA rank {role['cta_rank']}, "
        share = f"waits {100 * role['waiting']:.0f} %" + (f" ({waits})" if waits else "")
        lines.append(f"  {rank}{role['name']}: {share}")
    for row in made["conflicts"]:
        if row["wavefronts"] > row["without_conflicts"]:
            lines.append(
                f"  bank conflicts at {row['location']}: {row['wavefronts']} wavefronts where "
                f"{row['without_conflicts']} would do"
            )
    for row in made["accesses"]:
        if row["sectors"] > 1.5 * row["coalesced"]:
            lines.append(
                f"  not coalesced at {row['location']}: {row['sectors']} sectors of 32 bytes for "
                f"each {row['access']} of a CTA's data where {row['coalesced']} would do"
            )
    return "\n".join(lines)
