"""algorithm."""
