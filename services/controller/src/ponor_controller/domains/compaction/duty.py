"""Leader duty: survey objects, end tasks whose sources were all destroyed, and export the backlog.

Workers get tasks on request (`operations`).
"""

from __future__ import annotations

import logging
from typing import Final

from ponor_metadata.nouns.cluster import cluster_of
from ponor_metadata.nouns.compactions import COMPACTIONS
from ponor_metadata.tables.schema import View
from ponor_runtime.telemetry import Telemetry

from ponor_controller.domains.compaction.garbage_ratio import GarbageRatio
from ponor_controller.domains.compaction.offering import Offering
from ponor_controller.domains.compaction.operations import ended, is_vacant, sources_left
from ponor_controller.domains.compaction.survey import Survey
from ponor_controller.kernel.leading import Leading
from ponor_controller.kernel.proposer import Proposer
from ponor_controller.settings import CompactionSettings

LOG: Final = logging.getLogger("ponor.controller")
WAKING: Final = ("cluster_formatted",)
"""Records after which the duty runs."""
STEP_S: Final = 0.1
"""Pause between two steps of a survey. With it a survey uses at most 1 % of a CPU."""


class CompactionDuty:
    """A step of a `LeaderDuty`."""

    def __init__(
        self,
        proposer: Proposer,
        survey: Survey,
        garbage_ratio: GarbageRatio,
        offering: Offering,
        leading: Leading,
        settings: CompactionSettings,
        telemetry: Telemetry,
    ) -> None:
        self._proposer = proposer
        self._survey = survey
        self._garbage_ratio = garbage_ratio
        self._offering = offering
        self._leading = leading
        self._settings = settings
        leading.on_change(self._reset)
        self._show(telemetry)

    def step(self) -> float | None:
        """Survey some more objects and check all tasks. Returns the seconds until the next step."""
        view = self._proposer.view
        if cluster_of(view) is None:
            return None
        self._end_empty_tasks(view)
        surveyed, sampled = self._survey.step(), self._garbage_ratio.step()
        done = surveyed and sampled
        return self._settings.compaction_survey_interval_ms / 1000 if done else STEP_S

    def _end_empty_tasks(self, view: View) -> None:
        """End vacant tasks whose sources were all destroyed. The commit of a live worker is answered with
        SOURCE_GONE instead.
        """
        now_ms = self._proposer.now_ms()
        over = [
            row for row in view[COMPACTIONS] if is_vacant(row, view, now_ms) and not sources_left(view, row)
        ]
        for row in over:
            LOG.info("ended compaction %d: all of its sources are destroyed", row.task_id)
        if over:
            self._proposer.propose([ended(row) for row in over])

    def _reset(self) -> None:
        self._survey.restart()
        self._survey.fragmented.clear()
        self._garbage_ratio.reset()
        self._offering.reset()

    def _show(self, telemetry: Telemetry) -> None:
        survey, image = self._survey, self._proposer.view.image
        telemetry.gauge("ponor_compaction_tasks", lambda: len(image[COMPACTIONS]))
        telemetry.gauge(
            "ponor_compaction_backlog_objects", lambda: self._led(survey.findings.backlog_objects)
        )
        telemetry.gauge("ponor_compaction_backlog_bytes", lambda: self._led(survey.findings.backlog_bytes))
        telemetry.gauge(
            "ponor_compaction_backlog_age_seconds", lambda: self._led(self._oldest_age_ms() / 1000)
        )
        telemetry.gauge(
            "ponor_compaction_fragmented_streams", lambda: self._led(len(survey.findings.fragmented))
        )
        telemetry.gauge(
            "ponor_object_metadata_bytes_per_gigabyte",
            lambda: self._led(survey.findings.metadata_bytes_per_gb),
        )

    def _oldest_age_ms(self) -> int:
        oldest_at_ms = self._survey.findings.oldest_at_ms
        return 0 if oldest_at_ms is None else max(0, self._proposer.now_ms() - oldest_at_ms)

    def _led(self, value: float) -> float:
        """The value if this controller leads; 0 otherwise."""
        return value if self._leading.is_leading else 0
