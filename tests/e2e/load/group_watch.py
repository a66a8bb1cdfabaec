"""A consumer group that reads during a scenario and records rebalances and errors, which applications must
not see."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import Consumer

ASSIGNED_S_MAX: Final = 240.0


class GroupWatch:
    """`assignments` counts partition assignments; `errors` are those that reached the application."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self.assignments = 0
        self.errors: list[str] = []
        self.consumed = 0
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "latest",
                "auto.commit.interval.ms": 200,
                "log_level": 2,
            }
        )
        self._consumer.subscribe([topic], on_assign=self._assigned)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def wait_assigned(self) -> None:
        """Wait until partitions are assigned."""
        deadline = time.monotonic() + ASSIGNED_S_MAX
        while not self.assignments:
            assert time.monotonic() < deadline, "no partition was assigned"
            time.sleep(0.05)

    def stop(self) -> None:
        """Leave the group."""
        self._over.set()
        self._thread.join(30)
        self._consumer.close()

    def _assigned(self, _: Consumer, partitions: list[Any]) -> None:
        del partitions
        self.assignments += 1

    def _read(self) -> None:
        while not self._over.is_set():
            message = self._consumer.poll(0.2)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                self.errors.append(str(error))
            else:
                self.consumed += 1


@contextmanager
def group_watch(bootstrap: str, topic: str, *, group: str) -> Iterator[GroupWatch]:
    """Run a watch for the duration of the block."""
    watch = GroupWatch(bootstrap, topic, group)
    try:
        yield watch
    finally:
        watch.stop()
