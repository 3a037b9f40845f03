"""Modern GPU Programming for MLSys: kernels, simulator, exercises."""

__version__ = "0.1.0"
