"""Settings that all controllers of a cluster share."""

from ponor_controller.settings.balancing import BalanceSettings
from ponor_controller.settings.compaction import CompactionSettings
from ponor_controller.settings.controller import ControllerSettings, SnapshotLeaseSettings

__all__ = ["BalanceSettings", "CompactionSettings", "ControllerSettings", "SnapshotLeaseSettings"]
