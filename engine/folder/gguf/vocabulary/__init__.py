"""The tokenizer of a GGUF file, made into one of the `tokenizers` library."""
