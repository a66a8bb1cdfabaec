"""Checks of a store by a broker at its start: a short race for the create-only put, and the bucket's expiry rules.

`ponor doctor storage` runs the long examination.
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
"""Together about 20 puts: a store that does not know the condition fails the first, one that is not atomic nearly always one of these."""
PROBE_SECONDS_MAX: Final = 20.0
ATTEMPTS_MAX: Final = 3
"""A store that was busy for a moment is asked again, on fresh keys; each acknowledgement of this process's life would pay for it otherwise."""
_CHECKS: Final = (a_taken_key_stays, conditional_puts_race)


class Condition(Enum):
    """What is known of a store's create-only put."""

    PROVEN = "proven"
    UNPROVEN = "unproven"
    """The store gave no clear answer in time; callers work without the condition."""


class UnsafeStoreError(Exception):
    """The store loses what was acknowledged; the message says how that shows, and the remedy."""


async def prove_condition(stores: Sequence[ObjectStore], token: str) -> tuple[Condition, str]:
    """Race create-only puts; return the result, and the reason if it is not proven.

    `stores` is one raw store, opened once per racing connection. `token` is new at this store and part of the keys.

    Raises:
        UnsafeStoreError: two writers won the same key, or a taken key was replaced.
        ObjectStoreError: the store cannot be used at all.
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
                f"{detail}. Acknowledged records would be lost: use another store, or see `ponor doctor storage`"
            )


def refuse_expiry_rules(location: S3Location) -> str:
    """Make sure that no rule of the bucket deletes or freezes objects under the location's prefix. Blocks for one request.

    Returns:
        Why the rules are not known; empty when they are, and harmless.

    Raises:
        UnsafeStoreError: a rule does; it is named.
        ObjectStoreUnavailableError: no server answers.
    """
    if not location.access_key_id:
        return "no AWS_ACCESS_KEY_ID in the environment to ask with"
    requests = S3Requests(location)
    try:
        grade, detail = lifecycle(requests, requests.key(PROBE_PREFIX))
    except S3RequestError as error:
        raise ObjectStoreUnavailableError(str(error)) from error
    if grade is Grade.UNSAFE:
        raise UnsafeStoreError(f"{location}: {detail}")
    return detail if grade is Grade.SKIPPED else ""
