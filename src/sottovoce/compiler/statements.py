"""Statements of the language: assignments, loops, branches."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from sottovoce.compiler.arithmetic import binary, cast, number, settled, whole
from sottovoce.compiler.expressions import Calls, Expressions, sign_of
from sottovoce.compiler.kinds import (
    INT,
    NOTHING,
    Array,
    Kind,
    Known,
    Number,
    Tuple,
    Value,
    array_kind,
    called,
    common_kind,
    items_of,
)
from sottovoce.compiler.memory import copy, fill
from sottovoce.errors import InputError


@final
class Body(Expressions):
    """Writes the statements of one function.

    Args:
        calls: calls other functions.
        names: what the function's module knows.
        kinds: the kinds of its variables as far as they are known; assignments add to them.
        result: the kind of what it returns, as far as that is known.

    Attributes:
        widened: whether a variable turned out to be of a wider kind than was written so far, so
            that all must be written again.
    """

    def __init__(
        self, calls: Calls, names: Mapping[str, Any], kinds: dict[str, Kind], result: Kind | None
    ) -> None:
        super().__init__(calls, names, kinds)
        self.result = result
        self.widened = False
        self.leave = self.code.label()
        self._answer: tuple[str, ...] | None = None
        self._loops: list[tuple[str, str]] = []

    def run(self, statements: Sequence[ast.stmt]) -> None:
        """Write statements."""
        for node in statements:
            if not self.code.live:
                return
            write: Callable[[Any], None] | None = getattr(
                self, f"_write_{type(node).__name__.lower()}", None
            )
            try:
                if write is None:
                    raise InputError(f"compiled code has no {type(node).__name__}")
                write(node)
            except InputError as error:
                raise located(error, node) from None

    def _write_pass(self, node: ast.Pass) -> None:
        pass

    def _write_expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.value(node.value)

    def _write_assign(self, node: ast.Assign) -> None:
        value = self.value(node.value)
        for target in node.targets:
            self._set(target, value)

    def _write_annassign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._set(node.target, self.value(node.value))

    def _write_augassign(self, node: ast.AugAssign) -> None:
        sign = sign_of(node.op)
        if isinstance(node.target, ast.Subscript):
            owner = self.value(node.target.value)
            place, item = self.element(owner, node.target.slice), array_kind(owner).item
            before = self.read(item, place)
            self._keep(binary(self.code, sign, before, self.value(node.value)), item, place)
            return
        before = self.value(node.target)
        self._set(node.target, binary(self.code, sign, before, self.value(node.value)))

    def _set(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            self.assign(target.id, value)
        elif isinstance(target, ast.Tuple):
            if not isinstance(value.kind, Tuple) or len(value.kind.items) != len(target.elts):
                raise InputError(
                    f"{ast.unparse(target)} must get as many values, got another number"
                )
            for name, item in zip(target.elts, items_of(value), strict=True):
                self._set(name, item)
        elif isinstance(target, ast.Subscript):
            self._put(target, value)
        else:
            raise InputError(f"variables and items of arrays can be set, got {ast.unparse(target)}")

    def _put(self, target: ast.Subscript, value: Value) -> None:
        owner = self.value(target.value)
        if not isinstance(owner.kind, Array):
            raise InputError(f"items of arrays can be set, got {ast.unparse(target)}")
        if self.is_part(owner, target.slice):
            part = self.view(owner, target.slice)
            if isinstance(value.kind, Array):
                if value.kind != part.kind:
                    raise InputError(f"{ast.unparse(target)} must get an array of its own kind")
                copy(self.code, part, value)
            else:
                fill(self.code, part, cast(self.code, value, owner.kind.item))
            return
        self._keep(value, owner.kind.item, self.element(owner, target.slice))

    def _keep(self, value: Value, item: Number, place: str) -> None:
        """Put a number into an array."""
        self.code.do(f"store {item.llvm} {cast(self.code, value, item).parts[0]}, ptr {place}")

    def assign(self, name: str, value: Value) -> None:
        """Set a variable, whose kind becomes one that holds this value too."""
        before = self._kinds.get(name, value.kind)
        kind = common_kind(before, value.kind)
        if kind is None:
            raise InputError(
                f"{name} must be of one kind throughout, got {called(before)} and "
                f"{called(value.kind)}: use two names"
            )
        if kind != before:
            self.widened = True
            self._slots.pop(name, None)
        self._kinds[name] = kind
        self.code.store(cast(self.code, value, kind), self.variable(name))

    def _write_if(self, node: ast.If) -> None:
        test, code = self.condition(node.test), self.code
        if (told := settled(test)) is not None:
            self.run(node.body if told else node.orelse)
            return
        yes, no, end = code.label(), code.label(), code.label()
        code.branch(test.parts[0], yes, no)
        for label, part in ((yes, node.body), (no, node.orelse)):
            code.begin(label)
            self.run(part)
            code.jump(end)
        code.begin(end)

    def _write_while(self, node: ast.While) -> None:
        code = self.code
        again, body, end = code.label(), code.label(), code.label()
        code.begin(again)
        test = self.condition(node.test)
        if settled(test):
            code.jump(body)
        else:
            code.branch(test.parts[0], body, end)
        code.begin(body)
        self._repeat(node, again, end)
        code.jump(again)
        code.begin(end)

    def _repeat(self, node: ast.While | ast.For, again: str, end: str) -> None:
        if node.orelse:
            raise InputError("compiled loops have no else")
        self._loops.append((again, end))
        self.run(node.body)
        self._loops.pop()

    def _write_break(self, node: ast.Break) -> None:
        self.code.jump(self._loops[-1][1])

    def _write_continue(self, node: ast.Continue) -> None:
        self.code.jump(self._loops[-1][0])

    def _write_for(self, node: ast.For) -> None:
        if isinstance(node.iter, ast.Call) and self.value(node.iter.func).kind == Known(range):
            self._counted(node, [whole(self.code, self.value(a)) for a in node.iter.args])
            return
        items = self.value(node.iter)
        if not isinstance(items.kind, Tuple):
            raise InputError(f"loops go over range or over a tuple, got {ast.unparse(node.iter)}")
        for item in items_of(items):
            self._set(node.target, item)
            after, end = self.code.label(), self.code.label()
            self._repeat(node, after, end)
            self.code.begin(after)
            if end in self.code.reached:
                raise InputError("a loop over a tuple has no break")

    def _counted(self, node: ast.For, given: list[Value]) -> None:
        """A loop over a range; the counter is not the variable, which the body may set."""
        code = self.code
        if len(given) not in (1, 2, 3):
            raise InputError(f"range takes 1 to 3 numbers, got {len(given)}")
        first, last = (number(0), given[0]) if len(given) == 1 else (given[0], given[1])
        step = given[2].constant if len(given) == 3 else 1
        if not isinstance(step, int) or step == 0:
            raise InputError("a range counts by a number that is written in the text")
        counter = code.slot(INT)
        again, body, after, end = (code.label() for _ in range(4))
        code.store(first, counter)
        code.begin(again)
        at = code.load(INT, counter)
        sign = "slt" if step > 0 else "sgt"
        code.branch(code.new(f"icmp {sign} i64 {at.parts[0]}, {last.parts[0]}"), body, end)
        code.begin(body)
        self._set(node.target, at)
        self._repeat(node, after, end)
        code.begin(after)
        now = code.load(INT, counter)
        code.store(Value(INT, (code.new(f"add nsw i64 {now.parts[0]}, {step}"),)), counter)
        code.jump(again)
        code.begin(end)

    def _write_return(self, node: ast.Return) -> None:
        value = Value(NOTHING) if node.value is None else self.value(node.value)
        kind = value.kind if self.result is None else common_kind(self.result, value.kind)
        if kind is None:
            raise InputError("a function must return values of one kind")
        if self.result is not None and kind != self.result:
            self.widened = True
        if self.result != kind or self._answer is None:
            self.result, self._answer = kind, self.code.slot(kind)
        self.code.store(cast(self.code, value, kind), self._answer)
        self.code.jump(self.leave)

    def end(self) -> Value:
        """Begin the last block, and return what the function returns."""
        if self.code.live and self.result not in (None, NOTHING):
            raise InputError("a function must return a value on every way through it")
        self.code.begin(self.leave)
        if self.result is None or self._answer is None:
            return Value(NOTHING)
        return self.code.load(self.result, self._answer)


@final
class LocatedError(InputError):
    """An error of which is known where in the text it is."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


def located(error: InputError, node: ast.stmt) -> LocatedError:
    """Return an error that says on which line it is."""
    return error if isinstance(error, LocatedError) else LocatedError(str(error), node.lineno)
