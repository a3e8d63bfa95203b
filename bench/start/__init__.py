"""What users wait for when the server starts, and when its engine core dies."""
