"""Members of one group in one process: many consumers of librdkafka, which report what they own.

Usage: python -m tests.benchmarks.group_members BOOTSTRAP TOPIC GROUP PROTOCOL STATIC NAME...

Each line of standard input is a step: `join`, `leave`, or `restart` (close all members, then let them join
again). Each change of a member is one line of standard output: name, CLOCK_MONOTONIC in ns, partitions.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from typing import Final

from confluent_kafka import Consumer, TopicPartition

SESSION_MS: Final = 6_000
HEARTBEAT_MS: Final = 500
POLL_EVERY_S: Final = 0.01
_PROTOCOLS: Final = {
    "classic": {"group.protocol": "classic", "partition.assignment.strategy": "range"},
    "cooperative": {"group.protocol": "classic", "partition.assignment.strategy": "cooperative-sticky"},
    "consumer": {"group.protocol": "consumer"},
}
_CLASSIC: Final = {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS}
"""Members with the new protocol get both from the coordinator."""


class Member:
    """One consumer. It pauses its partitions, so that groups are measured and not fetches."""

    def __init__(
        self, bootstrap: str, topic: str, group: str, protocol: str, name: str, static: bool
    ) -> None:
        self.name = name
        self._owned: set[int] = set()
        self._is_eager = protocol == "classic"
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "client.id": name,
                "enable.auto.commit": False,
                "log_level": 2,
                **_PROTOCOLS[protocol],
                **({} if protocol == "consumer" else _CLASSIC),
                **({"group.instance.id": name} if static else {}),
            }
        )
        self.consumer.subscribe(
            [topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )

    def has_failed(self) -> bool:
        """Poll; return whether the consumer must be replaced.

        The coordinator refuses a static member that joins before the former one has left.
        """
        message = self.consumer.poll(0)
        error = message and message.error()
        return bool(error and error.fatal())

    def report(self) -> None:
        """Print what it owns."""
        # One write per line: several threads close members.
        sys.stdout.write(f"{self.name} {time.monotonic_ns()} {','.join(map(str, sorted(self._owned)))}\n")
        sys.stdout.flush()

    def close(self) -> None:
        """Leave; a static member of a classic group leaves only its connection."""
        self.consumer.close()
        self._owned.clear()
        self.report()

    def _assigned(self, consumer: Consumer, gained: list[TopicPartition]) -> None:
        if self._is_eager:
            consumer.assign(gained)
        else:
            consumer.incremental_assign(gained)
        consumer.pause(gained)
        self._owned |= {row.partition for row in gained}
        self.report()

    def _revoked(self, _: Consumer, lost: list[TopicPartition]) -> None:
        self._owned -= {row.partition for row in lost}
        self.report()


def main(bootstrap: str, topic: str, group: str, protocol: str, static: str, *names: str) -> None:
    """Poll all members until standard input ends."""
    steps: list[str] = []

    def started(name: str) -> Member:
        return Member(bootstrap, topic, group, protocol, name, static == "static")

    def read_steps() -> None:
        for line in iter(sys.stdin.readline, ""):
            steps.append(line.strip())
        steps.append("end")

    threading.Thread(target=read_steps, daemon=True).start()
    members: list[Member] = []
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        step = steps.pop(0) if steps else ""
        if step in ("leave", "restart", "end"):
            _close(members)
            members = []
        if step == "end":
            return
        if step in ("join", "restart"):
            members = [started(name) for name in names]
        for position, member in enumerate(members):
            if member.has_failed():
                # It owns nothing any more. Its close may wait, and the other members must be polled.
                threading.Thread(target=member.consumer.close, daemon=True).start()
                members[position] = started(member.name)
        time.sleep(POLL_EVERY_S)


def _close(members: Sequence[Member]) -> None:
    closing = [threading.Thread(target=member.close) for member in members]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
