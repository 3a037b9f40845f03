"""Exercise 14.4 (predict): how many registers for the consumers?

An SM has 65,536 registers. A kernel is launched with the same number of
registers for each thread, a multiple of 8, as many as there are if `ctas`
CTAs of `warpgroups` warpgroups (128 threads each) are to run on an SM.

Then the roles share them out anew. The producer warpgroup gives back all but
`producer` registers a thread (setmaxnreg.dec), and the consumer warpgroups,
all others, take what has become free (setmaxnreg.inc). Whole warpgroups do
so; the number is a multiple of 8; and a CTA never holds more than it was
launched with.

Write `budget(warpgroups, ctas, producer)`, which returns

    launch     registers of a thread when the kernel is launched
    consumer   the most that setmaxnreg.inc may ask for in all consumers

On the page: 3 warpgroups, one CTA an SM, 40 registers for the producer.
"""


def budget(warpgroups, ctas, producer):
    """Returns (launch, consumer)."""
    # [solution]
    launch = 65536 // (ctas * warpgroups * 128) // 8 * 8
    free = warpgroups * launch - producer  # of one thread in each warpgroup
    return launch, free // (warpgroups - 1) // 8 * 8
    # [stub]
    # raise NotImplementedError("return (launch, consumer)")
    # [end]


if __name__ == "__main__":
    from pathlib import Path

    from mlsys_gpu import check

    print(check("14.4", Path(__file__)))
