"""Experiments on problems: each runs the library and returns a value to look at."""
