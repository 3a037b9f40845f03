"""Every instruction of TVM's PTX table is modelled, or left for later and refused by name.

Calls are made from the table itself, for a sample of each instruction's forms, and translated in
a kernel that declares registers of every type.
"""
# pyright: reportInvalidTypeForm=false
# (The annotations are TVMScript's.)

import math
import random
import re
from collections import Counter
from fnmatch import fnmatchcase
from typing import Any

import pytest
import tvm
from tvm import tirx
from tvm.backend.cuda.ptx import table as ptx
from tvm.script import tirx as T

from mlsys_gpu import lowering, sim
from mlsys_gpu.sim.frontend import coverage, table, translate

FORMS = 16  # of an instruction, at most: ld and st alone have tens of thousands


@T.prim_func
def every_type(m: T.TensorMap(), X: T.Buffer((4096,), "uint32")):
    T.device_entry()
    _cta = T.cta_id([1])
    tid = T.thread_id([128])
    pool = T.SMEMPool()
    s = pool.alloc((4096,), "uint32", align=1024)
    pool.commit()
    int8 = T.alloc_local((512,), "int8")
    uint8 = T.alloc_local((512,), "uint8")
    int16 = T.alloc_local((512,), "int16")
    uint16 = T.alloc_local((512,), "uint16")
    int32 = T.alloc_local((512,), "int32")
    uint32 = T.alloc_local((512,), "uint32")
    int64 = T.alloc_local((512,), "int64")
    uint64 = T.alloc_local((512,), "uint64")
    float16 = T.alloc_local((512,), "float16")
    bfloat16 = T.alloc_local((512,), "bfloat16")
    float32 = T.alloc_local((512,), "float32")
    float64 = T.alloc_local((512,), "float64")
    uint128 = T.alloc_local((1,), "uint128")
    T.ptx.prefetch.tensormap(T.address_of(m))
    s[tid] = X[tid]
    X[tid] = s[tid]


class Probe(translate.Translator):
    """A translator that stops at the kernel's last store, where ``ask`` tries calls."""

    def __init__(self, lowered: Any, ask: Any):
        super().__init__(lowered)
        self.ask, self.named_buffers, self.tensor_map = ask, {}, None
        for root in self.facts.roots.values():
            if root.size > 1:
                root.kind = "array"

    def stmt_AllocBuffer(self, stmt: Any) -> None:
        super().stmt_AllocBuffer(stmt)
        self.named_buffers[str(stmt.buffer.name)] = stmt.buffer

    def stmt_DeclBuffer(self, stmt: Any) -> None:
        super().stmt_DeclBuffer(stmt)
        self.named_buffers[str(stmt.buffer.name)] = stmt.buffer

    def stmt_Evaluate(self, stmt: Any) -> None:
        if "prefetch" in str(stmt.value.op.name):
            self.tensor_map = stmt.value.args[0]
        super().stmt_Evaluate(stmt)

    def stmt_BufferStore(self, stmt: Any) -> None:
        if str(stmt.buffer.name) == "X":
            self.ask(self)
            raise StopIteration
        super().stmt_BufferStore(stmt)

    def operand(self, slot: Any, modifiers: Any, used: Counter, rng: random.Random) -> Any:
        buffers = self.named_buffers
        if slot.kind == "imm":
            return tirx.IntImm("int32", int(rng.choice(slot.choices)) if slot.choices else 0)
        if slot.kind == "ptr":
            return tvm.tirx.address_of(buffers["s"][0])
        if slot.kind == "addr":
            if slot.name == "tmap":
                return self.tensor_map
            space = ptx.operand_space(slot, modifiers)
            if space.startswith("shared") or slot.name == "mbar":
                place = tvm.tirx.address_of(buffers["s"][0])
                return tvm.tirx.call_intrin("uint32", "tirx.cuda.cvta_generic_to_shared", place)
            if space == "tmem" or "taddr" in slot.name or "tmem" in slot.name:
                return buffers["uint32"][0]
            return tvm.tirx.address_of(buffers["X"][0])
        dtype = next(d for d in ptx.operand_dtypes(slot, modifiers) if d in buffers)
        used[dtype] += dtype != "uint128"
        return buffers[dtype][max(0, used[dtype] - 1)]

    def made(self, entry: Any, tokens: Any, rng: random.Random) -> Any:
        """A call of one form of an instruction."""
        modifiers = ptx.mods(entry, tokens)
        arguments, used = [], Counter()
        for slot, _, lanes in ptx.operand_layout(entry, modifiers):
            arguments += [self.operand(slot, modifiers, used, rng) for _ in range(lanes)]
        return tvm.tirx.call_intrin("", entry.op_name, *arguments, *modifiers.values(), "")

    def refusal(self, entry: Any, tokens: Any, rng: random.Random) -> str | None:
        """What the translator says of a form that it refuses, None where it models it."""
        lines, depth, context = len(self.lines), self.depth, self.context
        try:
            self.call(self.made(entry, tokens, rng), True)
        except sim.Unsupported as error:
            return str(error)
        finally:
            del self.lines[lines:]
            self.depth, self.context = depth, context
        return None


