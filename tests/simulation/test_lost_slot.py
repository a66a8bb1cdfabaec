"""The store loses a slot of a write-ahead log: recovery reports it and trims nothing; a recovery
that skips it is caught.
"""

from __future__ import annotations

import pytest
from ponor_simulation.simulation import SimulationFailedError

from tests.simulation.lost_slot_story import LostSlotStory
from tests.simulation.mutants.table import MUTANTS


@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_trimmed_after_a_lost_slot_and_all_is_readable_after_its_restoration(seed: int) -> None:
    LostSlotStory(seed).run()


def test_a_recovery_that_skips_the_gap_is_caught() -> None:
    with (
        MUTANTS["wal_gap_skipped"].planted(),
        pytest.raises(SimulationFailedError, match=r"is trimmed|over a lost slot|lost:"),
    ):
        LostSlotStory(0).run()
