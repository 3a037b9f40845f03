"""mbarriers in every form, copies that arrive on them, and barriers that reduce.

An mbarrier's state is opaque; what an arrival, a wait and the pending count say of it is compared.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .case import Case, rng_of
from .memory import kernel_text

SPACES = ("", ".shared", ".shared::cta")
ORDERS = ("", ".release.cta", ".release.cluster", ".relaxed.cta", ".relaxed.cluster")
LOOKS = ("", ".acquire.cta", ".acquire.cluster", ".relaxed.cta", ".relaxed.cluster")


def address(space: str, at: str = "bar.ptr_to([0])") -> str:
    """A barrier's address for a state space: 32 bits, or a generic address."""
    return f"T.cuda.cvta_generic_to_shared({at})" if space else f'T.reinterpret("uint64", {at})'


class Steps:
    """The lines of one thread's kernel; for each form what it writes, a row.

    Each trial has a barrier of its own: a wait that sleeps does not hold back instructions behind
    it that need not know its end, and an initialisation among them would wake it (seen on an H200).
    """

    def __init__(self) -> None:
        self.body: list[str] = []
        self.rows: dict[str, int] = {}
        self.form, self.trials = "", 0

    def at(self, space: str = ".shared") -> str:
        """The trial's barrier."""
        return address(space, f"bar.ptr_to([{self.trials - 1}])")

    def do(self, form: str, *operands: str) -> None:
        self.body.append(f'    T.evaluate(T.ptx["{form}"]({", ".join(operands)}))')

    def see(self, form: str, *operands: str) -> None:
        self.do(form, "p[0]", *operands)
        row, column = list(self.rows).index(self.form), self.rows[self.form]
        self.body.append(f"    Y[{row}, {column}] = p[0]")
        self.rows[self.form] += 1

    def begin(self, form: str, count: int, space: str = ".shared") -> None:
        """A barrier that expects so many, of which ``form`` is to be seen."""
        self.trials += 1
        self.do(f"mbarrier.init{space}.b64", self.at(space), f"T.uint32({count})")
        self.form = form
        self.rows.setdefault(form, 0)

    def look(self) -> None:
        """Whether the phases of either parity have completed."""
        for parity in (0, 1):
            self.see("mbarrier.test_wait.parity.shared.b64", self.at(), f"T.uint32({parity})")

    def count(self) -> None:
        """What is still expected, as one more arrival tells."""
        self.do("mbarrier.arrive.shared.b64", "s[0]", self.at())
        self.see("mbarrier.pending_count.b64", "s[0]")

    def again(self, space: str) -> None:
        """The trial's barrier made invalid, and used again."""
        self.do(f"mbarrier.inval{space}.b64", self.at(space))
        self.do(f"mbarrier.init{space}.b64", self.at(space), "T.uint32(5)")
        self.look()
        self.count()

    def case(self, name: str) -> Case:
        head = [
            "pool = T.SMEMPool()", f'bar = pool.alloc(({self.trials},), "uint64", align=8)',
            "pool.commit()", 's = T.alloc_local((1,), "uint64")',
            'p = T.alloc_local((1,), "uint32")', "if tid == 0:",
        ]  # fmt: skip
        shape = (len(self.rows), max(self.rows.values()))
        text = kernel_text([f'Y: T.Buffer({shape}, "uint32")'], head + self.body, threads=32)
        return Case("mbarrier forms", name, text, lambda: [np.full(shape, 99, np.uint32)], (0,),
                    {0: list(self.rows)})  # fmt: skip


