"""``wgmma``: a warpgroup's matrix products, with accumulators in registers (Hopper).

The four warps meet at ``wgmma.wait_group``, and each product is computed once for all of them,
adjacent k16 steps in one. Numerics as in :mod:`.tcgen05`.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from mlsys_gpu.sim.machine import access, descriptors
from mlsys_gpu.sim.machine.barriers import uniform
from mlsys_gpu.sim.machine.clocks import (
    stamp,
)
from mlsys_gpu.sim.machine.core import (
    EXIT_HOOKS,
    Pipe,
    Stop,
    Waiting,
    Warp,
    op,
    whole_warp,
)
from mlsys_gpu.sim.machine.numerics import POISON
from mlsys_gpu.sim.machine.operands import (
    bad_descriptor,
    count_product,
    decode,
    discarded,
    note,
    out_of_shared,
)


class Product:
    """One wgmma instruction of a warpgroup, filled in by its four warps."""

    __slots__ = (
        "a",
        "acc",
        "accumulate",
        "b",
        "clock",
        "dtype",
        "issued",
        "n",
        "sign",
        "site",
        "ta",
        "tb",
        "times",
    )

    def __init__(self, a, b, accumulate, n, dtype, ta, tb, sign, site):
        self.a, self.b, self.accumulate, self.n = a, b, accumulate, n
        self.dtype, self.ta, self.tb, self.sign, self.site = dtype, ta, tb, sign, site
        self.acc: list[Any] = [None] * 4
        self.clock: np.ndarray | None = None
        self.issued = 0
        self.times = [0] * 4  # each warp's own clock at its issue


class Warpgroup:
    """Four warps that share wgmma instructions: those issued, and how many have been done.

    ``matrices`` keeps accumulators as 64 x N matrices between products; the registers are stale
    while an accumulator is there, and :func:`wgmma_touch` brings them up to date.
    """

    def __init__(self, w: Warp):
        self.first = w.id // 4 * 4
        self.warps = w.cta.warps[self.first : self.first + 4]
        self.products: list[Product] = []
        self.base = 0  # products forgotten because they are done
        self.prepared = 0  # products checked
        self.done = 0  # products computed
        self.plans: deque[tuple[int, Callable[[], None]]] = deque()
        self.matrices: dict[tuple, tuple[np.ndarray, list]] = {}
        self.waiters: list[tuple[Warp, int]] = []
        self.agent = w.cluster.agents.of(w.cta.rank, self.first, "wgmma")
        self.pipe = Pipe(w.cluster, f"wgmma of warpgroup {w.id // 4}")


class WgmmaState:
    """A warp's part: how many instructions it has issued, its groups, and its register hazards."""

    __slots__ = (
        "completed",
        "fence_seen",
        "fenced",
        "groups",
        "issued",
        "pending",
        "touched",
        "unread",
    )

    def __init__(self) -> None:
        self.issued = 0
        self.groups: list[int] = []  # instructions issued when each group was committed
        self.completed = 0
        #: Accumulators (array id) to the last instruction that uses them, not known to be done.
        self.pending: dict[int, int] = {}
        #: Accumulators that threads have written since the last wgmma.fence.
        self.fenced: set[int] = set()
        self.fence_seen = False
        #: Accumulators (array id, first register) that nothing has read since the wgmma at a site.
        self.unread: dict[tuple[int, int], int] = {}
        self.touched = False  # accumulators in flight were touched, and that is reported


