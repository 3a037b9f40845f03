# Exercise 10.4. Stub ab24c0181b69: yours to edit; `mlsys-gpu reset 10.4` brings it back.
"""Exercise 10.4 (write): a first kernel.

D[i] = 3 * A[i] + B[i] for n elements in float32, where n is any number: the
last CTA has more threads than elements that remain.

The grid and the block are given: CTAs of 128 threads, one element to a
thread. Write the body.
"""

from tvm.script import tirx as T

from mlsys_gpu.kernels.common import finish

THREADS = 128


def build(n):
    """D = 3 * A + B for n elements."""

    @T.prim_func
    def kernel(
        A: T.Buffer((n,), "float32"),
        B: T.Buffer((n,), "float32"),
        D: T.Buffer((n,), "float32"),
    ):
        T.device_entry()
        cta = T.cta_id([(n + THREADS - 1) // THREADS])
        tid = T.thread_id([THREADS])
        # Your code: which element is this thread's, and does it exist?

    return finish(kernel, "first_kernel", "hopper")


if __name__ == "__main__":
    from pathlib import Path

    from mlsys_gpu import check

    print(check("10.4", Path(__file__)))
