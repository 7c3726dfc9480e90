"""The command line: parse, call the library, print."""

from sottovoce.cli.app import main

__all__ = ["main"]
