"""Formulas: one immutable expression type, its derivatives, its text and its arithmetics.

Lives here: what a formula is and what can be computed from a formula alone. May not live here:
agents, constraints of a problem, files, randomness. Nothing here imports another room.
"""
