"""Exercise 10.6 (optimise): the widest access.

D[i] = 2 * A[i] for n elements in float16; n is a multiple of 1,024. A CTA of
128 threads takes 1,024 elements, 8 to a thread.

The kernel below is right, and loads 2 bytes at a time. A thread can move 16
bytes with one instruction. Target: as few load and as few store instructions
as these bytes can be moved with. (Which elements a thread takes is up to
you; `Tx.copy` between a thread's registers and global memory picks the
widest access that the addresses allow.)
"""

from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx

from mlsys_gpu.kernels.common import finish

THREADS, EACH = 128, 8


def build(n):
    """D = 2 * A for n elements, a multiple of 1,024."""

    @T.prim_func
    def kernel(
        A: T.Buffer((n,), "float16"),
        D: T.Buffer((n,), "float16"),
    ):
        T.device_entry()
        cta = T.cta_id([n // (THREADS * EACH)])
        tid = T.thread_id([THREADS])
        # [solution]
        # T.meta_var keeps the expression, so that the dispatch can see the alignment.
        first = T.meta_var((cta * THREADS + tid) * EACH)
        regs = T.alloc_local((EACH,), "float16")
        Tx.copy(regs[:], A[first : first + EACH])
        for j in T.unroll(EACH):
            regs[j] = regs[j] * T.float16(2)
        Tx.copy(D[first : first + EACH], regs[:])
        # [stub]
        # for j in T.serial(EACH):
        #     i = cta * THREADS * EACH + j * THREADS + tid
        #     D[i] = A[i] * T.float16(2)
        # [end]

    return finish(kernel, "double", "hopper")


if __name__ == "__main__":
    from pathlib import Path

    from mlsys_gpu import check

    print(check("10.6", Path(__file__)))
