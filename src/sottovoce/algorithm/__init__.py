"""Algorithms as values: their constants, schedules and weights; kernels take their steps."""
