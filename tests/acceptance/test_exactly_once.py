"""Copies of topics by transactions of four clients, while processes are killed and partitions move.

librdkafka, aiokafka, and the Java client in a version of each protocol generation read a topic and write
another one, with the offsets in the same transaction. Brokers, controllers and clients are killed, then
partitions of inputs, outputs, groups and coordinators move while transactions are open.

Each input must be in the output once and in order, no transaction may be visible in part, and no
transaction may be aborted except those that a client aborts on purpose and those of killed clients.

PONOR_EOS_KILLS (200) and PONOR_EOS_MOVES (50) are the numbers of rounds, PONOR_EOS_CLIENTS the clients,
PONOR_EOS_STORE the object store (s3 or directory), PONOR_SEED the choice of victims.
"""

from __future__ import annotations

import itertools
import os
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from ponor_broker.coordination.partitioning import partition_for
from ponor_cli.clients.kafka_client import KafkaClient
from ponor_cli.clients.reassignments import follow, places_of, request_moves
from ponor_cli.errors import CommandError
from ponor_kafka.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

from tests.acceptance.copier import ON_PURPOSE
from tests.acceptance.copiers import FAMILIES, Copier, copiers, wait_until_all_commit
from tests.acceptance.exactly_once_audit import (
    LiveReader,
    judge,
    lag,
    read_committed,
    steady_input,
    unstable,
)
from tests.e2e.load.cluster import LocalCluster
from tests.e2e.load.steady import wait_for
from tests.e2e.scenarios import create_topic
from tests.e2e.stores import store_for_test
from tests.peers.artifacts import PeerMissingError

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.timeout(4 * 3600)]

KILLS = int(os.environ.get("PONOR_EOS_KILLS", "200"))
MOVES = int(os.environ.get("PONOR_EOS_MOVES", "50"))
CLIENTS = os.environ.get("PONOR_EOS_CLIENTS", ",".join(FAMILIES)).split(",")
STORE = os.environ.get("PONOR_EOS_STORE", "s3")
SEED = int(os.environ.get("PONOR_SEED", "17"))
PARTITIONS = 4
INTERNAL_PARTITIONS = 8
TIMEOUT_MS = 60_000
PAUSE_S = (0.0, 1.0)
ROLES = {"broker": range(3), "controller": range(3)}
NEAR_NS = 2_000_000_000
"""A client that was killed so near to a broker has no time of its own for that."""
VICTIMS = (
    ("broker",),
    ("broker",),
    ("broker", "client"),
    ("broker", "controller"),
    ("controller",),
    ("client",),
)
"""What is killed in one round; each is as probable as the others."""


@dataclass
class Run:
    """A cluster with copiers, and what happened to them."""

    cluster: LocalCluster
    copiers: list[Copier]
    chance: random.Random = field(default_factory=lambda: random.Random(SEED))
    broker_kills_ns: list[int] = field(default_factory=list)
    moves_ns: list[tuple[int, int]] = field(default_factory=list)


def test_each_input_is_once_in_the_output(tmp_path: Path) -> None:
    arguments = ["--controllers", "3", "--brokers", "3", "--wal", "object"]
    settings = {
        "transaction_topic_partitions": INTERNAL_PARTITIONS,
        "offsets_topic_partitions": INTERNAL_PARTITIONS,
    }
    try:
        with (
            store_for_test(STORE, tmp_path) as store,
            LocalCluster(
                tmp_path / "cluster",
                settings=settings,
                arguments=[*store.arguments, *arguments],
                environment=store.environment,
            ) as cluster,
            _copiers_of(cluster, tmp_path / "copiers") as running,
        ):
            _storm(Run(cluster, running))
    except PeerMissingError as missing:
        pytest.skip(str(missing))


