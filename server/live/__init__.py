"""Who watches here, and what they are sent."""
