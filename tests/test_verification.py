"""The bound and the comparisons, against values worked out by hand or in exact arithmetic."""

import json
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from mlsys_gpu import verification as v

HALF = np.float16
BF16 = ml_dtypes.bfloat16


def float32_product(A, B, block=16, truncate=False):
    """What a correct kernel computes: float32 sums, one rounding for each ``block`` products."""
    total = np.zeros((A.shape[0], B.shape[0]))
    for k in range(0, A.shape[1], block):
        total += A[:, k : k + block].astype(float) @ B[:, k : k + block].astype(float).T
        single = total.astype(np.float32)
        if truncate:
            past = np.abs(single.astype(float)) > np.abs(total)
            single = np.where(past, np.nextafter(single, np.float32(0)), single)
        total = single.astype(float)
    return total


def test_bound_of_one_element_by_hand():
    # K = 4 ones against ones: ref = 4, sum |a||b| = 4, sqrt(K) = 2
    A, B = np.ones((1, 4), HALF), np.ones((1, 4), HALF)
    bound = 4 * 2.0**-11 + 2.0**-23 * 2 * 4
    next_number = 4 + 2.0**-8  # one fp16 unit above 4
    found = v.compare_gemm(A, B, np.full((1, 1), next_number, HALF))
    assert found.max_error == pytest.approx(2.0**-8 / bound)
    assert not found.ok
    assert (found.wrong, found.first, found.got, found.expected) == (1, (0, 0), next_number, 4.0)
    exact = v.compare_gemm(A, B, np.full((1, 1), 4, HALF))
    assert exact.ok
    assert exact.max_error == 0


def test_cancelled_sums_may_err_by_their_parts():
    # 1024 - 1024 + 2**-10: ref is tiny, the parts are not
    A = np.array([[1024, 1024, 2.0**-10]], HALF)
    B = np.array([[1, -1, 1]], HALF)
    parts = 2048 + 2.0**-10
    bound = 2.0**-10 * 2.0**-11 + 2.0**-23 * math.sqrt(3) * parts
    off = 3 * 2.0**-13
    D = np.full((1, 1), 2.0**-10 + off, HALF)
    found = v.compare_gemm(A, B, D)
    assert found.max_error == pytest.approx(off / bound)
    assert found.ok


def test_smallest_numbers_have_half_their_spacing_as_rounding():
    # ref = 2**-26 is a quarter of fp16's smallest number: both neighbours are acceptable roundings
    A, B = np.array([[2.0**-13]], HALF), np.array([[2.0**-13]], HALF)
    assert v.compare_gemm(A, B, np.zeros((1, 1), HALF)).ok
    assert not v.compare_gemm(A, B, np.full((1, 1), 2.0**-23, HALF)).ok


@pytest.mark.parametrize(
    ("value", "ok"), [(np.inf, True), (-np.inf, False), (65504, False), (np.nan, False)]
)
def test_overflow_is_right_where_the_reference_overflows(value, ok):
    A, B = np.full((1, 1), 256, HALF), np.full((1, 1), 300, HALF)  # 76800 > 65504
    assert v.compare_gemm(A, B, np.full((1, 1), value, HALF)).ok is ok


def test_infinity_is_wrong_where_the_reference_is_far_from_it():
    A, B = np.ones((1, 1), HALF), np.ones((1, 1), HALF)
    found = v.compare_gemm(A, B, np.full((1, 1), np.inf, HALF))
    assert not found.ok
    assert found.max_error == math.inf
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize("dtype", v.DTYPES)
@pytest.mark.parametrize("shape", [(64, 96, 64), (128, 64, 448), (32, 48, 2048)])
@pytest.mark.parametrize("truncate", [False, True])
def test_correct_kernels_pass(dtype, shape, truncate):
    M, N, K = shape
    for seed in range(3):
        A, B = v.gemm_inputs(M, N, K, dtype, seed)
        D = float32_product(A, B, truncate=truncate).astype(v.numpy_dtype(dtype))
        found = v.compare_gemm(A, B, D)
        assert found.ok
        assert 0 < found.max_error < 1


def wrong_outputs():
    M, N, K = 64, 96, 128
    A, B = v.gemm_inputs(M, N, K, "float16", 5)
    D = (A.astype(float) @ B.astype(float).T).astype(HALF)
    lost_k = (A[:, :-16].astype(float) @ B[:, :-16].astype(float).T).astype(HALF)
    swapped = D.copy()
    swapped[:, 0], swapped[:, 1] = D[:, 1], D[:, 0]
    one = D.copy()
    one[63, 95] += 0.5
    return A, B, {"lost the last 16 of K": lost_k, "two columns swapped": swapped, "one": one}


@pytest.mark.parametrize("fault", ["lost the last 16 of K", "two columns swapped", "one"])
def test_wrong_kernels_fail(fault):
    A, B, outputs = wrong_outputs()
    found = v.compare_gemm(A, B, outputs[fault])
    assert not found.ok
    if fault == "one":
        assert (found.wrong, found.first, found.box) == (1, (63, 95), ((63, 63), (95, 95)))
        assert "D[63, 95]" in str(found)
    if fault == "two columns swapped":
        assert found.box == ((0, 63), (0, 1))


