"""What C types and functions are where the kernels run uncompiled; compiled, ``plain.pxd`` is.

A pointer is a NumPy array, ``skip(p, i)`` is ``p + i``, a struct is an object with attributes.
``row(p, i)`` is the i-th row of 16 lanes. Sixteen doubles are four AVX2 registers or eight of SSE2:
enough independent operations to hide the latency of each, few enough that a block's registers stay
in the first-level cache.
"""

import math
import struct
from contextlib import nullcontext

import numpy as np

compiled = False
nogil = nullcontext()
inf, nan = math.inf, math.nan
fabs, rint, sqrt = np.abs, np.rint, np.sqrt  # IEEE's answers where Python's own would raise

LANES = 16
MASK = 0xFFFFFFFFFFFFFFFF
ONE = 0x3FF0000000000000  # the bits of 1.0: exponent 0, mantissa 0
MANTISSA = 0x000FFFFFFFFFFFFF
SQRT_HALF = 0x3FE6A09E667F3BCD  # the bits of sqrt(1/2), where logarithms split the mantissa
TWO_52 = 0x4330000000000000  # the bits of 2^52: small integers in its mantissa become floats
MAGIC = 0x4338000000000000  # the bits of 1.5 2^52: adding it rounds to an integer
GAMMA, MIX_1, MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # SplitMix64's

(
    ADD, SUB, MUL, DIV, MULADD, SUBMUL, SQRT, EXP, LOG, POW, ABS, SIGN, MAX, WHERE, ADD3, SUM, DOT
) = range(17)  # fmt: skip
GRADIENT, SCALAR, SEPARABLE, NEWTON, INTERIOR = range(5)  # how agents move
BALL, LEVEL, COST = range(3)  # regions of the public set, and public costs


class _ArrayType:
    """``double[n]`` as ``cython.declare`` takes it."""

    def __init__(self, kind):
        self._kind = kind

    def __getitem__(self, size):
        return lambda: np.zeros(size, dtype=self._kind)


double, uint64_t = _ArrayType(np.float64), _ArrayType(object)


def declare(kind):
    """A local array, or a struct."""
    return kind()


def address(struct):
    """A pointer to a struct is the struct."""
    return struct


class Struct:
    """A C struct: fields are attributes."""

    callback = None  # an objective that is Python code


class LaneStruct(Struct):
    """A struct whose fields are rows of lanes: each exists from its first use."""

    def __getattr__(self, name):
        value = np.zeros(LANES)
        setattr(self, name, value)
        return value


def pow(x, y):  # noqa: A001  the C library's name
    """``x^y`` with IEEE's answers where Python raises."""
    try:
        return math.pow(x, y)
    except OverflowError:
        return -inf if x < 0.0 and y % 2.0 == 1.0 else inf
    except ValueError:
        if x == 0.0:
            return math.copysign(inf, x) if y % 2.0 == 1.0 else inf
        return nan


def as_float(bits):
    """The float64 with these bits."""
    return struct.unpack("<d", struct.pack("<Q", bits))[0]


def as_bits(x):
    """The bits of a float64."""
    return struct.unpack("<Q", struct.pack("<d", x))[0]


def cpu_has_avx2():
    """Plain Python does not ask."""
    return False


def row(p, i):
    """The pointer to row i."""
    return p[LANES * i :]


def skip(p, i):
    """``p + i``."""
    return p[i:]


skip_int = skip


def doubles(x):
    """The pointer to a contiguous float64 array."""
    return x


def ints(x):
    """The pointer to an int32 array; its items are Python's own integers."""
    return memoryview(x)


def words(x):
    """The pointer to uint64, as integers that may grow before they are cut to 64 bits."""
    return [int(word) for word in x]


POINTERS = {"float64": doubles, "int64": doubles, "int32": ints, "uint64": words}


def fill_struct(to, values):
    """Set the fields that a dictionary names; setup writes one such function per C struct."""
    for name, value in values.items():
        if isinstance(value, tuple):  # a tape: its code and its outputs
            tape = Struct()
            tape.code, tape.outputs = map(ints, value)
            tape.size, tape.count = map(len, value)
            value = tape
        elif isinstance(value, np.ndarray):
            value = POINTERS[value.dtype.name](value)
        setattr(to, name, value)


def spread(to, value):
    """The same number in all lanes."""
    to[:LANES] = value


def copy(to, a):
    """One row to another."""
    to[:LANES] = a[:LANES]


def copy_some(to, a, count):
    """``count`` numbers."""
    to[:count] = a[:count]


def fill(to, value, count):
    """The same number ``count`` times."""
    to[:count] = value


def any_positive(a):
    """Whether a lane is positive."""
    return bool(np.any(a[:LANES] > 0.0))


def barrier(counter, expected):
    """Plain Python runs rounds in one thread."""
    counter[0] += 1


def fleet_pointers(storage):
    """An array of pointers to structs."""
    return [None] * len(storage)