def arrivals_case(verb: str) -> Case:
    """``mbarrier.arrive`` or ``arrive_drop``: one arrival of a phase, and one that completes it."""
    steps, turn = Steps(), 0
    for what in ("one", "count", "expect_tx", "noComplete"):
        for state in (False, True):
            for space in SPACES:
                for order in ("", ORDERS[1 + turn % 4]):
                    if what == "noComplete" and order:
                        order = ".release.cta"
                    turn += 1
                    middle = "" if what in ("one", "count") else f".{what}"
                    form = f"mbarrier.{verb}{middle}{order}{space}.b64"
                    size = {"one": 1, "count": 3, "expect_tx": 1, "noComplete": 2}[what]
                    more = {"one": [], "count": ["T.uint32(3)"], "expect_tx": ["T.uint32(16)"],
                            "noComplete": ["T.uint32(2)"]}[what]  # fmt: skip
                    for expected in (7, size + 1) if what == "noComplete" else (7, size):
                        name = f"{form}{' with a count' * (what == 'count')}"
                        name += " with its state" * state
                        steps.begin(name, expected, SPACES[turn % 3])
                        target = ["s[0]"] if state else []
                        steps.do(form, *target, steps.at(space), *more)
                        if state:
                            steps.see("mbarrier.pending_count.b64", "s[0]")
                            steps.see("mbarrier.test_wait.shared.b64", steps.at(), "s[0]")
                        steps.look()
                        if what == "expect_tx":
                            steps.do("mbarrier.complete_tx.relaxed.cta.shared::cta.b64",
                                     steps.at(), "T.uint32(16)")  # fmt: skip
                            steps.look()
                        if verb == "arrive" or expected > size:  # of none left none may arrive
                            steps.count()
    return steps.case(verb)


def waits_case() -> Case:
    """All ways to look at a phase, before and after it completes, and the bytes it awaits."""
    steps, turn = Steps(), 0
    for what in ("test_wait", "test_wait.parity", "try_wait", "try_wait.parity"):
        for hint in ([], ["T.uint32(100)"])[: 1 + what.startswith("try")]:
            for space in SPACES:
                for order in ("", LOOKS[1 + turn % 4]):
                    turn += 1
                    form = f"mbarrier.{what}{order}{space}.b64"
                    name = f"{form}{' with a hint' * bool(hint)}"
                    steps.begin(name, 2)
                    steps.do("mbarrier.arrive.shared.b64", "s[0]", steps.at())
                    for when in ("before", "after"):
                        asked = ["s[0]"]
                        if "parity" in what:
                            asked = ["T.uint32(0)", "T.uint32(1)"]
                        for phase in asked:
                            steps.see(form, steps.at(space), phase, *hint)
                        if when == "before":
                            steps.do("mbarrier.arrive.shared.b64", steps.at())
    for space in SPACES:
        for order in ("", ".relaxed.cta", ".relaxed.cluster"):
            form = f"tx{order}{space}"
            steps.begin(f"mbarrier.expect_{form}.b64, mbarrier.complete_{form}.b64", 1)
            steps.do(f"mbarrier.expect_{form}.b64", steps.at(space), "T.uint32(48)")
            steps.do("mbarrier.arrive.shared.b64", steps.at())
            steps.look()
            steps.do(f"mbarrier.complete_{form}.b64", steps.at(space), "T.uint32(32)")
            steps.look()
            steps.do(f"mbarrier.complete_{form}.b64", steps.at(space), "T.uint32(16)")
            steps.look()
    for space in SPACES:
        steps.begin(f"mbarrier.init{space}.b64, mbarrier.inval{space}.b64", 2, space)
        steps.do("mbarrier.arrive.shared.b64", steps.at())
        steps.again(space)
    return steps.case("waits and bytes")


REMOTE = [
    ("arrive", ""), ("arrive", "T.uint32(3)"), ("arrive.release.cluster", ""),
    ("arrive.relaxed.cluster", "T.uint32(2)"), ("arrive.release.cta", ""), ("arrive_drop", ""),
    ("arrive_drop.release.cluster", "T.uint32(2)"), ("arrive_drop.relaxed.cluster", ""),
    ("arrive.expect_tx.release.cluster", "T.uint32(64)"), ("arrive.expect_tx", "T.uint32(64)"),
    ("arrive_drop.expect_tx", "T.uint32(64)"), ("expect_tx.relaxed.cluster", "T.uint32(64)"),
]  # fmt: skip


