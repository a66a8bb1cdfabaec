"""A planned output with its prepared object id."""

from __future__ import annotations

from dataclasses import dataclass

from ponor_runtime.identity import ObjectId

from s3stream.compaction.plan import PlannedOutput
from s3stream.ports import UploadedObject


@dataclass(frozen=True, slots=True)
class Target:
    """Where an output goes."""

    planned: PlannedOutput
    object_id: ObjectId
    key: str

    def end(self) -> bytes:
        """Index and footer."""
        return self.planned.end(self.object_id)

    def uploaded(self) -> UploadedObject:
        """What a commit says of it."""
        return UploadedObject(self.object_id, self.planned.size_bytes, self.planned.ranges)
