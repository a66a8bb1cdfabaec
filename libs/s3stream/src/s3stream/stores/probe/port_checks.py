"""Checks that every store must pass, made through the object-store port that the services use.

Every check uses its own keys below a random prefix, which the caller removes. The stores are raw, so that no
retries hide an answer. There are two stores, so that two connection pools race; this reveals a store that is
atomic only within one connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from ponor_runtime.object_store import (
    ObjectAlreadyExistsError,
    ObjectNotFoundError,
    ObjectStore,
    ObjectStoreError,
    ObjectStoreUnavailableError,
)

from s3stream.stores.probe.report import Finding, Grade

MIB: Final = 1 << 20
LARGE_BYTES: Final = 33 * MIB
"""Above 32 MiB, the S3 store uses multipart upload."""
LISTED_KEYS: Final = 1_005
"""More than one page of S3's listings."""
PUTS_AT_A_TIME: Final = 32
CONFLICT_TRIES_MAX: Final = 50
ATTEMPTS_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class Probe:
    """Arguments of a check. `prefix` has no trailing slash."""

    stores: Sequence[ObjectStore]
    prefix: str
    racers: int
    rounds: int

    @property
    def store(self) -> ObjectStore:
        """The first store, for checks without a race."""
        return self.stores[0]

    def key(self, name: str) -> str:
        """Return a key of this run."""
        return f"{self.prefix}/{name}"


PortCheck: TypeAlias = Callable[[Probe], Awaitable[tuple[Grade, str]]]


async def conditional_puts_race(probe: Probe) -> tuple[Grade, str]:
    """Many writers put different bytes under one key: exactly one must succeed, and its bytes must stay."""
    for number in range(probe.rounds):
        key = probe.key(f"race/{number}")
        contents = [f"writer {racer} of round {number} ".encode() * 40 for racer in range(probe.racers)]
        won = await asyncio.gather(
            *(
                _create(probe.stores[racer % len(probe.stores)], key, content)
                for racer, content in enumerate(contents)
            )
        )
        winners = [racer for racer, has_won in enumerate(won) if has_won]
        if len(winners) != 1:
            return Grade.UNSAFE, (
                f"{len(winners)} of {probe.racers} concurrent create-only puts of one key"
                " succeeded, but exactly one must; If-None-Match is ignored or not atomic here"
            )
        there = await probe.store.get(key, 0, 2 * max(map(len, contents)))
        if there != contents[winners[0]]:
            return Grade.UNSAFE, "a create-only put that was refused replaced the object"
    return Grade.OK, f"{probe.rounds} rounds of {probe.racers} writers, one winner each"


async def a_taken_key_stays(probe: Probe) -> tuple[Grade, str]:
    """Two puts of one key: the second must be refused, and the first one's bytes must stay."""
    key = probe.key("taken")
    await probe.store.put(key, [b"first"])
    try:
        await probe.stores[-1].put(key, [b"second"])
    except ObjectAlreadyExistsError:
        pass
    else:
        return Grade.UNSAFE, "a create-only put of a taken key succeeded; If-None-Match is ignored here"
    if await probe.store.get(key, 0, 10) != b"first":
        return Grade.UNSAFE, "a refused create-only put changed the object"
    return Grade.OK, "the second put is refused, the first object stays"


async def reads_follow_writes(probe: Probe) -> tuple[Grade, str]:
    """A put must be readable immediately, also on another connection."""
    for number in range(8):
        key, content = probe.key(f"read/{number}"), f"content {number}".encode() * 500
        await probe.store.put(key, [content])
        for store in probe.stores:
            if await store.get(key, 0, len(content)) != content:
                return Grade.UNSAFE, "a read directly after a put did not return the bytes that were written"
    return Grade.OK, "8 objects, read at once by two clients"


async def ranges_are_exact(probe: Probe) -> tuple[Grade, str]:
    """Range reads (for blocks) and suffix reads (for indexes) must return the right bytes."""
    key, content = probe.key("ranges"), bytes(range(256)) * 16
    await probe.store.put(key, [content])
    wanted = {
        "a middle range": (await probe.store.get(key, 100, 50), content[100:150]),
        "a range across the end": (await probe.store.get(key, 4000, 500), content[4000:]),
        "a range after the end": (await probe.store.get(key, 5000, 10), b""),
        "a suffix": ((await probe.store.get_tail(key, 48))[0], content[-48:]),
        "a suffix longer than the object": ((await probe.store.get_tail(key, 9999))[0], content),
        "the size of the object in the answer to a suffix read": (
            str((await probe.store.get_tail(key, 1))[1]).encode(),
            b"4096",
        ),
    }
    wrong = [name for name, (got, right) in wanted.items() if got != right]
    if wrong:
        return Grade.UNSAFE, f"{' and '.join(wrong)} returned wrong bytes"
    return Grade.OK, "middle, suffix, across and after the end"


