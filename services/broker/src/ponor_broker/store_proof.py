"""Checks of the object store at every start, before the broker registers.

Every start repeats the checks, because a bucket's rules and the server behind an address can change. They
take one request for the rules and, if the broker's log is in the store, about thirty racing create-only puts.
`s3stream.stores.probe.start_check` implements them; this module decides from their results whether the broker
may start.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ponor_metadata.nouns.nodes import WalKind
from ponor_runtime.object_store import ObjectStoreUnavailableError
from ponor_runtime.runtime import Runtime
from s3stream.stores.open_store import open_raw_store
from s3stream.stores.probe.start_check import (
    PROBE_PREFIX,
    Condition,
    prove_condition,
    refuse_expiry_rules,
)
from s3stream.stores.s3_location import parse_s3_location

LOG: Final = logging.getLogger("ponor.broker")
TOKEN_BYTES: Final = 8
CONNECTIONS: Final = 2
"""Two connection pools race, to detect a store that is atomic only within one of them."""
UNREACHABLE: Final[Mapping[WalKind, str]] = {
    WalKind.FILE: "records stay on this disk until the store is reachable",
    WalKind.OBJECT: "no record is acknowledged until the store is reachable",
}
"""Consequence of an unreachable store, by location of the log, for log lines."""


async def prove_store(url: str, runtime: Runtime, environment: Mapping[str, str], wal: WalKind) -> Condition:
    """Refuse a store that loses data; return the result of the check of its create-only put (UNPROVEN for a
    broker with a log in a file, which does not need the check).

    Raises:
        UnsafeStoreError: names the problem of the store, and the remedy.
        ObjectStoreError: the store cannot be used at all.
    """
    await _check_rules(url, environment, wal)
    if wal is WalKind.FILE:
        return Condition.UNPROVEN
    stores = [await open_raw_store(url, runtime=runtime, environment=environment) for _ in range(CONNECTIONS)]
    token = runtime.randomness.token(TOKEN_BYTES).hex()
    try:
        condition, why = await prove_condition(stores, token)
    finally:
        for store in stores:
            await store.close()
        _remove_directories(url, token)
    if condition is Condition.UNPROVEN:
        LOG.warning(
            "could not prove that create-only puts to %s are atomic (%s): as with wal_verify=always, the"
            " broker sends a request to the controllers before every acknowledgement",
            url,
            why,
        )
    return condition


def _remove_directories(url: str, token: str) -> None:
    """Remove the probe's directories from a `file://` store, which does not remove empty directories."""
    if url.startswith("file://"):
        shutil.rmtree(
            Path(url.removeprefix("file://")) / "objects" / PROBE_PREFIX / token, ignore_errors=True
        )


async def _check_rules(url: str, environment: Mapping[str, str], wal: WalKind) -> None:
    if not url.startswith("s3://"):
        return
    location = parse_s3_location(url, environment)
    # The request blocks; a separate thread keeps the process stoppable in the meantime.
    try:
        unknown = await asyncio.get_running_loop().run_in_executor(None, refuse_expiry_rules, location)
    except ObjectStoreUnavailableError as error:
        LOG.warning(
            "the object store %s does not answer (%s): %s. The bucket's expiry rules could not be checked"
            " either; run `ponor doctor storage '%s'`",
            url,
            error,
            UNREACHABLE[wal],
            url,
        )
        return
    if unknown:
        LOG.warning(
            "the expiry rules of %s are unknown: %s; make sure that none matches this prefix",
            location,
            unknown,
        )
