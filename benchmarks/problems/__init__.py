"""Families of problems with answers in closed form, and agents that answer them in a loop."""
