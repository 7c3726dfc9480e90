"""Values of formulas, for tests that compare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sottovoce.formula.expression import Expression
from sottovoce.formula.tape import tape


def evaluate(formula: Expression, values: Mapping[Expression, Any]) -> Any:
    return tape((formula,), values)(*values.values())[0]
