"""``wgmma``: a warpgroup's matrix products, with accumulators in registers (Hopper).

The four warps meet at ``wgmma.wait_group``, and each product is computed once for all of them,
adjacent k16 steps in one. Numerics as in :mod:`.tcgen05`; accumulators of 16 bits are rounded after
each k16 step, as an H200 does.

Registers of an operand are *pieces*: tuples ``(array, first, count)`` of consecutive 32-bit words
of a local array ``[32, R]``. Each word of each array can be in flight on its own: the rules of
``wgmma.fence`` and ``wgmma.wait_group`` are about registers, not about the arrays they stand in.
"""

import itertools
from collections import deque
from collections.abc import Callable
from operator import is_
from typing import Any

import numpy as np

from mlsys_gpu.sim.machine import access, descriptors, sums
from mlsys_gpu.sim.machine.barriers import uniform
from mlsys_gpu.sim.machine.clocks import (
    stamp,
)
from mlsys_gpu.sim.machine.core import (
    EXIT_HOOKS,
    Cta,
    Pipe,
    Stop,
    Waiting,
    Warp,
    op,
    whole_warp,
)
from mlsys_gpu.sim.machine.numerics import F16_VALUES, INTEGER_POISON, POISON, bf16_to_f32
from mlsys_gpu.sim.machine.operands import (
    bad_descriptor,
    count_product,
    decode,
    discarded,
    note,
    out_of_shared,
)

#: Consecutive 32-bit registers of a local array: the array, the first word, and how many.
Piece = tuple[np.ndarray, int, int]
#: The same, with the array's identity: what tells one operand's registers from another's.
Name = tuple[tuple[int, int, int], ...]

#: How an operand uses its registers.
ACCUMULATOR, FRAGMENT = "accumulators", "fragments of A"

_UNWRITTEN = {
    "float32": int(POISON),
    "uint32": int.from_bytes(INTEGER_POISON * 4, "little"),
    "int32": int.from_bytes(INTEGER_POISON * 4, "little"),
}


class Product:
    """One wgmma instruction of a warpgroup, filled in by its four warps.

    ``form``: what must be the same for all of them. ``a`` is the descriptor of A, or None where A
    is in registers: then ``fragments`` holds the four warps' registers, ``[32, 4]`` words.
    ``half``: the accumulators are fp16, two in a register.
    """

    __slots__ = (
        "a",
        "acc",
        "accumulate",
        "b",
        "clocks",
        "dtype",
        "form",
        "fragments",
        "half",
        "n",
        "names",
        "sign",
        "site",
        "ta",
        "tb",
        "times",
    )

    def __init__(self, form: tuple, site: int):
        self.form, self.site = form, site
        self.a, self.b, self.accumulate, self.n = form[:4]
        self.dtype, self.ta, self.tb, self.sign, self.half = form[4:]
        self.acc: list[Any] = [None] * 4  # pieces, by warp
        self.names: list[Any] = [None] * 4
        self.fragments: list[Any] = [None] * 4
        self.clocks: list[Any] = [None] * 4  # each warp's at its issue
        self.times = [0] * 4  # each warp's own clock at its issue


class Matrix:
    """An accumulator kept as a ``64 x N`` float32 matrix; its registers are stale meanwhile."""

    __slots__ = ("half", "values", "views")

    def __init__(self, values: np.ndarray, views: list[tuple[Piece, ...]], half: bool):
        self.values, self.views, self.half = values, views, half


class Warpgroup:
    """Four warps that share wgmma instructions: those issued, and how many have been done.

    ``matrices`` keeps accumulators as matrices between products; :func:`wgmma_touch` brings their
    registers up to date.
    """

    def __init__(self, w: Warp):
        self.first = w.id // 4 * 4
        self.warps = w.cta.warps[self.first : self.first + 4]
        self.products: list[Product] = []
        self.issued = [0] * 4  # instructions that each warp has issued
        self.completed = [0] * 4  # and waited for
        self.base = 0  # products forgotten because they are done
        self.prepared = 0  # products checked
        self.done = 0  # products computed
        self.plans: deque[tuple[int, Callable[[], None]]] = deque()
        self.matrices: dict[tuple[Name, ...], Matrix] = {}
        self.waiters: list[tuple[Warp, int]] = []
        self.agent = w.cluster.agents.of(w.cta.rank, self.first, "wgmma")
        self.pipe = Pipe(w.cluster, f"wgmma of warpgroup {w.id // 4}")


