"""Which sequences a step computes. No torch, no clock."""
