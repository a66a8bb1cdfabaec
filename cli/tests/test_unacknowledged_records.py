"""Tests of what `ponor topic produce` reports about records without an acknowledgement."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from aiokafka.errors import KafkaConnectionError, LeaderNotAvailableError, MessageSizeTooLargeError
from ponor_cli.records.client_library import LastWarning
from ponor_cli.records.producer import TopicProducer


@pytest.mark.parametrize(
    ("error", "words"),
    [
        # aiokafka gives up a batch without a leader; an earlier request may have written it
        (LeaderNotAvailableError(), "may or may not be written: LEADER_NOT_AVAILABLE"),
        (KafkaConnectionError(), "may or may not be written"),
        (MessageSizeTooLargeError(), "t-0: the records were refused: MESSAGE_TOO_LARGE"),
    ],
)
async def test_only_final_errors_are_reported_as_refusals(error: Exception, words: str) -> None:
    sent: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    sent.set_exception(error)
    producer = TopicProducer(cast(Any, None), cast(Any, None), "t", [0], None, LastWarning())
    refusal = producer._note([(0, sent)])
    assert refusal is not None
    assert words in refusal
