"""Feature levels: which kinds of records may be in the log (docs/design/consensus.md#quorum-operations).

A level only rises, at most to the highest level of the leader's build. Other processes do not report their
levels: a process that reads a record of an unknown kind stops, so the operator must upgrade every process
before raising a level.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ponor.controller.v1 import quorum_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_metadata.nouns.cluster import (
    FEATURES,
    LATEST_LEVEL,
    METADATA_LEVEL,
    level_of,
)
from ponor_metadata.tables.schema import View

from ponor_controller.kernel.decisions import invalid

UPDATES_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class LevelRange:
    """Levels that this build supports, both ends included."""

    lowest: int
    highest: int


SUPPORTED: Final[Mapping[str, LevelRange]] = {METADATA_LEVEL: LevelRange(1, LATEST_LEVEL)}


def describe_features(view: View) -> list[wire.FeatureState]:
    """Return every feature that this build supports or that is finalized."""
    names = sorted({*SUPPORTED, *(row.name for row in view[FEATURES])})
    return [
        wire.FeatureState(
            name=name,
            level=level_of(view, name),
            supported_min=SUPPORTED[name].lowest if name in SUPPORTED else 0,
            supported_max=SUPPORTED[name].highest if name in SUPPORTED else 0,
        )
        for name in names
    ]


def check_updates(view: View, updates: Sequence[wire.FeatureUpdate]) -> list[records_pb2.Record]:
    """Return the records for all updates; none for levels that are finalized already.

    Raises:
        OperationError: INVALID_REQUEST if an update is not possible. The message names the reason.
    """
    if not updates or len(updates) > UPDATES_MAX:
        raise invalid(f"the request has {len(updates)} feature updates; give 1 to {UPDATES_MAX}")
    _require_unique(update.name for update in updates)
    return [
        records_pb2.Record(
            feature_level_set=records_pb2.FeatureLevelSet(name=update.name, level=update.level)
        )
        for update in updates
        if _rises(view, update)
    ]


def _rises(view: View, update: wire.FeatureUpdate) -> bool:
    supported = SUPPORTED.get(update.name)
    if supported is None:
        raise invalid(f"feature {update.name} is unknown; known features are {', '.join(SUPPORTED)}")
    if not supported.lowest <= update.level <= supported.highest:
        raise invalid(
            f"level {update.level} of {update.name} is not supported: this version supports levels"
            f" {supported.lowest} to {supported.highest}; upgrade the controllers first"
        )
    present = level_of(view, update.name)
    if update.level < present:
        raise invalid(
            f"{update.name} has level {present}, which cannot be lowered, because the log may contain records"
            " of that level"
        )
    return update.level > present


def _require_unique(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise invalid(f"the request updates the feature {name} twice")
        seen.add(name)
