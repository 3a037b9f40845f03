"""Events that a timed run records, one after the other for each warp.

An event is a tuple ``(kind, site, …)``: what the operation was, the line that it stands at (a site
of the Program), and what decides about its time. The simulator's machine writes them
(:mod:`mlsys_gpu.sim.machine.recording`), :mod:`.replay` reads them.
"""

from __future__ import annotations

#: Kinds of events; what follows kind and site in each.
WORK = 0  # index of Program.work, how often
LOAD = 1  # instructions, 32-byte sectors, bytes, place in global memory
STORE = 2  # the same
SHARED_LOAD = 3  # instructions, wavefronts, bytes, region (rank, first byte), kind
SHARED_STORE = 4  # the same
DELAY = 5  # name of the constant, how often
SIGNAL = 6  # tokens, kind (``mbarrier``, ``remote``, ``barrier``, ``cluster``)
WAIT = 7  # token, kind
# Bytes from global memory, [(token, rank, bytes, rank of the barrier)], place, label, and
# [(rank, byte, bytes)] of where they come to.
COPY_IN = 8
COPY_OUT = 9  # bytes, lane, place, label, (rank, byte)
BULK_COMMIT = 10  # lane
BULK_WAIT = 11  # lane, groups that may be left, whether only their reading is waited for
WGMMA = 12  # n, whether A is in registers, steps, dtype, [(rank, byte)] of the operands
WGMMA_COMMIT = 13
WGMMA_WAIT = 14  # groups that may be left
TC_MMA = 15  # m, n, cta_group, whether A is in tensor memory, steps, operands, column, columns
TC_COMMIT = 16  # tokens (filled in when the arrival comes), cta_group
TC_LOAD = 17  # columns, column
TC_STORE = 18  # columns, column
TC_WAIT = 19  # ``ld`` or ``st``
ASYNC_COPY = 20  # instructions, bytes, sectors, place
ASYNC_COMMIT = 21
ASYNC_WAIT = 22  # groups that may be left
ASYNC_ARRIVE = 23  # tokens
ATOMIC = 24  # space, different places, most lanes on one of them, whether it returns, address
MMA = 25  # k, how often
PEER = 26  # bytes to or from a peer's shared memory, tokens, ``load``, ``store``, ``async``
EXIT = 27


#: The name of each kind: that of its handler in the replay.
NAMES = {
    value: name.lower()
    for name, value in list(globals().items())
    if name.isupper() and isinstance(value, int)
}

#: A phase of a barrier: the barrier's number, and which of its phases.
Token = tuple[int, int]
