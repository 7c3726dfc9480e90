"""Every error that sottovoce raises on purpose, as one tree, and how a command ends with it."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """How a command ends, for a supervisor that may start it again."""

    DONE = 0
    NO = 1
    """The answer is no: an assumption fails, a claim is broken; also any unexpected error."""
    PERSON = 2
    """A person must mend it; starting again gives the same."""
    AGAIN = 75
    """Time or a restart mends it (EX_TEMPFAIL)."""
    EXPIRED = 77
    """A certificate has ended, or a clock is wrong (EX_NOPERM)."""


class SottovoceError(Exception):
    """Base of all errors raised by sottovoce.

    Attributes:
        exit_code: what a command ends with.
    """

    exit_code: Exit = Exit.PERSON


class InputError(SottovoceError, ValueError):
    """A value given by the user does not meet a stated requirement."""


class ProblemError(InputError):
    """A problem is not well stated: wrong names, shapes, bounds or syntax."""


class ConvexityError(ProblemError):
    """An objective or a constraint is not convex on the domain."""


class CertificateError(SottovoceError):
    """No finite bound could be certified, so nothing private may be released."""


class PrivacyError(SottovoceError):
    """A privacy promise cannot be kept as asked."""


class BudgetError(PrivacyError):
    """A release would spend more privacy than an agent granted."""


class RollbackError(PrivacyError):
    """A copy or an old backup of a run would release rounds again."""


class UnavailableError(PrivacyError):
    """A ledger cannot be read or written now; nothing may be released until it can."""

    exit_code = Exit.AGAIN


class NetworkError(SottovoceError):
    """Cloud and agents cannot work together as asked."""
