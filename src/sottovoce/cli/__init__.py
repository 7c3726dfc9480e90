"""The command line: read options, call the library, print.

No mathematics and no decision about privacy lives here. A module that defines commands imports
nothing heavy before one runs, so that ``--help`` and small devices stay fast.
"""

from sottovoce.cli.app import main

__all__ = ["main"]
