"""From options to processes, without starting any."""

from __future__ import annotations

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


def options(**changes: object) -> UpOptions:
    return UpOptions(directory=ClusterDirectory(Path("/d")), **changes)  # type: ignore[arg-type]


def test_the_default_cluster_is_one_of_each_and_controllers_come_first() -> None:
    specs = plan(options(), [7000, 7001, 7002, 7003])
    assert [spec.name for spec in specs] == ["controller-0", "broker-0", "gc-0"]
    controller, broker, gc = (spec.config for spec in specs)
    assert broker["controllers"] == gc["controllers"] == [controller["listen"]] == ["127.0.0.1:7000"]
    assert broker["kafka_port"] == 9092
    assert broker["object_store"] == gc["object_store"] == "file:///d/objects"
    assert {config["metrics"] for config in (controller, broker, gc)} == {
        f"127.0.0.1:{port}" for port in (7001, 7002, 7003)
    }


def test_every_port_is_used_once() -> None:
    chosen = options(gcs=3)
    ports = list(range(7000, 7000 + ports_needed(chosen)))
    specs = plan(chosen, ports)
    used = [specs[0].config["listen"], *(spec.config["metrics"] for spec in specs)]
    assert sorted(used) == [f"127.0.0.1:{port}" for port in ports]


def test_node_ids_are_unique_and_below_two_to_the_thirty() -> None:
    ids = [spec.node_id for spec in plan(options(gcs=4), list(range(7000, 7010)))]
    assert len(set(ids)) == len(ids)
    assert all(0 < node_id < 1 << 30 for node_id in ids)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"controllers": 3}, "--controllers 3"),
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
        ("controller", "one voter"),
        ("compactor", "not built yet"),
        ("gateway", "no role gateway"),
    ):
        with pytest.raises(CommandError, match=word):
            check_addition(role, 1)
    with pytest.raises(CommandError, match="ponor node remove gc N"):
        check_addition("gc", 16)


def test_an_added_node_is_told_what_the_planned_ones_are() -> None:
    planned = plan(options(gcs=2), list(range(7000, 7010)))[-1]
    places = ClusterPlaces(ClusterDirectory(Path("/d")), "127.0.0.1", ["127.0.0.1:7000"], "file:///d/objects")
    added = plan_addition(places, "gc", 1, 7004, {"claim_objects_max": "5"})
    assert added.node_id == planned.node_id
    assert added.config == {**planned.config, "settings": {"claim_objects_max": "5"}}


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
