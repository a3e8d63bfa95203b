"""Who is asking, and how much they may."""
