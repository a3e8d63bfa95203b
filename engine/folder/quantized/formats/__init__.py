"""What each tool calls its tensors, and what config.json must say of them."""
