"""Hedged puts: a put without an answer is sent again with the same key and bytes. All copies are
create-only, so at most one takes effect.

A lost answer would otherwise block everything behind it: the slots of a log, or the end of a
recovery. If the key exists, the caller reads the object back to find its writer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from ponor_runtime.disk import Buffer
from ponor_runtime.object_store import ObjectAlreadyExistsError, ObjectStore

Copy: TypeAlias = "asyncio.Future[None]"


class Hedge(NamedTuple):
    """A time at which one more copy may be sent.

    Attributes:
        after_ms: delay since the first copy.
        granted: called once at that time. Returns whether to send the copy; if so, its cost is taken
            from the budget.
    """

    after_ms: float
    granted: Callable[[], bool]


async def put_hedged(
    store: ObjectStore,
    key: str,
    buffers: Sequence[Buffer],
    *,
    hedges: Sequence[Hedge],
    leave: Callable[[list[Copy]], None],
) -> int:
    """Put an object, and send another copy at each granted time until the outcome is known. Return the
    number of the copy that succeeded; the first has number 0.

    The failure of one copy does not end the call. It fails only when all copies failed, or when one found
    that the key exists.

    Args:
        store: with retries and limits.
        key: key of the object.
        buffers: content of the object.
        hedges: times in order.
        leave: receives the unanswered copies when the call ends.

    Raises:
        ObjectAlreadyExistsError: the key exists, perhaps because of another copy.
        ObjectStoreError: see the port.
    """
    assert all(hedge.after_ms >= 0 for hedge in hedges)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    copies: list[Copy] = [asyncio.ensure_future(store.put(key, buffers))]
    try:
        for hedge in hedges:
            if await _decided(copies, until_s=began_s + hedge.after_ms / 1000):
                break
            if hedge.granted():
                copies.append(asyncio.ensure_future(store.put(key, buffers)))
        await _decided(copies, until_s=None)
        return _outcome(copies)
    finally:
        leave([copy for copy in copies if not copy.done()])


def break_off(copies: Sequence[Copy]) -> None:
    """Cancel copies and close their connections. The store may or may not have stored each of them."""
    for copy in copies:
        copy.cancel()
        copy.add_done_callback(ignore_outcome)


def ignore_outcome(call: asyncio.Future[Any]) -> None:
    """Retrieve the exception of a call whose result is not needed; asyncio would log it
    otherwise.
    """
    if not call.cancelled():
        call.exception()


async def _decided(copies: Sequence[Copy], *, until_s: float | None) -> bool:
    """Wait for the outcome at most until the loop's time `until_s`; return whether it is known."""
    loop = asyncio.get_running_loop()
    while not _is_decided(copies):
        seconds = None if until_s is None else max(until_s - loop.time(), 0.0)
        waiting = [copy for copy in copies if not copy.done()]
        done, _ = await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            return False
    return True


def _is_decided(copies: Sequence[Copy]) -> bool:
    failures = [copy.exception() for copy in copies if copy.done()]
    return len(failures) == len(copies) or any(
        failure is None or isinstance(failure, ObjectAlreadyExistsError) for failure in failures
    )


def _outcome(copies: Sequence[Copy]) -> int:
    answered = [(number, copy.exception()) for number, copy in enumerate(copies) if copy.done()]
    for number, failure in answered:
        if failure is None:
            return number
    failures = [failure for _, failure in answered if failure is not None]
    assert failures, "no copy of the put has an outcome"
    taken = [failure for failure in failures if isinstance(failure, ObjectAlreadyExistsError)]
    raise taken[0] if taken else failures[-1]
