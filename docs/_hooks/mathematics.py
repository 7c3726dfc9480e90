"""Turn LaTeX into MathML while the pages are built: no script and no font is loaded to read them.

``pymdownx.arithmatex`` finds ``$...$`` and ``$$...$$`` and keeps Markdown away from them; browsers
draw MathML themselves.
"""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from latex2mathml.converter import convert

_FOUND = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\(?:\(|\[)(?P<latex>.*?)\\(?:\)|\])</(?P=tag)>',
    re.DOTALL,
)


def on_page_content(html: str, **_: Any) -> str:
    """Replace every formula of a page."""
    return _FOUND.sub(_formula, html)


def _formula(found: re.Match[str]) -> str:
    block = found["tag"] == "div"
    latex = unescape(found["latex"])
    mathml = str(convert(latex, display="block" if block else "inline"))
    if "\\" in mathml or "<mi>&</mi>" in mathml:  # commands that it does not know are left as text
        raise ValueError(f"a formula must be LaTeX that latex2mathml knows, got {latex}")
    return f'<div class="formula">{mathml}</div>' if block else mathml