def remote_case() -> Case:
    """Arrivals on the other CTA's mbarriers, and what that CTA finds there."""
    count = len(REMOTE)
    body = [
        "pool = T.SMEMPool()", f'bar = pool.alloc(({count},), "uint64", align=8)', "pool.commit()",
        's = T.alloc_local((1,), "uint64")', 'p = T.alloc_local((1,), "uint32")',
        'far = T.alloc_local((1,), "uint32")', "if tid == 0:",
    ]  # fmt: skip
    for i in range(count):
        body.append(f"    T.ptx.mbarrier.init.shared.b64(bar.ptr_to([{i}]), T.uint32(6))")
    body += ["    T.ptx.fence.mbarrier_init.release.cluster()", "T.cuda.cluster_sync()",
             "if tid == 0:"]  # fmt: skip
    place = "T.cast(1 - rank, 'uint32')"
    for i, (form, operand) in enumerate(REMOTE):
        at = f"T.cuda.cvta_generic_to_shared(bar.ptr_to([{i}]))"
        body.append(f'    T.ptx["mapa.shared::cluster.u32"](far[0], {at}, {place})')
        call = f"far[0], {operand}" if operand else "far[0]"
        body.append(f'    T.evaluate(T.ptx["mbarrier.{form}.shared::cluster.b64"]({call}))')
        if "expect_tx" in form:
            body.append(
                '    T.evaluate(T.ptx["mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64"]('
                "far[0], T.uint32(64)))"
            )
    body += ["T.cuda.cluster_sync()", "if tid == 0:"]
    names = []
    for i, (form, operand) in enumerate(REMOTE):
        names.append(f"mbarrier.{form}.shared::cluster.b64{' with a count' * bool(operand)}")
        at = f"bar.ptr_to([{i}])"
        for turn in range(2):  # of this phase, and of the next one: what has been dropped
            body += [
                f'    T.evaluate(T.ptx["mbarrier.arrive.shared.b64"](s[0], {at}))',
                "    T.ptx.mbarrier.pending_count.b64(p[0], s[0])",
                f"    Y[{i}, rank, {turn}] = p[0]",
            ]  # fmt: skip
            if not turn:
                body += ["    while p[0] > T.uint32(1):",
                         f'        T.evaluate(T.ptx["mbarrier.arrive.shared.b64"](s[0], {at}))',
                         "        T.ptx.mbarrier.pending_count.b64(p[0], s[0])"]  # fmt: skip
    body.append("T.cuda.cluster_sync()")
    shape = (count, 2, 2)
    text = kernel_text([f'Y: T.Buffer({shape}, "uint32")'], body, threads=32, grid=2, cluster=2)
    return Case("mbarrier forms", "arrivals of another CTA", text,
                lambda: [np.full(shape, 99, np.uint32)], (0,), {0: names})  # fmt: skip


# ------------------------------------------------------------------------------ cp.async on them


