"""The way in for browsers: login links."""
