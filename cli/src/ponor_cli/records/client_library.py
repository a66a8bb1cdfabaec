"""Code for aiokafka that the producer and the consumer share: error names, log output, and the time limit of
a stop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from aiokafka import client
from aiokafka.errors import BrokerResponseError, KafkaTimeoutError, kafka_errors
from ponor_kafka.errors import ErrorCode, error_of

from ponor_cli.clients.kafka_client import KafkaClient
from ponor_cli.errors import CommandError, absent_topic

CLIENT_ID: Final = "ponor-cli"
STOP_S_MAX: Final = 5.0
"""Timeout, because `stop` may wait for a cluster that does not answer."""


class LastWarning(logging.Handler):
    """Keeps the last warning of aiokafka for the command's own error message."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Replace the warning."""
        self.text = f"; the last warning of the client: {record.getMessage()}"


REMEDIES: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.CORRUPT_MESSAGE: "`ponor object verify` checks the objects",
    ErrorCode.INVALID_RECORD: "a compacted topic accepts only records with a key",
    ErrorCode.MESSAGE_TOO_LARGE: "the topic's max.message.bytes is the limit",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "was the topic deleted?",
}


@contextmanager
def quiet_library() -> Iterator[LastWarning]:
    """Keep aiokafka's log lines off the terminal, and complete its error codes.

    Also stop its clients from creating topics: a metadata refresh would create a deleted topic
    again.
    """
    _add_error_codes()
    creating = client.MetadataRequest
    client.MetadataRequest = partial(creating, allow_auto_topic_creation=False)
    handler = LastWarning(logging.WARNING)
    logger = logging.getLogger("aiokafka")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield handler
    finally:
        client.MetadataRequest = creating
        logger.removeHandler(handler)
        logger.propagate = True


def describe_error(error: BaseException) -> str:
    """Return the name and the meaning of an error, as other commands show Kafka's error codes."""
    if isinstance(error, BrokerResponseError):
        code = error_of(error.errno)
        details = "".join(f": {each}" for each in error.args)
        remedy = f"; {REMEDIES[code]}" if code in REMEDIES else ""
        return f"{code.name} ({code.meaning}){details}{remedy}"
    if isinstance(error, TimeoutError | KafkaTimeoutError):
        return "no answer in time; are the brokers running?"
    return str(error) or type(error).__name__


def ignore_unretrieved() -> None:
    """Do not print errors of aiokafka's tasks: the command prints the error that ends it."""
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)


async def stop_client(stopping: Coroutine[Any, Any, None]) -> None:
    """Wait for a client's `stop`, at most `STOP_S_MAX`. Ignores failures, because the process ends."""
    # In a separate task, because aiokafka's `stop` may raise the CancelledError of one of its tasks.
    task = asyncio.create_task(stopping)
    await asyncio.wait([task], timeout=STOP_S_MAX)
    task.cancel()


def partitions_of(bootstrap: str, topic: str) -> list[int]:
    """Return the partitions of a topic. Never creates the topic; aiokafka's metadata request would create it.

    Raises:
        CommandError: the topic does not exist, or no broker answers.
    """
    with KafkaClient(bootstrap) as connection:
        found = connection.metadata([topic]).topics[0]
    if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise absent_topic(topic)
    if found.error_code != ErrorCode.NONE:
        raise CommandError(f"topic {topic}: {error_of(found.error_code).name}")
    return sorted(row.partition_index for row in found.partitions)


def check_partition(topic: str, partitions: list[int], partition: int) -> None:
    """Raise CommandError if the topic has no such partition."""
    if partition not in partitions:
        raise CommandError(
            f"topic {topic} has no partition {partition}; it has partitions 0 to {len(partitions) - 1}"
        )


def _add_error_codes() -> None:
    """Aiokafka 0.14 lists the codes up to 72 and reports all newer ones as UnknownError."""
    for code in ErrorCode:
        if code.value not in kafka_errors:
            attributes = {"errno": code.value, "message": code.name, "retriable": code.retriable}
            kafka_errors[code.value] = type(code.name, (BrokerResponseError,), attributes)
