"""Checks around a start of `ponor up`: processes of an earlier start, ports in use, and the object store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ponor_runtime.object_store import ObjectStoreError
from s3stream.stores.open_store import open_raw_store
from s3stream.stores.probe.start_check import PROBE_PREFIX

from ponor_cli.errors import CommandError
from ponor_cli.local.cluster_file import ProcessEntry
from ponor_cli.local.command_runtime import command_runtime
from ponor_cli.local.ports import is_listenable
from ponor_cli.supervisor.up_options import UpOptions

ORPHANS_S_MAX: Final = 5.0
"""A process ends one second after its parent (`ponor_runtime.lifecycle`); the rest allows for a
busy machine.
"""
POLL_S: Final = 0.05
STORE_ANSWER_S_MAX: Final = 15.0
CONSEQUENCES: Final[Mapping[str, str]] = {
    "file": "Produced records stay on this disk",
    "object": "No produced record is acknowledged",
}
"""Consequence of an unavailable object store, by the place of the brokers' write-ahead logs."""


def refuse_other_store(options: UpOptions, store: str, before: dict[str, Any]) -> None:
    """Refuse another object store: the cluster's data is in the first one.

    `before` is the last `cluster.json`, or {} if the cluster holds no data.

    Raises:
        CommandError: the cluster began with another store.
    """
    root = options.directory.root
    if before.get("object_store") not in (None, store):
        raise CommandError(
            f"{root} belongs to the object store {before['object_store']}, not {store};"
            " give that one with --object-store, or another --data"
        )


def refuse_taken_kafka_ports(options: UpOptions, brokers: Sequence[int]) -> None:
    """Refuse a start if a broker cannot listen on its Kafka port. Other ports in use are replaced by free
    ones, but clients are configured with the Kafka ports.

    Raises:
        CommandError: names the port.
    """
    for number in brokers:
        port = options.kafka_port + number
        if not is_listenable(options.host, port):
            raise CommandError(
                f"port {port} on {options.host} cannot be used: another process listens on it, or"
                f" {options.host} is not"
                " an address of this machine; choose others with --kafka-port and --host"
            )


def await_orphans(entries: Sequence[ProcessEntry]) -> list[ProcessEntry]:
    """Wait until the processes of a killed `ponor up` have ended. Returns those that still run
    after `ORPHANS_S_MAX`.

    They end on their own, because their parent has ended. Until then they hold ports and
    directories that the next start needs. No process is killed. A system without /proc shows no
    command lines: there the wait is skipped, and a port in use is refused by its number.
    """
    deadline = time.monotonic() + ORPHANS_S_MAX
    while True:
        left = [entry for entry in entries if is_running(entry)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(POLL_S)


def is_running(entry: ProcessEntry) -> bool:
    """Return whether the process runs. Another process that has its pid now has another command line."""
    if entry.pid is None:
        return False
    try:
        words = Path(f"/proc/{entry.pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return entry.config_file.encode() in words


async def find_store_problem(url: str, wal: str, environment: Mapping[str, str]) -> str | None:
    """Return why the object store cannot be used, as one line with the remedy, or None if it answers.

    A broker whose write-ahead log is on a disk serves without its store. But a store that never
    answered usually means an error in the URL or in the credentials, so `ponor up` reports it right
    after the start.
    """
    if not url.startswith("s3://"):
        return None  # a directory store: the processes create the directory
    try:
        async with asyncio.timeout(STORE_ANSWER_S_MAX):
            await _list_probe_prefix(url, environment)
    except TimeoutError:
        reason = f"no answer within {STORE_ANSWER_S_MAX:.0f} s"
    except (ValueError, ObjectStoreError) as error:
        reason = str(error)
    else:
        return None
    keys = "" if environment.get("AWS_ACCESS_KEY_ID") else "; AWS_ACCESS_KEY_ID is not set"
    return (
        f"THE OBJECT STORE {url} DOES NOT ANSWER{keys}: {reason}. {CONSEQUENCES[wal]} until it does;"
        f" `ponor doctor storage '{url}'` checks it"
    )


async def _list_probe_prefix(url: str, environment: Mapping[str, str]) -> None:
    # Listing an empty prefix needs the bucket, the address and the credentials, and changes nothing.
    async with command_runtime() as runtime:
        store = await open_raw_store(url, runtime=runtime, environment=environment)
        try:
            async for _ in store.list(f"{PROBE_PREFIX}/"):
                break
        finally:
            await store.close()
