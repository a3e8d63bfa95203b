"""What each architecture of GGUF files is in transformers: fields of config.json, and weights."""
