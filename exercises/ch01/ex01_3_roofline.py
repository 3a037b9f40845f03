# Exercise 1.3. Stub 452a85535e72: yours to edit; `mlsys-gpu reset 1.3` brings it back.
"""Exercise 1.3 (predict): which roof does a GEMM hit?

D = A @ B.T with A [M, K], B [N, K] and D [M, N], all of `size` bytes an
element. Suppose the best case: each matrix crosses the memory bus once.

A GPU multiplies at `peak` TFLOP/s and moves `bandwidth` TB/s. Write
`roofline(M, N, K, size, peak, bandwidth)`, which returns

    intensity    FLOPs for each byte moved (a multiply and an add count 2)
    attainable   the TFLOP/s that the roofline allows
    bound        "memory" or "compute": the roof that limits this GEMM

On the page: M = N = K = 1024 in fp16, 989 TFLOP/s, 4.8 TB/s (an H200's data
sheet).
"""


def roofline(M, N, K, size, peak, bandwidth):
    """Returns (intensity in FLOP/byte, attainable in TFLOP/s, bound)."""
    raise NotImplementedError("return (intensity, attainable, bound)")


if __name__ == "__main__":
    from pathlib import Path

    from mlsys_gpu import check

    print(check("1.3", Path(__file__)))
