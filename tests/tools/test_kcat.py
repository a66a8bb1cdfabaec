"""kcat (librdkafka in C): list, produce, consume, query, and share a group."""

from __future__ import annotations

import subprocess

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.peers.artifacts import PeerMissingError, program

TOPIC = "kcat-topic"


@pytest.fixture(scope="session", autouse=True)
def kcat_path() -> str:
    try:
        return program("kcat", "kcat")
    except PeerMissingError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def topic(ponor: str) -> str:
    admin = AdminClient({"bootstrap.servers": ponor})
    admin.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result(240)
    return TOPIC


def kcat(bootstrap: str, *words: str, feed: str | None = None) -> str:
    command = ["kcat", "-b", bootstrap, *words]
    done = subprocess.run(command, input=feed, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


def test_lists_brokers_topics_and_partitions(ponor: str, topic: str) -> None:
    listed = kcat(ponor, "-L", "-t", topic)
    assert f'topic "{topic}" with 2 partitions' in listed
    assert f"at {ponor} (controller)" in listed
    assert "partition 1, leader 65536, replicas: 65536, isrs: 65536" in listed
    assert '"topics"' in kcat(ponor, "-L", "-J", "-t", topic)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_produces_and_consumes_with_every_codec(ponor: str, topic: str, codec: str) -> None:
    before = int(kcat(ponor, "-Q", "-t", f"{topic}:0:-1").split()[-1])
    feed = "".join(f"key-{n}:{codec}-{n}\n" for n in range(50))
    kcat(ponor, "-P", "-t", topic, "-p", "0", "-K:", "-z", codec, "-H", "header=value", feed=feed)
    words = ("-C", "-t", topic, "-p", "0", "-o", str(before), "-e", "-q", "-f", "%o %k %s %h\n")
    expected = [f"{before + n} key-{n} {codec}-{n} header=value" for n in range(50)]
    assert kcat(ponor, *words).splitlines() == expected


def test_queries_offsets_by_time(ponor: str, topic: str) -> None:
    kcat(ponor, "-P", "-t", topic, "-p", "1", feed="one\ntwo\n")
    assert kcat(ponor, "-Q", "-t", f"{topic}:1:-2").split()[-1] == "0"
    assert kcat(ponor, "-Q", "-t", f"{topic}:1:-1").split()[-1] == "2"
    assert kcat(ponor, "-Q", "-t", f"{topic}:1:1").split()[-1] == "0"
    assert kcat(ponor, "-Q", "-t", f"{topic}:1:99999999999999").split()[-1] == "-1"


def test_consumes_in_a_group_and_continues_where_it_stopped(ponor: str) -> None:
    kcat(ponor, "-P", "-t", "kcat-group-topic", feed="".join(f"{n}\n" for n in range(20)))
    group = ("-G", "kcat-group", "-e", "-q", "-X", "auto.offset.reset=earliest", "kcat-group-topic")
    assert sorted(map(int, kcat(ponor, *group).split())) == list(range(20))
    kcat(ponor, "-P", "-t", "kcat-group-topic", feed="20\n21\n")
    assert sorted(map(int, kcat(ponor, *group).split())) == [20, 21]


def test_an_idempotent_producer_and_a_large_message(ponor: str, topic: str) -> None:
    big = "x" * 900_000
    kcat(ponor, "-P", "-t", topic, "-p", "1", "-X", "enable.idempotence=true", feed=big)
    end = int(kcat(ponor, "-Q", "-t", f"{topic}:1:-1").split()[-1])
    assert kcat(ponor, "-C", "-t", topic, "-p", "1", "-o", str(end - 1), "-e", "-q").strip() == big
