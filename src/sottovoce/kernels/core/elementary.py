"""exp and log from additions, products and quotients alone: the same bits on every machine.

After FDLIBM's ``e_exp.c`` and ``e_log.c`` (Sun Microsystems, 1993), without branches, so that loops
over lanes become vector code. Errors stay below one unit in the last place.

    exp(x) = 2^k e^r,   k = rint(x / ln 2),  |r| <= ln 2 / 2
    log(x) = k ln 2 + log(1 + f),   x = 2^k (1 + f),  sqrt(1/2) <= 1 + f < sqrt(2)
"""

from . import plain as cython
from .plain import *


def exp(x):
    """``e^x``."""
    # Beyond +-800 the two factors 2^(k/2) below give infinity or 0 by themselves.
    y = 800.0 if x > 800.0 else x
    y = -800.0 if y < -800.0 else y
    # Adding 1.5 2^52 rounds to an integer, which is then in the last bits of the sum.
    t = y * 1.4426950408889634 + 6755399441055744.0
    k = t - 6755399441055744.0
    hi = y - k * 6.93147180369123816490e-01
    lo = k * 1.90821492927058770002e-10
    r = hi - lo
    z = r * r
    p = 6.61375632143793436117e-05 + z * (
        -1.65339022054652515390e-06 + z * 4.13813679705723846039e-08
    )
    c = r - z * (1.66666666666666019037e-01 + z * (-2.77777777770155933842e-03 + z * p))
    v = 1.0 - ((lo - (r * c) / (2.0 - c)) - hi)
    # 2^k in two factors, as k alone may be beyond the exponents that floats have.
    half = k * 0.5 + 6755399441055744.0
    one = (as_bits(half) - MAGIC) & MASK
    other = (as_bits(t) - MAGIC - one) & MASK
    return v * as_float(((one + 1023) << 52) & MASK) * as_float(((other + 1023) << 52) & MASK)


def log(x):
    """``ln x``; NaN below 0."""
    small: cython.bint = x < 2.2250738585072014e-308  # subnormal: scaled by 2^54 first
    y = x * 18014398509481984.0 if small else x
    u = (as_bits(y) + (ONE - SQRT_HALF)) & MASK
    k = as_float(TWO_52 | (u >> 52)) - (4503599627371573.0 if small else 4503599627371519.0)
    f = as_float((u & MANTISSA) + SQRT_HALF) - 1.0
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    t1 = w * (
        3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01)
    )
    t2 = 2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)
    t2 = z * (6.666666666666735130e-01 + w * t2)
    h = 0.5 * f * f
    v = k * 6.93147180369123816490e-01 - (
        (h - (s * (h + (t1 + t2)) + k * 1.90821492927058770002e-10)) - f
    )
    v = inf if x == inf else v
    v = -inf if x == 0.0 else v
    return v if x >= 0.0 else nan


def power(x, y):
    """``x^y``, the C library's: the only operation whose last bit may differ between systems."""
    return pow(x, y)


def has_avx2():
    """Whether this processor has AVX2."""
    return cpu_has_avx2()