def cp_async_arrival_case() -> Case:
    """``cp.async.mbarrier.arrive``: counted in addition, and ``.noinc`` of the expected ones."""
    forms = [(noinc, space) for noinc in ("", ".noinc") for space in SPACES]
    body = [
        "pool = T.SMEMPool()", 's = pool.alloc((256,), "uint32", align=16)',
        f'bar = pool.alloc(({2 * len(forms)},), "uint64", align=8)', "pool.commit()",
        'p = T.alloc_local((2,), "uint32")', 'state = T.alloc_local((1,), "uint64")',
        "if tid == 0:",
    ]  # fmt: skip
    # with .noinc each thread arrives through its copies; without, the threads arrive themselves
    for i, (noinc, _) in enumerate(forms):
        counts = (64, 128) if noinc else (64, 64)
        for j, count in enumerate(counts):
            at = f"bar.ptr_to([{2 * i + j}])"
            body.append(f"    T.ptx.mbarrier.init.shared.b64({at}, T.uint32({count}))")
    body.append("T.cuda.cta_sync()")
    names = []
    for i, (noinc, space) in enumerate(forms):
        for j, twice in enumerate((False, True)):
            at = f"bar.ptr_to([{2 * i + j}])"
            where = address(space, at)
            row = 2 * i + j
            arrive = f'T.evaluate(T.ptx["cp.async.mbarrier.arrive{noinc}{space}.b64"]({where}))'
            copy = ('T.evaluate(T.ptx["cp.async.ca.shared.global"](s.ptr_to([tid * 4{0}]), '
                    "X.ptr_to([{1}, tid * 4{0}]), 8))").replace("{1}", str(row))  # fmt: skip
            body += ["for i in range(4):", "    s[tid * 4 + i] = T.uint32(0xABABABAB)",
                     "T.cuda.cta_sync()", "if tid % 3 != 1:",
                     "    " + copy.replace("{0}", "")]  # fmt: skip
            body += [arrive] if twice else []
            body += [copy.replace("{0}", " + 2"), arrive]
            if not noinc:
                body.append(f"T.evaluate(T.ptx.mbarrier.arrive.shared.b64({at}))")
            body += [
                f"T.cuda.mbarrier_wait({at}, 0)",
                "for i in range(4):", f"    Y[{row}, tid * 4 + i] = s[(tid * 4 + 16 + i) % 256]",
                "if tid == 0:",
            ]  # fmt: skip
            for parity in (0, 1):
                body += [f"    T.ptx.mbarrier.test_wait.parity.shared.b64(p[0], {at}, "
                         f"T.uint32({parity}))", f"    Z[{row}, {parity}] = p[0]"]  # fmt: skip
            body += [
                f"    T.evaluate(T.ptx.mbarrier.arrive.shared.b64(state[0], {at}))",
                "    T.ptx.mbarrier.pending_count.b64(p[0], state[0])", f"    Z[{row}, 2] = p[0]",
                "T.ptx.cp.async_.wait_all()", "T.cuda.cta_sync()",
            ]  # fmt: skip
            names.append(f"cp.async.mbarrier.arrive{noinc}{space}.b64{', two of each' * twice}")
    rows = len(names)
    text = kernel_text(
        [f'X: T.Buffer(({rows}, 256), "uint32")', f'Y: T.Buffer(({rows}, 256), "uint32")',
         f'Z: T.Buffer(({rows}, 3), "uint32")'], body, threads=64,
    )  # fmt: skip

    def arguments():
        x = rng_of("cp.async arrivals").integers(0, 1 << 32, (rows, 256), dtype=np.uint64)
        return [x.astype(np.uint32), np.zeros((rows, 256), np.uint32),
                np.full((rows, 3), 99, np.uint32)]  # fmt: skip

    forms_of = {1: [f"{n}: bytes" for n in names], 2: [f"{n}: phase" for n in names]}
    return Case("mbarrier forms", "cp.async.mbarrier.arrive", text, arguments, (1, 2), forms_of)


# ---------------------------------------------------------------------------- barriers that reduce


def barrier_case() -> Case:
    """Barriers of 128 threads, of all and of half of them, that count or combine a predicate."""
    body = ['p = T.alloc_local((1,), "uint32")', 'q = T.alloc_local((1,), "uint32")']
    names = []
    for family, aligned in (("bar", ""), ("barrier", ""), ("barrier", ".aligned")):
        for cta in ("", ".cta"):
            for op, kind in (("popc", ".u32"), ("and", ".pred"), ("or", ".pred")):
                for count in (False, True):
                    form = f"{family}{cta}.red.{op}{aligned}{kind}"
                    row = len(names)
                    names.append(f"{form}{' of half the threads' * count}")
                    for which in range(3):
                        held = "T.ptx.pred(q[0])"
                        body.append(f"q[0] = X[{which}, tid]")
                        if count:  # the warps of each half meet at a barrier of their own
                            operands = f"T.cast(1 + tid // 64, 'uint32'), T.uint32(64), {held}"
                        else:
                            operands = f"T.uint32(0), {held}"
                        body += [f'T.evaluate(T.ptx["{form}"](p[0], {operands}))',
                                 f"Y[{row}, {which}, tid] = p[0]"]  # fmt: skip
    shape = (len(names), 3, 128)
    text = kernel_text(['X: T.Buffer((3, 128), "uint32")', f'Y: T.Buffer({shape}, "uint32")'],
                       body, threads=128)  # fmt: skip

    def arguments():
        x = rng_of("barriers").integers(0, 2, (3, 128)).astype(np.uint32)
        x[1, :64], x[2, 64:] = 1, 0  # all of one half, none of another
        x[2, :64] = 0
        x[2, 5] = 1
        return [x, np.full(shape, 99, np.uint32)]

    return Case("barriers", "barriers that reduce", text, arguments, (1,), {1: names})


