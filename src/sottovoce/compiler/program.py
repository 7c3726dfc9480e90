"""A module of compiled code: functions for the kinds of arguments that they are called with."""

from __future__ import annotations

import ast
import builtins
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import FunctionType
from typing import Any, final

from sottovoce.compiler import memory
from sottovoce.compiler.arithmetic import cast
from sottovoce.compiler.calls import listed_parts, result_kind, returned, symbol
from sottovoce.compiler.code import Code
from sottovoce.compiler.kinds import NOTHING, Address, Kind, Value, called, machine_kinds, tuple_of
from sottovoce.compiler.operations import SUBSTITUTES
from sottovoce.compiler.statements import Body, LocatedError
from sottovoce.errors import InputError

_LONG = 200  # lines: LLVM takes more than twice the time for a function of twice the length


@final
@dataclass(frozen=True, slots=True)
class _Compiled:
    """A function for certain kinds: its name, what it returns, whether it takes the reserve."""

    name: str
    result: Kind
    reserves: bool


@final
class Program:
    """Writes a module: a function once for every combination of kinds that it is called with.

    Args:
        texts: functions of generated modules, whose text is in no file, with their trees.
    """

    def __init__(self, texts: Mapping[Any, ast.FunctionDef]) -> None:
        self._texts = texts
        self._functions: dict[tuple[Any, tuple[Kind, ...]], _Compiled | None] = {}
        self._defined = 0
        self._parts: list[str] = []
        self._declared: set[str] = set()

    @property
    def text(self) -> str:
        """The module in LLVM's language."""
        known = set(memory.TEXT.splitlines())
        declared = sorted(line for line in self._declared if line not in known)
        return "\n".join([memory.TEXT, *declared, *self._parts])

    def entry(self, function: Any, kind: Address) -> None:
        """Add a function that Python, or compiled code, calls by its address."""
        if not function.__name__.isascii():
            raise InputError(f"an entry must have a plain name, got {function.__name__}")
        code, arguments = Code(), _parameters(kind.arguments)
        code.slots.append(f"  {memory.RESERVE} = alloca %reserve")
        code.do(f"store %reserve zeroinitializer, ptr {memory.RESERVE}")
        got = self.call(code, function, arguments)
        if code.reserves:
            code.do(f"call void @reserve.give(ptr {memory.RESERVE}, ptr null, i64 0)")
        if (kind.result == NOTHING) != (got.kind == NOTHING):
            raise InputError(
                f"{function.__name__} must return {called(kind.result)}, got {called(got.kind)}"
            )
        _leave(code, cast(code, got, kind.result))
        name, listed = symbol(function.__name__), ", ".join(listed_parts(tuple_of(arguments)))
        head = f"define {result_kind(kind.result, entry=True)} @{name}({listed})"
        self._add(f"{head} nounwind", code, name)

    def call(self, code: Code, function: Any, arguments: list[Value]) -> Value:
        """Write the call of a Python function, which is compiled as it stands."""
        function = SUBSTITUTES.get(function, function)
        compiled = self._compiled(function, tuple(a.kind for a in arguments))
        given = listed_parts(tuple_of(arguments))
        if compiled.reserves:
            code.reserves = True
            given = [f"ptr {memory.RESERVE}", *given]
        return returned(code, compiled.result, f"@{compiled.name}({', '.join(given)})")

    def _compiled(self, function: Any, kinds: tuple[Kind, ...]) -> _Compiled:
        key = (function, kinds)
        if key not in self._functions:
            self._functions[key] = None
            try:
                self._functions[key] = self._compile(function, kinds)
            except LocatedError as error:
                where = f"{function.__name__}, line {error.line}"
                raise InputError(f"{error} ({where} of {function.__code__.co_filename})") from None
        found = self._functions[key]
        if found is None:
            raise InputError(f"{function.__name__} must not call itself in compiled code")
        return found

    def _compile(self, function: Any, kinds: tuple[Kind, ...]) -> _Compiled:
        tree = self._tree(function)
        names = [argument.arg for argument in tree.args.args]
        if ast.unparse(tree.args) != ", ".join(ast.unparse(one) for one in tree.args.args):
            raise InputError(f"{function.__name__} must take arguments by position, all given")
        if len(names) != len(kinds):
            raise InputError(f"{function.__name__} takes {len(names)} arguments, got {len(kinds)}")
        outside = {**vars(builtins), **function.__globals__}
        for own in function.__code__.co_varnames:
            outside.pop(own, None)
        variables: dict[str, Kind] = {}
        result: Kind | None = None
        given = _parameters(kinds)
        while True:  # kinds only widen, so this ends
            body = Body(self, outside, variables, result)
            for name, value in zip(names, given, strict=True):
                body.assign(name, value)
            body.widened = False
            body.run(tree.body)
            answer = body.end()
            result = body.result
            if not body.widened:
                return self._define(function, body, given, answer)

    def _define(self, function: Any, body: Body, given: list[Value], answer: Value) -> _Compiled:
        self._defined += 1
        code, name = body.code, f"function.{self._defined}"
        listed = listed_parts(tuple_of(given))
        if code.reserves:
            listed = [f"ptr {memory.RESERVE}", *listed]
            if not memory.holds_arrays(answer.kind):
                memory.give_back(code)
        _leave(code, answer)
        often = " alwaysinline" if function.__dict__.get("inline") else ""
        if not often and len(code.lines) > _LONG:
            often = " noinline"
        head = f"define private {result_kind(answer.kind)} @{name}({', '.join(listed)})"
        self._add(f"{head} nounwind{often}", code, name)
        return _Compiled(name, answer.kind, code.reserves)

    def _add(self, head: str, code: Code, name: str) -> None:
        self._declared |= code.declared
        tables = [
            f"@{name}.table{i} = private unnamed_addr constant {table}"
            for i, table in enumerate(code.constants)
        ]
        lines = [line.replace("@TABLE.", f"@{name}.table") for line in code.lines]
        self._parts += [*tables, f"\n{head} {{", *code.slots, *lines, "}"]

    def _tree(self, function: Any) -> ast.FunctionDef:
        if function in self._texts:
            return self._texts[function]
        if not isinstance(function, FunctionType):
            raise InputError(
                f"compiled code cannot call {function!r}: write it as a plain function"
            )
        file = inspect.getsourcefile(function)
        if file is not None and Path(file).exists():
            for node in _functions_of(file, Path(file).stat().st_mtime_ns):
                if is_text_of(node, function):
                    return node
        raise InputError(
            f"the text of {function.__name__} must be in a file, outside of other functions, "
            f"got {function.__code__.co_filename}"
        )


