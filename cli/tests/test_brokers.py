"""Commands about brokers, without a running cluster: rows, refusals, and bootstrap addresses."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ponor.controller.v1 import cluster_service_pb2 as wire
from ponor_cli.clients.kafka_client import KafkaClient
from ponor_cli.clients.reassignments import PartitionPlace
from ponor_cli.commands.balance import describe_balance
from ponor_cli.commands.cluster import describe_brokers
from ponor_cli.commands.partition import already_led, already_there
from ponor_cli.errors import CommandError
from ponor_cli.local.directory import ClusterDirectory, write_json_atomically
from ponor_cli.main import app
from ponor_cli.supervisor.run import run_up
from ponor_cli.supervisor.up_options import UpOptions
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns.nodes import NO_EPOCH, NODES, NodeRole, NodeRow, WalKind
from ponor_metadata.nouns.topics import MOVES, PARTITIONS, MoveCause, MoveRow, PartitionRow
from ponor_metadata.nouns.wals import WALS, WalRow
from ponor_runtime.identity import NodeEpoch, NodeId
from typer.testing import CliRunner

RUNNER = CliRunner()
TOPIC = bytes(16)


def broker(number: int, *, fenced: bool = False, draining: bool = False) -> NodeRow:
    return NodeRow(
        NodeId(number),
        NodeEpoch(1),
        NodeRole.BROKER,
        bytes(16),
        "host",
        9092 + number,
        0,
        fenced,
        1,
        WalKind.OBJECT,
        draining,
    )


def test_describe_brokers_counts_partitions_moves_and_recoveries() -> None:
    image = MetadataImage()
    for row in (broker(1, draining=True), broker(2), broker(3, fenced=True)):
        image[NODES].put(row)
    image[NODES].put(broker(9)._replace(role=NodeRole.GC))
    for partition, leader in enumerate((1, 1, 2)):
        image[PARTITIONS].put(PartitionRow(TOPIC, partition, NodeId(leader), 0, (NodeId(leader),)))
    image[MOVES].put(MoveRow(TOPIC, 0, NodeId(1), NodeId(2), 0, 0, MoveCause.DRAIN, "", ""))
    image[WALS].put(WalRow(NodeId(3), NodeEpoch(1), 0, NodeId(2), NodeEpoch(1)))
    image[WALS].put(WalRow(NodeId(2), NodeEpoch(1), 0, NodeId(-1), NO_EPOCH))
    states = {1: "draining", 2: "away, last contact 9.5 s ago"}
    rows = describe_brokers(image, states)
    counts = [
        (
            row["broker"],
            row["state"],
            row["partitions"],
            row["moving_away"],
            row["moving_in"],
            row["recovering"],
        )
        for row in rows
    ]
    assert counts == [
        (1, "draining", 2, 1, 0, 0),
        (2, "away, last contact 9.5 s ago", 1, 0, 1, 1),
        (3, "left or fenced", 0, 0, 0, 0),
    ]
    assert {row["wal"] for row in rows} == {"object"}


def test_describe_balance_lists_moves_with_reasons() -> None:
    move = wire.ExplainedMove(
        topic="t", partition=3, source_id=1, target_id=2, goal="in", reason="40 % against 10 %", begun_at_ms=5
    )
    answer = wire.BalanceDescription(
        paused=True,
        brokers=[wire.BrokerBalance(node_id=1, partitions=4, load_permille=250, reported_ms_ago=-1)],
        proposed=[wire.ExplainedMove(topic="t", partition=1)],
        recent=[move],
        brokers_wanted=2,
        holding_back="too few reports",
    )
    facts, brokers, moves = describe_balance(answer)
    assert facts == {"paused": True, "brokers_wanted": 2, "holding_back": "too few reports"}
    assert brokers[0]["load"] == 0.25
    assert brokers[0]["reported_ms_ago"] is None
    assert moves["proposed"][0]["begun_at_ms"] is None
    assert (moves["recent"][0]["reason"], moves["recent"][0]["begun_at_ms"]) == ("40 % against 10 %", 5)


def test_already_led_excludes_partitions_that_move() -> None:
    def place(partition: int, leader_id: int, target_id: int | None = None) -> PartitionPlace:
        return PartitionPlace("orders", partition, leader_id, 1, (leader_id,), target_id)

    places = [place(0, 7), place(1, 8), place(2, 7, target_id=8), place(3, 8, target_id=7), place(4, 7)]
    assert already_led(places, 7) == [0, 4]
    assert already_there("orders", [0, 4], 7).startswith(
        "orders-0, orders-4 already led by 7: nothing to move; "
    )


@contextmanager
def listener() -> Iterator[tuple[str, threading.Event]]:
    """A server that closes its first connection at once; the event is set when the connection arrives."""
    came = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            connection, _ = server.accept()
            came.set()
            connection.close()

        thread = threading.Thread(target=accept)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}", came
        thread.join()


def test_kafka_client_tries_the_next_broker_when_the_first_is_away() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # reserved, without a listener
        away = f"127.0.0.1:{reserved.getsockname()[1]}"
        with listener() as (there, came):
            with pytest.raises(CommandError, match=f"the broker at {there} sent no valid Kafka response"):
                KafkaClient(f"{away},{there}")
            assert came.is_set()
        with pytest.raises(CommandError, match=f"no broker answers at {away}"):
            KafkaClient(away)


@pytest.mark.parametrize("words", ["host", "host:port", "host:1,", ":"])
def test_kafka_client_refuses_invalid_addresses(words: str) -> None:
    with pytest.raises(CommandError, match="write HOST:PORT"):
        KafkaClient(words)


def test_up_refuses_fewer_brokers_than_own_partitions(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path)
    directory.make()
    processes = [{"role": "broker", "id": number} for number in (0, 2)]
    write_json_atomically(directory.cluster_file, {"wal": "file", "processes": processes})
    with pytest.raises(CommandError, match=r"has 2 \(0, 2\)"):
        run_up(UpOptions(directory, brokers=1), restart=True, ready_file=None)


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["cluster", "balance", "--pause", "--resume"], "give one of them"),
        (["partition", "move", "t", "0", "--to", "1", "--bootstrap", "nowhere"], "write HOST:PORT"),
        (["cluster", "announce-stop", "--seconds", "601"], "equal to 600"),
    ],
)
def test_commands_refuse_invalid_options(words: list[str], refusal: str) -> None:
    done = RUNNER.invoke(app, words)
    assert done.exit_code != 0
    assert refusal in f"{done.output}{done.exception or ''}"
