"""Several engines as one: which of them answers, and what becomes of the answers of one that dies.

`GroupKeeper` is what the supervisor has of it, `EngineGroup` what a worker has.
"""