def is_text_of(node: ast.FunctionDef, function: Any) -> bool:
    """Return whether a function was made from this text of a file, by its name and line."""
    return (
        isinstance(function, FunctionType)
        and node.name == function.__name__
        and function.__code__.co_firstlineno
        in (node.lineno, *(decorator.lineno for decorator in node.decorator_list))
    )


def _parameters(kinds: Sequence[Kind]) -> list[Value]:
    """What a function is given, as its text calls it."""
    count = iter(range(sum(len(machine_kinds(kind)) for kind in kinds)))
    return [Value(kind, tuple(f"%a{next(count)}" for _ in machine_kinds(kind))) for kind in kinds]


def _leave(code: Code, answer: Value) -> None:
    """Return a value, all its parts at once."""
    parts = listed_parts(answer)
    if len(parts) < 2:
        code.do(" ".join(["ret", *(parts or ["void"])]))
        return
    kind, whole = result_kind(answer.kind), "poison"
    for place, part in enumerate(parts):
        whole = code.new(f"insertvalue {kind} {whole}, {part}, {place}")
    code.do(f"ret {kind} {whole}")


@lru_cache(maxsize=64)
def _functions_of(file: str, changed: int) -> list[ast.FunctionDef]:
    tree = ast.parse(Path(file).read_text("utf-8"))
    return [node for node in tree.body if isinstance(node, ast.FunctionDef)]
