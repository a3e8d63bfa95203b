"""Checkpoints whose weights others have quantized: AWQ, GPTQ, compressed-tensors, FP8 and more."""
