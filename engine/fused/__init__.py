"""Llama-like decoders as one op: see `decoder.FusedDecoder`."""