MEETINGS = [  # how the writers meet the readers; None: the same operation
    ("bar.sync", None, False), ("bar.sync", None, True), ("bar.cta.sync", None, True),
    ("bar.arrive", "bar.sync", True), ("bar.cta.arrive", "bar.cta.sync", True),
    ("barrier.sync", None, False), ("barrier.sync.aligned", None, True),
    ("barrier.cta.sync", None, True), ("barrier.arrive", "barrier.sync", True),
    ("barrier.cta.arrive.aligned", "barrier.cta.sync.aligned", True),
]  # fmt: skip
CLUSTERED = [(a, w) for a in ("", ".aligned", ".release", ".release.aligned")
             for w in ("", ".acquire.aligned")]  # fmt: skip


def meeting_case() -> Case:
    """What one half of a CTA writes to shared memory, the other reads behind a barrier; the same
    for the lanes of a warp, and for two CTAs of a cluster."""
    body = [
        "pool = T.SMEMPool()", 's = pool.alloc((128,), "uint32", align=16)', "pool.commit()",
        'far = T.alloc_local((1,), "uint32")', 'd = T.alloc_local((1,), "uint32")',
    ]  # fmt: skip
    names = []
    for i, (writers, readers, counted) in enumerate(MEETINGS):
        count = ", T.uint32(128)" if counted else ""
        number = i % 15 + 1
        body += [
            "if tid < 64:", f"    s[tid] = X[rank, tid] + T.uint32({i})",
            f'    T.evaluate(T.ptx["{writers}"](T.uint32({number}){count}))', "else:",
            f'    T.evaluate(T.ptx["{readers or writers}"](T.uint32({number}){count}))',
            f"    Y[{i}, rank, tid - 64] = s[127 - tid]", "T.cuda.cta_sync()",
        ]  # fmt: skip
        names.append(f"{writers}{f', {readers}' if readers else ''}{' of so many' * counted}")
    body += [
        "s[tid] = X[rank, tid % 64]", "T.ptx.bar.warp.sync(T.uint32(0xFFFFFFFF))", "if tid < 64:",
        f"    Y[{len(names)}, rank, tid] = s[tid // 32 * 32 + (tid + 5) % 32]", "T.cuda.cta_sync()",
    ]  # fmt: skip
    names.append("bar.warp.sync")
    body.append(
        'T.ptx["mapa.shared::cluster.u32"](far[0], '
        "T.cuda.cvta_generic_to_shared(s.ptr_to([127 - tid])), T.cast(1 - rank, 'uint32'))"
    )
    for arrive, wait in CLUSTERED:
        i = len(names)
        body += [
            f"s[tid] = X[rank, tid % 64] * T.uint32({i})",
            f'T.evaluate(T.ptx["barrier.cluster.arrive{arrive}"]())',
            f'T.evaluate(T.ptx["barrier.cluster.wait{wait}"]())',
            'T.evaluate(T.ptx["ld.shared::cluster.u32"](d[0], far[0]))',
            "if tid < 64:", f"    Y[{i}, rank, tid] = d[0]", "T.cuda.cluster_sync()",
        ]  # fmt: skip
        names.append(f"barrier.cluster.arrive{arrive}, barrier.cluster.wait{wait}")
    shape = (len(names), 2, 64)
    text = kernel_text(['X: T.Buffer((2, 64), "uint32")', f'Y: T.Buffer({shape}, "uint32")'], body,
                       threads=128, grid=2, cluster=2)  # fmt: skip

    def arguments():
        x = rng_of("meetings").integers(0, 1 << 32, (2, 64), dtype=np.uint64).astype(np.uint32)
        return [x, np.full(shape, 99, np.uint32)]

    return Case("barriers", "meetings", text, arguments, (1,), {1: names})


def cases() -> Iterator[Case]:
    yield arrivals_case("arrive")
    yield arrivals_case("arrive_drop")
    yield waits_case()
    yield remote_case()
    yield cp_async_arrival_case()
    yield barrier_case()
    yield meeting_case()