async def large_objects_are_whole(probe: Probe) -> tuple[Grade, str]:
    """An object above the multipart threshold must be returned unchanged."""
    key = probe.key("large")
    pieces = [bytes([number]) * MIB for number in range(LARGE_BYTES // MIB)]
    await probe.store.put(key, pieces)
    tail, size_bytes = await probe.store.get_tail(key, 2 * MIB)
    if size_bytes != LARGE_BYTES or tail != b"".join(pieces[-2:]):
        return (
            Grade.UNSAFE,
            f"an object of {LARGE_BYTES} bytes was read as {size_bytes} bytes or with a different end",
        )
    for part in (0, 15, 16):
        if await probe.store.get(key, part * MIB - min(part, 1), MIB) != _expected(pieces, part):
            return Grade.UNSAFE, "a read of an object that was put in parts returned different bytes"
    return Grade.OK, f"{LARGE_BYTES // MIB} MiB, compared around the parts' borders"


async def listings_are_complete(probe: Probe) -> tuple[Grade, str]:
    """A listing must show exactly the objects that were put, immediately and over several pages."""
    places = asyncio.Semaphore(PUTS_AT_A_TIME)

    async def put(number: int) -> str:
        key = probe.key(f"list/{number:05d}")
        async with places:
            await probe.store.put(key, [b"x"])
        return key

    keys = set(await asyncio.gather(*(put(number) for number in range(LISTED_KEYS))))
    listed = [info.key async for info in probe.stores[-1].list(probe.key("list/"))]
    if set(listed) != keys or len(listed) != len(keys):
        missing, foreign = len(keys - set(listed)), len(set(listed) - keys)
        return Grade.UNSAFE, (
            f"a listing of {len(keys)} objects has {len(listed)} rows: {missing} objects are"
            f" missing, and {foreign} rows are of other objects"
        )
    return Grade.OK, f"{len(keys)} keys over several pages, right after their puts"


async def deletions_repeat(probe: Probe) -> tuple[Grade, str]:
    """Deletions must be repeatable, accept absent keys, and remove the objects."""
    present, absent = probe.key("delete/present"), probe.key("delete/absent")
    await probe.store.put(present, [b"x"])
    for _ in range(2):
        await probe.store.delete([present, absent])
    try:
        await probe.stores[-1].get(present, 0, 1)
    except ObjectNotFoundError:
        pass
    else:
        return Grade.UNSAFE, "a deleted object is still there"
    if [info async for info in probe.store.list(probe.key("delete/"))]:
        return Grade.WARNING, "a deleted object is still listed"
    await probe.store.put(present, [b"new"])
    if await probe.store.get(present, 0, 10) != b"new":
        return Grade.UNSAFE, "a read of a key that was deleted and put again returned different bytes"
    return Grade.OK, "twice, with absent keys among them"


PORT_CHECKS: Final[tuple[tuple[str, PortCheck], ...]] = (
    ("conditional puts race", conditional_puts_race),
    ("taken keys stay", a_taken_key_stays),
    ("read after write", reads_follow_writes),
    ("ranges", ranges_are_exact),
    ("large objects", large_objects_are_whole),
    ("listings", listings_are_complete),
    ("deletions", deletions_repeat),
)


async def run_port_checks(
    probe: Probe, done: Callable[[Finding], None], checks: Sequence[tuple[str, PortCheck]] = PORT_CHECKS
) -> None:
    """Run all checks; an error of the store is a finding too."""
    for name, check in checks:
        grade, detail = await _answer(probe, check)
        done(Finding(name, grade, detail))


async def _answer(probe: Probe, check: PortCheck) -> tuple[Grade, str]:
    """Run one check. If the store was busy or unreachable, repeat it with new keys, because that
    alone does not make it unsafe.
    """
    for attempt in range(ATTEMPTS_MAX):
        try:
            return await check(replace(probe, prefix=f"{probe.prefix}/{attempt}"))
        except ObjectStoreUnavailableError as error:
            reason = f"no clear answer in {attempt + 1} attempts: {error}"
        except ObjectStoreError as error:
            return Grade.UNSAFE, f"{type(error).__name__}: {error}"
    return Grade.UNSAFE, reason


async def remove_everything(store: ObjectStore, prefix: str) -> int:
    """Delete all objects below the prefix; return their number."""
    keys = [info.key async for info in store.list(f"{prefix}/")]
    if keys:
        await store.delete(keys)
    return len(keys)


async def _create(store: ObjectStore, key: str, content: bytes) -> bool:
    """Make a create-only put; repeat it after 409 (another one was in flight), as S3 requires."""
    for _ in range(CONFLICT_TRIES_MAX):
        try:
            await store.put(key, [content])
        except ObjectAlreadyExistsError:
            return False
        except ObjectStoreUnavailableError:
            if await _holds(store, key, content):
                return True  # the answer was lost; the bytes show whose put succeeded
            continue
        return True
    raise ObjectStoreUnavailableError(f"{key}: no clear answer to {CONFLICT_TRIES_MAX} create-only puts")


async def _holds(store: ObjectStore, key: str, content: bytes) -> bool:
    try:
        return await store.get(key, 0, len(content) + 1) == content
    except ObjectNotFoundError:
        return False


def _expected(pieces: list[bytes], part: int) -> bytes:
    return pieces[part] if part == 0 else pieces[part - 1][-1:] + pieces[part][:-1]
