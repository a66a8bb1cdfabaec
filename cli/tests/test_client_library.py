"""What produce and consume add to aiokafka: a stop that always ends, and names of newer errors."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import client
from aiokafka.errors import for_code
from aiokafka.protocol.metadata import MetadataRequest, MetadataRequest_v4
from ponor_cli.records import client_library
from ponor_cli.records.client_library import describe_error, quiet_library, stop_client
from ponor_kafka.errors import ErrorCode


async def test_stop_client_returns_when_the_library_leaks_a_cancellation() -> None:
    """The fetcher of aiokafka 0.14 does so when it is closed during the pause after a failed fetch."""

    async def stop() -> None:
        raise asyncio.CancelledError

    await stop_client(stop())


async def test_stop_client_returns_when_the_library_does_not_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_library, "STOP_S_MAX", 0.0)
    never = asyncio.Event()

    async def stop() -> None:
        await never.wait()

    await stop_client(stop())


def test_quiet_library_names_error_codes_that_aiokafka_does_not_list() -> None:
    with quiet_library():
        text = describe_error(for_code(ErrorCode.INVALID_RECORD)())
    assert text.startswith("INVALID_RECORD (")
    assert "accepts only records with a key" in text


def test_clients_within_quiet_library_do_not_create_topics() -> None:
    with quiet_library():
        request = client.MetadataRequest(["deleted"]).build(MetadataRequest_v4)
    assert request.allow_auto_topic_creation is False
    assert client.MetadataRequest is MetadataRequest
