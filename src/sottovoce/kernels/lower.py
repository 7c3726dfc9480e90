"""Lowering: formulas become register code for the tape interpreter.

A ``TapeBuilder`` emits one instruction per distinct operation, in the order that
``sottovoce.formula.tape`` fixes, so bits do not depend on what else is on the tape. ``finish``
joins products with sums (``MULADD`` rounds twice, as the two did), sorts instructions so that those
of one operation stand together, gives registers back after their last use, and returns plain
arrays. Long sums and sums of products are one instruction each.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from sottovoce.formula.expression import Expression
from sottovoce.formula.tape import Lowering
from sottovoce.kernels.core import plain
from sottovoce.kernels.core.plain import ADD, ADD3, DOT, MUL, MULADD, SUB, SUBMUL, SUM

Code: TypeAlias = NDArray[np.int32]
Line: TypeAlias = tuple[int, ...]
"""An operation and its operands: inputs and results of other lines, or constants below 0."""

_CODES: Final[dict[str, int]] = {
    name: getattr(plain, name.upper())
    for name in ("add", "sub", "mul", "div", "sqrt", "pow", "exp", "log", "abs", "sign", "max",
                 "where")
}  # fmt: skip
_LONG: Final = 4  # products: fewer are faster as instructions that repeat on other registers


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TapeCode:
    """A finished tape; ``sottovoce.kernels.core.interpreter`` documents the instructions."""

    code: Code  # the instructions
    registers: int  # how many registers there are, inputs included
    places: NDArray[np.int64]  # the registers that hold constants
    constants: NDArray[np.float64]  # these, filled in once
    outputs: Code  # the register of every value that was asked for


@final
class TapeBuilder(Lowering[int]):
    """Collects instructions; a value is the number of its line, or of a constant below 0.

    Registers ``0 .. inputs - 1``, those of ``symbols`` among them, are filled by the caller.
    """

    def __init__(self, inputs: int, symbols: Mapping[Expression, int]) -> None:
        super().__init__(symbols)
        self._inputs = inputs
        self._lines: list[Line] = []
        self._emitted: dict[Line, int] = {}
        self._constants: dict[str, int] = {}

    def number(self, value: float) -> int:
        """A constant."""
        # By its text: 0.0 and -0.0 are equal and must not share a register.
        return self._constants.setdefault(float(value).hex(), -1 - len(self._constants))

    def operation(self, name: str, *operands: int) -> int:
        """The value of one operation."""
        line = (_CODES[name], *operands)
        if line not in self._emitted:
            self._emitted[line] = self._inputs + len(self._lines)
            self._lines.append(line)
        return self._emitted[line]

    def times(self, factor: int, expr: Expression) -> int:
        """``factor * expr``."""
        return factor if expr.is_one else self.operation("mul", factor, self.value(expr))

    def finish(self, outputs: Sequence[int], *, first: int | None = None) -> TapeCode:
        """Return the tape; its registers begin at ``first``, behind the inputs by default."""
        lines = _joined(self._lines, self._inputs, set(outputs))
        order = _scheduled(lines, self._inputs, outputs)
        start = self._inputs if first is None else first
        registers = {v: start - 1 - v for v in self._constants.values()}
        constants = np.array(list(registers.values()), dtype=np.int64)
        top = start + len(registers)
        code, top = _placed(lines, order, self._inputs, outputs, registers, top)
        return TapeCode(
            code=np.array(code, dtype=np.int32),
            registers=top,
            places=constants,
            constants=np.array(list(map(float.fromhex, self._constants))),
            outputs=np.array([registers.get(v, v) for v in outputs], dtype=np.int32),
        )


def registers_of(tapes: Sequence[TapeCode], width: int) -> NDArray[np.float64]:
    """Return the registers that consecutive tapes share, ``width`` numbers each, constants set."""
    r = np.zeros((tapes[-1].registers, width))
    for tape in tapes:
        r[tape.places] = tape.constants[:, np.newaxis]
    return r.ravel()


def _joined(lines: Sequence[Line], inputs: int, outputs: set[int]) -> list[Line]:
    """Let products that one sum alone uses, and sums of sums, become one instruction each."""
    uses = Counter(v for _, *operands in lines for v in operands)
    joined = list(lines)

    def op_of(v: int) -> int | None:
        """The operation of a value that only one other uses and that is no output."""
        is_single = v >= inputs and uses[v] == 1 and v not in outputs
        return joined[v - inputs][0] if is_single else None

    for i, (op, *operands) in enumerate(lines):
        if op not in (ADD, SUB):
            continue
        a, b = operands
        if op_of(b) == MUL:
            joined[i] = (MULADD if op == ADD else SUBMUL, *joined[b - inputs][1:], a)
        elif op == ADD and op_of(a) == MUL:
            joined[i] = (MULADD, *joined[a - inputs][1:], b)
        elif op == ADD and op_of(a) in (ADD, ADD3, SUM):
            terms = (*joined[a - inputs][1:], b)
            joined[i] = (ADD3 if len(terms) == 3 else SUM, *terms)
    absorbed: set[int] = set()
    for i in reversed(range(len(lines))):
        if joined[i][0] != MULADD or i in absorbed:
            continue
        chain = [i]
        while op_of(joined[chain[-1]][3]) == MULADD:
            chain.append(joined[chain[-1]][3] - inputs)
        absorbed.update(chain)
        if len(chain) >= _LONG:
            products = (v for j in reversed(chain) for v in joined[j][1:3])
            joined[i] = (DOT, joined[chain[-1]][3], *products)
    return joined


def _scheduled(lines: Sequence[Line], inputs: int, outputs: Sequence[int]) -> list[int]:
    """What outputs are made from, in a topological order with lines of one operation together."""
    sources: dict[int, set[int]] = {}
    todo = [v - inputs for v in outputs if v >= inputs]
    while todo:
        i = todo.pop()
        if i not in sources:
            sources[i] = {v - inputs for v in lines[i][1:] if v >= inputs}
            todo += sources[i]
    users: dict[int, list[int]] = defaultdict(list)
    ready: dict[int, deque[int]] = defaultdict(deque)
    for i in sorted(sources):
        for j in sources[i]:
            users[j].append(i)
        if not sources[i]:
            ready[lines[i][0]].append(i)
    missing = {i: len(before) for i, before in sources.items()}
    order: list[int] = []
    while ready:
        op = max(ready, key=lambda code: len(ready[code]))
        group = ready.pop(op)
        while group:
            i = group.popleft()
            order.append(i)
            for j in users[i]:
                missing[j] -= 1
                if missing[j] == 0:
                    (group if lines[j][0] == op else ready[lines[j][0]]).append(j)
    return order


def _placed(
    lines: Sequence[Line],
    order: Sequence[int],
    inputs: int,
    outputs: Sequence[int],
    registers: dict[int, int],
    top: int,
) -> tuple[list[int], int]:
    """Runs of instructions, and how many registers they need; operands that are missing repeat.

    The registers of results, ``top`` and above, join those of the constants in ``registers``.
    """
    last_use = {v: place for place, i in enumerate(order) for v in lines[i][1:]}
    last_use |= dict.fromkeys(outputs, len(order))
    ending: dict[int, list[int]] = defaultdict(list)
    for v, place in last_use.items():
        if v >= inputs:
            ending[place].append(v)
    code: list[int] = []
    free: deque[int] = deque()
    begin, previous = 0, -1
    for place, i in enumerate(order):
        op, *operands = lines[i]
        if free:
            target = free.popleft()
        else:
            target, top = top, top + 1
        registers[i + inputs] = target
        # Only now: an instruction in lanes must not write what it reads.
        free.extend(map(registers.__getitem__, ending[place]))
        if op != previous:
            begin, previous = len(code), op
            code += [op, 0]
        sources = [registers.get(v, v) for v in operands]
        if op in (SUM, DOT):
            code += [target, len(sources), *sources]
        else:
            code += [target, *sources, *sources[:1] * (3 - len(sources))]
        code[begin + 1] = len(code) - begin - 2
    return code, top
