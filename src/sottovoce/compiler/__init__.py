"""A compiler for the plain functions that rounds are made of: numbers, arrays and loops."""
