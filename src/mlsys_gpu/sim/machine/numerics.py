"""Number formats: bits to float32 and back, exactly as the hardware rounds.

All functions take and return NumPy arrays (or NumPy scalars) of any shape.
"""

from __future__ import annotations

import numpy as np

#: The float32 pattern (a quiet NaN with a payload) that fills registers nothing has written.
POISON = np.uint32(0x7FC0DEAD)
#: Each byte of an integer register that nothing has written.
INTEGER_POISON = b"\x5a"

#: Storage type of each TVM dtype; bfloat16 and 8-bit floats are held as their bits.
STORAGE = {
    "float16": np.float16,
    "bfloat16": np.uint16,
    "float32": np.float32,
    "float64": np.float64,
    "int8": np.int8,
    "uint8": np.uint8,
    "int16": np.int16,
    "uint16": np.uint16,
    "int32": np.int32,
    "uint32": np.uint32,
    "int64": np.int64,
    "uint64": np.uint64,
    "bool": np.bool_,
    "float8_e4m3fn": np.uint8,
    "float8_e5m2": np.uint8,
}

#: What reductions (``redux.sync``, ``cp.reduce.async.bulk``) do with two integers.
COMBINE = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


#: float32 values of all float16 bit patterns: looking them up beats NumPy's conversion.
F16_VALUES = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


def bf16_to_f32(bits):
    """bfloat16 bits (uint16) to float32; exact."""
    wide = np.left_shift(np.asarray(bits).astype(np.uint32), np.uint32(16))
    return wide.view(np.float32)


def f32_to_bf16(values):
    """float32 to bfloat16 bits (uint16), round to nearest even; NaN stays a quiet NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(
        16
    )
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    if nan.any():
        # cvt.rn.bf16.f32 returns the canonical NaN (PTX ISA, cvt).
        rounded = np.where(nan, np.uint32(0x7FFF), rounded)
    return rounded.astype(np.uint16).reshape(np.shape(values))


def f32_to_f16(values):
    """float32 to float16, round to nearest even, overflow to infinity."""
    with np.errstate(over="ignore"):
        return np.asarray(values, dtype=np.float32).astype(np.float16)


def to_f32(values, dtype: str):
    """Values of a 16-bit or 32-bit float format to float32; exact."""
    if dtype == "bfloat16":
        return bf16_to_f32(values)
    return np.asarray(values).astype(np.float32)


def from_f32(values, dtype: str):
    """float32 to the storage of ``dtype``, rounded to nearest even."""
    if dtype == "bfloat16":
        return f32_to_bf16(values)
    if dtype == "float16":
        return f32_to_f16(values)
    return np.asarray(values).astype(STORAGE[dtype])
