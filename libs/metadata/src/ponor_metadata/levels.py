"""Feature levels of the log: which kinds of records may be in it (docs/design/consensus.md#quorum-operations).

What lives here: the name of the feature, its levels, and how to read the finalized one. Raising it and refusing what it does not allow yet is
the controller's.
"""

from __future__ import annotations

from typing import Final

from ponor_metadata.view import View

METADATA_LEVEL: Final = "metadata.level"
LEVEL_ONE_CONTROLLER: Final = 1
LEVEL_QUORUM: Final = 2
"""From here on the log may hold VotersSet, IncarnationRaised and IncarnationConfirmed."""
LEVEL_BROKERS: Final = 3
"""From here on it may hold what several brokers need: moves, drain, write-ahead logs in the store, ClusterStopAnnounced, BalancerPaused."""
LEVEL_COMPACTION: Final = 4
"""From here on it may hold compaction tasks and leases of snapshots."""


def level_of(view: View, name: str = METADATA_LEVEL) -> int:
    """The finalized level, 0 when there is none."""
    row = view.features.get(name)
    return 0 if row is None else row.level
