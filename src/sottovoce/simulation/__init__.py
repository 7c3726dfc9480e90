"""Simulations: requests, agents and clouds laid out for kernels, rounds in slices, results."""
