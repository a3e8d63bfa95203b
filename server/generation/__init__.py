"""Between a session and the engine: prompt and parameters there, tokens back."""
