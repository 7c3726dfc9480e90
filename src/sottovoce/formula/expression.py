"""Expressions: immutable nodes of a directed acyclic graph over a closed list of operations.

    number, symbol, a + b + ..., a * b * ..., a**c, exp, log,
    abs, sign, max, where, norm, norm_slope, huber

Python's operators build a node in constant time and simplify nothing; ``canonical`` (see
``sottovoce.formula.canonical``) brings a formula once into the form that everything else reads.
Canonical nodes are interned: equal structure is one object, so that ``is``, sets and dictionaries
compare formulas. ``==``, ``<=`` and ``>=`` state relations.

The derivative operations, which no user writes, have fixed values where a slope jumps, so that the
derivative of a convex formula is a subgradient:

    |a|' = sign(a) a'                     sign(0) = 0
    max(a, b)' = where(a - b, a', b')     where(d, y, n) = y if d > 0 else n
    ||a||' = norm_slope(a, a')                 norm_slope(a, b) = a'b / ||a||, 0 at a = 0
    huber(a; M) = a^2 where |a| <= M, M (2 |a| - M) beyond
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from fractions import Fraction
from numbers import Rational, Real
from operator import attrgetter
from threading import RLock
from typing import Any, Final, NoReturn, SupportsFloat, TypeAlias, TypeVar, cast, final
from weakref import ReferenceType, ref

import numpy as np

from sottovoce.errors import ProblemError

Scalar: TypeAlias = int | Fraction | float
"""A constant: exact where integers and their quotients gave it, a double otherwise."""

Content: TypeAlias = Any  # what a node holds besides its operands: a scalar, a name, or None

_Result = TypeVar("_Result")

_MAX_BITS = 128  # beyond them a fraction becomes a double: exactness must not cost time
_MAX_EXACT = 2.0**53  # integers of a double up to here are exact
_exact: ContextVar[bool] = ContextVar("exact", default=False)


@contextmanager
def exact_arithmetic() -> Iterator[None]:
    """Never round a constant inside: fractions may have any size, exp(2) and 2**(1/2) stay.

    What is derived from a formula of integers and fractions then equals its derivation in the
    reals, as proofs need it.
    """
    token = _exact.set(True)
    try:
        yield
    finally:
        _exact.reset(token)


def in_exact_arithmetic() -> bool:
    """Whether constants must not be rounded now."""
    return _exact.get()


class Op:
    """What a node does with its operands."""

    NUMBER: Final = "number"
    SYMBOL: Final = "symbol"
    ADD: Final = "add"
    MUL: Final = "mul"
    POW: Final = "pow"  # with a constant exponent
    EXP: Final = "exp"
    LOG: Final = "log"
    ABS: Final = "abs"
    SIGN: Final = "sign"
    MAX: Final = "max"
    WHERE: Final = "where"
    NORM: Final = "norm"
    NORM_SLOPE: Final = "norm_slope"
    HUBER: Final = "huber"


NONSMOOTH = frozenset((Op.ABS, Op.MAX, Op.NORM, Op.HUBER))
"""Convex operations that are not smooth; users write these."""

SLOPES = frozenset((Op.SIGN, Op.WHERE, Op.NORM_SLOPE))  # what derivatives of these are made of


def _operator(
    build: Callable[[Expression, Expression], _Result],
) -> Callable[[Expression, object], _Result]:
    """An operator of a formula and a formula or number."""

    def operator(self: Expression, other: object) -> _Result:
        right = operand(other)
        return NotImplemented if right is None else build(self, right)

    return operator


@final
class Expression:
    """A formula: an operation, its operands, and a value of some operations.

    The value is a number, a symbol's name, a power's exponent, or the width of Huber's function.
    """

    __slots__ = (
        "__weakref__", "_canonical", "_depth", "_digests", "_key", "_symbols",
        "args", "op", "value",
    )  # fmt: skip

    op: str
    args: tuple[Expression, ...]
    value: Content

    # Filled by ``canonical``: the canonical form of another node; of a canonical one what follows
    # from its structure. The depth of a node that is not canonical is -1.
    _canonical: Expression | None
    _symbols: frozenset[Expression] | None
    _key: tuple[bool, tuple[str, ...], float] | None
    _digests: tuple[bytes, bytes] | None
    _depth: int

    def __init__(self, op: str, args: tuple[Expression, ...], value: Content = None) -> None:
        self.op, self.args, self.value = op, args, value
        self._canonical = self._symbols = self._key = self._digests = None
        self._depth = -1 if args else 0

    @property
    def is_number(self) -> bool:
        """Whether it is a constant, written without symbols."""
        return self.op == Op.NUMBER

    @property
    def is_symbol(self) -> bool:
        """Whether it is one symbol."""
        return self.op == Op.SYMBOL

    @property
    def is_zero(self) -> bool:
        """Whether it is the number 0."""
        return self.op == Op.NUMBER and not self.value

    @property
    def is_one(self) -> bool:
        """Whether it is the number 1."""
        return self.op == Op.NUMBER and bool(self.value == 1)

    @property
    def name(self) -> str:
        """The name of a symbol."""
        if self.op != Op.SYMBOL:
            raise AttributeError("only a symbol has a name")
        return str(self.value)

    @property
    def symbols(self) -> frozenset[Expression]:
        """The symbols in the canonical form of the formula."""
        if self._symbols is None:
            form = _form(self)
            if form is self:
                inner = frozenset((self,)) if self.op == Op.SYMBOL else frozenset()
                symbols = inner.union(*(a.symbols for a in self.args))
            else:
                symbols = form.symbols
            self._symbols = symbols
        return self._symbols

    def has(self, ops: frozenset[str]) -> bool:
        """Whether the formula uses one of some operations."""
        return any(node.op in ops for node in nodes((self,)))

    def __reduce__(self) -> tuple[object, ...]:
        order = list(nodes((_form(self),)))
        place = {node: k for k, node in enumerate(order)}
        flat = [(n.op, [place[a] for a in n.args], n.value) for n in order]
        return _from_flat, (flat,)

    def __repr__(self) -> str:
        from sottovoce.formula.write import readable  # it knows nodes, not they it

        return readable(self)

    def _repr_latex_(self) -> str:
        from sottovoce.formula.write import latex

        return f"${latex(self)}$"

    __hash__ = object.__hash__  # of its identity

    def __bool__(self) -> NoReturn:
        raise ProblemError(
            f"a formula has no truth value before it is solved, got {self!r:.60}: state a "
            "relation with <=, >= or =="
        )

    def __float__(self) -> float:
        form = _form(self)
        if not form.is_number:
            raise TypeError(
                f"{self!r:.60} has no value before it is solved; write sv.log(x) instead of "
                "math.log(x), and likewise sv.exp, sv.sqrt"
            )
        return float(form.value)

    __add__ = _operator(lambda a, b: Expression(Op.ADD, (a, b)))
    __radd__ = _operator(lambda a, b: Expression(Op.ADD, (b, a)))
    __sub__ = _operator(lambda a, b: Expression(Op.ADD, (a, -b)))
    __rsub__ = _operator(lambda a, b: Expression(Op.ADD, (b, -a)))
    __mul__ = _operator(lambda a, b: Expression(Op.MUL, (a, b)))
    __rmul__ = _operator(lambda a, b: Expression(Op.MUL, (b, a)))
    __truediv__ = _operator(lambda a, b: Expression(Op.MUL, (a, to_power(b, -1))))
    __rtruediv__ = _operator(lambda a, b: Expression(Op.MUL, (b, to_power(a, -1))))
    __pow__ = _operator(lambda a, b: to_power(a, b))
    __rpow__ = _operator(lambda a, b: to_power(b, a))
    __le__ = _operator(lambda a, b: Relation(a, "<=", b))
    __ge__ = _operator(lambda a, b: Relation(a, ">=", b))
    __eq__: Callable[[Expression, object], Relation] = _operator(  # type: ignore[assignment]
        lambda a, b: Relation(a, "==", b)
    )

    def __neg__(self) -> Expression:
        return Expression(Op.MUL, (MINUS_ONE, self))

    def __pos__(self) -> Expression:
        return self

    def __abs__(self) -> Expression:
        return Expression(Op.ABS, (self,))

    def __lt__(self, other: object) -> NoReturn:
        raise strict_comparison("<=")

    def __gt__(self, other: object) -> NoReturn:
        raise strict_comparison(">=")

    def __ne__(self, other: object) -> NoReturn:
        raise ProblemError("a set with a hole is not convex, got !=: write <=, >= or ==")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **settings: Any) -> Any:
        from sottovoce.formula.functions import apply_ufunc

        return apply_ufunc(ufunc, method, inputs, settings)


@final
class Relation:
    """``left <= right``, ``left >= right`` or ``left == right``, as it was written."""

    __slots__ = ("left", "right", "sign")

    def __init__(self, left: Expression, sign: str, right: Expression) -> None:
        self.left, self.sign, self.right = left, sign, right

    @property
    def equality(self) -> bool:
        """Whether both sides must be equal."""
        return self.sign == "=="

    @property
    def g(self) -> Expression:
        """The canonical formula that must be at most 0, or 0."""
        sides = (self.right, self.left) if self.sign == ">=" else (self.left, self.right)
        return _form(sides[0] - sides[1])

    def __repr__(self) -> str:
        return f"{self.left!r} {self.sign} {self.right!r}"

    def __bool__(self) -> NoReturn:
        raise ProblemError(
            f"a relation has no truth value, got {self!r:.60}: write a chain 1 <= x <= 5 as two "
            "rows 1 <= x and x <= 5, Python's max(x, y) as sv.maximum(x, y), min(x, y) as "
            "sv.minimum(x, y), A.dot(x) <= b as A @ x <= b, and an array of formulas of your own "
            "compared with b as [row <= bound for row, bound in zip(array, b)]"
        )


# References to nodes, dead ones too until the table has doubled: without callbacks they are cheap.
_interned: dict[tuple[object, ...], ReferenceType[Expression]] = {}
_sweep_at = 100_000
_lock = RLock()  # a collection of garbage inside may run anything


def interned(op: str, args: tuple[Expression, ...] = (), value: Content = None) -> Expression:
    """Return the one node with this content; operands must be interned as well."""
    # A fraction and a float that are equal are different numbers: one is exact.
    key = (op, type(value), value, *map(id, args))
    reference = _interned.get(key)
    node = None if reference is None else reference()
    return _new(key, op, args, value) if node is None else node


def _new(
    key: tuple[object, ...], op: str, args: tuple[Expression, ...], value: Content
) -> Expression:
    global _interned, _sweep_at
    with _lock:
        reference = _interned.get(key)  # another thread may have been faster
        node = None if reference is None else reference()
        if node is None:
            node = Expression(op, args, value)
            _interned[key] = ref(node)
            if len(_interned) > _sweep_at:
                _interned = {k: r for k in list(_interned) if (r := _interned[k])() is not None}
                _sweep_at = 100_000 + 2 * len(_interned)
    return node


def symbol(name: str) -> Expression:
    """Return the symbol of this name; there is one."""
    return interned(Op.SYMBOL, (), name)


def number(value: SupportsFloat) -> Expression:
    """Return a finite constant; integers and fractions stay exact, other reals become doubles."""
    return interned(Op.NUMBER, (), scalar(value))


def scalar(value: SupportsFloat) -> Scalar:
    """Return a number as constants keep it: a double with an integer value is that integer."""
    if type(value) is int or type(value) is float:
        return _checked(value)
    if isinstance(value, Rational):
        top, below = int(value.numerator), int(value.denominator)
        if below == 1:
            return _checked(top)
        if max(abs(top), below).bit_length() <= _MAX_BITS or in_exact_arithmetic():
            return Fraction(top, below)
    try:
        return _checked(float(value) or math.ulp(0) * bool(value))
    except OverflowError:
        return _checked(math.inf)


def _checked(value: int | float) -> Scalar:
    if type(value) is int:
        if value.bit_length() <= _MAX_BITS or in_exact_arithmetic():
            return value
        value = float(value) if value.bit_length() <= 1024 else math.inf
    if not math.isfinite(value):
        raise ProblemError(
            f"numbers must be finite in double precision, got {value}: write a smaller one"
        )
    size = abs(value)
    if 0.0 < size < sys.float_info.min:
        raise ProblemError("a number is too close to zero for double precision: write 0")
    return int(value) if size < _MAX_EXACT and value == int(value) else value


def exact_sum(values: Sequence[Scalar]) -> Scalar:
    """The sum of constants, the same in every order: exact, or rounded once."""
    if len(values) == 1:
        return values[0]
    exact: Scalar = 0
    doubles = []
    for value in values:
        if not isinstance(value, float):
            value = scalar(exact + value)
            exact = 0 if isinstance(value, float) else value
        if isinstance(value, float):
            doubles.append(value)
    if not doubles:
        return exact
    try:
        return scalar(math.fsum((*doubles, float(exact))))
    except OverflowError:
        raise ProblemError(
            "a sum of numbers is too large for double precision: scale them"
        ) from None


def exact_product(values: Sequence[Scalar]) -> Scalar:
    """The product of constants, the same in every order: exact ones first, then doubles by size."""
    if len(values) == 1:
        return values[0]
    result: Scalar = 1
    for value in sorted(values, key=lambda v: (isinstance(v, float), v)):
        if not value:
            return 0
        result = scalar(result * value)
        if not result:
            raise ProblemError(
                "a product of numbers is too close to zero for double precision: scale them"
            )
    return result


def constant_power(value: Scalar, c: Scalar) -> Scalar:
    """A power of a constant, refused if it is not a finite real number or underflows."""
    if not value and c < 0:
        raise ProblemError("the expression divides by zero: change the divisor")
    if value < 0 and not isinstance(c, int):
        raise ProblemError("the expression has a negative number under a root: change it")
    if isinstance(value, int | Fraction) and isinstance(c, int):
        bits = max(abs(value.numerator), value.denominator).bit_length() * abs(c)
        if bits <= 2048 or in_exact_arithmetic():
            return scalar(Fraction(value) ** c)
    try:
        result = scalar(float(value) ** float(c))
    except OverflowError:
        raise ProblemError(f"{value}**{c} is too large for double precision: scale it") from None
    if not result and value:
        raise ProblemError(f"{value}**{c} is too close to zero for double precision: scale it")
    return result


ZERO = number(0)
ONE = number(1)
MINUS_ONE = number(-1)
NAN = interned(Op.NUMBER, (), math.nan)  # what stands where there is no formula


def operand(value: object) -> Expression | None:
    """Return a number as an expression, an expression as it is, None for anything else."""
    if isinstance(value, Expression):
        return value
    if type(value) is int or type(value) is float:
        return number(value)
    if isinstance(value, Real) and not isinstance(value, bool | np.bool_):
        return number(value)
    if isinstance(value, complex | np.complexfloating):
        raise ProblemError(f"a formula must be of real numbers, got {value!r:.40}")
    return None


def expression(value: object) -> Expression:
    """Return a number as an expression, an expression as it is; text is never evaluated."""
    if (formula := operand(value)) is not None:
        return formula
    if isinstance(value, Relation):
        raise ProblemError(f"an expression must not be a comparison, got {value!r:.60}")
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return expression(value.item())
    raise ProblemError(
        f"an expression must be a number or made of states, got {type(value).__name__}"
    )


def to_power(base: Expression, exponent: Expression | Scalar) -> Expression:
    """The power ``base**exponent``: one of the two must be constant, a base also positive."""
    constant = _form(exponent if isinstance(exponent, Expression) else number(exponent))
    if constant.is_number:
        return Expression(Op.POW, (base,), constant.value)
    below = _form(base)
    if not below.is_number or below.value <= 0:
        raise ProblemError(
            "a power with a variable exponent needs a positive constant base, "
            f"got ({below!r:.60})**({constant!r:.60})"
        )
    return Expression(Op.EXP, (Expression(Op.MUL, (constant, Expression(Op.LOG, (below,)))),))


def strict_comparison(sign: str) -> ProblemError:
    """The refusal of a strict comparison; ``sign`` is what to write instead."""
    return ProblemError(
        f"a row must include its border, got a strict comparison: write {sign}, Python's "
        "max(x, y) as sv.maximum(x, y), min(x, y) as sv.minimum(x, y)"
    )


def nodes(
    roots: Sequence[Expression],
    operands: Callable[[Expression], Sequence[Expression]] = attrgetter("args"),
) -> Iterator[Expression]:
    """Yield every distinct node below some formulas, operands first; no recursion."""
    seen: set[Expression] = set()
    todo: list[Expression | None] = [*reversed(roots)]
    while todo:
        current = todo.pop()
        if current is None:  # all nodes below the one before it are listed
            yield cast(Expression, todo.pop())
        elif current not in seen:
            seen.add(current)
            todo += (current, None)
            todo += [a for a in reversed(operands(current)) if a not in seen]


def _form(expr: Expression) -> Expression:
    from sottovoce.formula.canonical import canonical  # it knows nodes, not they it

    return canonical(expr)


def _from_flat(flat: list[tuple[str, list[int], Content]]) -> Expression:
    order: list[Expression] = []
    for op, args, value in flat:
        order.append(interned(op, tuple(order[a] for a in args), value))
    return _form(order[-1])
