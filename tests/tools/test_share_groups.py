"""Share groups with the Java client: records are acknowledged one by one, and what is acknowledged is not
delivered again, through moves and kills of brokers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.load.cluster import LocalCluster
from tests.peers.artifacts import PeerMissingError, clients, program
from tests.tools.ecosystem import create_topic, write_lines
from tests.tools.java_programs import tool
from tests.tools.share_groups import (
    GROUPS,
    STATES,
    VERSION,
    Member,
    begin_at_the_start,
    kill_leader,
    move_everything,
)

pytestmark = [pytest.mark.usefixtures("kafka_tools"), pytest.mark.timeout(1_800)]
GROUPS_OF_ALL_TYPES: Final = "org.apache.kafka.tools.GroupsCommand"
VERIFIABLE: Final = "org.apache.kafka.tools.VerifiableShareConsumer"
PERFORMANCE: Final = "org.apache.kafka.tools.ShareConsumerPerformance"
LINES: Final = [f"line {number}" for number in range(9)]
EVENTS: Final = ("records_consumed", "offsets_acknowledged")
"""Events of VerifiableShareConsumer."""


@pytest.fixture(scope="module", autouse=True)
def share_client() -> None:
    try:
        program("javac", "a Java compiler")
        assert clients(VERSION).class_path
    except PeerMissingError as error:
        pytest.skip(str(error))


def prepare(bootstrap: str, name: str) -> tuple[str, str]:
    """Create and fill a topic; let a group begin at its start. Return the names of both."""
    topic, group = name, f"{name}-group"
    create_topic(bootstrap, topic, 1)
    write_lines(bootstrap, topic, LINES)
    begin_at_the_start(bootstrap, group)
    return topic, group


def offsets(found: str) -> list[int]:
    return [int(one.partition("-")[2].partition(":")[0]) for one in found.split()]


def test_exactly_the_record_that_is_not_acknowledged_is_delivered_again(
    brokers: LocalCluster, tmp_path: Path
) -> None:
    bootstrap = brokers.bootstrap
    topic, group = prepare(bootstrap, "five-seven-eight")
    with Member(tmp_path, bootstrap, topic, group) as member:
        assert offsets(member.take("poll 9")) == list(range(9))
        member.take("accept 0 1 2 3 4 5 7 8")
        assert member.take("commit") == ""
    move_everything(brokers, topic, STATES)
    with Member(tmp_path, bootstrap, topic, group) as member:
        assert offsets(member.take("poll 1")) == [6]
    kill_leader(brokers, topic)
    with Member(tmp_path, bootstrap, topic, group) as member:
        assert offsets(member.take("poll 1")) == [6]
        member.take("accept 6")
        assert member.take("commit") == ""
        assert member.take("idle 3000") == ""
    write_lines(bootstrap, topic, ["line 9"])
    with Member(tmp_path, bootstrap, topic, group) as member:
        assert offsets(member.take("poll 1")) == [9]


def test_released_records_return_and_rejected_ones_do_not(ponor: str, tmp_path: Path) -> None:
    topic, group = prepare(ponor, "released")
    with Member(tmp_path, ponor, topic, group) as member:
        assert offsets(member.take("poll 9")) == list(range(9))
        member.take("accept 0 1 2 3")
        member.take("reject 4 5")
        member.take("release 6 7 8")
        assert member.take("commit") == ""
        assert member.take("poll 3") == "0-6:2 0-7:2 0-8:2"
        member.take("accept 6 8")
        member.take("release 7")
        assert member.take("poll 1") == "0-7:3"
        member.take("release 7")
        assert member.take("poll 1") == "0-7:4"
        member.take("release 7")
        assert member.take("poll 1") == "0-7:5"
        # The delivery count limit is 5: the record is archived.
        member.take("release 7")
        assert member.take("commit") == ""
        assert member.take("idle 3000") == ""
        described = tool(GROUPS, "--bootstrap-server", ponor, "--describe", "--group", group, "--members").out
        assert f"{topic}:0" in described, described
        member.close()
    listed = tool(GROUPS, "--bootstrap-server", ponor, "--list").lines
    assert group in listed
    table = tool(GROUPS, "--bootstrap-server", ponor, "--describe", "--group", group).out
    # As in Kafka, the durable start offset follows with the next write.
    (row,) = [line.split() for line in table.splitlines() if topic in line.split()]
    assert (row[:3], row[4]) == ([group, topic, "0"], "0"), table


def test_a_lock_ends(ponor: str, tmp_path: Path) -> None:
    topic, group = prepare(ponor, "locked")
    with Member(tmp_path, ponor, topic, group) as first, Member(tmp_path, ponor, topic, group) as second:
        assert offsets(first.take("poll 9")) == list(range(9))
        # The first keeps its session, but does not acknowledge.
        assert second.take("poll 9") == " ".join(f"0-{offset}:2" for offset in range(9))
        second.take("accept 0 1 2 3 4 5 6 7 8")
        assert second.take("commit") == ""


def test_kafkas_programs_for_share_groups(ponor: str) -> None:
    topic, group = prepare(ponor, "verified")
    options = ("--topic", topic, "--max-messages", str(len(LINES)), "--bootstrap-server", ponor)
    modes = ("--acknowledgement-mode", "sync", "--offset-reset-strategy", "earliest")
    events = [json.loads(line) for line in tool(VERIFIABLE, *options, "--group-id", group, *modes).lines]
    counted = {name: sum(each.get("count", 0) for each in events if each["name"] == name) for name in EVENTS}
    assert counted == dict.fromkeys(EVENTS, len(LINES)), events
    measured, about = f"{topic}-measured", ("--bootstrap-server", ponor)
    begin_at_the_start(ponor, measured)
    words = ("--topic", topic, "--group", measured, "--num-records", str(len(LINES)), "--hide-header")
    report = tool(PERFORMANCE, *about, *words).lines[-1].split(", ")
    assert report[5] == str(len(LINES)), report
    listed = [line.split() for line in tool(GROUPS_OF_ALL_TYPES, *about, "--list", "--share").lines]
    assert [group, "Share", "share"] in listed
    assert [measured, "Share", "share"] in listed
    for name in (group, measured):
        tool(GROUPS, *about, "--delete", "--group", name)
    left = tool(GROUPS_OF_ALL_TYPES, *about, "--list", "--group-type", "share").out
    assert topic not in left
