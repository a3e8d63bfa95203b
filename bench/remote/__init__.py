"""What real engines of other kinds lose through Parley."""