class Use:
    """Registers that a wgmma instruction uses: words ``low`` to ``high`` of an array.

    ``array`` keeps the array alive, so that its identity names no other one.
    """

    __slots__ = ("array", "high", "low", "n", "number", "role", "site")

    def __init__(self, array, low: int, high: int, role: str, n: int, number: int, site: int):
        self.array, self.low, self.high = array, low, high
        self.role, self.n, self.number, self.site = role, n, number, site


class WgmmaState:
    """A warp's part: how many instructions it has issued, its groups, and its register hazards."""

    __slots__ = (
        "accessed",
        "clock",
        "completed",
        "fence_seen",
        "group",
        "groups",
        "issued",
        "known",
        "pending",
        "quiet",
        "reported",
        "time",
        "unread",
        "used",
    )

    def __init__(self, group: Warpgroup) -> None:
        self.group = group
        self.clock: np.ndarray | None = None  # the warp's at its last issue
        self.time = 0  # its own component of that
        self.issued = 0
        self.groups: list[int] = []  # instructions issued when each group was committed
        self.completed = 0
        self.known: set[Name] = set()  # accumulators that lie inside their arrays
        #: By array: uses whose instructions are not known to be done.
        self.pending: dict[int, list[Use]] = {}
        #: By array: uses since the last wgmma.fence.
        self.used: dict[int, list[Use]] = {}
        #: By array: the words that threads have accessed since the last wgmma.fence (1 for each).
        self.accessed: dict[int, tuple[np.ndarray, bytearray]] = {}
        #: By array: the words that may be touched again with nothing to check and nothing to do.
        self.quiet: dict[int, tuple[np.ndarray, bytearray]] = {}
        self.fence_seen = False
        #: Accumulators that nothing has read since the wgmma at a site.
        self.unread: dict[Name, tuple[int, tuple[Piece, ...]]] = {}
        self.reported = False  # registers in flight were touched, and that is reported


def _warpgroup(w: Warp) -> tuple[Warpgroup, WgmmaState]:
    state = w.state.get("wgmma")
    if state is not None:
        return state.group, state
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
    state = w.state["wgmma"] = WgmmaState(group)
    return group, state


# ------------------------------------------------------------------- registers outside of wgmma


@op
def wgmma_fence(w: Warp, mask=None) -> None:
    """``wgmma.fence``: orders this warp's accesses to registers before the wgmmas that follow."""
    whole_warp(w, mask, "wgmma.fence")
    _, state = _warpgroup(w)
    state.accessed.clear()
    state.quiet.clear()
    state.used.clear()
    state.fence_seen = True


@op
def wgmma_touch(
    w: Warp, registers: np.ndarray, write: bool, name: str, first: int = 0, end: int = -1, size=4
) -> None:
    """Threads read or write registers that wgmma uses too: elements ``first`` to ``end - 1`` of
    ``size`` bytes, or all of the array's."""
    state = w.state.get("wgmma")
    if state is None:
        return  # neither a wgmma nor a wgmma.fence before
    key = id(registers)
    quiet = state.quiet.get(key)
    if quiet is not None and size == 4 and end == first + 1 and quiet[1][first]:
        return
    words = registers.shape[1] * registers.itemsize >> 2
    if end < 0:
        low, high = 0, words
    else:
        low, high = first * size >> 2, (end * size + 3) >> 2
    group = state.group
    if w.checks:
        for use in state.pending.get(key, ()):
            if use.low < high and low < use.high:
                _in_flight(w, state, use, key, write, name, low, size)
                break
        held = state.accessed.get(key)
        if held is None:
            held = state.accessed[key] = (registers, bytearray(words))
        held[1][low:high] = b"\1" * (high - low)
        _read(state, key, low, high)
    if group.matrices:
        _bring_back(group, w.id % 4, key, low, high)
    if quiet is None:
        quiet = state.quiet[key] = (registers, bytearray(words))
    quiet[1][low:high] = b"\1" * (high - low)


