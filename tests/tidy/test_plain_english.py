"""Phrases to avoid in code, comments, messages and documents.

Each entry names the remedy. The check is textual: it finds phrases that engineers had to read
twice, and does not judge grammar. docs/style.md has the rule.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
REMEDIES: Final = {
    r"what lives here": "start with an imperative or a noun phrase",
    r"see the module": "say what the function does",
    r"(?:no|some|any|every)body": "name the component that acts",
    r"whoever|whomever": "name the component that acts",
    r"(?:is|are|was|were) told": "name the message or the argument: 'the broker receives', 'the caller"
    " passes'",
    r"by heart": "cached, or stored",
    r"at hand": "available",
    r"shall": "must",
    r"mend(?:s|ed|ing)?": "fix, or repair",
    r"in one go": "at once, or in one step",
    r"heirs?|farewells?": "successor, announce_removal",
    r"(?:on|of) its own feet": "independently",
    r"as it were": "delete it",
}
PHRASES: Final = re.compile(rf"\b(?:{'|'.join(REMEDIES)})\b", re.IGNORECASE)
SUFFIXES: Final = ("*.py", "*.pyx", "*.pxi", "*.proto", "*.md")


def _documents() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *SUFFIXES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    own = str(Path(__file__).relative_to(ROOT))
    return [name for name in listed if name != own and (ROOT / name).exists()]


def test_text_uses_plain_english() -> None:
    found = [
        f"{name}:{number}: {match.group()!r}: {_remedy(match.group())}"
        for name in _documents()
        for number, line in enumerate((ROOT / name).read_text(encoding="utf-8").splitlines(), 1)
        for match in PHRASES.finditer(line)
    ]
    assert not found, "\n" + "\n".join(found)


def _remedy(phrase: str) -> str:
    return next(
        remedy for pattern, remedy in REMEDIES.items() if re.fullmatch(pattern, phrase, re.IGNORECASE)
    )
