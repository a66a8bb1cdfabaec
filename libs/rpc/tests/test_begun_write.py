"""A write that was begun ends like one that was not: its result, its error, its cancellation."""

from __future__ import annotations

import asyncio

import pytest
from ponor_rpc.begun_write import BegunWrite


class Write:
    """A coroutine that says how far it is."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.second: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        try:
            self.steps.append("begun")
            await self.first
            self.steps.append("in the middle")
            await self.second
            self.steps.append("ended")
        except BaseException as error:
            self.steps.append(type(error).__name__)
            raise


async def until_waiting() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def wait_for(write: BegunWrite) -> None:
    await write


async def test_the_first_step_is_taken_at_once_and_the_rest_by_who_awaits() -> None:
    write = Write()
    begun = BegunWrite(write.run())
    assert write.steps == ["begun"]
    waiting = asyncio.create_task(wait_for(begun))
    await until_waiting()
    write.first.set_result(None)
    await until_waiting()
    assert write.steps == ["begun", "in the middle"]
    write.second.set_result(None)
    await waiting
    assert write.steps[-1] == "ended"


async def test_what_it_waited_for_may_be_over_before_anybody_awaits() -> None:
    write = Write()
    begun = BegunWrite(write.run())
    write.first.set_result(None)
    write.second.set_result(None)
    await begun
    assert write.steps == ["begun", "in the middle", "ended"]


async def test_one_that_need_not_wait_is_over() -> None:
    async def nothing() -> None: ...

    await BegunWrite(nothing())


@pytest.mark.parametrize("kind", [LookupError, asyncio.CancelledError])
async def test_an_error_of_the_first_step_is_raised_where_it_is_awaited(kind: type[BaseException]) -> None:
    async def broken() -> None:
        raise kind

    begun = BegunWrite(broken())
    with pytest.raises(kind):
        await begun


async def test_an_error_of_what_it_waits_for_is_the_coroutines_to_deal_with() -> None:
    write = Write()
    begun = BegunWrite(write.run())
    write.first.set_exception(LookupError("lost"))
    with pytest.raises(LookupError, match="lost"):
        await begun
    assert write.steps == ["begun", "LookupError"]


@pytest.mark.parametrize("is_in_the_middle", [False, True])
async def test_who_is_cancelled_cancels_it(is_in_the_middle: bool) -> None:
    write = Write()
    waiting = asyncio.create_task(wait_for(BegunWrite(write.run())))
    if is_in_the_middle:
        write.first.set_result(None)
    await until_waiting()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert write.steps[-1] == "CancelledError"


async def test_one_that_nobody_awaits_is_closed() -> None:
    write = Write()
    begun = BegunWrite(write.run())
    begun.close()
    begun.close()
    assert write.steps == ["begun", "GeneratorExit"]
