"""Feature levels: which records may be in the log (docs/design/consensus.md#quorum-operations).

What lives here: the levels that this version runs, and what an update must fulfil. A level only rises, and not above what the leader runs. Other controllers and nodes
do not say what they run: whoever finds a record it does not know stops, so that the operator upgrades every process first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import quorum_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_metadata.nouns.cluster import (
    FEATURES,
    LEVEL_COMPACTION,
    LEVEL_ONE_CONTROLLER,
    LEVEL_QUORUM,
    METADATA_LEVEL,
    level_of,
)
from ponor_metadata.tables.schema import View
from ponor_rpc.errors import OperationError

UPDATES_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class LevelRange:
    """Levels that a process runs, both ends included."""

    lowest: int
    highest: int


SUPPORTED: Final[Mapping[str, LevelRange]] = {
    METADATA_LEVEL: LevelRange(LEVEL_ONE_CONTROLLER, LEVEL_COMPACTION)
}


def require_level(view: View, level: int, what: str) -> None:
    """Refuse what an older node would not understand.

    Raises:
        OperationError: INVALID_REQUEST; the message says how to raise the level.
    """
    present = level_of(view, METADATA_LEVEL)
    if present < level:
        raise _refuse(
            f"{what} needs {METADATA_LEVEL} {level}, the cluster is at {present}: upgrade every process, then "
            f"`kafka-features.sh upgrade --feature ponor.{METADATA_LEVEL}={level}`"
        )


def require_quorum_level(view: View, what: str) -> None:
    """The same for records about the quorum."""
    require_level(view, LEVEL_QUORUM, what)


def describe_features(view: View) -> list[wire.FeatureState]:
    """Every feature that is known here or finalized."""
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
    """The records that carry out all updates; none for levels that are in force.

    Raises:
        OperationError: INVALID_REQUEST; one of them is not possible, and why.
    """
    if not updates or len(updates) > UPDATES_MAX:
        raise _refuse(f"{len(updates)} feature updates: give 1 to {UPDATES_MAX}")
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
        raise _refuse(f"the feature {update.name} is not known; known are {', '.join(SUPPORTED)}")
    if not supported.lowest <= update.level <= supported.highest:
        raise _refuse(
            f"{update.name} {update.level}: this version runs levels {supported.lowest} to {supported.highest}; upgrade it first"
        )
    present = level_of(view, update.name)
    if update.level < present:
        raise _refuse(
            f"{update.name} is at {present} and never falls, because records of that level may be in the log"
        )
    return update.level > present


def _require_unique(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise _refuse(f"the feature {name} is updated twice in one request")
        seen.add(name)


def _refuse(message: str) -> OperationError:
    return OperationError(error_pb2.ERROR_CODE_INVALID_REQUEST, message)
