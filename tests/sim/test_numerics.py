"""Number formats, operands, fragments and tensor-memory layouts against other implementations.

Formats are compared with ml_dtypes and torch; addresses and fragments with formulas written out
from the PTX ISA, one element at a time.
"""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from mlsys_gpu.sim.machine import descriptors, numerics, operands, tcgen05, wgmma

# ------------------------------------------------------------------------------- formats

SPECIAL = np.array(
    [
        *(0.0, -0.0, 1.0, np.inf, -np.inf, 65504, 65519.996, 65520, 1e38, 3.4e38, -3.4e38),
        *(2.0**-14, 2.0**-24, 2.0**-25, 2.0**-25 * 1.0001, 3 * 2.0**-25, 2.0**-126, 2.0**-149),
        *(2049, 2051, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-9, 1 + 2.0**-11, 1 + 3 * 2.0**-11),
    ],
    dtype=np.float32,
)


def patterns(count: int = 200_000) -> np.ndarray:
    """Finite and infinite float32 of all magnitudes: random bits, ties, special values."""
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 2**32, count, dtype=np.uint32)
    ties = rng.integers(0, 2**16, count // 4, dtype=np.uint32) << 16 | 0x8000
    fine = rng.integers(0, 2**19, count // 4, dtype=np.uint32) << 13 | 0x1000
    values = np.concatenate([bits, ties, fine]).view(np.float32)
    return np.concatenate([values[~np.isnan(values)], SPECIAL])


def test_bfloat16_to_float32_is_exact():
    bits = np.arange(1 << 16, dtype=np.uint16)
    ours = numerics.bf16_to_f32(bits)
    assert np.array_equal(ours.view(np.uint32), bits.astype(np.uint32) << 16)


def test_float32_to_bfloat16_rounds_to_nearest_even():
    values = patterns()
    ours = numerics.f32_to_bf16(values)
    assert np.array_equal(ours, values.astype(ml_dtypes.bfloat16).view(np.uint16))
    assert np.array_equal(
        ours, torch.tensor(values).bfloat16().view(torch.int16).numpy().view("u2")
    )


def test_float32_to_float16_rounds_to_nearest_even():
    values = patterns()
    ours = numerics.f32_to_f16(values).view(np.uint16)
    assert np.array_equal(ours, torch.tensor(values).half().view(torch.int16).numpy().view("u2"))


def test_nan_stays_nan():
    nans = np.array([0x7FC00000, 0xFFC00001, 0x7F800001, 0xFF812345], np.uint32).view(np.float32)
    assert (numerics.f32_to_bf16(nans) == 0x7FFF).all()  # cvt.rn.bf16.f32 gives the canonical NaN
    assert np.isnan(numerics.f32_to_f16(nans)).all()
    assert np.isnan(numerics.bf16_to_f32(np.array([0x7FFF, 0xFFC0], np.uint16))).all()


def test_shapes_are_kept():
    for shape in ((), (3,), (2, 3), (0,)):
        values = np.ones(shape, np.float32)
        assert np.shape(numerics.f32_to_bf16(values)) == shape
        assert np.shape(numerics.bf16_to_f32(np.ones(shape, np.uint16))) == shape


# ------------------------------------------------------------- where operands lie (PTX ISA)


def swizzled(address: int, width: int) -> int:
    """The swizzle modes: address bits 4… XOR bits 7…, as many as the width in 16-byte units has."""
    units = {0: 1, 32: 2, 64: 4, 128: 8}[width]
    return address ^ ((address >> 7) % units) << 4


def k_major_byte(row, k, start, leading, stride, width):
    """A K-major element: 8 rows are a core matrix (no swizzle) or an atom ``width`` bytes wide."""
    if width == 0:
        return start + row // 8 * stride + k * 2 // 16 * leading + row % 8 * 16 + k * 2 % 16
    return swizzled(start + row // 8 * stride + row % 8 * width + k * 2, width)


def mn_major_byte(mn, k, start, leading, stride, width):
    """An MN-major element: one 16-byte row holds 8 values of MN at one k.

    Without swizzle the leading offset steps to the next 8 k and the stride to the next 16 bytes of
    MN; with swizzle an atom is ``width`` bytes of MN by 8 k, the leading offset steps between atoms
    along MN and the stride to the next 8 k.
    """
    if width == 0:
        return start + k // 8 * leading + mn // 8 * stride + k % 8 * 16 + mn % 8 * 2
    atom, inside = divmod(mn * 2, width)
    return swizzled(start + atom * leading + k // 8 * stride + k % 8 * width + inside, width)


def bytes_of(index: np.ndarray, transposed: bool) -> np.ndarray:
    """Byte addresses ``[rows, k]`` of the elements that our row indices name."""
    if transposed:  # [rows / 8, k] rows of 16 bytes, each 8 rows of the operand
        return np.repeat(index, 8, axis=0) * 16 + np.tile(np.arange(8) * 2, index.shape[0])[:, None]
    return np.repeat(index, 8, axis=1) * 16 + np.tile(np.arange(8) * 2, index.shape[1])[None, :]


@pytest.mark.parametrize("width", [0, 32, 64, 128])
@pytest.mark.parametrize("rows", [8, 64, 128])
@pytest.mark.parametrize("offset", [0, 2048, 3 * 1024 + 512])
def test_k_major_operands(width, rows, offset):
    steps = 1 if width in (0, 32) else width // 32
    leading, stride = (128, 512) if width == 0 else (16, 8 * width)
    start = 4096 + (offset if width else offset // 2)
    matrices = [
        descriptors.Matrix(start + 32 * j if width else start + 256 * j, leading, stride, width)
        for j in range(steps)
    ]
    index, transposed = descriptors.operand_rows(matrices, rows, False)
    got = bytes_of(index, transposed)
    for j, matrix in enumerate(matrices):
        for row in range(rows):
            for k in range(16):
                want = k_major_byte(row, k, matrix.start, leading, stride, width)
                assert got[row, 16 * j + k] == want


@pytest.mark.parametrize("width", [0, 32, 64, 128])
@pytest.mark.parametrize("rows", [64, 128, 256])
def test_mn_major_operands(width, rows):
    if width == 0:
        leading, stride, step = 128 * (rows // 8), 128, 2 * 128 * (rows // 8)
    else:
        leading = 8 * width * 4
        stride, step = 8 * width, 2 * 8 * width
    matrices = [descriptors.Matrix(2048 + step * j, leading, stride, width) for j in range(2)]
    index, transposed = descriptors.operand_rows(matrices, rows, True)
    got = bytes_of(index, transposed)
    for j, matrix in enumerate(matrices):
        for row in range(rows):
            for k in range(16):
                want = mn_major_byte(row, k, matrix.start, leading, stride, width)
                assert got[row, 16 * j + k] == want


@pytest.mark.parametrize("width", [32, 64, 128])
def test_no_two_elements_share_a_place(width):
    index, _ = descriptors.operand_rows([descriptors.Matrix(1024, 16, 8 * width, width)], 64, False)
    assert np.unique(index).size == index.size
    index, _ = descriptors.operand_rows(
        [descriptors.Matrix(1024, 64 * width, 8 * width, width)], 128, True
    )
    assert np.unique(index).size == index.size


def test_operands_as_numbers():
    """An 8-row tile written by hand, chunk by chunk, at the places of the 64-byte swizzle."""
    from mlsys_gpu.sim.machine.memory import Linear

    data = np.zeros(4096, np.uint8)
    values = np.arange(8 * 32, dtype=np.float16).reshape(8, 32)
    for row in range(8):
        for chunk in range(4):
            at = swizzled(1024 + row * 64 + chunk * 16, 64)
            data[at : at + 16] = values[row, 8 * chunk : 8 * chunk + 8].view(np.uint8)

    class Cta:
        shared = Linear(data)

    matrices = [descriptors.Matrix(1024 + 32 * j, 16, 512, 64) for j in range(2)]
    index, transposed = descriptors.operand_rows(matrices, 8, False)
    cta: Any = Cta()
    got = operands.decode(cta, index, transposed, "float16")
    assert np.array_equal(got, values.astype(np.float32))


# ------------------------------------------------------------------- descriptors, bit by bit


def test_matrix_descriptor_of_wgmma():
    bits = (0x1234 >> 4) | (0x0560 >> 4) << 16 | (0x4000 >> 4) << 32 | 2 << 62
    matrix = descriptors.wgmma_matrix(bits)
    assert (matrix.start, matrix.leading, matrix.stride) == (0x1230, 0x560, 0x4000)
    assert matrix.swizzle == 64
    modes = [descriptors.wgmma_matrix(mode << 62).swizzle for mode in range(4)]
    assert modes == [0, 128, 64, 32]


def test_matrix_descriptor_of_tcgen05():
    bits = 0x2AB | 0x11 << 16 | 0x40 << 32 | 1 << 46 | 4 << 61
    matrix = descriptors.tcgen05_matrix(bits)
    assert (matrix.start, matrix.leading, matrix.stride) == (0x2AB0, 0x110, 0x400)
    assert matrix.swizzle == 64
    modes = {m: descriptors.tcgen05_matrix(1 << 46 | m << 61).swizzle for m in (0, 2, 4, 6)}
    assert modes == {0: 0, 2: 128, 4: 64, 6: 32}


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0, "constant"),
        (1 << 47, "constant"),
        (1 << 46 | 1 << 48, "constant"),
        (1 << 46 | 3 << 49, "base-offset"),
        (1 << 46 | 1 << 52, "absolute-address"),
        (1 << 46 | 1 << 55, "bits 53 to 60"),
        (1 << 46 | 1 << 61, "swizzle mode 1"),
        (1 << 46 | 3 << 61, "swizzle mode 3"),
    ],
)
def test_descriptors_that_tcgen05_cannot_take(bits, words):
    with pytest.raises(descriptors.DescriptorError, match=words):
        descriptors.tcgen05_matrix(bits)


def test_a_base_offset_is_refused_for_wgmma():
    with pytest.raises(descriptors.DescriptorError, match="base-offset 5"):
        descriptors.wgmma_matrix(5 << 49 | 1 << 62)


def instruction(m=128, n=256, a=0, b=1, d=1, na=0, nb=0, ta=0, tb=0, more=0):
    return (
        d << 4 | a << 7 | b << 10 | na << 13 | nb << 14 | ta << 15 | tb << 16
        | n // 8 << 17 | m // 16 << 24 | more
    )  # fmt: skip


def test_instruction_descriptor():
    form = descriptors.instruction(instruction(64, 40, 1, 0, na=1, tb=1))
    assert (form.m, form.n, form.a, form.b, form.d) == (64, 40, "bfloat16", "float16", "float32")
    assert (form.negate_a, form.negate_b) == (True, False)
    assert (form.transpose_a, form.transpose_b) == (False, True)
    # The one that TVM encodes for a 128 x 128 fp16 product.
    form = descriptors.instruction(136314896)
    assert (form.m, form.n, form.a, form.b) == (128, 128, "float16", "float16")


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (instruction(a=2), "formats 2"),
        (instruction(b=5), "and 5"),
        (instruction(d=0), "F16 accumulator"),
        (instruction(d=2), "accumulator format 2"),
        (instruction(more=1 << 2), "sparse"),
        (instruction(more=1 << 3), "reserved"),
        (instruction(more=1 << 6), "reserved"),
        (instruction(more=1 << 23), "reserved"),
        (instruction(more=1 << 29), "reserved"),
        (instruction(more=1 << 30), "shift"),
    ],
)
def test_instruction_descriptors_that_kind_f16_cannot_take(bits, words):
    with pytest.raises(descriptors.DescriptorError, match=words):
        descriptors.instruction(bits)


# --------------------------------------------------------- fragments and tensor-memory layouts


@pytest.mark.parametrize("n", [8, 64, 128, 256])
def test_wgmma_accumulator_fragment(n):
    """Register i of lane l of warp w holds row 16w + l/4 + 8 (i/2 mod 2), column 8 (i/4) +
    2 (l mod 4) + i mod 2."""
    matrix = np.arange(64 * n, dtype=np.float32).reshape(64, n)
    registers = [np.full((32, n // 2 + 3), -1, np.float32) for _ in range(4)]
    views = [((r, 2, n // 2),) for r in registers]
    name: Any = ("x",)
    group: Any = type("Group", (), {"matrices": {name: wgmma.Matrix(matrix, views, False)}})()
    wgmma._store_back(group, name)
    for warp in range(4):
        for lane in range(32):
            for i in range(n // 2):
                row = 16 * warp + lane // 4 + 8 * (i // 2 % 2)
                column = 8 * (i // 4) + 2 * (lane % 4) + i % 2
                assert registers[warp][lane, 2 + i] == matrix[row, column]
        assert (registers[warp][:, [0, 1, n // 2 + 2]] == -1).all()
    assert np.array_equal(wgmma._gather(views, n), matrix)


@pytest.mark.parametrize(
    ("m", "group", "lanes"),
    [
        (128, 1, lambda row: row),
        (64, 1, lambda row: row // 16 * 32 + row % 16),
        (256, 2, lambda row: row),
    ],
)
def test_rows_of_a_product_in_tensor_memory(m, group, lanes):
    """Lane of each row of a CTA's part of D (PTX ISA, tcgen05 data path layouts)."""
    form = descriptors.instruction(instruction(m, 32))
    place = tcgen05.Place(form, group, 64)
    memory = np.zeros((128, 512), np.float32)
    rows = m // group
    product = 1 + np.arange(rows * 32, dtype=np.float32).reshape(rows, 32)
    place.target(memory)[...] = place.shaped(product)
    for row in range(rows):
        assert np.array_equal(memory[lanes(row), 64:96], product[row])
    assert np.count_nonzero(memory) == product.size


def test_a_pair_that_shares_64_rows_each():
    """M = 128 over two CTAs: columns of the right half of D lie in lanes 64 to 127."""
    form = descriptors.instruction(instruction(128, 64))
    place = tcgen05.Place(form, 2, 0)
    memory = np.zeros((128, 512), np.float32)
    product = 1 + np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    place.target(memory)[...] = place.shaped(product)
    assert np.array_equal(memory[:64, :32], product[:, :32])
    assert np.array_equal(memory[64:, :32], product[:, 32:])
