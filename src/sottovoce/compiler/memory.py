"""Memory for arrays that compiled functions make: taken in a row, given back all at once.

A call from Python has one reserve. A function that returns no array gives back on its return what
it and those that it called have taken; the rest goes when the call from Python ends. Where there is
no memory, or a size is negative, the process ends with a message: compiled code raises nothing, and
going on would write where nothing is reserved.
"""

from __future__ import annotations

from sottovoce.compiler.code import Code
from sottovoce.compiler.kinds import (
    FLOAT,
    INT,
    SHORT,
    Array,
    Kind,
    Known,
    Number,
    Tuple,
    Value,
    array_kind,
)
from sottovoce.errors import InputError

RESERVE = "%reserve"
"""How functions call the reserve: the block in use, how much of it is used, and its size."""

TEXT = """
%reserve = type { ptr, i64, i64 }
declare ptr @malloc(i64)
declare void @free(ptr)
declare void @perror(ptr)
declare void @abort()
declare { i64, i1 } @llvm.umul.with.overflow.i64(i64, i64)
@reserve.words = private constant [37 x i8] c"sottovoce: no memory for a new array\\00"

define private ptr @reserve.take(ptr %reserve, i64 %rows, i64 %columns) {
  %product = call { i64, i1 } @llvm.umul.with.overflow.i64(i64 %rows, i64 %columns)
  %count = extractvalue { i64, i1 } %product, 0
  %beyond = extractvalue { i64, i1 } %product, 1
  %huge = icmp ugt i64 %count, 72057594037927936
  %never = or i1 %beyond, %huge
  %wanted = shl i64 %count, 3
  %bytes = select i1 %never, i64 4611686018427387904, i64 %wanted
  %used.at = getelementptr %reserve, ptr %reserve, i32 0, i32 1
  %size.at = getelementptr %reserve, ptr %reserve, i32 0, i32 2
  %block = load ptr, ptr %reserve
  %used = load i64, ptr %used.at
  %size = load i64, ptr %size.at
  %more = add i64 %bytes, 63
  %rounded = and i64 %more, -64
  %after = add i64 %used, %rounded
  %fits = icmp ule i64 %after, %size
  br i1 %fits, label %here, label %elsewhere
here:
  store i64 %after, ptr %used.at
  %place = getelementptr i8, ptr %block, i64 %used
  ret ptr %place
elsewhere:
  %double = shl i64 %size, 1
  %least = call i64 @llvm.umax.i64(i64 %double, i64 65536)
  %head = add i64 %rounded, 64
  %whole = call i64 @llvm.umax.i64(i64 %least, i64 %head)
  %fresh = call ptr @malloc(i64 %whole)
  %none = icmp eq ptr %fresh, null
  br i1 %none, label %stop, label %take
stop:
  call void @perror(ptr @reserve.words)
  call void @abort()
  unreachable
take:
  store ptr %block, ptr %fresh
  %size.before = getelementptr i8, ptr %fresh, i64 8
  store i64 %size, ptr %size.before
  store ptr %fresh, ptr %reserve
  store i64 %head, ptr %used.at
  store i64 %whole, ptr %size.at
  %first = getelementptr i8, ptr %fresh, i64 64
  ret ptr %first
}

define private void @reserve.give(ptr %reserve, ptr %kept, i64 %used) {
  %used.at = getelementptr %reserve, ptr %reserve, i32 0, i32 1
  %size.at = getelementptr %reserve, ptr %reserve, i32 0, i32 2
  br label %look
look:
  %block = load ptr, ptr %reserve
  %done = icmp eq ptr %block, %kept
  br i1 %done, label %end, label %next
next:
  %before = load ptr, ptr %block
  %size.before = getelementptr i8, ptr %block, i64 8
  %size = load i64, ptr %size.before
  store ptr %before, ptr %reserve
  store i64 %size, ptr %size.at
  call void @free(ptr %block)
  br label %look
end:
  store i64 %used, ptr %used.at
  ret void
}
declare i64 @llvm.umax.i64(i64, i64)
"""


def holds_arrays(kind: Kind) -> bool:
    """Return whether a value of this kind says where numbers lie."""
    if isinstance(kind, Tuple):
        return any(holds_arrays(item) for item in kind.items)
    return not isinstance(kind, Number | Known)


def new_array(code: Code, shape: tuple[str, ...], item: Number = FLOAT) -> Value:
    """Reserve an array, which holds anything."""
    code.reserves = True
    rows, columns = (*shape, "1")[:2]
    given = f"ptr {RESERVE}, i64 {rows}, i64 {columns}"
    place = code.new(f"call ptr @reserve.take({given})")
    return Value(Array(item, len(shape)), (place, *shape))


def count_of(code: Code, array: Value) -> str:
    """Return how many numbers an array holds."""
    if len(array.parts) == 2:
        return array.parts[1]
    return code.new(f"mul i64 {array.parts[1]}, {array.parts[2]}")


def place_of(code: Code, array: Value, at: str) -> str:
    """Return where number ``at`` of an array lies, counted through all its rows."""
    item = array_kind(array).item.llvm
    return code.new(f"getelementptr inbounds {item}, ptr {array.parts[0]}, i64 {at}")


def give_back(code: Code) -> None:
    """Give back what a function, and those that it called, have taken since its call."""
    code.slots += [
        f"  %reserve.at = getelementptr %reserve, ptr {RESERVE}, i32 0, i32 1",
        f"  %reserve.block = load ptr, ptr {RESERVE}",
        "  %reserve.used = load i64, ptr %reserve.at",
    ]
    given = f"ptr {RESERVE}, ptr %reserve.block, i64 %reserve.used"
    code.do(f"call void @reserve.give({given})")


def fill(code: Code, array: Value, value: Value) -> None:
    """Set all numbers of an array to one."""
    item, slot = array_kind(array).item.llvm, code.slot(INT)[0]
    count, loop, body, end = count_of(code, array), code.label(), code.label(), code.label()
    code.do(f"store i64 0, ptr {slot}")
    code.begin(loop)
    at = code.new(f"load i64, ptr {slot}")
    code.branch(code.new(f"icmp slt i64 {at}, {count}"), body, end)
    code.begin(body)
    code.do(f"store {item} {value.parts[0]}, ptr {place_of(code, array, at)}")
    code.do(f"store i64 {code.new(f'add nsw i64 {at}, 1')}, ptr {slot}")
    code.jump(loop)
    code.begin(end)


def copy(code: Code, to: Value, array: Value) -> None:
    """Copy all numbers of an array to another of the same size, which may overlap with it."""
    if array_kind(array).item == SHORT:
        raise InputError("an array of int32 is read, and not copied")
    size = code.new(f"shl i64 {count_of(code, array)}, 3")
    code.call(
        "llvm.memmove.p0.p0.i64", "void",
        f"ptr {to.parts[0]}", f"ptr {array.parts[0]}", f"i64 {size}", "i1 false",
    )  # fmt: skip