def _warpgroup(w: Warp) -> tuple[Warpgroup, WgmmaState]:
    state = w.state.get("wgmma")
    if state is None:
        state = w.state["wgmma"] = WgmmaState()
    groups = w.cta.state.setdefault("warpgroups", {})
    group = groups.get(w.id // 4)
    if group is None:
        if len(w.cta.warps) < w.id // 4 * 4 + 4:
            w.machine.report(
                "divergent-collective",
                w,
                "wgmma needs a warpgroup of four warps; this CTA's last one is smaller",
                memory="",
                fix="launch a multiple of 128 threads",
            )
            raise Stop
        group = groups[w.id // 4] = Warpgroup(w)
    return group, state


@op
def wgmma_fence(w: Warp, mask=None) -> None:
    """``wgmma.fence``: orders this warp's accesses to registers before the wgmmas that follow."""
    whole_warp(w, mask, "wgmma.fence")
    _, state = _warpgroup(w)
    state.fenced.clear()
    state.fence_seen = True


@op
def wgmma_touch(w: Warp, registers: np.ndarray, write: bool) -> None:
    """Threads read or write accumulator registers outside wgmma."""
    group, state = _warpgroup(w)
    key = id(registers)
    pending = state.pending.get(key)
    if pending is not None:
        product = group.products[pending - group.base] if pending >= group.base else None
        place = w.machine.program.location(product.site) if product else None
        w.machine.report(
            "wgmma-in-flight",
            w,
            f"{w.name()} {'writes' if write else 'reads'} accumulator registers that the wgmma at "
            f"{place} may still be using",
            memory="accumulator registers",
            fix=(
                "commit the group (wgmma.commit_group) and wait for it (wgmma.wait_group 0) before "
                "the registers are touched"
            ),
            related=[("the wgmma", place)],
        )
        del state.pending[key]  # once is enough
        state.touched = True
    if write:
        state.fenced.add(key)
    for place in [p for p in state.unread if p[0] == key]:
        del state.unread[place]
    for name in [n for n in group.matrices if n[0] == w.id % 4 and n[1] == key]:
        _store_back(group, name)
    for name, (_, views) in list(group.matrices.items()):
        if any(owner == key for owner, _, _ in views):
            _store_back(group, name)


def _store_back(group: Warpgroup, name: tuple) -> None:
    """Write an accumulator matrix to the registers of its four warps."""
    matrix, views = group.matrices.pop(name)
    n = matrix.shape[1]
    for quarter, (_, registers, first) in enumerate(views):
        block = matrix[16 * quarter : 16 * quarter + 16].reshape(2, 8, n // 8, 4, 2)
        fragment = block.transpose(1, 3, 2, 0, 4).reshape(32, n // 2)
        registers[:, first : first + n // 2] = fragment


def _gather(views, n: int) -> np.ndarray:
    """An accumulator matrix from the registers of four warps.

    Register 4j + 2h + e of lane 4r + c holds row 16w + 8h + r, column 8j + 2c + e
    (PTX ISA, "wgmma accumulator D fragment").
    """
    matrix = np.empty((64, n), dtype=np.float32)
    for quarter, (_, registers, first) in enumerate(views):
        fragment = registers[:, first : first + n // 2].reshape(8, 4, n // 8, 2, 2)
        matrix[16 * quarter : 16 * quarter + 16] = fragment.transpose(3, 0, 2, 1, 4).reshape(16, n)
    return matrix


@op
def wgmma_mma(
    w: Warp,
    registers,
    first: int,
    a,
    b,
    accumulate,
    n: int,
    dtype: str,
    ta: int,
    tb: int,
    sign: int,
    mask=None,
) -> None:
    """``wgmma.mma_async`` with both operands in shared memory: issue one m64nNk16 step.

    ``registers`` is the warp's ``[32, R]`` float32 array, ``first`` its first register.
    """
    whole_warp(w, mask, "wgmma.mma_async")
    group, state = _warpgroup(w)
    a = int(uniform(w, a, "a descriptor"))
    b = int(uniform(w, b, "a descriptor"))
    accumulate = bool(uniform(w, accumulate, "scale-d"))
    number = state.issued
    state.issued += 1
    at = number - group.base
    if at == len(group.products):
        group.products.append(Product(a, b, accumulate, n, dtype, ta, tb, sign, w.s))
        w.machine.count("mma_instructions")  # the warp that comes first; once for the warpgroup
        count_product(w, 64, n, 1)
    product = group.products[at]
    if (product.a, product.b, product.accumulate, product.n) != (a, b, accumulate, n):
        w.machine.report(
            "divergent-collective",
            w,
            f"the warps of a warpgroup issue different wgmma instructions as their {number + 1}th",
            memory="",
            fix="let all four warps take the same path, with the same descriptors",
            related=[("another warp's", w.machine.program.location(product.site))],
        )
        raise Stop
    key = id(registers)
    if w.checks:
        if not state.fence_seen:
            state.fence_seen = True  # once is enough
            w.machine.report(
                "wgmma-fence",
                w,
                f"{w.name()} issues its first wgmma without a wgmma.fence before it",
                memory="accumulator registers",
                fix="execute wgmma.fence before the first wgmma (PTX ISA, wgmma.fence)",
            )
        elif key in state.fenced:
            w.machine.report(
                "wgmma-fence",
                w,
                f"{w.name()} issues wgmma on accumulator registers that its threads have written "
                "since the last wgmma.fence",
                memory="accumulator registers",
                fix="execute wgmma.fence between the writes and the first wgmma that uses them",
            )
            state.fenced.discard(key)
        if not accumulate and (key, first) in state.unread:
            discarded(w, state.unread[key, first], f"wgmma (64x{n}x16)", w.s)
        state.unread[key, first] = w.s
        product.clock = (
            w.clock.copy() if product.clock is None else np.minimum(product.clock, w.clock)
        )
        product.times[w.id % 4] = int(w.clock[0, w.agent])
    product.acc[w.id % 4] = (key, registers, first)
    product.issued += 1
    state.pending[key] = number


@op
def wgmma_commit(w: Warp, mask=None) -> None:
    """``wgmma.commit_group``: what was issued since the last commit is one group."""
    whole_warp(w, mask, "wgmma.commit_group")
    group, state = _warpgroup(w)
    state.groups.append(state.issued)
    upto = state.issued
    if _issued(group) >= upto > group.prepared:
        _prepare(group, upto)
        group.pipe.submit(lambda: _run_products(group, upto))


def _issued(group: Warpgroup) -> int:
    """Instructions that all four warps have issued."""
    return min(w.state["wgmma"].issued if "wgmma" in w.state else 0 for w in group.warps)


@op
def wgmma_wait(w: Warp, count: int, mask=None):
    """``wgmma.wait_group N``: all but the latest N groups of this warp are done."""
    whole_warp(w, mask, "wgmma.wait_group")
    group, state = _warpgroup(w)
    if len(state.groups) <= count:
        return None
    upto = state.groups[len(state.groups) - 1 - count]
    if _issued(group) < upto:
        group.waiters.append((w, upto))
        w.state["wgmma_wait"] = upto
        w.waiting = Waiting(
            "wgmma",
            group,
            lambda: (
                f"waits for wgmma instruction {upto} of warpgroup {w.id // 4}, which "
                + " and ".join(
                    x.name()
                    for x in group.warps
                    if "wgmma" not in x.state or x.state["wgmma"].issued < upto
                )
                + " never issued"
            ),
        )
        return w.waiting
    _complete(w, group, state, upto)
    for other, wanted in list(group.waiters):
        if _issued(group) >= wanted:
            group.waiters.remove((other, wanted))
            _complete(other, group, other.state["wgmma"], wanted)
            other.cluster.wake(other)
    return None


def _complete(w: Warp, group: Warpgroup, state: WgmmaState, upto: int) -> None:
    """A warp has waited for the products below ``upto``: their effects are its own now."""
    _run_products(group, upto)
    state.completed = max(state.completed, upto)
    agent = group.agent
    if w.machine.reading("wgmma-wait") == "warp":
        agent = w.unit["wgmma"]
    elif w.checks and upto > group.base:  # in time, that comes after all four have issued it
        for other, time in zip(
            group.warps, group.products[upto - 1 - group.base].times, strict=True
        ):
            w.clock[2, other.agent] = max(int(w.clock[2, other.agent]), time)
    w.clock[:, agent] = max(int(w.clock[0, agent]), upto)
    for key in [k for k, last in state.pending.items() if last < upto]:
        del state.pending[key]
    finished = min(x.state["wgmma"].completed if "wgmma" in x.state else 0 for x in group.warps)
    if finished > group.base:
        del group.products[: finished - group.base]
        group.base = finished


def _run_products(group: Warpgroup, upto: int) -> None:
    """Compute the products below ``upto`` that are not done."""
    _prepare(group, upto)
    while group.plans and group.plans[0][0] <= upto:
        group.done, compute = group.plans.popleft()
        compute()


def _prepare(group: Warpgroup, upto: int) -> None:
    """Check the products below ``upto``, one accumulator's steps together, and plan them."""
    if group.prepared >= upto:
        return
    number = group.prepared
    ready = group.products[number - group.base : upto - group.base]
    group.prepared = upto
    chains: dict[tuple, list[tuple[int, Product]]] = {}
    order: list[list[tuple[int, Product]]] = []
    for product in ready:
        name = tuple((view[0], view[2]) for view in product.acc)
        chain = chains.get(name)
        if chain is not None and _continues(chain[-1][1], product):
            chain.append((number, product))
        else:
            chain = chains[name] = [(number, product)]
            order.append(chain)
        number += 1
    for chain in order:
        group.plans.append((upto, _chain(group, chain)))


def _continues(last: Product, product: Product) -> bool:
    high = ~((1 << 14) - 1)
    return (
        product.accumulate
        and last.n == product.n
        and last.a & high == product.a & high
        and last.b & high == product.b & high
        and last.sign == product.sign
    )


def _chain(group: Warpgroup, chain: list[tuple[int, Product]]) -> Callable[[], None]:
    """Check one accumulator's successive k16 steps, ``D (+)= A @ B.T``, 64 rows; returns what
    computes them."""
    head = chain[0][1]
    w = group.warps[0]
    cta, site = w.cta, head.site
    try:
        left = [descriptors.wgmma_matrix(p.a) for _, p in chain]
        right = [descriptors.wgmma_matrix(p.b) for _, p in chain]
    except descriptors.DescriptorError as error:
        raise bad_descriptor(w, error, site) from None
    rows_a, ta = descriptors.operand_rows(left, 64, bool(head.ta))
    rows_b, tb = descriptors.operand_rows(right, head.n, bool(head.tb))
    what = f"wgmma (64x{head.n}x{16 * len(chain)})"
    out_of_shared(w, cta, rows_a, f"operand A of {what}", site)
    out_of_shared(w, cta, rows_b, f"operand B of {what}", site)
    name = tuple((view[0], view[2]) for view in head.acc)
    if w.checks:
        last = chain[-1][0] + 1
        assert head.clock is not None
        clock = head.clock.copy()
        parts = [(group.agent, rows_a)]
        if w.machine.reading("wgmma-wait") == "warp":  # each warp multiplies its own 16 rows
            rows = rows_a.shape[0] // 4
            parts = [
                (x.unit["wgmma"], rows_a[rows * i : rows * (i + 1)])
                for i, x in enumerate(group.warps)
            ]
        for agent, part in parts:
            clock[:, agent] = last
            now = stamp(agent, last)
            access.async_read(w, cta, part, clock, agent, now, site, f"operand A of {what}")
            access.async_read(w, cta, rows_b, clock, agent, now, site, f"operand B of {what}")

    def compute() -> None:
        if w.machine.trace is not None:
            place = (cta.index, group.first, name)
            operands = [(rows_a, ta, head.dtype), (rows_b, tb, head.dtype)]
            note(w, site, what, place, head.accumulate, [cta], *operands)
        product = decode(cta, rows_a, ta, head.dtype) @ decode(cta, rows_b, tb, head.dtype).T
        if head.sign < 0:
            product = -product
        for other in [k for k in group.matrices if k != name and _overlap(group, k, head)]:
            _store_back(group, other)
        if head.accumulate:
            held = group.matrices.get(name)
            if held is not None and held[0].shape[1] == head.n:
                matrix = held[0]
            else:
                matrix = _gather(head.acc, head.n)
                if w.checks and (matrix.view(np.uint32) == POISON).any():
                    w.machine.report(
                        "uninitialised-read",
                        w,
                        f"{what} adds to accumulator registers that nothing has written",
                        memory="accumulator registers",
                        fix="let a tile's first product overwrite (scale-d false), or clear them",
                        site=site,
                    )
            np.add(matrix, product, out=matrix)
        else:
            matrix = product
        group.matrices[name] = (matrix, list(head.acc))

    return compute


def _overlap(group: Warpgroup, name: tuple, product: Product) -> bool:
    """Whether a kept matrix shares registers with a product's accumulator."""
    width = group.matrices[name][0].shape[1] // 2
    (key, first), view = name[0], product.acc[0]
    return key == view[0] and first < view[2] + product.n // 2 and view[2] < first + width


def _wgmma_exit(w: Warp) -> None:
    state = w.state.get("wgmma")
    if state is not None and state.completed < state.issued and not state.touched:
        w.machine.report(
            "in-flight-at-exit",
            w,
            f"{w.name()} exits with wgmma instructions that it has not waited for",
            memory="accumulator registers",
            fix="execute wgmma.commit_group and wgmma.wait_group 0 before the end",
        )


EXIT_HOOKS.append(_wgmma_exit)
