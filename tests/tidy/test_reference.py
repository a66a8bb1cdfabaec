"""The generated reference pages match the code."""

from __future__ import annotations

from tools.reference import ROOT, pages


def test_reference_pages_are_current() -> None:
    for path, text in pages().items():
        written = path.read_text(encoding="utf-8") if path.exists() else ""
        assert written == text, (
            f"{path.relative_to(ROOT)} is not what the code says; run `python -m tools.reference` and review"
            " the diff"
        )
