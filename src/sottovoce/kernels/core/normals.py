"""Standard normals for simulation: a stream per run, addressed by counters.

The n-th pair of a stream is a pure function of the stream's seed and of n, so lanes, threads,
chunks and restarts cannot change it. Bits are SplitMix64 (Steele, Lea and Flood, 2014), whose n-th
output is ``scramble(seed + n GAMMA)``; two outputs u, v make two normals (Box and Muller, 1958)

    sqrt(-2 ln u) cos(2 pi v),  sqrt(-2 ln u) sin(2 pi v),      u in (0, 1], v in [-1/8, 7/8).

Round k = 1, 2, ... of a run with P pairs per round uses the pairs ``(k - 1) P + p``. Polynomials
are near-minimax, found with 40 digits: atanh(s)/s for s^2 up to (sqrt(2) - 1)^4; sin(2 pi t)/t and
cos(2 pi t) for |t| <= 1/8. No fused products: any processor gives the same bits.

Seeds make runs repeatable, which makes them worthless as a secret: nothing here is private.
"""

from . import plain as cython
from .plain import *


def scramble(z):
    """Scramble 64 bits one to one: SplitMix64's output function."""
    z = ((z ^ (z >> 30)) * MIX_1) & MASK
    z = ((z ^ (z >> 27)) * MIX_2) & MASK
    return z ^ (z >> 31)


def pairs(words, jump, one, two):
    """Two normals per lane, from the states ``words + jump``."""
    for lane in range(LANES):
        state = (words[lane] + jump) & MASK
        u = 2.0 - as_float(ONE | (scramble(state) >> 12))
        bits = as_bits(u) + (ONE - SQRT_HALF)
        e = as_float(TWO_52 | (bits >> 52)) - 4503599627371519.0
        m = as_float((bits & MANTISSA) + SQRT_HALF)
        s = (m - 1.0) / (m + 1.0)
        z = s * s
        # Polynomials by pairs of terms: fewer operations wait for each other.
        y = z * z
        p = 0.07308224842521703 * y + (0.07665860800278021 * z + 0.09091444562630861)
        p = p * (y * y) + (
            (0.1111110556739754 * z + 0.14285714312987743) * y
            + (0.19999999999949752 * z + 0.3333333333333335)
        )
        r = sqrt(-2.0 * (e * 0.6931471805599453 + 2.0 * (s * z * p + s)))
        turn = scramble((state + GAMMA) & MASK) >> 12
        quadrant = turn >> 50
        t = (as_float(ONE | ((turn << 2) & MANTISSA)) - 1.5) * 0.25
        z = t * t
        y = z * z
        p = (-0.7116358090781666 * z + 3.8197881201632113) * y + (
            -15.094640403891546 * z + 42.05869392898878
        )
        p = p * (y * y) + (
            (-76.70585975299812 * z + 81.60524927607493) * y
            + (-41.34170224039976 * z + 6.283185307179586)
        )
        sine = t * p
        p = (-1.6968494702918826 * z + 7.903091687751697) * y + (
            -26.426250908622137 * z + 60.244641328867296
        )
        cosine = p * (y * y) + (
            (-85.45681720652271 * z + 64.93939402266795) * y + (-19.739208802178716 * z + 1.0)
        )
        # Odd quadrants swap sine and cosine; bits chosen by a mask become vector code.
        swap = (0 - (quadrant & 1)) & MASK
        cosines, sines = as_bits(cosine), as_bits(sine)
        bits = as_bits(r)
        back = as_float(bits ^ ((((quadrant + 1) >> 1) & 1) << 63))
        other = as_float(bits ^ ((quadrant >> 1) << 63))
        one[lane] = back * as_float((sines & swap) | (cosines & (swap ^ MASK)))
        two[lane] = other * as_float((cosines & swap) | (sines & (swap ^ MASK)))


def draw_rounds(seed, done, count, out):
    """Normals of the next LANES rounds of one run, ``out[normal * LANES + round]``."""
    words = cython.declare(uint64_t[16])
    for p in range(count):
        for lane in range(LANES):
            words[lane] = (seed + (2 * ((done + lane) * count + p) + 1) * GAMMA) & MASK
        pairs(words, 0, row(out, 2 * p), row(out, 2 * p + 1))


def draw_runs(seeds, done, count, out):
    """Normals of round ``done + 1`` of LANES runs, ``out[normal * LANES + run]``."""
    for p in range(count):
        jump = ((2 * (done * count + p) + 1) * GAMMA) & MASK
        pairs(seeds, jump, row(out, 2 * p), row(out, 2 * p + 1))


def fill_rounds(seed, done, count, out):
    """``draw_rounds`` from Python."""
    draw_rounds(seed, done, count, doubles(out))