def _in_flight(w: Warp, state: WgmmaState, use: Use, key: int, write: bool, name, low, size):
    """Report registers that threads touch while a wgmma may use them."""
    place = w.machine.program.location(use.site)
    register = max(low, use.low)
    # PTX ISA, wgmma.wait_group: accessing the accumulator register or the input register containing
    # the fragments of A without waiting for the instruction's group is undefined behaviour.
    w.machine.report(
        "wgmma-in-flight",
        w,
        f"{w.name()} {'writes' if write else 'reads'} {name}[{register * 4 // size}] while the "
        f"wgmma at {place} may still be using it: the registers are its {use.role}",
        memory=f"registers of {name}",
        fix=(
            "commit the group (wgmma.commit_group) and wait for it (wgmma.wait_group 0) before "
            "the registers are touched"
        ),
        related=[("the wgmma", place)],
    )
    del state.pending[key]  # once is enough
    state.reported = True


def _read(state: WgmmaState, key: int, low: int, high: int) -> None:
    """Products in these words are not lost any more."""
    if state.unread:
        for name, (_, pieces) in list(state.unread.items()):
            if _meets(pieces, key, low, high):
                del state.unread[name]


def _meets(pieces: tuple[Piece, ...], key: int, low: int, high: int) -> bool:
    return any(id(a) == key and first < high and low < first + n for a, first, n in pieces)


def _bring_back(group: Warpgroup, quarter: int, key: int, low: int, high: int) -> None:
    """Write the accumulators that share words with a warp's array to their registers."""
    for name, matrix in list(group.matrices.items()):
        if _meets(matrix.views[quarter], key, low, high):
            _store_back(group, name)


# --------------------------------------------------------------------------- fragments (PTX ISA)


def _words(pieces: tuple[Piece, ...]) -> np.ndarray:
    """The registers of an operand, ``[32, R]`` words."""
    if len(pieces) == 1:
        array, first, count = pieces[0]
        return array.view(np.uint32)[:, first : first + count]
    return np.concatenate([a.view(np.uint32)[:, f : f + n] for a, f, n in pieces], axis=1)


def _store_back(group: Warpgroup, name: tuple[Name, ...]) -> None:
    """Write an accumulator matrix to the registers of its four warps."""
    matrix = group.matrices.pop(name)
    for quarter, pieces in enumerate(matrix.views):
        words, at = _fragment(matrix, quarter), 0
        for array, first, count in pieces:
            array.view(np.uint32)[:, first : first + count] = words[:, at : at + count]
            at += count


