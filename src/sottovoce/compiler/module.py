"""Texts of modules compiled: what is marked as an entry, and all that it calls."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, TypeVar

from sottovoce.compiler.kinds import Address, signature
from sottovoce.compiler.machine import object_code
from sottovoce.compiler.program import Program, is_text_of
from sottovoce.errors import InputError

Function = TypeVar("Function", bound=Callable[..., Any])


def entry(kind: str) -> Callable[[Function], Function]:
    """Mark a function of a module as one that can be called from outside; see ``signature``."""

    def marked(function: Function) -> Function:
        function.__dict__["entry"] = kind
        return function

    return marked


def compile_module(source: str, name: str) -> tuple[bytes, dict[str, str]]:
    """Return the machine code of a module's entries, and their signatures by name.

    Args:
        source: the module's text, which marks entries with ``@entry("...")``. It is run once, so
            that its functions know what it imports.
        name: what to call the text in messages.
    """
    tree = ast.parse(source)
    scope: dict[str, Any] = {"__name__": name}
    exec(compile(source, name, "exec"), scope)  # noqa: S102  text of our own making
    texts = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            if not is_text_of(node, scope[node.name]):
                raise InputError(f"{node.name} must be set once in {name}, got another as well")
            texts[scope[node.name]] = node
    program = Program(texts)
    entries: dict[str, str] = {}
    for function, node in texts.items():
        kind = function.__dict__.get("entry")
        if kind is not None:
            entries[node.name] = kind
            program.entry(function, signature(kind))
    return object_code(program.text), entries


def signatures(entries: dict[str, str]) -> dict[str, Address]:
    """Read the signatures of entries."""
    return {name: signature(kind) for name, kind in entries.items()}
