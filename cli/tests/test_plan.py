"""Options of `ponor up`, planned processes, ports and the quorum file."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from ponor_cli.errors import CommandError
from ponor_cli.local.directory import ClusterDirectory, read_json, write_json_atomically
from ponor_cli.local.quorum_file import ControllerPlace, QuorumFile
from ponor_cli.supervisor.plan import (
    ClusterConfiguration,
    bootstrap_of,
    broker_numbers,
    check_addition,
    cluster_configuration,
    plan,
    plan_addition,
)
from ponor_cli.supervisor.port_plan import (
    BLOCK,
    PlannedPort,
    choose_ports,
    ports_of_cluster,
    ports_of_process,
)
from ponor_cli.supervisor.up_options import UpOptions, check_options, export_environment, object_store_url
from ponor_runtime.host_port import join_host_port
from ponor_runtime.identity import CLUSTER_ORDINAL_MAX, ClusterOrdinal, NodeId, cluster_of_node


def options(**changes: object) -> UpOptions:
    return UpOptions(directory=ClusterDirectory(Path("/d")), **changes)  # type: ignore[arg-type]


def ports_needed(chosen: UpOptions) -> int:
    return len(
        ports_of_cluster(
            9092, range(chosen.controllers), range(chosen.brokers), chosen.gcs, chosen.compactors
        )
    )


def quorum_of(controllers: int, *, formatted: bool = False) -> QuorumFile:
    places = [ControllerPlace(number) for number in range(controllers)]
    return QuorumFile(places, formatted)


def test_plan_of_the_default_cluster_starts_with_the_controller() -> None:
    specs = plan(options(), quorum_of(1), [7000, 7001, 7002, 7003, 7004, 7005])
    assert [spec.name for spec in specs] == ["controller-0", "broker-0", "gc-0", "compactor-0"]
    controller, broker, gc, compactor = (spec.config for spec in specs)
    assert broker["controllers"] == gc["controllers"] == compactor["controllers"] == [controller["listen"]]
    assert controller["listen"] == "127.0.0.1:7000"
    assert broker["kafka_port"] == 9092
    for config in (broker, gc, compactor):
        assert config["object_store"] == "file:///d/objects"
    assert {config["metrics"] for config in (controller, broker, gc, compactor)} == {
        f"127.0.0.1:{port}" for port in (7002, 7003, 7004, 7005)
    }


def test_plan_gives_all_nodes_the_three_controllers() -> None:
    chosen = options(controllers=3)
    specs = plan(chosen, quorum_of(3), list(range(7000, 7000 + ports_needed(chosen))))
    controllers = [spec.config for spec in specs[:3]]
    assert [spec.name for spec in specs] == [
        "controller-0",
        "controller-1",
        "controller-2",
        "broker-0",
        "gc-0",
        "compactor-0",
    ]
    assert controllers[0]["voters"] == controllers[1]["voters"] == controllers[2]["voters"]
    voters = controllers[0]["voters"]
    assert [voter["node_id"] for voter in voters] == [spec.node_id for spec in specs[:3]]
    assert [voter["service_address"] for voter in voters] == [config["listen"] for config in controllers]
    assert [voter["peer_address"] for voter in voters] == [config["peer_listen"] for config in controllers]
    assert specs[3].config["controllers"] == [voter["service_address"] for voter in voters]


def test_plan_of_brokers_differs_in_number_port_and_directory_only() -> None:
    chosen = options(brokers=3, wal="object", kafka_port=9000)
    specs = plan(chosen, quorum_of(1), list(range(7000, 7000 + ports_needed(chosen))))
    brokers = [spec for spec in specs if spec.role == "broker"]
    assert [spec.name for spec in brokers] == ["broker-0", "broker-1", "broker-2"]
    assert [spec.node_id for spec in brokers] == [65536, 65537, 65538]
    assert bootstrap_of(specs) == "127.0.0.1:9000,127.0.0.1:9001,127.0.0.1:9002"
    own = ("node_id", "kafka_port", "data", "ready_file", "metrics")
    for key in own:
        assert len({spec.config[key] for spec in brokers}) == 3
    rest = [{key: value for key, value in spec.config.items() if key not in own} for spec in brokers]
    assert rest[0] == rest[1] == rest[2]
    assert rest[0]["wal"] == "object"


def test_broker_numbers_stay_after_a_removal() -> None:
    assert broker_numbers(2, []) == [0, 1]
    assert broker_numbers(2, [0, 2]) == [0, 2]
    assert broker_numbers(4, [0, 2]) == [0, 1, 2, 3]
    chosen = options(brokers=2)
    ports = list(range(7000, 7000 + ports_needed(chosen)))
    specs = plan(chosen, quorum_of(1), ports, broker_numbers(2, [0, 2]))
    assert [(spec.number, spec.config["kafka_port"]) for spec in specs if spec.role == "broker"] == [
        (0, 9092),
        (2, 9094),
    ]


def test_broker_numbers_refuse_fewer_brokers_than_own_partitions() -> None:
    with pytest.raises(CommandError, match="ponor node remove broker N"):
        broker_numbers(1, [0, 1, 2])


def test_plan_formats_directories_until_the_first_start() -> None:
    chosen = options(controllers=3)
    ports = list(range(7000, 7000 + ports_needed(chosen)))
    for formatted in (False, True):
        specs = plan(chosen, quorum_of(3, formatted=formatted), ports)
        assert [spec.config["format"] for spec in specs[:3]] == [not formatted] * 3


@pytest.mark.parametrize("even", [2, 4])
def test_quorum_file_needs_an_odd_number_of_controllers_only_for_a_new_cluster(
    tmp_path: Path, even: int
) -> None:
    with pytest.raises(CommandError, match="survives no more failures"):
        QuorumFile.open(ClusterDirectory(tmp_path), even)
    quorum = QuorumFile.open(ClusterDirectory(tmp_path), 3)
    quorum.controllers = [
        *quorum.controllers[1:],
        *(ControllerPlace(3 + n) for n in range(even - 2)),
    ]
    quorum.write(ClusterDirectory(tmp_path))
    chosen = options(controllers=even)
    again = QuorumFile.open(ClusterDirectory(tmp_path), even)
    specs = plan(chosen, again, list(range(7000, 7000 + ports_needed(chosen))))
    assert sum(spec.role == "controller" for spec in specs) == even


def test_quorum_file_refuses_another_number_of_controllers(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path)
    begun = QuorumFile.open(directory, 3)
    assert QuorumFile.open(directory, 3) == begun
    with pytest.raises(CommandError, match="--controllers 3"):
        QuorumFile.open(directory, 1)


def test_plan_uses_every_port_once() -> None:
    chosen = options(gcs=3, controllers=3)
    ports = list(range(7000, 7000 + ports_needed(chosen)))
    specs = plan(chosen, quorum_of(3), ports)
    controllers = [spec.config for spec in specs[:3]]
    used = [config[key] for config in controllers for key in ("listen", "peer_listen")]
    used = [*used, *(spec.config["metrics"] for spec in specs)]
    assert sorted(used) == [f"127.0.0.1:{port}" for port in ports]


@pytest.mark.parametrize("ordinal", [1, 2, 8191, CLUSTER_ORDINAL_MAX])
def test_node_ids_of_the_largest_cluster_are_unique_int32(ordinal: int) -> None:
    chosen = options(controllers=5, brokers=16, gcs=16, compactors=8)
    quorum = quorum_of(5)
    quorum.cluster_ordinal = ClusterOrdinal(ordinal)
    specs = plan(chosen, quorum, list(range(7000, 7000 + ports_needed(chosen))))
    ids = {spec.node_id for spec in specs}
    assert len(ids) == len(specs) == 5 + 16 + 16 + 8
    assert {cluster_of_node(node_id) for node_id in ids} == {ordinal}
    assert all(0 < node_id < 1 << 30 for node_id in ids)
    # Java clients connect to a group's coordinator under the id 2^31 - 1 - NODE.
    assert not ids & {(1 << 31) - 1 - node_id for node_id in ids}
    added = plan_addition(cluster_configuration(chosen, quorum, ["127.0.0.1:7000"]), "broker", 16, [9000], {})
    assert cluster_of_node(NodeId(added.node_id)) == ordinal
    assert {spec.config["cluster_ordinal"] for spec in specs[:5]} == {ordinal}


def test_quorum_file_draws_an_ordinal_once(tmp_path: Path) -> None:
    drawn = set()
    for number in range(8):
        directory = ClusterDirectory(tmp_path / str(number))
        directory.make()
        quorum = QuorumFile.open(directory, 1)
        assert 1 <= quorum.cluster_ordinal <= CLUSTER_ORDINAL_MAX
        assert QuorumFile.open(directory, 1) == quorum
        assert QuorumFile.open(directory, 1, quorum.cluster_ordinal) == quorum
        drawn.add(quorum.cluster_ordinal)
    assert len(drawn) > 1


def test_quorum_file_refuses_another_ordinal(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path)
    assert QuorumFile.open(directory, 1, ClusterOrdinal(7)).cluster_ordinal == 7
    assert QuorumFile.open(directory, 1).cluster_ordinal == 7
    with pytest.raises(CommandError, match=r"--cluster-ordinal 8: .* with ordinal 7.* another --data"):
        QuorumFile.open(directory, 1, ClusterOrdinal(8))


def test_quorum_file_of_an_earlier_build_has_ordinal_1(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path)
    QuorumFile.open(directory, 1)
    content = read_json(directory.quorum_file)
    assert content is not None
    del content["cluster_ordinal"]
    write_json_atomically(directory.quorum_file, content)
    assert QuorumFile.open(directory, 1).cluster_ordinal == 1


def test_plan_passes_share_store_to_the_nodes() -> None:
    for share in (False, True):
        specs = plan(options(share_store=share), quorum_of(1), list(range(7000, 7006)))
        assert [spec.config["share_store"] for spec in specs[1:]] == [share] * 3


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"controllers": 11}, "--controllers 11"),
        ({"brokers": 0}, "--brokers 0"),
        ({"brokers": 17}, "--brokers 17"),
        ({"compactors": 9}, "--compactors 9"),
        ({"gcs": 17}, "--gcs 17"),
        ({"wal": "tape"}, "--wal tape"),
        ({"kafka_port": 0}, "--kafka-port 0"),
        ({"kafka_port": 65530}, "--kafka-port 65530"),
        ({"cluster_ordinal": 0}, "--cluster-ordinal 0"),
        ({"cluster_ordinal": 16_384}, "--cluster-ordinal 16384"),
        ({"host": "0.0.0.0"}, "--advertise HOST"),
        ({"host": "0.0.0.0", "advertise": "::"}, "--advertise ::"),
    ],
)
def test_check_options_names_the_refused_option(change: dict[str, object], word: str) -> None:
    with pytest.raises(CommandError, match=word):
        check_options(options(**change))


@pytest.mark.parametrize("url", ["http://x", "s3://", "file://"])
def test_object_store_url_refuses_unknown_schemes(url: str) -> None:
    with pytest.raises(CommandError, match="--object-store"):
        object_store_url(options(object_store=url))


def test_object_store_url_is_absolute_for_a_directory() -> None:
    assert object_store_url(options(object_store="file:///some/where")) == "file:///some/where"
    assert object_store_url(options(object_store="file://here")) == f"file://{Path.cwd() / 'here'}"


def test_check_addition_refuses_unknown_roles_and_full_ones() -> None:
    check_addition("gc", 1)
    check_addition("broker", 1)
    check_addition("compactor", 1)
    with pytest.raises(CommandError, match="unknown role gateway"):
        check_addition("gateway", 1)
    for role in ("gc", "broker", "compactor"):
        with pytest.raises(CommandError, match=f"ponor node remove {role} N"):
            check_addition(role, 16)


def test_added_compactor_equals_the_planned_ones() -> None:
    chosen = options(compactors=2)
    specs = plan(chosen, quorum_of(1), list(range(7000, 7000 + ports_needed(chosen))))
    assert [spec.name for spec in specs[-3:]] == ["gc-0", "compactor-0", "compactor-1"]
    assert [spec.node_id for spec in specs[-2:]] == [65536 + 2000, 65536 + 2001]
    places = ClusterConfiguration(
        ClusterDirectory(Path("/d")), "127.0.0.1", ["127.0.0.1:7000"], "file:///d/objects"
    )
    metrics_port = int(specs[-1].config["metrics"].rpartition(":")[2])
    assert plan_addition(places, "compactor", 1, [metrics_port], {}).config == specs[-1].config


def test_added_node_has_the_configuration_of_the_planned_ones() -> None:
    planned = plan(options(gcs=2, compactors=0), quorum_of(1), list(range(7000, 7006)))[-1]
    places = ClusterConfiguration(
        ClusterDirectory(Path("/d")), "127.0.0.1", ["127.0.0.1:7000"], "file:///d/objects"
    )
    added = plan_addition(places, "gc", 1, [7005], {"claim_objects_max": "5"})
    assert added.node_id == planned.node_id
    assert added.config == {**planned.config, "settings": {"claim_objects_max": "5"}}


def test_added_broker_has_the_port_of_its_number_and_the_cluster_wal() -> None:
    chosen = options(brokers=2, wal="object", compactors=0)
    planned = plan(chosen, quorum_of(1), list(range(7000, 7006)))[2]
    places = ClusterConfiguration(
        ClusterDirectory(Path("/d")), "127.0.0.1", ["127.0.0.1:7000"], "file:///d/objects", 9092, "object"
    )
    added = plan_addition(places, "broker", 1, [7004], {"park_ms_max": "100"})
    assert added.node_id == planned.node_id
    assert added.config == {**planned.config, "settings": {"park_ms_max": "100"}}


def test_added_controller_never_formats() -> None:
    places = ClusterConfiguration(
        ClusterDirectory(Path("/d")), "127.0.0.1", ["127.0.0.1:7000"], "file:///d/objects"
    )
    added = plan_addition(places, "controller", 3, [7004, 7005, 7006], {})
    assert added.config["format"] is False
    assert "voters" not in added.config
    used = [added.config[key] for key in ("listen", "peer_listen", "metrics")]
    assert used == ["127.0.0.1:7004", "127.0.0.1:7005", "127.0.0.1:7006"]


def test_numbers_of_removed_controllers_are_not_used_again(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path)
    quorum = QuorumFile.open(directory, 3)
    assert quorum.next_number == 3
    del quorum.controllers[2]
    quorum.write(directory)
    assert QuorumFile.open(directory, 2).next_number == 3


def test_otlp_options_become_opentelemetry_variables() -> None:
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


def test_ports_are_derived_from_the_kafka_port_without_duplicates() -> None:
    planned = ports_of_cluster(9092, range(10), range(16), 16, 8)
    ports = [each.port for each in planned]
    assert len(set(ports)) == len(ports)
    brokers = {9092 + number for number in range(16)}
    assert not brokers & set(ports)
    assert max(ports) < 9092 + BLOCK
    assert ports_of_process(9092, "controller", 13)[0].port == ports_of_process(9092, "controller", 3)[0].port
    metrics = {role: ports_of_process(9092, role, 0)[-1].port for role in ("controller", "broker", "gc")}
    assert metrics == {"controller": 9132, "broker": 9142, "gc": 9158}


def test_choose_ports_replaces_a_port_in_use_and_reports_it() -> None:
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        planned = [PlannedPort("controller 0", port), PlannedPort("the metrics of gc 0", port)]
        chosen = choose_ports("127.0.0.1", planned, said.append)
    assert port not in chosen
    assert len(set(chosen)) == 2
    assert (
        said[0]
        == f"ponor: port {port} on 127.0.0.1 is in use: controller 0 uses port {chosen[0]} until the next"
        " start"
    )


@pytest.mark.parametrize(
    ("host", "advertise", "kafka", "controller"),
    [
        ("::1", None, "[::1]:9092", "[::1]:7000"),
        ("0.0.0.0", "kafka.example", "kafka.example:9092", "kafka.example:7000"),
    ],
)
def test_bootstrap_uses_the_advertised_host(
    host: str, advertise: str | None, kafka: str, controller: str
) -> None:
    chosen = options(host=host, advertise=advertise)
    specs = plan(chosen, quorum_of(1), list(range(7000, 7006)))
    assert bootstrap_of(specs) == kafka
    assert specs[1].config["controllers"] == [controller]
    assert specs[0].config["voters"][0]["service_address"] == controller
    assert specs[0].config["listen"] == join_host_port(host, 7000)
    assert specs[1].config["kafka_host"] == host
    assert specs[1].config.get("advertised_host") == advertise


def test_quorum_file_refuses_missing_controller_directories(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path)
    quorum = QuorumFile.open(directory, 1)
    quorum.formatted = True
    quorum.write(directory)
    with pytest.raises(CommandError, match=f"held cluster {quorum.cluster_id}"):
        QuorumFile.open(directory, 1)
    (directory.process_data("controller-0")).mkdir(parents=True)
    (directory.process_data("controller-0") / "identity").touch()
    assert QuorumFile.open(directory, 1).cluster_id == quorum.cluster_id
