"""Llama-like decoders: on a CPU `decoder.FusedDecoder`, on a GPU `gpu_decoder.GpuDecoder`."""
