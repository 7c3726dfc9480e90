"""The tape interpreter: register code over 16 lanes, and over one.

A tape is an int32 array; a register is one row of 16 lanes (``tape_run``) or one number
(``tape_run_one``). Every operation is one of IEEE 754's, rounded once; ``MULADD`` and ``SUBMUL``
round twice. So a lane has the bits of one alone.

    lanes:  op, to, a, b, c, times, step_a, step_b, step_c      repeated on the following registers
            SUM, to, count, a_1, ..., a_count                   DOT likewise, with c, a_1, b_1, ...
    one:    op, length, (to, a, b, c) ...                       all instructions of one operation
            SUM, length, (to, count, a_1, ..., a_count) ...     DOT likewise

The operations, with arguments a, b, c:

    ADD a+b      SUB a-b      MUL ab        DIV a/b         MULADD ab+c    SUBMUL c-ab
    SQRT         EXP          LOG           POW a^b         ABS            SIGN
    MAX a if a>b else b       WHERE b if a>0 else c         ADD3 a+b+c     SUM a_1+a_2+...
    DOT c+a_1 b_1+a_2 b_2+...
"""

from . import plain as cython
from .functions import exp, exp_row, log, log_row, power
from .plain import *


def tape_run(code, size, r):
    """Evaluate for 16 lanes."""
    at: cython.Py_ssize_t = 0
    while at < size:
        op = code[at]
        to = row(r, code[at + 1])
        if op >= SUM:
            if op == SUM:
                total_row(to, r, skip_int(code, at + 3), code[at + 2])
            else:
                dot_row(to, r, skip_int(code, at + 3), code[at + 2])
            at += 3 + code[at + 2]
            continue
        operate(op, to, r, skip_int(code, at + 2))
        at += 9


def operate(op, to, r, operands):
    """One operation on rows, repeated on those that follow: ``a, b, c, times`` and the steps."""
    a, b, c = row(r, operands[0]), row(r, operands[1]), row(r, operands[2])
    times, step_a, step_b = operands[3], LANES * operands[4], LANES * operands[5]
    if op == ADD:
        repeat_binary(add, to, a, b, times, step_a, step_b)
    elif op == SUB:
        repeat_binary(subtract, to, a, b, times, step_a, step_b)
    elif op == MUL:
        repeat_binary(multiply, to, a, b, times, step_a, step_b)
    elif op == DIV:
        repeat_binary(divide, to, a, b, times, step_a, step_b)
    elif op == MULADD:
        repeat_ternary(multiply_add, to, a, b, c, times, step_a, step_b, LANES * operands[6])
    elif op == SUBMUL:
        repeat_ternary(subtract_product, to, a, b, c, times, step_a, step_b, LANES * operands[6])
    elif op == SQRT:
        repeat_unary(square_root, to, a, times, step_a)
    elif op == EXP:
        repeat_unary(exp_row, to, a, times, step_a)
    elif op == LOG:
        repeat_unary(log_row, to, a, times, step_a)
    elif op == POW:
        repeat_binary(raise_to, to, a, b, times, step_a, step_b)
    elif op == ABS:
        repeat_unary(absolute, to, a, times, step_a)
    elif op == SIGN:
        repeat_unary(sign, to, a, times, step_a)
    elif op == MAX:
        repeat_binary(maximum, to, a, b, times, step_a, step_b)
    elif op == WHERE:
        repeat_ternary(where, to, a, b, c, times, step_a, step_b, LANES * operands[6])
    else:
        repeat_ternary(add_three, to, a, b, c, times, step_a, step_b, LANES * operands[6])


def tape_run_one(code, size, r):
    """Evaluate for one; operations that are frequent have loops of their own."""
    at: cython.Py_ssize_t = 0
    while at < size:
        op, end = code[at], at + 2 + code[at + 1]
        at += 2
        if op == ADD:
            while at < end:
                r[code[at]] = r[code[at + 1]] + r[code[at + 2]]
                at += 4
        elif op == SUB:
            while at < end:
                r[code[at]] = r[code[at + 1]] - r[code[at + 2]]
                at += 4
        elif op == MUL:
            while at < end:
                r[code[at]] = r[code[at + 1]] * r[code[at + 2]]
                at += 4
        elif op == MULADD:
            while at < end:
                r[code[at]] = r[code[at + 1]] * r[code[at + 2]] + r[code[at + 3]]
                at += 4
        elif op == SUBMUL:
            while at < end:
                r[code[at]] = r[code[at + 3]] - r[code[at + 1]] * r[code[at + 2]]
                at += 4
        elif op == ADD3:
            while at < end:
                r[code[at]] = r[code[at + 1]] + r[code[at + 2]] + r[code[at + 3]]
                at += 4
        elif op == SUM:
            while at < end:
                r[code[at]] = total_one(r, skip_int(code, at + 2), code[at + 1])
                at += 2 + code[at + 1]
        elif op == DOT:
            while at < end:
                r[code[at]] = dot_one(r, skip_int(code, at + 2), code[at + 1])
                at += 2 + code[at + 1]
        else:
            while at < end:
                r[code[at]] = operate_one(op, r[code[at + 1]], r[code[at + 2]], r[code[at + 3]])
                at += 4


