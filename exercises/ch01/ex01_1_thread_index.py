# Exercise 1.1. Stub e5db5a07d302: yours to edit; `mlsys-gpu reset 1.1` brings it back.
"""Exercise 1.1 (predict): which warp, which lane?

A CTA is launched with block_dim = (x, y, z) threads, and every thread knows
its own thread_idx = (x, y, z). The hardware numbers the threads of a CTA in
one line, x fastest, then y, then z, and cuts that line into warps of 32.

Write `locate(thread_idx, block_dim)`, which returns three integers:

    linear   the thread's number in its CTA
    warp     the warp that it belongs to
    lane     its place in that warp

On the page: where is thread (3, 2, 1) of a CTA of (8, 4, 4) threads?
"""


def locate(thread_idx, block_dim):
    """Returns (linear, warp, lane) of thread_idx = (x, y, z)."""
    raise NotImplementedError("return (linear, warp, lane) of the thread")


if __name__ == "__main__":
    from pathlib import Path

    from mlsys_gpu import check

    print(check("1.1", Path(__file__)))
