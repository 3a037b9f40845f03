# Exercise 14.3. Stub 61e24f3a5e15: yours to edit; `mlsys-gpu reset 14.3` brings it back.
"""Exercise 14.3 (predict): who waits for whom?

A producer and a consumer share a ring of `stages` stages. Both go through
`tiles` tiles of D with `k_tiles` tiles of K each, and count K tiles on from
one tile of D to the next: n = 0, 1, 2, … With s = n % stages and
turn = n // stages, for each K tile,

    the producer   waits at empty[s] for phase (turn + 1) % 2, and loads;
                   when the bytes are there, a phase of full[s] is complete
    the consumer   waits at full[s] for phase turn % 2, issues the MMAs, waits
                   for them, and one of its threads arrives at empty[s],
                   whose phase takes one arrival

That is right, and both get to their end. Now one mistake is made, `fault`:

    "none"    none, it is right as it is
    "phase"   the producer waits at empty[s] for phase turn % 2
    "count"   empty is initialised for two arrivals; still one thread arrives
    "last"    for the last K tile of a tile of D the consumer does not arrive
    "late"    in its turn n the consumer waits for the MMAs of K tile
              n - stages, and arrives for that one, if there is one

Write `stuck(stages, tiles, k_tiles, fault)`, which returns what each of the
two waits for in the end, (producer, consumer). Each is a pair (s, phase), the
stage and the phase of the wait that never ends, or None for a role that gets
to its end.

On the page: 4 stages, 3 tiles of D, 6 tiles of K, "last".
"""


def stuck(stages, tiles, k_tiles, fault):
    """Returns (producer, consumer), each (stage, phase) or None."""
    raise NotImplementedError("return (producer, consumer)")


if __name__ == "__main__":
    from pathlib import Path

    from mlsys_gpu import check

    print(check("14.3", Path(__file__)))
