"""Planted identity bugs, and the scenarios that catch them.

The swarm neither shares a store between clusters nor restores copies of directories.
"""

from __future__ import annotations

import pytest
from ponor_simulation.simulation import SimulationFailedError

from services.controller.tests.startup.test_formation import (
    test_a_voter_that_lost_its_volume_does_not_format_again as wiped,
)
from services.controller.tests.startup.test_restored_copy import (
    test_a_restored_copy_is_refused as restored,
)
from services.gc.tests.test_deletion_right import (
    test_nothing_is_deleted_under_a_foreign_or_missing_marker as marked,
)
from tests.simulation.mutants.table import MUTANTS


def test_an_unnoticed_copy_is_caught() -> None:
    with (
        MUTANTS["controller_ignores_seen_history"].planted(),
        pytest.raises(SimulationFailedError, match=r"an older copy accepts no node"),
    ):
        restored(False)


def test_a_collector_without_a_right_is_caught(caplog: pytest.LogCaptureFixture) -> None:
    with (
        MUTANTS["gc_ignores_marker"].planted(),
        pytest.raises(SimulationFailedError, match=r"nothing is deleted without the own marker"),
    ):
        marked(None, "has no marker", caplog)


def test_a_second_cluster_of_a_lost_voter_is_caught(caplog: pytest.LogCaptureFixture) -> None:
    with (
        MUTANTS["controller_formats_beside_a_cluster"].planted(),
        pytest.raises(SimulationFailedError, match=r"it has no vote"),
    ):
        wiped(0, caplog)
