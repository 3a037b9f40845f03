"""Exercise 13.2 (predict): round and round the ring.

A persistent CTA computes `tiles` tiles of D, each with `k_tiles` tiles of K.
Shared memory has a ring of `stages` stages; each has two mbarriers of its
own, which are initialised once, when the kernel begins:

    full    completes a phase when a K tile's bytes are in the stage
    empty   completes a phase when the MMAs have read the stage

K tiles use the stages in turn, 0, 1, …, stages - 1, 0, and so on, and the
turn does not begin anew with a tile of D. Before it loads a K tile, the
kernel waits for the stage's empty barrier; before it multiplies it, for the
stage's full barrier. At first all stages are free: that first wait for empty
has to return at once, though nothing has arrived.

Write `waits(stages, tiles, k_tiles)`, which returns a list with one entry for
each K tile of all tiles of D, in order:

    (stage, phase that is waited for at empty, phase waited for at full)

On the page: 2 stages, 1 tile of D, 5 tiles of K.
"""


def waits(stages, tiles, k_tiles):
    """Returns a list of (stage, empty phase, full phase), one for each K tile."""
    # [solution]
    found = []
    for count in range(tiles * k_tiles):
        # How often the ring has gone round: as many phases of full are over.
        turn = count // stages
        found.append((count % stages, (turn + 1) % 2, turn % 2))
    return found
    # [stub]
    # raise NotImplementedError("return a list of (stage, empty phase, full phase)")
    # [end]


if __name__ == "__main__":
    from pathlib import Path

    from mlsys_gpu import check

    print(check("13.2", Path(__file__)))
