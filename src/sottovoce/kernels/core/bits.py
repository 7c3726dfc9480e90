"""Floats as 64 bits; compiled, these are the inline functions of ``bits.pxd``."""

import struct

MASK = 0xFFFFFFFFFFFFFFFF
ONE = 0x3FF0000000000000  # the bits of 1.0: exponent 0, mantissa 0
MANTISSA = 0x000FFFFFFFFFFFFF
SQRT_HALF = 0x3FE6A09E667F3BCD  # the bits of sqrt(1/2), where logarithms split the mantissa
TWO_52 = 0x4330000000000000  # the bits of 2^52: small integers in its mantissa become floats
MAGIC = 0x4338000000000000  # the bits of 1.5 2^52: adding it rounds to an integer


def as_float(bits):
    """The float64 with these bits."""
    return struct.unpack("<d", struct.pack("<Q", bits))[0]


def as_bits(x):
    """The bits of a float64."""
    return struct.unpack("<Q", struct.pack("<d", x))[0]