def operate_one(op, a, b, c):
    """The rarer operations on numbers."""
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


def total_one(r, terms, count):
    """The sum of ``count`` registers, from the first."""
    value = r[terms[0]]
    for i in range(1, count):
        value += r[terms[i]]
    return value


def total_row(to, r, terms, count):
    """The sum of ``count`` rows, from the first."""
    value = cython.declare(cython.double[16])
    a = row(r, terms[0])
    for lane in range(LANES):
        value[lane] = a[lane]
    for i in range(1, count):
        accumulate(value, row(r, terms[i]))
    for lane in range(LANES):
        to[lane] = value[lane]


def accumulate(value, a):
    """``value += a`` in lanes."""
    for lane in range(LANES):
        value[lane] += a[lane]


def dot_one(r, terms, count):
    """``c + a_1 b_1 + a_2 b_2 + ...``, every operation rounded."""
    value = r[terms[0]]
    for i in range(1, count, 2):
        value += r[terms[i]] * r[terms[i + 1]]
    return value


def dot_row(to, r, terms, count):
    """The same of rows."""
    value = cython.declare(cython.double[16])
    a = row(r, terms[0])
    for lane in range(LANES):
        value[lane] = a[lane]
    for i in range(1, count, 2):
        accumulate_product(value, row(r, terms[i]), row(r, terms[i + 1]))
    for lane in range(LANES):
        to[lane] = value[lane]


def accumulate_product(value, a, b):
    """``value += a b`` in lanes."""
    for lane in range(LANES):
        value[lane] += a[lane] * b[lane]


def add(to, a, b):
    """``a + b`` in lanes; those below likewise."""
    for lane in range(LANES):
        to[lane] = a[lane] + b[lane]


def add_three(to, a, b, c):
    """``a + b + c``."""
    for lane in range(LANES):
        to[lane] = a[lane] + b[lane] + c[lane]


def subtract(to, a, b):
    """``a - b``."""
    for lane in range(LANES):
        to[lane] = a[lane] - b[lane]


def multiply(to, a, b):
    """``a b``."""
    for lane in range(LANES):
        to[lane] = a[lane] * b[lane]


def divide(to, a, b):
    """``a / b``."""
    for lane in range(LANES):
        to[lane] = a[lane] / b[lane]


def multiply_add(to, a, b, c):
    """``a b + c``, rounded twice."""
    for lane in range(LANES):
        to[lane] = a[lane] * b[lane] + c[lane]


def subtract_product(to, a, b, c):
    """``c - a b``, rounded twice."""
    for lane in range(LANES):
        to[lane] = c[lane] - a[lane] * b[lane]


def square_root(to, a):
    """The square root."""
    for lane in range(LANES):
        to[lane] = sqrt(a[lane])


def raise_to(to, a, b):
    """``a^b``."""
    for lane in range(LANES):
        to[lane] = power(a[lane], b[lane])


def absolute(to, a):
    """``|a|``."""
    for lane in range(LANES):
        to[lane] = fabs(a[lane])


def sign(to, a):
    """The sign of a; 0 at 0, NaN at NaN."""
    for lane in range(LANES):
        x = a[lane]
        to[lane] = 1.0 if x > 0.0 else (-1.0 if x < 0.0 else (0.0 if x == 0.0 else x))


def maximum(to, a, b):
    """``a if a > b else b``."""
    for lane in range(LANES):
        x, y = a[lane], b[lane]
        to[lane] = x if x > y else y


def where(to, a, b, c):
    """``b if a > 0 else c``."""
    for lane in range(LANES):
        yes, no = b[lane], c[lane]
        to[lane] = yes if a[lane] > 0.0 else no


def run_tape(tape, r, width):
    """Evaluate a tape for a block of 16 lanes, or for one."""
    if width == LANES:
        tape_run(tape.lanes, tape.lanes_size, r)
    else:
        tape_run_one(tape.one, tape.one_size, r)


def point_to_tape(view, tape):
    """Point to a tape's code."""
    one, lanes, outputs = tape
    view.one = ints(one)
    view.one_size = len(one)
    view.lanes = ints(lanes)
    view.lanes_size = len(lanes)
    view.outputs = ints(outputs)
    view.count = len(outputs)


def run_lanes(code, r):
    """``tape_run`` from Python."""
    size: cython.Py_ssize_t = len(code)
    c, p = ints(code), doubles(r)
    with cython.nogil:
        tape_run(c, size, p)


def run_one(code, r):
    """``tape_run_one`` from Python."""
    size: cython.Py_ssize_t = len(code)
    c, p = ints(code), doubles(r)
    with cython.nogil:
        tape_run_one(c, size, p)
