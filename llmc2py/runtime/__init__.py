"""What generated code imports: arrays, kernels, launch plans and autograd over two backends (CUDA and the CPU)."""