def test_unwritten_elements_are_counted_and_located():
    A, B = v.gemm_inputs(8, 8, 16)
    D = (A.astype(float) @ B.astype(float).T).astype(HALF)
    D[2:4, 5:] = np.nan
    found = v.compare_gemm(A, B, D)
    assert (found.wrong, found.unwritten, found.first) == (6, 6, (2, 5))
    assert found.box == ((2, 3), (5, 7))
    assert found.to_dict()["max_error"] is None
    assert "NaN" in str(found)


def test_reference_is_exact_on_integers():
    rng = np.random.default_rng(0)
    A = rng.integers(-8, 9, (5, 7)).astype(HALF)
    B = rng.integers(-8, 9, (6, 7)).astype(HALF)
    exact = [
        [sum(Fraction(int(a)) * int(b) for a, b in zip(x, y, strict=True)) for y in B] for x in A
    ]
    found = v.compare_gemm(A, B, np.array(exact, dtype=float).astype(HALF))
    assert found.max_error == 0


def test_shapes_that_are_no_gemm_are_refused():
    with pytest.raises(ValueError, match="no GEMM"):
        v.compare_gemm(np.ones((2, 3), HALF), np.ones((4, 3), HALF), np.ones((4, 2), HALF))


@pytest.mark.parametrize("dtype", v.DTYPES)
def test_tensors_are_compared_alike(dtype):
    torch = pytest.importorskip("torch")
    M, N, K = 16, 24, 32
    sets = [v.gemm_inputs(M, N, K, dtype, seed) for seed in range(3)]
    outs = [float32_product(A, B).astype(v.numpy_dtype(dtype)) for A, B in sets]
    outs[1][3, 4] = np.nan
    outs[2][5, 6] += 1

    def stack(arrays):
        return torch.stack([torch.from_numpy(a.astype(np.float32)) for a in arrays]).to(
            getattr(torch, dtype)
        )

    found = v.compare_gemm_tensors(
        stack([a for a, _ in sets]), stack([b for _, b in sets]), stack(outs)
    )
    assert (found.wrong, found.unwritten, found.first) == (2, 1, (1, 3, 4))
    right = v.compare_gemm_tensors(*(stack([x]) for x in (*sets[0], outs[0])))
    assert right.ok
    assert right.max_error == pytest.approx(v.compare_gemm(*sets[0], outs[0]).max_error)
    # one reference serves several outputs, and leaves its inputs as they are
    A, B = (stack([x]) for x in sets[0])
    reference = v.GemmReference(A, B)
    assert not reference.compare(stack([outs[1]])).ok
    assert reference.compare(stack([outs[0]])) == right
    assert bool((A == stack([sets[0][0]])).all())


def test_inputs_follow_their_seed_and_differ():
    A, B = v.gemm_inputs(32, 32, 16, "bfloat16", 7)
    again = v.gemm_inputs(32, 32, 16, "bfloat16", 7)
    other = v.gemm_inputs(32, 32, 16, "bfloat16", 8)
    assert A.dtype == B.dtype == BF16
    assert (A == again[0]).all()
    assert (B == again[1]).all()
    assert (A != B).mean() > 0.9
    assert (A != other[0]).mean() > 0.9
    spread = v.gemm_inputs(256, 256, 256, "float16", 0)[0].astype(float)
    assert abs(spread.mean()) < 0.02
    assert spread.std() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("dtype", v.DTYPES)
def test_poison_is_nan_everywhere(dtype):
    D = v.poisoned((3, 5), dtype)
    assert D.dtype == v.numpy_dtype(dtype)
    assert np.isnan(D.astype(float)).all()


@pytest.mark.parametrize(
    ("x", "y", "dtype", "ulps"),
    [
        (1.0, 1.0 + 2.0**-10, HALF, 1),
        (1.0, 1.0 - 2.0**-11, HALF, 1),
        (2.0**-24, -(2.0**-24), HALF, 2),
        (0.0, -0.0, HALF, 0),
        (1.0, 2.0, BF16, 128),
        (-3.0, -3.0, BF16, 0),
    ],
)
def test_ulp_distance(x, y, dtype, ulps):
    assert v.ulp_distance(np.array([x], dtype), np.array([y], dtype)).tolist() == [ulps]


def test_difference_is_relative_to_the_largest_partial_sum():
    # partial sums after 16 products each: 1024, then 1
    A = np.ones((1, 32), HALF)
    B = np.array([[64] * 16 + [-64] * 15 + [-63]], HALF)
    x, y = np.array([[1.0]], HALF), np.array([[1 + 2.0**-10]], HALF)
    found = v.output_difference(A, B, x, y)
    assert (found.elements, found.differing, found.max_ulps) == (1, 1, 1)
    assert found.max_over_partial_sum == 2.0**-20
    assert found.max_partial_sum_ulps == 2.0**-10  # fp16's numbers are 1 apart from 1024 on


def test_equal_outputs_do_not_differ_and_nan_is_no_number():
    A, B = v.gemm_inputs(4, 4, 16)
    D = (A.astype(float) @ B.astype(float).T).astype(HALF)
    same = v.output_difference(A, B, D, D.copy())
    assert same.differing == 0
    assert "bit for bit" in str(same)
    broken = D.copy()
    broken[0, 0] = np.nan
    found = v.output_difference(A, B, D, broken)
    assert found.differing == 1
    assert found.max_ulps == math.inf
    json.dumps(found.to_dict(), allow_nan=False)
