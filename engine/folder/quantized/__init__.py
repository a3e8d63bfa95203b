"""Which format the weights of a checkpoint are quantized in, and where their parts lie."""
