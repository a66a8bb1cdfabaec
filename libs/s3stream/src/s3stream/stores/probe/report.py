"""What the probe found, and the verdict. Pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class Grade(enum.StrEnum):
    """What one answer means for data."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; nothing is at risk."""
    WARNING = "warning"
    """Costs money, space or a second line of defence."""
    UNSAFE = "unsafe"
    """Acknowledged data can be lost, overwritten or become unreadable."""
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of the table."""

    check: str
    grade: Grade
    detail: str


def is_safe(findings: Sequence[Finding]) -> bool:
    """Whether Ponor may keep data there."""
    return not any(finding.grade is Grade.UNSAFE for finding in findings)


def verdict(url: str, findings: Sequence[Finding]) -> str:
    """One sentence, with the reasons."""
    unsafe = [finding for finding in findings if finding.grade is Grade.UNSAFE]
    if unsafe:
        reasons = "; ".join(f"{finding.check}: {finding.detail}" for finding in unsafe)
        return f"UNSAFE: do not keep data in {url}. {reasons}"
    warnings = sum(finding.grade is Grade.WARNING for finding in findings)
    return f"SAFE: {url} keeps what Ponor builds on{f'; {warnings} warnings above' if warnings else ''}"
