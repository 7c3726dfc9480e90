"""Standard normals for simulation: run r of a seed has one stream, whoever computes it and how.

The n-th number of a stream is a pure function of the stream's seed and of n, so lanes, threads,
chunks and restarts cannot change it. Bits are SplitMix64 (Steele, Lea and Flood, 2014), whose
n-th output is ``mix(seed + n * GAMMA)``; two outputs u, v make two normals (Box and Muller, 1958)

    sqrt(-2 ln u) cos(2 pi v),  sqrt(-2 ln u) sin(2 pi v),      u in (0, 1], v in [-1/8, 7/8).

Both are written with additions, products and fused products only, so that LLVM turns a loop over
them into vector code with the same bits as the plain loop. Round k = 1, 2, ... of a run with J
normals per round uses the pairs ``(k - 1) P + p``, p = 0..P-1, with ``P = ceil(J / 2)``.

Seeds make runs repeatable, which makes them worthless as a secret: nothing here is private.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.compiler.operations import inline
from sottovoce.engine.compile import load_kernel
from sottovoce.engine.intrinsics import as_bits, as_float, fma
from sottovoce.problem.agents import Array

GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_U1, _U2, _U12 = np.uint64(1), np.uint64(2), np.uint64(12)
_U27, _U30, _U31, _U50, _U52, _U63 = (np.uint64(n) for n in (27, 30, 31, 50, 52, 63))
_ONE = np.uint64(0x3FF0000000000000)
_MANTISSA = np.uint64(0x000FFFFFFFFFFFFF)
_SQRT_HALF = np.uint64(0x3FE6A09E667F3BCD)
_TO_SQRT_HALF = _ONE - _SQRT_HALF
_LN_2 = 0.6931471805599453

# Near-minimax polynomials, found with 40 digits: atanh(s)/s = 1 + z LOG(z) for z = s^2 up to
# (sqrt(2) - 1)^4; sin(2 pi t)/t and cos(2 pi t) in t^2 for |t| <= 1/8. Highest power first.
_LOG = (
    0.07308224842521703,
    0.07665860800278021,
    0.09091444562630861,
    0.1111110556739754,
    0.14285714312987743,
    0.19999999999949752,
    0.3333333333333335,
)
_SIN = (
    -0.7116358090781666,
    3.8197881201632113,
    -15.094640403891546,
    42.05869392898878,
    -76.70585975299812,
    81.60524927607493,
    -41.34170224039976,
    6.283185307179586,
)
_COS = (
    -1.6968494702918826,
    7.903091687751697,
    -26.426250908622137,
    60.244641328867296,
    -85.45681720652271,
    64.93939402266795,
    -19.739208802178716,
    1.0,
)


@inline
def mix(z: Any) -> Any:
    """Scramble 64 bits one to one: SplitMix64's output function."""
    z = (z ^ (z >> _U30)) * _MIX_1
    z = (z ^ (z >> _U27)) * _MIX_2
    return z ^ (z >> _U31)


@inline
def _polynomial7(c: Any, z: Any) -> Any:
    p = fma(c[0], z, c[1])
    p = fma(p, z, c[2])
    p = fma(p, z, c[3])
    p = fma(p, z, c[4])
    p = fma(p, z, c[5])
    return fma(p, z, c[6])


@inline
def log(u: Any) -> Any:
    """The natural logarithm of a positive normal float: ``u = 2^e m``, m near 1, and a series."""
    bits = as_bits(u) + _TO_SQRT_HALF
    e = np.float64(np.int64(bits >> _U52)) - 1023.0
    m = as_float((bits & _MANTISSA) + _SQRT_HALF)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    return fma(e, _LN_2, 2.0 * fma(s * z, _polynomial7(_LOG, z), s))


