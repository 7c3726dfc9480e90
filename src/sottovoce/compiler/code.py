"""The text of one compiled function while it is written, in LLVM's language.

Variables lie in slots of the stack frame, which LLVM turns into registers, so no value has to be
carried from one block of the text to another.
"""

from __future__ import annotations

from typing import final

from sottovoce.compiler.kinds import Kind, Value, machine_kinds


@final
class Code:
    """Lines of one function, in blocks; what cannot be reached is left out.

    Attributes:
        lines: the instructions so far.
        slots: instructions that reserve the stack frame.
        declared: functions of LLVM or of C that it calls.
        constants: tables of numbers that it reads.
        reserves: whether it needs memory that outlives a function's frame.
        reached: the blocks that are jumped to.
        live: whether what is written next can be reached.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.slots: list[str] = []
        self.declared: set[str] = set()
        self.constants: list[str] = []
        self.reserves = False
        self.live = True
        self._names = 0
        self.reached: set[str] = set()

    def do(self, instruction: str) -> None:
        """Write an instruction without a result."""
        if self.live:
            self.lines.append(f"  {instruction}")

    def new(self, instruction: str) -> str:
        """Write an instruction and return its result's name."""
        name = self._name("%t")
        self.do(f"{name} = {instruction}")
        return name

    def label(self) -> str:
        """Return a fresh name for a block."""
        return self._name("b")

    def begin(self, label: str) -> None:
        """Begin a block; whoever is before it goes on there."""
        if self.live:
            self.jump(label)
        self.live = label in self.reached
        if self.live:
            self.lines.append(f"{label}:")

    def jump(self, label: str) -> None:
        """Go on at a block."""
        if self.live:
            self.do(f"br label %{label}")
            self.reached.add(label)
            self.live = False

    def branch(self, truth: str, yes: str, no: str) -> None:
        """Go on at one of two blocks."""
        if self.live:
            self.do(f"br i1 {truth}, label %{yes}, label %{no}")
            self.reached |= {yes, no}
            self.live = False

    def slot(self, kind: Kind) -> tuple[str, ...]:
        """Reserve room for a value in the stack frame."""
        names = []
        for machine in machine_kinds(kind):
            names.append(self._name("%s"))
            self.slots.append(f"  {names[-1]} = alloca {machine}")
        return tuple(names)

    def load(self, kind: Kind, slots: tuple[str, ...]) -> Value:
        """Read a value from its slots."""
        pairs = zip(machine_kinds(kind), slots, strict=True)
        return Value(
            kind, tuple(self.new(f"load {machine}, ptr {slot}") for machine, slot in pairs)
        )

    def store(self, value: Value, slots: tuple[str, ...]) -> None:
        """Put a value into slots of its kind."""
        for machine, part, slot in zip(machine_kinds(value.kind), value.parts, slots, strict=True):
            self.do(f"store {machine} {part}, ptr {slot}")

    def call(self, function: str, result: str, *arguments: str) -> str:
        """Call a function of LLVM or of C; arguments with their types.

        LLVM is told to leave C's alone: it would take a power for a root, with other bits.
        """
        kinds = ", ".join(argument.rsplit(" ", 1)[0] for argument in arguments)
        alone = "" if function.startswith("llvm.") else " nobuiltin"
        self.declared.add(f"declare {result} @{function}({kinds}){alone}")
        called = f"call {result} @{function}({', '.join(arguments)})"
        if result == "void":
            self.do(called)
            return ""
        return self.new(called)

    def constant(self, table: str) -> str:
        """Keep a table of numbers, and return where it lies in the function's own naming."""
        if table not in self.constants:
            self.constants.append(table)
        return f"@TABLE.{self.constants.index(table)}"

    def _name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"
