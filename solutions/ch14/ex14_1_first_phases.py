"""Exercise 14.1 (predict): with which phase does each role begin?

A warp-specialised kernel on Blackwell: one warp loads, one issues MMAs, four
are the epilogue. Each role goes through the CTA's tiles of D, t = 0, 1, 2, …,
which have `k_tiles` tiles of K each. There are `stages` stages in shared
memory and `buffers` accumulators in tensor memory; both are used in turn, and
the turns go on from one tile of D to the next. Each has two mbarriers:

    full, empty            of a stage: its bytes have arrived / MMAs have read it
    tmem_full, tmem_empty  of an accumulator: the MMAs of a tile have written
                           it / the epilogue has read it

All barriers are initialised when the kernel begins, and are then in phase 0.
If `primed` is true, whoever will release a stage or an accumulator does so
once before the loops begin: it arrives at all empty and tmem_empty, so that
each of them completes its phase 0 with that. If it is false nobody does, and
the first waits have to return at once all the same.

Write `phases(t, k, k_tiles, stages, buffers, primed)`, which returns the
phases (0 or 1) that are handed to mbarrier_wait for K tile k of tile t:

    load       at empty, before the K tile is loaded
    mma        at full, before the K tile is multiplied
    mma_acc    at tmem_empty, before the first MMA of tile t
    epilogue   at tmem_full, before the accumulator of tile t is read

On the page: where the roles begin, t = 0 and k = 0, with 4 tiles of K, 6
stages, 2 accumulators, not primed.
"""


def phases(t, k, k_tiles, stages, buffers, primed):
    """Returns (load, mma, mma_acc, epilogue)."""
    # [solution]
    turn = (t * k_tiles + k) // stages  # how often the stage has been used
    acc_turn = t // buffers
    # Who fills waits for phase `turn`. Who releases is one phase behind, unless
    # priming has made up for it.
    behind = 0 if primed else 1
    return (turn + behind) % 2, turn % 2, (acc_turn + behind) % 2, acc_turn % 2
    # [stub]
    # raise NotImplementedError("return (load, mma, mma_acc, epilogue)")
    # [end]


if __name__ == "__main__":
    from pathlib import Path

    from mlsys_gpu import check

    print(check("14.1", Path(__file__)))
