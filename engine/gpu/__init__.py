"""What is computed on a GPU: the references of csrc/cuda, as far as a CPU has no such ops."""
