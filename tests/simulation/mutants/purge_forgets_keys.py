"""Planted bug: the duty that purges deleted topics deletes their streams and forgets their keys."""

from __future__ import annotations

import pytest
from ponor.metadata.v1 import records_pb2
from ponor_controller.domains.objects import reclaim_duty as reclaim_driver
from ponor_controller.domains.objects.topic_purge import purge
from ponor_metadata.overlay import Overlay
from ponor_metadata.tables import STREAMS_OF_TOPIC


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""

    def without_keys(view: Overlay, topic_id: bytes, limit: int) -> list[records_pb2.Record]:
        records = [each for each in purge(view, topic_id, limit) if not each.HasField("key_deleted")]
        if not records and not len(view.streams.find(STREAMS_OF_TOPIC, topic_id.hex())):
            records = [records_pb2.Record(topic_purged=records_pb2.TopicPurged(topic_id=topic_id))]
        return records

    monkeypatch.setattr(reclaim_driver, "purge", without_keys)
