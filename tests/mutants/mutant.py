"""A way to break the promise: a change of one place, and the test that must fail for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A change of the source that breaks the promise.

    Attributes:
        name: what is broken.
        file: the file under src/sottovoce.
        old: text that occurs in it exactly once.
        new: what takes its place.
        killed_by: the test that must fail, ``file::function``.
    """

    name: str
    file: str
    old: str
    new: str
    killed_by: str
