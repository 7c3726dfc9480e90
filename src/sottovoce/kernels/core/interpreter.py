"""The tape interpreter: register code over 16 lanes, or over one.

A tape is an int32 array: runs of instructions of one operation each.

    op, length, (to, a, b, c) ...                       registers of the result and of the operands
    SUM, length, (to, count, a_1, ..., a_count) ...     DOT likewise, with c, a_1, b_1, ...

A register is a row of ``width`` numbers, 16 lanes or one. Every operation is one of IEEE 754's,
rounded once; ``MULADD`` and ``SUBMUL`` round twice. So a lane has the bits of one alone.

    ADD a+b      SUB a-b      MUL ab        DIV a/b         MULADD ab+c    SUBMUL c-ab
    SQRT         EXP          LOG           POW a^b         ABS            SIGN
    MAX a if a>b else b       WHERE b if a>0 else c         ADD3 a+b+c     SUM a_1+a_2+...
    DOT c+a_1 b_1+a_2 b_2+...
"""

from . import plain as cython
from .elementary import exp, log, power
from .plain import *


def run_tape(tape, r, width):
    """Evaluate for a block of 16 lanes, or for one: the compiler knows the width in each."""
    if width == LANES:
        interpret(tape.code, tape.size, r, LANES)
    else:
        interpret(tape.code, tape.size, r, 1)


def interpret(code, size, r, width):
    """Evaluate; the compiler knows the operation in each branch, too."""
    position: cython.Py_ssize_t = 0
    while position < size:
        op, run, length = code[position], skip_int(code, position + 2), code[position + 1]
        position += 2 + length
        if op == ADD:
            repeat(ADD, run, length, r, width)
        elif op == SUB:
            repeat(SUB, run, length, r, width)
        elif op == MUL:
            repeat(MUL, run, length, r, width)
        elif op == MULADD:
            repeat(MULADD, run, length, r, width)
        elif op == SUBMUL:
            repeat(SUBMUL, run, length, r, width)
        elif op == ADD3:
            repeat(ADD3, run, length, r, width)
        elif op == SUM:
            total(run, length, r, width, False)
        elif op == DOT:
            total(run, length, r, width, True)
        elif op == DIV:
            repeat(DIV, run, length, r, width)
        elif op == SQRT:
            repeat(SQRT, run, length, r, width)
        elif op == EXP:
            repeat(EXP, run, length, r, width)
        elif op == LOG:
            repeat(LOG, run, length, r, width)
        elif op == POW:
            repeat(POW, run, length, r, width)
        elif op == ABS:
            repeat(ABS, run, length, r, width)
        elif op == SIGN:
            repeat(SIGN, run, length, r, width)
        elif op == MAX:
            repeat(MAX, run, length, r, width)
        else:
            repeat(WHERE, run, length, r, width)


def repeat(op, run, length, r, width):
    """Instructions of one operation."""
    position: cython.Py_ssize_t = 0
    while position < length:
        to, a = skip(r, run[position] * width), skip(r, run[position + 1] * width)
        operate(
            op, to, a, skip(r, run[position + 2] * width), skip(r, run[position + 3] * width), width
        )
        position += 4


def operate(op, to, a, b, c, width):
    """One operation on registers."""
    for lane in range(width):
        to[lane] = compute(op, a[lane], b[lane], c[lane])


def compute(op, a, b, c):
    """One operation on numbers."""
    if op == ADD:
        return a + b
    if op == SUB:
        return a - b
    if op == MUL:
        return a * b
    if op == MULADD:
        return a * b + c
    if op == SUBMUL:
        return c - a * b
    if op == ADD3:
        return a + b + c
    if op == DIV:
        return a / b
    if op == SQRT:
        return sqrt(a)
    if op == EXP:
        return exp(a)
    if op == LOG:
        return log(a)
    if op == POW:
        return power(a, b)
    if op == ABS:
        return fabs(a)
    if op == SIGN:
        return 1.0 if a > 0.0 else (-1.0 if a < 0.0 else (0.0 if a == 0.0 else a))
    if op == MAX:
        return a if a > b else b
    return b if a > 0.0 else c


def total(run, length, r, width, products):
    """Sums of registers from the first; or, to the first, of products of the pairs that follow."""
    value = cython.declare(cython.double[16])
    position: cython.Py_ssize_t = 0
    while position < length:
        i, end = position + 3, position + 2 + run[position + 1]
        copy_some(value, skip(r, run[position + 2] * width), width)
        while i < end:
            if products:
                accumulate_product(
                    value, skip(r, run[i] * width), skip(r, run[i + 1] * width), width
                )
                i += 2
            else:
                accumulate(value, skip(r, run[i] * width), width)
                i += 1
        copy_some(skip(r, run[position] * width), value, width)
        position = end


def accumulate(value, a, width):
    """``value += a`` in lanes."""
    for lane in range(width):
        value[lane] += a[lane]


def accumulate_product(value, a, b, width):
    """``value += a b`` in lanes."""
    for lane in range(width):
        value[lane] += a[lane] * b[lane]


def point_to_tape(view, tape):
    """Point to a tape's code and outputs."""
    code, outputs = tape
    view.code = ints(code)
    view.size = len(code)
    view.outputs = ints(outputs)
    view.count = len(outputs)


def evaluate(code, r, width):
    """``run_tape`` from Python."""
    size: cython.Py_ssize_t = len(code)
    c, p = ints(code), doubles(r)
    with cython.nogil:
        if width == LANES:
            interpret(c, size, p, LANES)
        else:
            interpret(c, size, p, 1)
