"""Every error that sottovoce raises on purpose, as one tree."""

from __future__ import annotations


class SottovoceError(Exception):
    """Base of all errors raised by sottovoce."""


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


class NetworkError(SottovoceError):
    """Cloud and agents cannot work together as asked."""
