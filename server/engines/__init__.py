"""The kinds of engine that answer, one module each, and `EngineClient`, which all of them are."""
