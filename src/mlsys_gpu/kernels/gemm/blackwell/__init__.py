"""The GEMM ladder for Blackwell: one file a step."""
