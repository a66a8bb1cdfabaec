"""A broker trusts no store that it has not asked: what is asked before it registers, and what the answers mean for its start.

What lives here: the decision. What is asked is `s3stream.stores.probe.start_check`. Every start asks, because a bucket's rules and the server behind an address
change without a word. It costs one request for the rules, and about thirty for the race of a broker whose log is in the store.
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
"""Two pools of connections race, so that a store is caught which is atomic behind one of them only."""
SILENCE: Final[Mapping[WalKind, str]] = {
    WalKind.FILE: "what is produced stays on this disk until it does",
    WalKind.OBJECT: "nothing that is produced is acknowledged until it does",
}
"""What a store that is away means, by where the log is."""


async def prove_store(url: str, runtime: Runtime, environment: Mapping[str, str], wal: WalKind) -> Condition:
    """Refuse a store that loses data; say what is known of its create-only put. Nobody asks where the log is in a file: then it is unproven.

    Raises:
        UnsafeStoreError: names what is wrong with the store, and the remedy.
        ObjectStoreError: it cannot be used at all.
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
            "the create-only put of %s is not proven (%s): as with wal_verify=always, the controllers are asked before every acknowledgement",
            url,
            why,
        )
    return condition


def _remove_directories(url: str, token: str) -> None:
    """A store in a directory keeps the directories of keys that are gone; with every start there would be more of them."""
    if url.startswith("file://"):
        shutil.rmtree(
            Path(url.removeprefix("file://")) / "objects" / PROBE_PREFIX / token, ignore_errors=True
        )


async def _check_rules(url: str, environment: Mapping[str, str], wal: WalKind) -> None:
    if not url.startswith("s3://"):
        return
    location = parse_s3_location(url, environment)
    # The request blocks; a thread of its own lets this process be told to stop meanwhile.
    try:
        unknown = await asyncio.get_running_loop().run_in_executor(None, refuse_expiry_rules, location)
    except ObjectStoreUnavailableError as error:
        LOG.warning(
            "the object store %s does not answer (%s): %s. Whether rules of the bucket delete objects is not known either; `ponor doctor storage '%s'` looks closer",
            url,
            error,
            SILENCE[wal],
            url,
        )
        return
    if unknown:
        LOG.warning("the expiry rules of %s are not known: %s; none may match its prefix", location, unknown)