@contextmanager
def _copiers_of(cluster: LocalCluster, directory: Path) -> Iterator[list[Copier]]:
    for name in CLIENTS:
        create_topic(cluster, f"in-{name}", PARTITIONS)
        create_topic(cluster, f"out-{name}", PARTITIONS)
    with copiers(cluster.bootstrap, directory, CLIENTS, TIMEOUT_MS) as running:
        yield running


def _storm(run: Run) -> None:
    bootstrap = run.cluster.bootstrap
    began_ns = time.monotonic_ns()
    live = LiveReader(bootstrap, [each.target for each in run.copiers], PARTITIONS)
    with steady_input(bootstrap, [each.source for each in run.copiers], PARTITIONS):
        wait_until_all_commit(run.copiers, began_ns)
        for number in range(KILLS):
            _kill(run, number)
        moving_ns = time.monotonic_ns()
        for number in range(MOVES):
            _move(run, number)
        still_ns = time.monotonic_ns()
        _kill_all_clients(run)
    wait_for(lambda: not unstable(bootstrap), "no transaction is open", s_max=2 * TIMEOUT_MS / 1_000)
    _drain(run)
    live.stop()
    _print_recovery(run)
    _print_moves(run)
    for each in run.copiers:
        print(f"{each.name}: {_counts(each)}")
        print(f"  mishaps during kills {dict(each.mishaps(began_ns, moving_ns))}")
        print(f"  mishaps during moves {dict(each.mishaps(moving_ns, still_ns))}")
    _judge_all(run, live)
    assert all(not each.mishaps(began_ns, time.monotonic_ns()) for each in run.copiers)
    assert all(process["state"] == "serving" for process in run.cluster.describe()["processes"])


def _kill(run: Run, number: int) -> None:
    """Kill some processes, and wait until all serve and each client has committed a new transaction."""
    victims = run.chance.choice(VICTIMS)
    killed: dict[tuple[str, int], int] = {}
    at_ns = time.monotonic_ns()
    for role in victims:
        if role == "client":
            copier = run.chance.choice(run.copiers)
            copier.kill()
            copier.start()
            continue
        which = run.chance.randrange(len(ROLES[role]))
        killed[role, which] = run.cluster.process(role, which)["restarts"]
        assert run.cluster.kill(role, which)
    if "broker" in victims:
        run.broker_kills_ns.append(at_ns)
    for (role, which), restarts in killed.items():
        run.cluster.wait_serving(role, which, after_restarts=restarts + 1)
    wait_until_all_commit(run.copiers, at_ns)
    took_s = (time.monotonic_ns() - at_ns) / 1e9
    print(f"round {number}: {' and '.join(victims)} killed, all committed after {took_s:.1f} s", flush=True)
    time.sleep(run.chance.uniform(*PAUSE_S))


def _move(run: Run, number: int) -> None:
    """Move an input, an output, the group and the coordinator of one client to other brokers."""
    copier = run.copiers[number % len(run.copiers)]
    partition = run.chance.randrange(PARTITIONS)
    internal = partition_for(copier.identity, INTERNAL_PARTITIONS)
    wanted = [
        (copier.source, partition),
        (copier.target, partition),
        (TRANSACTIONS_TOPIC, internal),
        (OFFSETS_TOPIC, internal),
    ]
    with KafkaClient(run.cluster.bootstrap) as client:
        brokers = [row.node_id for row in client.metadata([]).brokers]
        places = places_of(client, [topic for topic, _ in wanted])
    homes = {(place.topic, place.partition): place.leader_id for place in places}
    began_ns = time.monotonic_ns()
    for topic, which in wanted:
        away = run.chance.choice([node_id for node_id in brokers if node_id != homes[topic, which]])
        _ask(run, f"move of {topic} {which} begins", partial(_request, topic, which, away))
    for topic, which in wanted:
        _ask(run, f"move of {topic} {which} ends", partial(_follow, topic, which))
    run.moves_ns.append((began_ns, time.monotonic_ns()))
    wait_until_all_commit(run.copiers, began_ns)
    took_s = (time.monotonic_ns() - began_ns) / 1e9
    print(
        f"round {number}: partitions of {copier.name} moved, all committed after {took_s:.1f} s", flush=True
    )


