"""What both halves of the engine read of a model's folder."""
