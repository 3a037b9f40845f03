"""Kernels as text and back."""

from typing import Any

import pytest

from mlsys_gpu.grading import serial


@pytest.mark.parametrize("arch", ["blackwell", "hopper"])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_round_trip_of_the_ladder(arch: str, step: int) -> None:
    import tvm

    import mlsys_gpu as mg
    from mlsys_gpu.lowering import lower

    shape = {1: (128, 128, 64), 2: (128, 128, 192), 3: (256, 384, 128)}[step]
    kernel = mg.gemm.step(step, arch=arch).build(*shape)
    text = serial.dump_kernel(kernel)
    again = serial.load_kernel(text)
    tvm.ir.assert_structural_equal(kernel, again)
    assert serial.dump_kernel(again) == text
    assert lower(again).device.script() == lower(kernel).device.script()
    assert str(again.attrs["target"]) == str(kernel.attrs["target"])


def test_source_lines_survive() -> None:
    import mlsys_gpu as mg

    kernel: Any = mg.gemm.step(1, arch="hopper").build(128, 128, 64)
    again = serial.load_kernel(serial.dump_kernel(kernel))
    assert kernel.body.span is not None
    assert str(again.body.span) == str(kernel.body.span)
    spans = [str(s.span) for s in kernel.body.body.seq]
    assert spans == [str(s.span) for s in again.body.body.seq]


def test_values_that_json_cannot_write() -> None:
    import tvm
    from tvm.script import tirx as T

    @T.prim_func
    def kernel(A: T.Buffer((4,), "float32")):  # type: ignore
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([32])
        if tid < 4:
            A[tid] = T.float32("-inf")

    again = serial.load_kernel(serial.dump_kernel(kernel))
    tvm.ir.assert_structural_equal(kernel, again)


def test_what_is_no_kernel_is_not_written() -> None:
    import tvm

    with pytest.raises(serial.SerialError, match=r"cannot hold an object of type ir\.IRModule"):
        serial.dump_kernel(tvm.IRModule({}))
