"""Timelines for tests: a producer and a consumer over a ring of stages, a few lines of arithmetic.

The recurrences are those of any bounded buffer: a load of a stage starts when the product that
read the stage before is done, a product starts when its load has landed.
"""

SOURCE = """\
# producer
for k in range(K_TILES):
    wait(empty[stage], phase)
    expect_bytes(full[stage], BYTES)
    copy_async(As[stage], A[k], full[stage])
# consumer
for k in range(K_TILES):
    wait(full[stage], phase)
    wgmma(acc, As[stage], Bs[stage])
    wgmma_wait()
    arrive(empty[stage])
# epilogue
store(D, acc)
"""
LINE = {"wait empty": 3, "expect": 4, "copy": 5, "wait full": 8, "wgmma": 9, "wgmma wait": 10}
LINE |= {"arrive": 11, "store": 13}


def two_stage(
    steps: int = 24,
    stages: int = 2,
    issue: float = 40.0,
    load: float = 520.0,
    product: float = 460.0,
    store: float = 600.0,
    cta: int = 0,
    tmem: bool = False,
) -> dict:
    """A Timeline of ``steps`` K steps; durations in cycles."""
    labels: dict[str, int] = {}
    names = list(LINE)

    def span(t0: float, t1: float, label: str, where: str | None, state: str) -> list:
        site = names.index(where) if where else -1
        return [t0, t1, labels.setdefault(label, len(labels)), site, state]

    producer, consumer, loads, tensor, columns = [], [], [], [], []
    held = [[] for _ in range(stages)]
    full: list[tuple[list, list]] = [([], []) for _ in range(stages)]
    empty: list[tuple[list, list]] = [([], []) for _ in range(stages)]
    begun = {"full": [0.0] * stages, "empty": [0.0] * stages}
    freed = [0.0] * steps
    waits: dict[tuple[str, str], float] = {}
    p = c = 0.0
    for k in range(steps):
        s, phase = k % stages, k // stages
        start = max(p, freed[k - stages] if k >= stages else 0.0)
        if start > p:
            producer.append(
                span(p, start, f"wait for empty[{s}], phase {phase - 1}", "wait empty", "wait")
            )
            waits["producer", f"empty[{s}]"] = waits.get(("producer", f"empty[{s}]"), 0) + start - p
        p = start + issue
        producer.append(span(start, p, f"copy A[{k}]", "copy", "issue"))
        landed = p + load
        tile = f"A[0:128, {64 * k}:{64 * k + 64}]"
        loads.append(span(p, landed, tile, "copy", "busy"))
        full[s][1].append((start, "producer: expect 16384 bytes", "expect"))
        full[s][1].append((landed, "TMA: 16384 bytes", "copy"))
        full[s][0].append(span(begun["full"][s], landed, f"phase {phase}", "expect", "phase"))
        begun["full"][s] = landed

        ready = max(c, landed)
        if ready > c:
            consumer.append(
                span(c, ready, f"wait for full[{s}], phase {phase}", "wait full", "wait")
            )
            waits["consumer", f"full[{s}]"] = waits.get(("consumer", f"full[{s}]"), 0) + ready - c
        consumer.append(span(ready, ready + 20, "wgmma m64n128k16", "wgmma", "issue"))
        done = ready + product
        tensor.append(span(ready, done, f"wgmma of step {k}", "wgmma", "busy"))
        consumer.append(span(ready + 20, done, "wgmma.wait_group 0", "wgmma wait", "wait"))
        waits["consumer", "wgmma group"] = waits.get(("consumer", "wgmma group"), 0) + product - 20
        c = done + 10
        consumer.append(span(done, c, "arrive", "arrive", "run"))
        held[s].append(span(p, landed, f"load {tile}", "copy", "arriving"))
        if ready > landed:
            held[s].append(span(landed, ready, f"load {tile}", "copy", "full"))
        held[s].append(span(ready, done, f"wgmma of step {k}", "wgmma", "read"))
        columns.append(span(ready, done, f"D after step {k}", "wgmma", "accumulate"))
        freed[k] = c
        empty[s][1].append((c, "consumer: arrive", "arrive"))
        empty[s][0].append(span(begun["empty"][s], c, f"phase {phase}", "arrive", "phase"))
        begun["empty"][s] = c
    consumer.append(span(c, c + store, "store D", "store", "run"))
    columns.append(span(c, c + store, "D", "store", "read"))
    cycles = c + store

    group = f"CTA ({cta}, 0)"
    here = f"cta{cta}"

    def track(ident: str, name: str, of: str, kind: str, spans: list, **more) -> dict:
        return {"id": ident, "name": name, "group": of, "kind": kind, "spans": spans, **more}

    tracks = [
        track(f"{here}/producer", "producer (warp 4)", group, "role", producer),
        track(f"{here}/consumer", "consumer (warps 0-3)", group, "role", consumer),
        track(f"sm{cta}/copies-in", "copies into shared memory", f"SM {cta}", "engine", loads),
        track(f"sm{cta}/tensor", "tensor core", f"SM {cta}", "engine", tensor),
    ]
    for s in range(stages):
        tracks.append(track(f"{here}/As[{s}]", f"As[{s}]", group, "stage", held[s]))
    for name, pairs in (("full", full), ("empty", empty)):
        for s, (spans, arrivals) in enumerate(pairs):
            told = []
            for t, label, where in arrivals:
                told.append([t, labels.setdefault(label, len(labels)), names.index(where)])
            tracks.append(
                track(
                    *(f"{here}/{name}[{s}]", f"{name}[{s}]", group, "barrier", spans),
                    arrivals=told,
                )
            )
    if tmem:
        tracks.append(track(f"{here}/tmem[0:128]", "TMEM columns 0-127", group, "tmem", columns))
    return {
        "kernel": "two_stage",
        "gpu": "H200",
        "clock_mhz": 1830.0,
        "cycles": cycles,
        "note": "modelled: two stages by arithmetic, not measured",
        "summary": {"duration_us": cycles / 1830.0, "tflops": None, "bound": "tensor cores"},
        "files": {"two_stage.py": SOURCE.splitlines()},
        "sites": [["two_stage.py", LINE[n]] for n in names],
        "labels": list(labels),
        "tracks": tracks,
        "waits": [[f"{here}/{who}", what, round(n, 1)] for (who, what), n in waits.items()],
    }


def joined(*timelines: dict) -> dict:
    """One Timeline with the tracks of several."""
    first = dict(timelines[0])
    first["labels"], first["tracks"], first["waits"] = [], [], []
    for one in timelines:
        base = len(first["labels"])
        first["labels"] += one["labels"]
        for track in one["tracks"]:
            moved = dict(track)
            moved["spans"] = [[a, b, base + c, d, e] for a, b, c, d, e in track["spans"]]
            if "arrivals" in track:
                moved["arrivals"] = [[t, base + c, d] for t, c, d in track["arrivals"]]
            first["tracks"].append(moved)
        first["waits"] += one["waits"]
        first["cycles"] = max(first["cycles"], one["cycles"])
    return first
