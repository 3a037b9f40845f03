"""The GEMM ladder for Hopper: one file a step."""
