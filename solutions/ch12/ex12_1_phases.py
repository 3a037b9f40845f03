"""Exercise 12.1 (predict): which phase to wait for?

In Step 2 everybody waits once for each K tile, on one mbarrier that needs
one arrival to complete a phase. The barrier is initialised once, and its
first phase is phase 0: `mbarrier_wait(bar, 0)` returns when it has completed.
After that the phases alternate, 0, 1, 0, 1, and so on.

Now let the same CTA compute `tiles` tiles of D, one after the other, each
with `k_tiles` tiles of K, without initialising the barrier again. Write
`waits(tiles, k_tiles)`, which returns the list of the phases that are handed
to mbarrier_wait, in order.

On the page: 2 tiles of D with 3 tiles of K each.
"""


def waits(tiles, k_tiles):
    """Returns the list of phases, one for each wait."""
    # [solution]
    # The barrier does not know where a tile of D begins: the count goes on.
    return [wait % 2 for wait in range(tiles * k_tiles)]
    # [stub]
    # raise NotImplementedError("return the list of phases, tiles * k_tiles of them")
    # [end]


if __name__ == "__main__":
    from pathlib import Path

    from mlsys_gpu import check

    print(check("12.1", Path(__file__)))
