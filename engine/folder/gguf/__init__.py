"""A GGUF file as a model's folder: its head read and checked, its words turned into ours."""
