"""Checks that a starting broker makes: a short race of create-only puts, and the bucket's expiry rules.

`ponor doctor storage` runs the complete checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from typing import Final

from ponor_runtime.object_store import ObjectStore, ObjectStoreError, ObjectStoreUnavailableError

from s3stream.stores.probe.bucket_rules import lifecycle
from s3stream.stores.probe.port_checks import (
    Probe,
    a_taken_key_stays,
    conditional_puts_race,
    remove_everything,
)
from s3stream.stores.probe.report import Grade
from s3stream.stores.probe.s3_requests import S3RequestError, S3Requests
from s3stream.stores.s3_location import S3Location

PROBE_PREFIX: Final = "ponor-doctor"
RACERS: Final = 8
ROUNDS: Final = 2
"""About 20 puts. A store that ignores the condition fails the first check; a store that is not atomic nearly
always fails in one of the rounds."""
PROBE_SECONDS_MAX: Final = 20.0
ATTEMPTS_MAX: Final = 3
"""Attempts with new keys if a store was busy. Without a clear result, each later acknowledgement of
this process needs a request to the controller."""
_CHECKS: Final = (a_taken_key_stays, conditional_puts_race)


class Condition(Enum):
    """Result of the check of create-only puts."""

    PROVEN = "proven"
    UNPROVEN = "unproven"
    """The store gave no clear answer in time; the process must not rely on create-only puts."""


class UnsafeStoreError(Exception):
    """The store loses acknowledged data; the message names the symptom and the remedy."""


async def prove_condition(stores: Sequence[ObjectStore], token: str) -> tuple[Condition, str]:
    """Race create-only puts; return the result, and the reason if it is not proven.

    `stores` has one raw store per racing connection; `token` is unique in this store and part of the keys.

    Raises:
        UnsafeStoreError: two writers of one key succeeded, or an existing key was replaced.
        ObjectStoreError: the store cannot be used.
    """
    prefix, why = f"{PROBE_PREFIX}/{token}", ""
    try:
        async with asyncio.timeout(PROBE_SECONDS_MAX):
            for attempt in range(ATTEMPTS_MAX):
                try:
                    await _race(Probe(stores, f"{prefix}/{attempt}", RACERS, ROUNDS))
                except ObjectStoreUnavailableError as error:
                    why = str(error)
                else:
                    return Condition.PROVEN, ""
    except TimeoutError:
        why = f"the race took longer than {PROBE_SECONDS_MAX:g} s"
    finally:
        with suppress(ObjectStoreError):
            await remove_everything(stores[0], prefix)
    return Condition.UNPROVEN, why


async def _race(probe: Probe) -> None:
    for check in _CHECKS:
        grade, detail = await check(probe)
        if grade is not Grade.OK:
            raise UnsafeStoreError(
                f"{detail}. Acknowledged records would be lost: use another store, or see `ponor doctor"
                " storage`"
            )


def refuse_expiry_rules(location: S3Location) -> str:
    """Check that no rule of the bucket deletes or archives objects under the location's prefix.
    Blocks for one request.

    Returns:
        Why the rules could not be read; empty if they are harmless.

    Raises:
        UnsafeStoreError: a rule is harmful; the message names it.
        ObjectStoreUnavailableError: no server answers.
    """
    if not location.access_key_id:
        return "AWS_ACCESS_KEY_ID is not set"
    requests = S3Requests(location)
    try:
        grade, detail = lifecycle(requests, requests.key(PROBE_PREFIX))
    except S3RequestError as error:
        raise ObjectStoreUnavailableError(str(error)) from error
    if grade is Grade.UNSAFE:
        raise UnsafeStoreError(f"{location}: {detail}")
    return detail if grade is Grade.SKIPPED else ""
