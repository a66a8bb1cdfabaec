"""Findings of the probe, and the verdict."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class Grade(enum.StrEnum):
    """Severity of a finding."""

    OK = "ok"
    NOTE = "note"
    """Information; nothing is at risk."""
    WARNING = "warning"
    """Costs money or space, or weakens a secondary protection."""
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
    """Whether the store is safe for Ponor."""
    return not any(finding.grade is Grade.UNSAFE for finding in findings)


def verdict(url: str, findings: Sequence[Finding]) -> str:
    """Return the verdict and its reasons in one sentence."""
    unsafe = [finding for finding in findings if finding.grade is Grade.UNSAFE]
    if unsafe:
        reasons = "; ".join(f"{finding.check}: {finding.detail}" for finding in unsafe)
        return f"UNSAFE: do not keep data in {url}. {reasons}"
    warnings = sum(finding.grade is Grade.WARNING for finding in findings)
    suffix = f"; {warnings} warnings above" if warnings else ""
    return f"SAFE: {url} has all properties that Ponor relies on{suffix}"
