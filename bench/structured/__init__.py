"""What answers that keep to a grammar cost."""
