"""Turn hand-written CUDA kernels into tested CuPy autograd layers."""

__version__ = "0.1.0"
