"""From options to processes, without starting any."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from ponor_cli.directory import ClusterDirectory
from ponor_cli.errors import CommandError
from ponor_cli.plan import (
    ClusterPlaces,
    UpOptions,
    check_addition,
    check_options,
    export_environment,
    object_store_url,
    plan,
    plan_addition,
    ports_needed,
)
from ponor_cli.quorum_file import ControllerPlace, QuorumFile


def options(**changes: object) -> UpOptions:
    return UpOptions(directory=ClusterDirectory(Path("/d")), **changes)  # type: ignore[arg-type]


def quorum_of(controllers: int, *, formatted: bool = False) -> QuorumFile:
    places = [ControllerPlace(number, str(uuid.UUID(int=number))) for number in range(controllers)]
    return QuorumFile(places, formatted)


def test_the_default_cluster_is_one_of_each_and_controllers_come_first() -> None:
    specs = plan(options(), quorum_of(1), [7000, 7001, 7002, 7003, 7004])
    assert [spec.name for spec in specs] == ["controller-0", "broker-0", "gc-0"]
    controller, broker, gc = (spec.config for spec in specs)
    assert broker["controllers"] == gc["controllers"] == [controller["listen"]] == ["127.0.0.1:7000"]
    assert broker["kafka_port"] == 9092
    assert broker["object_store"] == gc["object_store"] == "file:///d/objects"
    assert {config["metrics"] for config in (controller, broker, gc)} == {
        f"127.0.0.1:{port}" for port in (7002, 7003, 7004)
    }


def test_three_controllers_know_each_other_and_everybody_knows_them() -> None:
    chosen = options(controllers=3)
    specs = plan(chosen, quorum_of(3), list(range(7000, 7000 + ports_needed(chosen))))
    controllers = [spec.config for spec in specs[:3]]
    assert [spec.name for spec in specs] == [
        "controller-0",
        "controller-1",
        "controller-2",
        "broker-0",
        "gc-0",
    ]
    assert controllers[0]["voters"] == controllers[1]["voters"] == controllers[2]["voters"]
    voters = controllers[0]["voters"]
    assert [voter["node_id"] for voter in voters] == [spec.node_id for spec in specs[:3]]
    assert [voter["service_address"] for voter in voters] == [config["listen"] for config in controllers]
    assert [voter["peer_address"] for voter in voters] == [config["peer_listen"] for config in controllers]
    assert specs[3].config["controllers"] == [voter["service_address"] for voter in voters]


def test_directories_are_formatted_only_until_the_cluster_has_served_once() -> None:
    chosen = options(controllers=3)
    ports = list(range(7000, 7000 + ports_needed(chosen)))
    for formatted in (False, True):
        specs = plan(chosen, quorum_of(3, formatted=formatted), ports)
        assert [spec.config["format"] for spec in specs[:3]] == [not formatted] * 3


@pytest.mark.parametrize("even", [2, 4])
def test_a_cluster_begins_with_an_odd_number_of_controllers_but_may_be_stopped_while_one_is_replaced(
    tmp_path: Path, even: int
) -> None:
    with pytest.raises(CommandError, match="survives no more losses"):
        QuorumFile.open(ClusterDirectory(tmp_path), even)
    quorum = QuorumFile.open(ClusterDirectory(tmp_path), 3)
    quorum.controllers = [
        *quorum.controllers[1:],
        *(ControllerPlace(3 + n, str(uuid.uuid4())) for n in range(even - 2)),
    ]
    quorum.write(ClusterDirectory(tmp_path))
    chosen = options(controllers=even)
    again = QuorumFile.open(ClusterDirectory(tmp_path), even)
    specs = plan(chosen, again, list(range(7000, 7000 + ports_needed(chosen))))
    assert sum(spec.role == "controller" for spec in specs) == even


def test_a_cluster_keeps_its_number_of_controllers_and_their_identities(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path)
    begun = QuorumFile.open(directory, 3)
    assert len({place.directory_id for place in begun.controllers}) == 3
    assert QuorumFile.open(directory, 3) == begun
    with pytest.raises(CommandError, match="--controllers 3"):
        QuorumFile.open(directory, 1)


def test_every_port_is_used_once() -> None:
    chosen = options(gcs=3, controllers=3)
    ports = list(range(7000, 7000 + ports_needed(chosen)))
    specs = plan(chosen, quorum_of(3), ports)
    controllers = [spec.config for spec in specs[:3]]
    used = [config[key] for config in controllers for key in ("listen", "peer_listen")]
    used = [*used, *(spec.config["metrics"] for spec in specs)]
    assert sorted(used) == [f"127.0.0.1:{port}" for port in ports]


def test_node_ids_are_unique_and_below_two_to_the_thirty() -> None:
    ids = [spec.node_id for spec in plan(options(gcs=4), quorum_of(1), list(range(7000, 7008)))]
    assert len(set(ids)) == len(ids)
    assert all(0 < node_id < 1 << 30 for node_id in ids)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"controllers": 11}, "--controllers 11"),
        ({"brokers": 2}, "--brokers 2"),
        ({"compactors": 1}, "--compactors 1"),
        ({"gcs": 17}, "--gcs 17"),
        ({"wal": "object"}, "--wal object"),
        ({"wal": "tape"}, "--wal tape"),
        ({"kafka_port": 0}, "--kafka-port 0"),
    ],
)
def test_a_refusal_names_the_option(change: dict[str, object], word: str) -> None:
    with pytest.raises(CommandError, match=word):
        check_options(options(**change))


@pytest.mark.parametrize("url", ["http://x", "s3://", "file://"])
def test_a_store_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(CommandError, match="--object-store"):
        object_store_url(options(object_store=url))


def test_a_directory_store_is_made_absolute() -> None:
    assert object_store_url(options(object_store="file:///some/where")) == "file:///some/where"
    assert object_store_url(options(object_store="file://here")) == f"file://{Path.cwd() / 'here'}"


def test_only_roles_that_may_be_several_can_be_added_and_the_refusal_says_why() -> None:
    check_addition("gc", 1)
    for role, word in (
        ("broker", "partitions cannot move"),
        ("compactor", "not built yet"),
        ("gateway", "no role gateway"),
    ):
        with pytest.raises(CommandError, match=word):
            check_addition(role, 1)
    with pytest.raises(CommandError, match="ponor node remove gc N"):
        check_addition("gc", 16)


def test_an_added_node_is_told_what_the_planned_ones_are() -> None:
    planned = plan(options(gcs=2), quorum_of(1), list(range(7000, 7006)))[-1]
    places = ClusterPlaces(ClusterDirectory(Path("/d")), "127.0.0.1", ["127.0.0.1:7000"], "file:///d/objects")
    added = plan_addition(places, "gc", 1, [7005], {"claim_objects_max": "5"})
    assert added.node_id == planned.node_id
    assert added.config == {**planned.config, "settings": {"claim_objects_max": "5"}}


def test_an_added_controller_begins_blank_and_never_formats() -> None:
    places = ClusterPlaces(ClusterDirectory(Path("/d")), "127.0.0.1", ["127.0.0.1:7000"], "file:///d/objects")
    added = plan_addition(places, "controller", 3, [7004, 7005, 7006], {})
    assert added.config["format"] is False
    assert "voters" not in added.config
    used = [added.config[key] for key in ("listen", "peer_listen", "metrics")]
    assert used == ["127.0.0.1:7004", "127.0.0.1:7005", "127.0.0.1:7006"]


def test_numbers_of_removed_controllers_never_come_back(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path)
    quorum = QuorumFile.open(directory, 3)
    assert quorum.next_number == 3
    del quorum.controllers[2]
    quorum.write(directory)
    assert QuorumFile.open(directory, 2).next_number == 3


def test_otlp_options_become_opentelemetrys_own_variables() -> None:
    assert export_environment(options()) == {}
    asked = options(otlp="http://127.0.0.1:4318", trace_ratio=0.25)
    check_options(asked)
    assert export_environment(asked) == {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "0.25",
    }
    with pytest.raises(CommandError, match="--otlp 127"):
        check_options(options(otlp="127.0.0.1:4318"))
    with pytest.raises(CommandError, match=r"--trace-ratio 1\.5"):
        check_options(options(trace_ratio=1.5))
