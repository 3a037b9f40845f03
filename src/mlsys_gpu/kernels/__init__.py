"""The course's kernels: ``gemm`` (the ladder of Part III) and the baselines they are compared with."""
