"""Measurements of what users wait for."""

PLAIN = {"OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
"""How processes are measured: on one core, with the byte code that installed packages have."""
