"""The course's kernels: the GEMM ladder of Part III, and the baselines it is compared with."""
