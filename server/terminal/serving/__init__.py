"""Commands on what a server runs: workers, engines, adapters, models."""