def _request(topic: str, partition: int, node_id: int, client: KafkaClient) -> None:
    request_moves(client, topic, [partition], node_id)


def _follow(topic: str, partition: int, client: KafkaClient) -> None:
    for _ in follow(client, topic, [partition]):
        pass


def _ask(run: Run, what: str, request: Callable[[KafkaClient], None]) -> None:
    """Repeat a request if the broker closes the connection, for example because it lost its session."""

    def is_answered() -> bool:
        try:
            with KafkaClient(run.cluster.bootstrap) as client:
                request(client)
        except CommandError as error:
            print(f"{what}: {error}", flush=True)
            return False
        return True

    wait_for(is_answered, what)


def _kill_all_clients(run: Run) -> None:
    for each in run.copiers:
        each.kill()
    held = unstable(run.cluster.bootstrap)
    print(f"all clients killed: {len(held)} partitions have open transactions")


def _drain(run: Run) -> None:
    """Copy the rest of the input."""
    for each in run.copiers:
        each.start()

    def is_drained() -> bool:
        for each in run.copiers:
            each.start_if_ended()
        return all(lag(run.cluster.bootstrap, each, PARTITIONS) == 0 for each in run.copiers)

    wait_for(is_drained, "all input is copied")
    for each in run.copiers:
        each.stop()
    assert not unstable(run.cluster.bootstrap)


def _judge_all(run: Run, live: LiveReader) -> None:
    bootstrap = run.cluster.bootstrap
    topics = [topic for each in run.copiers for topic in (each.source, each.target)]
    read = read_committed(bootstrap, topics, PARTITIONS)
    for each in run.copiers:
        count = judge(each, PARTITIONS, read, live.found)
        print(f"{each.name}: {count:,} records, each once and in order, 0 anomalies")


def _counts(copier: Copier) -> str:
    transactions = copier.transactions()
    outcomes = Counter(each.outcome or "killed" for each in transactions)
    return f"{len(transactions):,} transactions, {dict(outcomes)}, {len(copier.kills_ns)} kills"


def _print_recovery(run: Run) -> None:
    """Print the times from the kill of a broker to the next commits of clients that were not killed then."""
    for each in run.copiers:
        commits = [row for row in each.transactions() if row.outcome == "commit"]
        kills = [
            at_ns
            for at_ns in run.broker_kills_ns
            if all(abs(at_ns - own_ns) > NEAR_NS for own_ns in each.kills_ns)
        ]
        first = [min(row.closed_ns for row in commits if row.closed_ns > at) - at for at in kills]
        new = [min(row.closed_ns for row in commits if row.opened_ns > at) - at for at in kills]
        if kills:
            print(
                f"{each.name}: {len(kills)} broker kills, next commit after {_shown(first)},"
                f" commit of a transaction that began later after {_shown(new)}"
            )


def _shown(times_ns: Sequence[int]) -> str:
    return f"median {statistics.median(times_ns) / 1e9:.2f} s, maximum {max(times_ns) / 1e9:.2f} s"


def _print_moves(run: Run) -> None:
    """Print the outcomes of the transactions that were open when a move began."""
    outcomes: Counter[str] = Counter()
    for each, (began_ns, _) in itertools.product(run.copiers, run.moves_ns):
        outcomes.update(
            row.outcome
            for row in each.transactions()
            if row.opened_ns < began_ns < row.closed_ns and row.reason != ON_PURPOSE
        )
    took = [ended_ns - began_ns for began_ns, ended_ns in run.moves_ns]
    if took:
        print(f"{len(took)} rounds of 4 moves, each {_shown(took)}; transactions open then: {dict(outcomes)}")