def _fragment(matrix: Matrix, quarter: int) -> np.ndarray:
    """What the lanes of one of the four warps hold of an accumulator, ``[32, R]`` words."""
    n = matrix.values.shape[1]
    values = matrix.values.astype(np.float16) if matrix.half else matrix.values
    block = values[16 * quarter : 16 * quarter + 16].reshape(2, 8, n // 8, 4, 2)
    return np.ascontiguousarray(block.transpose(1, 3, 2, 0, 4)).reshape(32, n // 2).view(np.uint32)


def registers_now(w: Warp, registers: np.ndarray) -> np.ndarray:
    """A copy of a warp's registers, brought up to date with accumulators kept as matrices."""
    found = registers.copy()
    group = w.cta.state.get("warpgroups", {}).get(w.id // 4)
    for matrix in group.matrices.values() if group is not None else ():
        words, at = _fragment(matrix, w.id % 4), 0
        for array, first, count in matrix.views[w.id % 4]:
            if array is registers:
                found.view(np.uint32)[:, first : first + count] = words[:, at : at + count]
            at += count
    return found


def _gather(views: list[tuple[Piece, ...]], n: int, half: bool = False) -> np.ndarray:
    """An accumulator matrix from the registers of four warps.

    Element 4j + 2h + e of lane 4r + c is row 16w + 8h + r, column 8j + 2c + e, where an element is
    a register, or (fp16) the lower (e = 0) or upper half of one (PTX ISA, wgmma register fragments,
    "accumulator fragment D").
    """
    matrix = np.empty((64, n), dtype=np.float32)
    for quarter, pieces in enumerate(views):
        elements = _words(pieces).view(np.float16 if half else np.float32)
        fragment = elements.reshape(8, 4, n // 8, 2, 2)
        matrix[16 * quarter : 16 * quarter + 16] = fragment.transpose(3, 0, 2, 1, 4).reshape(16, n)
    return matrix


def _fragments(chain: list[Product]) -> np.ndarray:
    """Operand A of successive products from registers, as bit patterns ``[64, 16 * steps]``.

    Half e of register 2k + h of lane 4r + c is row 16w + 8h + r, column 8k + 2c + e of a k16 step
    (PTX ISA, wgmma register fragments, "matrix A of .m64k16").
    """
    words = np.array([product.fragments for product in chain])  # [steps, 4, 32, 4]
    halves = words.view(np.uint16).reshape(len(chain), 4, 8, 4, 2, 2, 2)
    return halves.transpose(1, 5, 2, 0, 4, 3, 6).reshape(64, 16 * len(chain))


def _unwritten(w: Warp, pieces: tuple[Piece, ...], said: str, fix: str, site: int) -> None:
    """Report registers that nothing has written: all 32 lanes hold what a fresh register holds."""
    for array, first, count in pieces:
        poison = _UNWRITTEN.get(array.dtype.name)
        if poison is None:
            continue  # in 16 bits the poison is a number (a NaN) that may have been computed
        words = array.view(np.uint32)[:, first : first + count]
        if poison in words[0].tolist() and (words == poison).all(axis=0).any():
            w.machine.report(
                "uninitialised-read",
                w,
                f"{said} that nothing has written",
                memory="registers",
                fix=fix,
                site=site,
            )
            return


# ------------------------------------------------------------------------------------------ issue


@op
def wgmma_mma(
    w: Warp,
    d: tuple[Piece, ...],
    steps: tuple[tuple[Any, Any, Any], ...],
    n: int,
    dtype: str,
    ta: int,
    tb: int,
    sign: int,
    half: bool = False,
    mask=None,
) -> None:
    """``wgmma.mma_async``: issue one or several m64nNk16 steps on the same accumulators.

    ``d`` are the pieces of the accumulators. Each step is A, B and scale-d. A is a descriptor, or a
    tuple of what its four registers come from: pieces, and values ``(value,)`` of one register
    each. B is a descriptor. ``sign`` is -1 where the product is negated.
    """
    if mask is not None:
        whole_warp(w, mask, "wgmma.mma_async")
    state = w.state.get("wgmma") or _warpgroup(w)[1]
    group = state.group
    name = tuple([(id(array), start, count) for array, start, count in d])
    if name not in state.known:
        _inside(w, d)
        state.known.add(name)
    quarter, checks, products = w.id % 4, w.checks, group.products
    state.quiet.clear()
    fragments: list[Any] = []  # of the steps, with their pieces
    for step, (a, b, accumulate) in enumerate(steps):
        words = None
        if type(a) is tuple:
            pieces = tuple([part for part in a if len(part) == 3])
            fragments.append(pieces)
            for array, start, count in pieces if group.matrices else ():
                _bring_back(group, quarter, id(array), start, start + count)
            words, a = _snapshot(w, a), None
        elif type(a) is not int:
            a = int(uniform(w, a, "a descriptor"))
        if type(b) is not int:
            b = int(uniform(w, b, "a descriptor"))
        if accumulate is not True:
            accumulate = bool(uniform(w, accumulate, "scale-d"))
        form = (a, b, accumulate, n, dtype, ta, tb, sign, half)
        at = state.issued + step - group.base
        if at == len(products):  # the warp that comes first; once for the warpgroup
            products.append(Product(form, w.s))
            w.machine.count("mma_instructions")
            count_product(w, 64, n, 1, a is None)
        product = products[at]
        if product.form != form:
            w.machine.report(
                "divergent-collective",
                w,
                "the warps of a warpgroup issue different wgmma instructions as their "
                f"{state.issued + step + 1}th",
                memory="",
                fix="let all four warps take the same path, with the same descriptors",
                related=[("another warp's", w.machine.program.location(product.site))],
            )
            raise Stop
        product.acc[quarter], product.names[quarter] = d, name
        product.fragments[quarter] = words
        if checks and not accumulate:
            lost = state.unread.get(name) if step == 0 else (w.s, d)
            if lost is not None:
                discarded(w, lost[0], f"wgmma (64x{n}x16)", w.s)
    if checks:
        last = state.issued + len(steps) - 1
        _check_registers(w, state, n, d, fragments, last)
        state.unread[name] = (w.s, d)
        if state.clock is None or not np.array_equal(state.clock, w.clock):
            state.clock, state.time = w.clock.copy(), int(w.clock[0, w.agent])
        for product in products[state.issued - group.base : last + 1 - group.base]:
            product.clocks[quarter] = state.clock
            product.times[quarter] = state.time
    state.issued += len(steps)
    group.issued[quarter] = state.issued


def _inside(w: Warp, pieces: tuple[Piece, ...]) -> None:
    """Stop where an operand names registers outside their array."""
    for array, first, count in pieces:
        words = array.shape[1] * array.itemsize >> 2
        if first < 0 or first + count > words:
            w.machine.report(
                "out-of-bounds",
                w,
                f"wgmma uses registers {first} to {first + count - 1} of an array that has {words}",
                memory="registers",
                fix="keep the index inside the array: m64nNk16 takes N / 2 accumulators a thread",
            )
            raise Stop


def _snapshot(w: Warp, parts) -> np.ndarray:
    """The four registers of A, ``[32, 4]`` words, as they are now."""
    if len(parts) == 1:
        array, first, count = parts[0]
        words = array.view(np.uint32)[:, first : first + count].copy()
        if words.shape[1] != count:
            _inside(w, parts)
        return words
    words, at = np.empty((32, 4), dtype=np.uint32), 0
    _inside(w, tuple([part for part in parts if len(part) == 3]))
    for part in parts:
        if len(part) == 3:
            array, first, count = part
            words[:, at : at + count] = array.view(np.uint32)[:, first : first + count]
            at += count
        else:
            words[:, at] = part[0]
            at += 1
    return words


def _check_registers(w: Warp, state: WgmmaState, n: int, d, fragments, number: int) -> None:
    """The rules of ``wgmma.fence`` and ``wgmma.wait_group`` for the registers of an issue.

    ``fragments``: the pieces of A in registers, for each step; ``number``: the last instruction's.
    """
    if not state.fence_seen:
        state.fence_seen = True  # once is enough
        _no_fence(w, f"{w.name()} issues its first wgmma without a wgmma.fence before it")
    else:
        for array, first, count in d:
            if _check_use(w, state, array, first, first + count, ACCUMULATOR, n):
                break
        else:
            for array, first, count in itertools.chain.from_iterable(fragments):
                if _check_use(w, state, array, first, first + count, FRAGMENT, 0):
                    break
    for pieces in fragments:
        said = f"wgmma (64x{n}x16) reads operand A from registers"
        _unwritten(w, pieces, said, "write all four registers of the fragment first", w.s)
        for array, first, count in pieces:
            _read(state, id(array), first, first + count)
            _use(state, array, first, first + count, FRAGMENT, 0, number, w.s)
    for array, first, count in d:
        _use(state, array, first, first + count, ACCUMULATOR, n, number, w.s)


def _check_use(w: Warp, state: WgmmaState, array, low: int, high: int, role: str, n: int) -> bool:
    """Report why a wgmma may not use registers in a role, if so; returns whether it was reported.

    PTX ISA, wgmma.fence: it must stand between a register access and a wgmma.mma_async that
    accesses the same registers, except for accumulators of instructions of the same shape.
    """
    key = id(array)
    held = state.accessed.get(key)
    if held is not None and held[1].find(1, low, high) >= 0:
        held[1][:] = bytes(len(held[1]))  # once is enough
        _no_fence(
            w,
            f"{w.name()} issues a wgmma whose {role} its threads have accessed since the last "
            "wgmma.fence",
        )
        return True
    for use in state.pending.get(key, ()):
        if use.low < high and low < use.high and use.role != role:
            place = w.machine.program.location(use.site)
            w.machine.report(
                "wgmma-in-flight",
                w,
                f"{w.name()} issues a wgmma whose {role} are {use.role} of the wgmma at {place}, "
                "which may still be using them",
                memory="registers",
                fix=(
                    "commit the first one's group (wgmma.commit_group) and wait for it "
                    "(wgmma.wait_group), then execute wgmma.fence, before the second is issued"
                ),
                related=[("the first wgmma", place)],
            )
            state.reported = True
            return True
    for use in state.used.get(key, ()):
        if use.low < high and low < use.high and (use.role != role or use.n != n):
            place = w.machine.program.location(use.site)
            shape = f" (m64n{use.n}k16, another shape)" if use.role == role else ""
            _no_fence(
                w,
                f"{w.name()} issues a wgmma whose {role} are {use.role} of the wgmma{shape} at "
                f"{place}, and no wgmma.fence stands between the two",
                [("the other wgmma", place)],
            )
            return True
    return False


def _no_fence(w: Warp, message: str, related=None) -> None:
    w.machine.report(
        "wgmma-fence",
        w,
        message,
        memory="registers",
        fix=(
            "execute wgmma.fence before the first wgmma, and again between an access to registers "
            "and the wgmma that uses them (PTX ISA, wgmma.fence)"
        ),
        related=related,
    )


def _use(state: WgmmaState, array, low: int, high: int, role: str, n: int, number: int, site):
    """Note that a wgmma uses registers."""
    for table in (state.pending, state.used):
        uses = table.get(id(array))
        if uses is None:
            table[id(array)] = [Use(array, low, high, role, n, number, site)]
            continue
        last = uses[-1]
        if last.low == low and last.high == high and last.role == role and last.n == n:
            last.number, last.site = number, site
            continue
        for use in uses:
            if use.low == low and use.high == high and use.role == role and use.n == n:
                use.number, use.site = number, site
                break
        else:
            uses.append(Use(array, low, high, role, n, number, site))


@op
def wgmma_commit(w: Warp, mask=None) -> None:
    """``wgmma.commit_group``: what was issued since the last commit is one group."""
    if mask is not None:
        whole_warp(w, mask, "wgmma.commit_group")
    group, state = _warpgroup(w)
    state.groups.append(state.issued)
    upto = state.issued
    if min(group.issued) >= upto > group.prepared:
        _prepare(group, upto)
        group.pipe.submit(lambda: _run_products(group, upto))
    if group.waiters:
        group.pipe.submit(lambda: _wake(group))


@op
def wgmma_wait(w: Warp, count: int, mask=None):
    """``wgmma.wait_group N``: all but the latest N groups of this warp are done."""
    if mask is not None:
        whole_warp(w, mask, "wgmma.wait_group")
    group, state = _warpgroup(w)
    if len(state.groups) <= count:
        return None
    upto = state.groups[len(state.groups) - 1 - count]
    if min(group.issued) < upto:
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
    _wake(group)
    return None


def _wake(group: Warpgroup) -> None:
    """Let the warps go on whose products all four warps have issued."""
    issued = min(group.issued)
    for other, wanted in list(group.waiters):
        if issued >= wanted:
            group.waiters.remove((other, wanted))
            _complete(other, group, other.state["wgmma"], wanted)
            other.cluster.wake(other)


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
    for key, uses in list(state.pending.items()) if state.pending else ():
        left = [use for use in uses if use.number >= upto]
        if left:
            state.pending[key] = left
        else:
            del state.pending[key]
    group.completed[w.id % 4] = state.completed
    finished = min(group.completed)
    if finished > group.base:
        del group.products[: finished - group.base]
        group.base = finished


# --------------------------------------------------------------------------------------- products


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
        name = tuple(product.names)
        chain = chains.get(name)
        if chain is not None and _continues(chain[-1][1], product):
            chain.append((number, product))
        else:
            for other in [o for o in chains if o != name and _shared(chains[o][0][1].acc, product)]:
                del chains[other]  # its next step must come behind this one
            chain = chains[name] = [(number, product)]
            order.append(chain)
        number += 1
    for chain in order:
        group.plans.append((upto, _chain(group, chain)))


def _shared(views: list[tuple[Piece, ...]], product: Product) -> bool:
    """Whether two accumulators have registers in common (the first warp's stand for all)."""
    return any(_meets(product.acc[0], id(a), first, first + n) for a, first, n in views[0])


def _continues(last: Product, product: Product) -> bool:
    """Whether a product is the next k16 step of another: it adds to it and differs in nothing but
    its operands' start addresses, and its warps knew no more when they issued it."""
    high = ~((1 << 14) - 1)
    return (
        product.accumulate
        and last.b & high == product.b & high
        and (last.a is None) == (product.a is None)
        and (last.a is None or last.a & high == product.a & high)
        and last.form[3:] == product.form[3:]
        and all(map(is_, last.clocks, product.clocks))
    )


def _chain(group: Warpgroup, chain: list[tuple[int, Product]]) -> Callable[[], None]:
    """Check one accumulator's successive k16 steps, ``D (+)= A @ B.T``, 64 rows; returns what
    computes them."""
    head = chain[0][1]
    w = group.warps[0]
    cta, site, steps = w.cta, head.site, len(chain)
    what = f"wgmma (64x{head.n}x{16 * steps})"
    left: list[descriptors.Matrix] = []
    rows_a, ta = None, False
    try:
        right = [descriptors.wgmma_matrix(p.b) for _, p in chain]
        rows_b, tb = descriptors.operand_rows(right, head.n, bool(head.tb))
        if head.a is not None:
            left = [descriptors.wgmma_matrix(p.a) for _, p in chain]
            rows_a, ta = descriptors.operand_rows(left, 64, bool(head.ta))
    except descriptors.DescriptorError as error:
        raise bad_descriptor(w, error, site) from None
    if rows_a is not None:
        out_of_shared(w, cta, rows_a, f"operand A of {what}", site)
    out_of_shared(w, cta, rows_b, f"operand B of {what}", site)
    name, starts = tuple(head.names), tuple([p.b for _, p in chain])
    if w.checks:
        last = chain[-1][0] + 1
        clock = np.minimum.reduce(head.clocks)
        block_b = descriptors.operand_block(right, head.n, bool(head.tb)) or rows_b
        block_a = rows_a
        if rows_a is not None:
            block_a = descriptors.operand_block(left, 64, bool(head.ta)) or rows_a
        for agent, part in _readers(group, rows_a, block_a):
            clock[:, agent] = last
            now = stamp(agent, last)
            if part is not None:
                access.async_read(w, cta, part, clock, agent, now, site, f"operand A of {what}")
            access.async_read(w, cta, block_b, clock, agent, now, site, f"operand B of {what}")

    def compute() -> None:
        if rows_a is not None:
            origin = (rows_a, ta, head.dtype)
            a = decode(cta, rows_a, ta, head.dtype)
        else:
            bits = _fragments([p for _, p in chain])
            origin = (bits, None, head.dtype)
            half = head.dtype == "float16"
            a = F16_VALUES.take(bits) if half else bf16_to_f32(bits)
        if w.machine.trace is not None:
            place = (cta.index, group.first, name)
            note(w, site, what, place, head.accumulate, [cta], origin, (rows_b, tb, head.dtype))
        b = _operand_b(cta, (starts, head.n, tb, head.dtype), rows_b)
        if head.sign < 0:
            a = -a
        for other in [k for k, m in group.matrices.items() if k != name and _shared(m.views, head)]:
            _store_back(group, other)
        matrix = _accumulator(group, head, name, what) if head.accumulate else None
        if w.machine.aligned_sums:
            matrix = sums.steps(a, b, matrix, head.dtype, head.half)
        elif head.half:
            matrix = _rounded_steps(a, b, matrix)
        elif matrix is None:
            matrix = a @ b
        else:
            np.add(matrix, a @ b, out=matrix)
        group.matrices[name] = Matrix(matrix, list(head.acc), head.half)
        for x in group.warps:
            x.state["wgmma"].quiet.clear()

    return compute


def _operand_b(cta: Cta, form: tuple, rows: np.ndarray) -> np.ndarray:
    """Operand B as ``[K, N]`` float32: kept for the next products that read the same bytes, those
    of the tile's other rows in this warpgroup or in another."""
    known = cta.state.get("wgmma_b")
    key = (cta.version, form)
    if known is None or known[0] != key:
        *_, transposed, dtype = form
        known = cta.state["wgmma_b"] = (key, decode(cta, rows, transposed, dtype).T)
    return known[1]


def _readers(
    group: Warpgroup, rows_a: np.ndarray | None, block_a: slice | np.ndarray | None
) -> list[tuple[int, slice | np.ndarray | None]]:
    """Who reads the operands: agents, and the rows of A in shared memory that each one reads."""
    w = group.warps[0]
    if w.machine.reading("wgmma-wait") != "warp":
        return [(group.agent, block_a)]
    if rows_a is None:
        return [(x.unit["wgmma"], None) for x in group.warps]
    rows = rows_a.shape[0] // 4  # each warp multiplies its own 16 rows
    return [(x.unit["wgmma"], rows_a[rows * i : rows * (i + 1)]) for i, x in enumerate(group.warps)]


def _accumulator(group: Warpgroup, head: Product, name: tuple[Name, ...], what: str) -> np.ndarray:
    """The matrix that a product adds to, from the last product or from registers."""
    w = group.warps[0]
    held = group.matrices.get(name)
    if held is not None:
        if held.half == head.half:
            return held.values
        _store_back(group, name)
    matrix = _gather(head.acc, head.n, head.half)
    if not w.checks:
        return matrix
    said = f"{what} adds to accumulator registers"
    fix = "let a tile's first product overwrite (scale-d false), or clear them"
    if head.half:
        for x, pieces in zip(group.warps, head.acc, strict=True):
            _unwritten(x, pieces, said, fix, head.site)
        return matrix
    poisoned = matrix.view(np.uint32) == POISON
    if poisoned.any():
        w.machine.report(
            "uninitialised-read",
            w,
            f"{said} that nothing has written",
            memory="accumulator registers",
            fix=fix,
            site=head.site,
        )
        matrix[poisoned] = np.nan  # once is enough
    return matrix


def _rounded_steps(a: np.ndarray, b: np.ndarray, matrix: np.ndarray | None) -> np.ndarray:
    """Accumulators of 16 bits: rounded to fp16 after each k16 step."""
    for k in range(0, a.shape[1], 16):
        step = a[:, k : k + 16] @ b[k : k + 16]
        matrix = (step if matrix is None else matrix + step).astype(np.float16).astype(np.float32)
    assert matrix is not None
    return matrix


def _wgmma_exit(w: Warp) -> None:
    state = w.state.get("wgmma")
    if state is not None and state.completed < state.issued and not state.reported:
        w.machine.report(
            "in-flight-at-exit",
            w,
            f"{w.name()} exits with wgmma instructions that it has not waited for",
            memory="accumulator registers",
            fix="execute wgmma.commit_group and wgmma.wait_group 0 before the end",
        )


EXIT_HOOKS.append(_wgmma_exit)
