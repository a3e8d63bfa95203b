"""How the demo model is made, and measured."""
