"""One look at the object store when a cluster has started.

Why here: a broker whose write-ahead log is on a disk serves while its store is away, and rightly so. But a store that never answered is mostly a slip in the URL or in the credentials,
and who started the cluster wants to hear of it now, not when the log is full.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from ponor_runtime.object_store import ObjectStoreError
from s3stream.stores.open_store import open_raw_store
from s3stream.stores.probe.start_check import PROBE_PREFIX

from ponor_cli.image_reader import system_runtime

ANSWER_S_MAX: Final = 15.0
MEANING: Final[Mapping[str, str]] = {
    "file": "What is produced stays on this disk",
    "object": "Nothing that is produced is acknowledged",
}
"""By where the brokers' write-ahead logs are."""


async def silence_of(url: str, wal: str, environment: Mapping[str, str]) -> str | None:
    """Why the store cannot be used, as one line with the remedy; None: it answers, or is a directory, which the processes make themselves."""
    if not url.startswith("s3://"):
        return None
    try:
        async with asyncio.timeout(ANSWER_S_MAX):
            await _ask(url, environment)
    except TimeoutError:
        reason = f"no answer within {ANSWER_S_MAX:.0f} s"
    except ValueError as error:
        reason = str(error)
    except ObjectStoreError as error:
        reason = str(error)
    else:
        return None
    keys = (
        "" if environment.get("AWS_ACCESS_KEY_ID") else "; there is no AWS_ACCESS_KEY_ID in the environment"
    )
    return (
        f"THE OBJECT STORE {url} DOES NOT ANSWER{keys}: {reason}. {MEANING[wal]} until it does; "
        f"`ponor doctor storage '{url}'` looks closer"
    )


async def _ask(url: str, environment: Mapping[str, str]) -> None:
    """List what is below a prefix where nothing is: needs the bucket, the address and the credentials."""
    store = await open_raw_store(url, runtime=system_runtime(), environment=environment)
    try:
        async for _ in store.list(f"{PROBE_PREFIX}/"):
            break
    finally:
        await store.close()
