"""`ponor topic`: create, list, describe and delete topics with Kafka's own requests."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping
from typing import Annotated

import typer
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ponor_kafka.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from ponor_kafka.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ponor_kafka.messages.metadata import MetadataResponseTopic
from ponor_runtime.host_port import join_host_port

from ponor_cli.clients.cluster_address import find_bootstrap
from ponor_cli.clients.kafka_client import KafkaClient, error_name
from ponor_cli.commands.options import BootstrapOption, DataOption, OutputOption
from ponor_cli.commands.topic_records import register as register_records
from ponor_cli.errors import CommandError, absent_topic
from ponor_cli.output import OutputFormat, counted, print_done, print_rows

topic_app = typer.Typer(
    help="Create, list, describe and delete topics; write and read records.",
    no_args_is_help=True,
    add_completion=False,
)
register_records(topic_app)
NameArgument = Annotated[str, typer.Argument(metavar="NAME")]
TIMEOUT_MS = 30_000
EARLIEST = -2
LATEST = -1


CREATE_HELP = """Create a topic.

\b
Examples:
  ponor topic create orders --partitions 8
  ponor topic create accounts --config cleanup.policy=compact --config retention.ms=-1
"""


@topic_app.command("create", help=CREATE_HELP)
def create(
    name: NameArgument,
    partitions: Annotated[int, typer.Option(help="Number of partitions; -1 for the cluster's default.")] = -1,
    config: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A topic setting; repeatable.")
    ] = None,
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """See CREATE_HELP."""
    configs = [CreatableTopicConfig(name=key, value=value) for key, value in map(_pair, config or [])]
    topic = CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=-1, assignments=[], configs=configs
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS, validate_only=False)
    with KafkaClient(find_bootstrap(data, bootstrap)) as client:
        response = client.call(request, CreateTopicsResponse)
    result = response.topics[0]
    _raise_for(result.error_code, name, result.error_message)
    print_done(
        f"topic {name} created with {counted(result.num_partitions, 'partition')}",
        {"topic": name, "partitions": result.num_partitions},
        output,
    )


@topic_app.command("list")
def list_topics(
    data: DataOption = None, bootstrap: BootstrapOption = None, output: OutputOption = OutputFormat.TABLE
) -> None:
    """List topics."""
    with KafkaClient(find_bootstrap(data, bootstrap)) as client:
        topics = client.metadata(None).topics
    rows = [
        {
            "name": topic.name,
            "partitions": len(topic.partitions),
            "internal": topic.is_internal,
            "id": _uuid(topic),
        }
        for topic in sorted(topics, key=lambda topic: topic.name or "")
    ]
    print_rows(rows, ["name", "partitions", "internal", "id"], output)


@topic_app.command("describe")
def describe(
    name: NameArgument,
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the partitions of a topic: leader, epoch, start and end offset."""
    with KafkaClient(find_bootstrap(data, bootstrap)) as client:
        topic = client.metadata([name]).topics[0]
        _raise_for(topic.error_code, name, None)
        addresses = {row.node_id: join_host_port(row.host, row.port) for row in client.metadata([]).brokers}
    starts, ends = _offsets(topic, addresses)
    rows = [
        {
            "partition": partition.partition_index,
            "leader": partition.leader_id,
            "leader_epoch": partition.leader_epoch,
            "start_offset": starts.get(partition.partition_index),
            "end_offset": ends.get(partition.partition_index),
        }
        for partition in sorted(topic.partitions, key=lambda partition: partition.partition_index)
    ]
    print_rows(rows, ["partition", "leader", "leader_epoch", "start_offset", "end_offset"], output)


@topic_app.command("delete")
def delete(
    name: NameArgument,
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Delete a topic with all its data."""
    request = DeleteTopicsRequest(
        topics=[DeleteTopicState(name=name)], topic_names=[name], timeout_ms=TIMEOUT_MS
    )
    with KafkaClient(find_bootstrap(data, bootstrap)) as client:
        response = client.call(request, DeleteTopicsResponse)
    result = response.responses[0]
    _raise_for(result.error_code, name, result.error_message)
    print_done(f"topic {name} deleted", {"topic": name}, output)


def _offsets(
    topic: MetadataResponseTopic, addresses: Mapping[int, str]
) -> tuple[dict[int, int], dict[int, int]]:
    """Return start and end offsets by partition, without partitions whose leader does not answer."""
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    led: dict[int, list[int]] = {}
    for partition in topic.partitions:
        led.setdefault(partition.leader_id, []).append(partition.partition_index)
    for leader_id in sorted(led.keys() & addresses.keys()):
        with contextlib.suppress(CommandError), KafkaClient(addresses[leader_id]) as leader:
            starts.update(_offsets_at(leader, topic.name or "", led[leader_id], EARLIEST))
            ends.update(_offsets_at(leader, topic.name or "", led[leader_id], LATEST))
    return starts, ends


def _offsets_at(client: KafkaClient, topic: str, numbers: list[int], timestamp: int) -> dict[int, int]:
    partitions = [
        ListOffsetsPartition(partition_index=number, current_leader_epoch=-1, timestamp=timestamp)
        for number in numbers
    ]
    wanted = ListOffsetsTopic(name=topic, partitions=partitions)
    request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[wanted])
    response = client.call(request, ListOffsetsResponse)
    return {row.partition_index: row.offset for row in response.topics[0].partitions if row.error_code == 0}


def _raise_for(code: int, topic: str, message: str | None) -> None:
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise absent_topic(topic)
    if code != ErrorCode.NONE:
        raise CommandError(f"topic {topic}: {error_name(code)}{f' ({message})' if message else ''}")


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise CommandError(f"--config {text}: write NAME=VALUE")
    return name, value


def _uuid(topic: MetadataResponseTopic) -> str:
    return str(uuid.UUID(bytes=bytes(topic.topic_id)))