@inline
def pair(state: Any) -> Any:
    """Two independent standard normals from the generator's outputs at ``state`` and after it."""
    u = 2.0 - as_float(_ONE | (mix(state) >> _U12))
    r = np.sqrt(-2.0 * log(u))
    turn = mix(state + GAMMA) >> _U12
    quadrant = turn >> _U50
    t = (as_float(_ONE | ((turn << _U2) & _MANTISSA)) - 1.5) * 0.25
    z = t * t
    sine = t * fma(_polynomial7(_SIN, z), z, _SIN[7])
    cosine = fma(_polynomial7(_COS, z), z, _COS[7])
    # Quadrant q adds q quarter turns: odd ones swap sine and cosine, and two signs follow.
    swap = (quadrant & _U1) != np.uint64(0)
    first = sine if swap else cosine
    second = cosine if swap else sine
    bits = as_bits(r)
    first *= as_float(bits ^ ((((quadrant + _U1) >> _U1) & _U1) << _U63))
    second *= as_float(bits ^ ((quadrant >> _U1) << _U63))
    return first, second


def fill_lanes(seeds: Any, done: Any, rounds: Any, pairs: Any, lanes: Any, out: Any) -> None:
    """Rounds ``done + 1, ...`` of several runs, ``out[(round, normal, run)]``, one run per lane."""
    for b in range(rounds):
        for p in range(pairs):
            jump = np.uint64(2 * ((done + b) * pairs + p) + 1) * GAMMA
            at = (b * pairs + p) * 2 * lanes
            for lane in range(lanes):
                first, second = pair(seeds[lane] + jump)
                out[at + lane] = first
                out[at + lanes + lane] = second


def fill_rounds(seed: Any, done: Any, rounds: Any, pairs: Any, stride: Any, out: Any) -> None:
    """Rounds ``done + 1, ...`` of one run, ``out[normal * stride + round]``."""
    for p in range(pairs):
        start = seed + np.uint64(2 * (done * pairs + p) + 1) * GAMMA
        jump = np.uint64(2 * pairs) * GAMMA
        at = 2 * p * stride
        for b in range(rounds):
            first, second = pair(start + np.uint64(b) * jump)
            out[at + b] = first
            out[at + stride + b] = second


def fill_round(seed: Any, done: Any, pairs: Any, begin: Any, end: Any, out: Any) -> None:
    """Pairs ``begin..end-1`` of round ``done + 1`` of one run, ``out[normal]``."""
    start = seed + np.uint64(2 * done * pairs + 1) * GAMMA
    for p in range(begin, end):
        first, second = pair(start + np.uint64(2 * p) * GAMMA)
        out[2 * p] = first
        out[2 * p + 1] = second


_FILL = """
from sottovoce.compiler.module import entry
from sottovoce.engine.normals import fill_round


@entry("void(uint64, int64, int64, int64, int64, float64[::1])")
def fill(seed, done, pairs, begin, end, out):
    fill_round(seed, done, pairs, begin, end, out)
"""


def fill_pairs(seed: Any, done: int, pairs: int, begin: int, end: int, out: Array) -> None:
    """The same, for Python to call."""
    _compiled_fill()(seed, done, pairs, begin, end, out)


@cache
def _compiled_fill() -> Any:
    return load_kernel(_FILL).fill


def stream_seeds(seed: int, runs: range) -> NDArray[np.uint64]:
    """Return the 64-bit seed of each run's stream, a hash of (seed, r) for r in ``runs``."""
    seeds = np.empty(len(runs), dtype=np.uint64)
    for place, run in enumerate(runs):
        seeds[place] = np.random.SeedSequence(seed, spawn_key=(run,)).generate_state(1, np.uint64)[
            0
        ]
    return seeds


def normals(seed: int, run: int, *, rounds: int, count: int) -> Array:
    """Return the normals that run ``run`` (from 0) uses, shape (rounds, count)."""
    pairs = (count + 1) // 2
    out = np.empty((rounds, 2 * pairs))
    stream = stream_seeds(seed, range(run, run + 1))[0]
    for done in range(rounds):
        fill_pairs(stream, done, pairs, 0, pairs, out[done])
    return out[:, :count]
