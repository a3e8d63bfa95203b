"""From a folder to a model that runs with our attention."""
