"""Result of a reconciliation: counts by verdict, and a few examples."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from ponor_gc.verdicts import Verdict

EXAMPLES_MAX: Final = 10


@dataclass(slots=True)
class ReconcileReport:
    """Findings of one pass.

    Attributes:
        is_dry_run: the pass only reported; it deleted and aborted nothing.
        refusal: why this collector must not delete; empty if it may.
        is_whole: the pass covered every prefix.
        uploads_listed: the store can list multipart uploads.
    """

    objects: Counter[Verdict] = field(default_factory=Counter)
    object_bytes: Counter[Verdict] = field(default_factory=Counter)
    uploads: Counter[Verdict] = field(default_factory=Counter)
    deleted: int = 0
    deleted_bytes: int = 0
    aborted: int = 0
    is_dry_run: bool = False
    refusal: str = ""
    is_whole: bool = False
    uploads_listed: bool = False
    dead_examples: list[str] = field(default_factory=list)
    strange_examples: list[str] = field(default_factory=list)

    def note(self, verdict: Verdict, key: str, size_bytes: int) -> None:
        """Count a listed key under its verdict."""
        self.objects[verdict] += 1
        self.object_bytes[verdict] += size_bytes
        examples = {Verdict.DEAD: self.dead_examples, Verdict.STRANGE: self.strange_examples}.get(verdict)
        if examples is not None and len(examples) < EXAMPLES_MAX:
            examples.append(key)

    def as_dict(self) -> dict[str, Any]:
        """Return the report for JSON output."""
        return {
            "is_dry_run": self.is_dry_run,
            "refusal": self.refusal,
            "objects": {verdict.value: number for verdict, number in self.objects.items()},
            "object_bytes": {verdict.value: number for verdict, number in self.object_bytes.items()},
            "uploads_listed": self.uploads_listed,
            "uploads": {verdict.value: number for verdict, number in self.uploads.items()},
            "deleted": self.deleted,
            "deleted_bytes": self.deleted_bytes,
            "aborted": self.aborted,
            "dead_examples": self.dead_examples,
            "strange_examples": self.strange_examples,
        }

    def __str__(self) -> str:
        deleted, aborted = (
            ("would be deleted", "would be aborted") if self.is_dry_run else ("deleted", "aborted")
        )
        number = self.objects[Verdict.DEAD] if self.is_dry_run else self.deleted
        size_bytes = self.object_bytes[Verdict.DEAD] if self.is_dry_run else self.deleted_bytes
        uploads = self.uploads[Verdict.DEAD] if self.is_dry_run else self.aborted
        return (
            f"{self.objects.total()} objects in the store: {self.objects[Verdict.KNOWN]} known, {number}"
            f" orphans ({size_bytes} bytes) {deleted}, "
            f"{self.objects[Verdict.YOUNG]} too young to delete, {self.objects[Verdict.FUTURE]} newer than"
            " the metadata, "
            f"{self.objects[Verdict.STRANGE]} unknown keys; {uploads} of {self.uploads.total()} multipart"
            f" uploads {aborted}"
        )