def some_forms(entry: Any, rng: random.Random) -> list[Any]:
    """Modifiers of a few legal forms of an instruction; all of them where they are few."""
    choices = [[*slot.choices, *[""] * slot.optional] for slot in entry.slots]
    if math.prod(map(len, choices)) <= 500:
        forms = list(ptx.variants(entry))
        return rng.sample(forms, min(FORMS, len(forms)))
    found: dict[Any, None] = {}
    while len(found) < FORMS:  # such an instruction has hundreds
        tokens = tuple(rng.choice(c) for c in choices)
        if entry.check is None or not entry.check(ptx.mods(entry, tokens)):
            found[tokens] = None
    return list(found)


@pytest.fixture(scope="module")
def refusals():
    """For each instruction of the table the refusals of some of its forms (None: modelled)."""
    table.load()
    found: dict[str, list[str | None]] = {}

    def ask(probe: Probe) -> None:
        for name, entry in ptx.TABLE.items():
            rng = random.Random(name)
            found[name] = [probe.refusal(entry, form, rng) for form in some_forms(entry, rng)]

    with pytest.raises(StopIteration):
        Probe(lowering.lower(every_type, "sm_100a", keep_lines=True), ask).program()
    return found


def in_table(name: str) -> bool:
    return f"tirx.ptx.{name}" in table.ROWS


def test_every_instruction_is_modelled_or_left_for_later(refusals):
    assert set(refusals) == set(ptx.TABLE)
    for name in refusals:
        listed = coverage.left(f"ptx.{name}") is not None
        assert in_table(name) != listed, name


def test_what_is_left_is_refused_by_name(refusals):
    for name, said in refusals.items():
        if in_table(name):
            continue
        mnemonic = re.split(r"[._]", ptx.TABLE[name].ptx_name)[0]
        known = coverage.left(f"ptx.{name}")
        assert known is not None
        for text in said:
            assert text is not None, name
            assert text.startswith(f"the simulator does not model {mnemonic}"), text
            assert known.why in text


def test_forms_that_are_refused_are_listed(refusals):
    """An instruction in the table takes all its forms, but those that the list names."""
    used = set()
    for name, said in refusals.items():
        if not in_table(name):
            continue
        assert None in said, f"no form of {name} is modelled"
        for text in filter(None, said):
            matching = [
                entry
                for entry in coverage.LEFT
                if any(fnmatchcase(f"ptx.{name}", pattern) for pattern in entry.forms)
                and re.search(entry.said, text)
            ]
            assert matching, (name, text)
            used.update(entry.what for entry in matching)
    assert {entry.what for entry in coverage.LEFT if entry.forms} == used


def test_every_pattern_of_the_list_stands_for_something():
    names = [f"ptx.{name}" for name in ptx.TABLE]
    for entry in coverage.LEFT:
        for pattern in (*entry.names, *entry.forms):
            if pattern.startswith("ptx."):
                assert any(fnmatchcase(name, pattern) for name in names), pattern
    known = [name for name in sim.operations() if not name.startswith("inline ")]
    for pattern in coverage.REMARKS:
        assert any(fnmatchcase(name, pattern) for name in known), pattern


def test_the_documentations_table_has_every_operation_once():
    shown = coverage.modelled()
    assert list(shown) == [title for title in coverage.TOPICS if title in shown]
    operations = [name for name in sim.operations() if not name.startswith(("inline ", "prim."))]
    for name in operations:
        spelled = coverage.spelling(name)
        assert [title for title, found in shown.items() if spelled in found] == [
            coverage.topic(name)
        ], name
    assert "no effect" in shown["Loads, stores, atomics"][coverage.spelling("ptx.prefetch")]
    assert "mbarrier.try_wait.parity.b64" in shown["mbarriers"]
