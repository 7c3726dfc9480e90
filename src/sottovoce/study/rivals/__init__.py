"""Rival methods at equal privacy, a module per family, in one form (``rival``).

A module says its equations, its source and what was taken from memory of it; it offers runs with
the noise of its own theorem and with that of the joint plan. It knows no command and no table, and
no second engine: what can run as a cloud's step does, by ``sv.simulate``.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files

from sottovoce.arguments import entries
from sottovoce.errors import InputError
from sottovoce.study.rivals.dual_prices import HHRW, HINDSIGHT, NDMD
from sottovoce.study.rivals.hale_egerstedt import LAPLACE, TIKHONOV
from sottovoce.study.rivals.han import HAN
from sottovoce.study.rivals.output_perturbation import OUTPUT
from sottovoce.study.rivals.rival import Rival

RIVALS = {r.name: r for r in (TIKHONOV, LAPLACE, HHRW, NDMD, HAN, OUTPUT, HINDSIGHT)}  # by name


def references(rivals: Iterable[Rival]) -> str:
    """Return the sources of rivals in BibTeX."""
    text = files(__name__).joinpath("references.bib").read_text(encoding="utf-8")
    cited = [f"{{{rival.cites}," for rival in rivals if rival.cites]
    return (
        "\n\n".join(e.strip() for e in text.split("\n\n") if any(key in e for key in cited)) + "\n"
    )


def rivals_of(names: Iterable[str]) -> list[Rival]:
    """Return rivals by their names, each once, or refuse a name."""
    every = ", ".join(RIVALS)
    chosen = entries("rivals", names, f"names among {every}")
    for name in chosen:
        if not isinstance(name, str) or name not in RIVALS:
            raise InputError(f"rivals must be among {every}, got {name!r:.60}")
    return [RIVALS[name] for name in dict.fromkeys(chosen)]
