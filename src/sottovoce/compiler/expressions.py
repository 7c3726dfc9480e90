"""Expressions of the language, written out as instructions."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any, Protocol

from sottovoce.compiler.arithmetic import (
    alike,
    binary,
    cast,
    compare,
    minus,
    number,
    settled,
    truth,
    whole,
)
from sottovoce.compiler.calls import invoked, known
from sottovoce.compiler.code import Code
from sottovoce.compiler.kinds import (
    INT,
    MASK,
    NOTHING,
    SHORT,
    TRUTH,
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
    machine_kinds,
    number_kind,
    tuple_of,
)
from sottovoce.compiler.memory import copy, new_array, place_of
from sottovoce.compiler.operations import OPERATIONS, Operation, shape_of
from sottovoce.errors import InputError

SIGNS: Mapping[type, str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.Pow: "**", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<",
    ast.RShift: ">>", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==",
    ast.NotEq: "!=",
}  # fmt: skip


class Calls(Protocol):
    """Calls functions, which it compiles for the kinds of their arguments."""

    def call(self, code: Code, function: Any, arguments: list[Value]) -> Value:
        """Write the call of a Python function and return its result."""


def sign_of(node: ast.AST) -> str:
    """Return the sign of an operator."""
    if type(node) not in SIGNS:
        raise InputError(f"compiled code has no {type(node).__name__}")
    return SIGNS[type(node)]


class Expressions:
    """Writes the expressions of one function.

    Args:
        calls: calls other functions.
        names: what the function's module knows, but for names that are variables of its own.
        kinds: the kinds of its variables, as far as they are known.
    """

    def __init__(self, calls: Calls, names: Mapping[str, Any], kinds: dict[str, Kind]) -> None:
        self.code = Code()
        self._calls, self._names, self._kinds = calls, names, kinds
        self._slots: dict[str, tuple[str, ...]] = {}

    def value(self, node: ast.expr) -> Value:
        """Return the value of an expression, after the instructions that compute it."""
        write: Callable[[Any], Value] | None = getattr(
            self, f"_write_{type(node).__name__.lower()}", None
        )
        if write is None:
            raise InputError(f"compiled code has no {type(node).__name__}: {ast.unparse(node)}")
        return write(node)

    def condition(self, node: ast.expr) -> Value:
        """Return whether an expression is true; where that is known, as a constant."""
        found = self._either(node) if isinstance(node, ast.BoolOp) else self.value(node)
        if isinstance(found.kind, Known):
            return number(bool(found.kind.value))
        return truth(self.code, found)

    def variable(self, name: str) -> tuple[str, ...]:
        """Return the slots of a variable whose kind is known."""
        if name not in self._slots:
            self._slots[name] = self.code.slot(self._kinds[name])
        return self._slots[name]

    def _write_constant(self, node: ast.Constant) -> Value:
        return known(node.value)

    def _write_name(self, node: ast.Name) -> Value:
        if node.id in self._kinds:
            return self.code.load(self._kinds[node.id], self.variable(node.id))
        if node.id in self._names:
            return known(self._names[node.id])
        raise InputError(f"{node.id} must be set before it is used")

    def _place(self, node: ast.expr) -> tuple[Kind, tuple[str, ...]] | None:
        """Where a variable lies, or a part of one, without reading it."""
        if isinstance(node, ast.Name) and node.id in self._kinds:
            return self._kinds[node.id], self.variable(node.id)
        if isinstance(node, ast.Attribute):
            place = self._place(node.value)
            if place is not None and isinstance(place[0], Tuple):
                return _part(place[0], _field(place[0], node.attr), place[1])
        return None

    def _write_attribute(self, node: ast.Attribute) -> Value:
        place = self._place(node)
        if place is not None:
            return self.code.load(*place)
        whole = self._place(node.value)
        if whole is not None and isinstance(whole[0], Array):
            return self._of_array(node.attr, whole[1])
        owner = self.value(node.value)
        if isinstance(owner.kind, Known) and isinstance(owner.kind.value, ModuleType):
            if hasattr(owner.kind.value, node.attr):
                return known(getattr(owner.kind.value, node.attr))
            raise InputError(f"{owner.kind.value.__name__} has no {node.attr}")
        if isinstance(owner.kind, Tuple):
            return items_of(owner)[_field(owner.kind, node.attr)]
        raise InputError(f"{called(owner.kind)} has no {node.attr} in compiled code")

    def _of_array(self, name: str, slots: tuple[str, ...]) -> Value:
        sizes = [Value(INT, (self.code.new(f"load i64, ptr {slot}"),)) for slot in slots[1:]]
        if name == "shape":
            return tuple_of(sizes)
        if name == "size":
            return sizes[0] if len(sizes) == 1 else binary(self.code, "*", *sizes)
        raise InputError(f"an array has size and shape in compiled code, got {name}")

    def _write_tuple(self, node: ast.Tuple) -> Value:
        items: list[Value] = []
        for item in node.elts:
            if isinstance(item, ast.Starred):
                items += items_of(self.value(item.value))
            else:
                items.append(self.value(item))
        return tuple_of(items)

    def _write_unaryop(self, node: ast.UnaryOp) -> Value:
        if isinstance(node.op, ast.Not):
            found = self.condition(node.operand)
            if (told := settled(found)) is not None:
                return number(not told)
            return Value(TRUTH, (self.code.new(f"xor i1 {found.parts[0]}, true"),))
        if isinstance(node.op, ast.USub):
            return minus(self.code, self.value(node.operand))
        raise InputError(f"compiled code has no {type(node.op).__name__}")

    def _write_binop(self, node: ast.BinOp) -> Value:
        # Long sums lean to the left: a loop has no trouble with as many terms as Python reads.
        rest = [node]
        while isinstance(rest[-1].left, ast.BinOp):
            rest.append(rest[-1].left)
        found = self.value(rest[-1].left)
        for one in reversed(rest):
            found = binary(self.code, sign_of(one.op), found, self.value(one.right))
        return found

    def _write_compare(self, node: ast.Compare) -> Value:
        if isinstance(node.ops[0], ast.Is | ast.IsNot):
            one, *others = (self.value(part).kind for part in (node.left, *node.comparators))
            if len(others) > 1 or NOTHING not in (one, others[0]):
                raise InputError(f"is compares with None, got {ast.unparse(node)}")
            return number((one == others[0]) == isinstance(node.ops[0], ast.Is))
        code, left, right = self.code, self.value(node.left), self.value(node.comparators[0])
        found = compare(code, sign_of(node.ops[0]), left, right)
        if len(node.ops) == 1:
            return found
        if found.kind == MASK:
            raise InputError(f"lanes are compared two by two, got {ast.unparse(node)}")
        slot, end = code.slot(TRUTH), code.label()
        for sign, part in zip(node.ops[1:], node.comparators[1:], strict=True):
            code.store(found, slot)
            on = code.label()
            code.branch(found.parts[0], on, end)
            code.begin(on)
            left, right = right, self.value(part)
            found = compare(code, sign_of(sign), left, right)
        code.store(found, slot)
        code.begin(end)
        return code.load(TRUTH, slot)

    def _write_boolop(self, node: ast.BoolOp) -> Value:
        """``and`` and ``or`` of truth values; of others, Python would return one of them."""
        return self._either(node, truths=True)

    def _either(self, node: ast.BoolOp, *, truths: bool = False) -> Value:
        """Whether all or any conditions hold, leaving out what no longer matters."""
        code, end, slot = self.code, self.code.label(), self.code.slot(TRUTH)
        stops = isinstance(node.op, ast.Or)
        parts = list(node.values)
        while len(parts) > 1 and (first := self._settled(parts[0])) is not None:
            if first == stops:
                return number(stops)
            parts.pop(0)
        for place, part in enumerate(parts):
            found = self.value(part) if truths else self.condition(part)
            if found.kind != TRUTH:
                raise InputError(f"and, or take truth values, got {ast.unparse(part)}")
            code.store(found, slot)
            if place < len(parts) - 1:
                on = code.label()
                yes, no = (end, on) if stops else (on, end)
                code.branch(found.parts[0], yes, no)
                code.begin(on)
        code.begin(end)
        return code.load(TRUTH, slot)

    def _settled(self, node: ast.expr) -> bool | None:
        """Whether a condition holds, if that is known while compiling."""
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot):
            return settled(self.condition(node))
        return None

    def _write_ifexp(self, node: ast.IfExp) -> Value:
        """A choice: the other value is not worked out."""
        code, test = self.code, self.condition(node.test)
        if (told := settled(test)) is not None:
            return self.value(node.body if told else node.orelse)
        end, written = code.label(), []
        labels = code.label(), code.label()
        code.branch(test.parts[0], *labels)
        for label, part in zip(labels, (node.body, node.orelse), strict=True):
            before, code.lines = code.lines, []
            code.begin(label)
            written.append((self.value(part), code.lines))
            code.lines, code.live = before, False
        # Only now is known of which kind both are.
        kind = common_kind(written[0][0].kind, written[1][0].kind)
        if kind is None:
            raise InputError(f"both values of a choice must be of one kind: {ast.unparse(node)}")
        slots = code.slot(kind)
        for value, lines in written:
            code.lines += lines
            code.live = True
            code.store(cast(code, value, kind), slots)
            code.jump(end)
        code.begin(end)
        return code.load(kind, slots)

    def _write_subscript(self, node: ast.Subscript) -> Value:
        owner = self.value(node.value)
        if isinstance(owner.kind, Tuple):
            return self._item(owner, node.slice)
        if not isinstance(owner.kind, Array):
            raise InputError(f"{called(owner.kind)} has no items: {ast.unparse(node)}")
        if self.is_part(owner, node.slice):
            return self.view(owner, node.slice)
        return self.read(owner.kind.item, self.element(owner, node.slice))

    def is_part(self, owner: Value, index: ast.expr) -> bool:
        """Return whether an index means several numbers of an array."""
        nodes = self._indices(index)
        return any(isinstance(n, ast.Slice) for n in nodes) or len(nodes) < array_kind(owner).dims

    @staticmethod
    def _indices(index: ast.expr) -> Sequence[ast.expr]:
        return index.elts if isinstance(index, ast.Tuple) else [index]

    def read(self, item: Number, place: str) -> Value:
        """Return the number at a place."""
        found = self.code.new(f"load {item.llvm}, ptr {place}")
        if item == SHORT:
            return Value(INT, (self.code.new(f"sext i32 {found} to i64"),))
        return Value(item, (found,))

    def element(self, owner: Value, index: ast.expr) -> str:
        """Return where an item of an array lies; indices count from the front."""
        kind, nodes = array_kind(owner), self._indices(index)
        if len(nodes) != kind.dims:
            raise InputError(f"the array has {kind.dims} indices, got {len(nodes)}")
        pairs = zip(owner.parts[1:], nodes, strict=True)
        places = [self._counted_from_front(node, size) for size, node in pairs]
        at = places[0]
        if len(places) == 2:
            row = self.code.new(f"mul i64 {places[0]}, {owner.parts[2]}")
            at = self.code.new(f"add i64 {row}, {places[1]}")
        return place_of(self.code, owner, at)

    def _counted_from_front(self, node: ast.expr, size: str) -> str:
        """An index; a negative number in the text counts from the end."""
        found = whole(self.code, self.value(node)).parts[0]
        return self.code.new(f"add i64 {size}, {found}") if found.startswith("-") else found

    def view(self, owner: Value, index: ast.expr) -> Value:
        """Return a part of an array, which shares its numbers."""
        kind, nodes, code = array_kind(owner), self._indices(index), self.code
        if len(nodes) > kind.dims:
            raise InputError(f"the array has {kind.dims} indices, got {len(nodes)}")
        if all(isinstance(n, ast.Slice) and n.lower is n.upper is n.step is None for n in nodes):
            return owner
        if kind.dims == 2 and len(nodes) == 1 and not isinstance(nodes[0], ast.Slice):
            row = self._counted_from_front(nodes[0], owner.parts[1])
            at = code.new(f"mul i64 {row}, {owner.parts[2]}")
            return Value(Array(kind.item, 1), (place_of(code, owner, at), owner.parts[2]))
        node = nodes[0]
        if not isinstance(node, ast.Slice) or node.step is not None or kind.dims != 1:
            raise InputError(
                f"compiled code has rows and slices of arrays, got {ast.unparse(index)}"
            )
        size = owner.parts[1]
        begin, end = (
            None if part is None else self._at_most(part, size) for part in (node.lower, node.upper)
        )
        if begin is None:
            return Value(owner.kind, (owner.parts[0], end or size))
        left = code.new(f"sub i64 {end or size}, {begin}")
        count = code.call("llvm.smax.i64", "i64", f"i64 {left}", "i64 0")
        return Value(owner.kind, (place_of(code, owner, begin), count))

    def _at_most(self, node: ast.expr, size: str) -> str:
        """The end of a slice, which Python cuts at the array's end."""
        found = whole(self.code, self.value(node))
        if found.parts[0].startswith("-"):
            raise InputError(f"slices count from the front, got {ast.unparse(node)}")
        return self.code.call("llvm.smin.i64", "i64", f"i64 {found.parts[0]}", f"i64 {size}")

    def _item(self, owner: Value, index: ast.expr) -> Value:
        """An item of a tuple; of one with numbers only, also by a number worked out."""
        items, place = items_of(owner), whole(self.code, self.value(index))
        if not items:
            raise InputError(f"the tuple has no items, got {ast.unparse(index)}")
        if isinstance(place.constant, int):
            if not -len(items) <= place.constant < len(items):
                raise InputError(f"the tuple has {len(items)} items, got {ast.unparse(index)}")
            return items[place.constant]
        same = alike(self.code, items)
        kind, code = number_kind(same[0]), self.code
        listed = ", ".join(f"{kind.llvm} {item.parts[0]}" for item in same)
        if any(item.parts[0].startswith("%") for item in same):
            raise InputError("a tuple of values that are worked out takes indices in the text")
        table = f"[{len(same)} x {kind.llvm}]"
        where = code.constant(f"{table} [{listed}]")
        at = code.new(f"getelementptr {table}, ptr {where}, i64 0, i64 {place.parts[0]}")
        return Value(kind, (code.new(f"load {kind.llvm}, ptr {at}"),))

    def _write_call(self, node: ast.Call) -> Value:
        if node.keywords or any(isinstance(a, ast.Starred) for a in node.args):
            raise InputError(f"calls name their arguments by position: {ast.unparse(node)}")
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("copy", "reshape"):
            owner = self.value(node.func.value)
            if isinstance(owner.kind, Array):
                return self._method(owner, node.func.attr, node.args)
        function = self.value(node.func)
        arguments = [self.value(argument) for argument in node.args]
        if not isinstance(function.kind, Known):
            return invoked(self.code, function, arguments)
        target = function.kind.value
        if target in OPERATIONS:
            return self._operation(OPERATIONS[target], arguments, node)
        if isinstance(target, type) and issubclass(target, tuple) and hasattr(target, "_fields"):
            if len(arguments) != len(target._fields):
                raise InputError(f"{target.__name__} takes all its fields: {ast.unparse(node)}")
            return tuple_of(arguments, target)
        return self._calls.call(self.code, target, arguments)

    def _operation(self, write: Operation, arguments: list[Value], node: ast.Call) -> Value:
        try:
            _signature(write).bind(self.code, *arguments)
        except TypeError:
            raise InputError(f"a call must have its arguments, got {ast.unparse(node)}") from None
        return write(self.code, *arguments)

    def _method(self, owner: Value, name: str, arguments: list[ast.expr]) -> Value:
        item = array_kind(owner).item
        if len(arguments) != (name == "reshape"):
            raise InputError("arrays have copy() and reshape((rows, columns))")
        if name == "copy":
            made = new_array(self.code, owner.parts[1:], item)
            copy(self.code, made, owner)
            return made
        shape = shape_of(self.code, tuple_of(items_of(self.value(arguments[0]))))
        return Value(Array(item, len(shape)), (owner.parts[0], *shape))


_signature = lru_cache(inspect.signature)


def _field(kind: Tuple, name: str) -> int:
    fields = getattr(kind.named, "_fields", ())
    if name not in fields:
        raise InputError(f"the tuple has {', '.join(fields) or 'no names'}, got {name}")
    return int(fields.index(name))


def _part(kind: Tuple, place: int, slots: tuple[str, ...]) -> tuple[Kind, tuple[str, ...]]:
    at = sum(len(machine_kinds(item)) for item in kind.items[:place])
    return kind.items[place], slots[at : at + len(machine_kinds(kind.items[place]))]
