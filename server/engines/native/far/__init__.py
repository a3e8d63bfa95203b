"""Cores of ours on other machines: how one runs there, and how this server joins it."""
