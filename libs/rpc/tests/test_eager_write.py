"""An eagerly started write ends like any other: with its result, its error or its cancellation."""

from __future__ import annotations

import asyncio

import pytest
from ponor_rpc.eager_write import EagerWrite


class Write:
    """A coroutine that records its steps."""

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


async def wait_for(write: EagerWrite) -> None:
    await write


async def test_first_step_runs_immediately_and_the_rest_when_awaited() -> None:
    write = Write()
    begun = EagerWrite(write.run())
    assert write.steps == ["begun"]
    waiting = asyncio.create_task(wait_for(begun))
    await until_waiting()
    write.first.set_result(None)
    await until_waiting()
    assert write.steps == ["begun", "in the middle"]
    write.second.set_result(None)
    await waiting
    assert write.steps[-1] == "ended"


async def test_awaited_future_may_complete_before_the_write_is_awaited() -> None:
    write = Write()
    begun = EagerWrite(write.run())
    write.first.set_result(None)
    write.second.set_result(None)
    await begun
    assert write.steps == ["begun", "in the middle", "ended"]


async def test_write_without_a_wait_completes_immediately() -> None:
    async def nothing() -> None: ...

    await EagerWrite(nothing())


@pytest.mark.parametrize("kind", [LookupError, asyncio.CancelledError])
async def test_error_of_the_first_step_is_raised_when_awaited(kind: type[BaseException]) -> None:
    async def broken() -> None:
        raise kind

    begun = EagerWrite(broken())
    with pytest.raises(kind):
        await begun


async def test_error_of_the_awaited_future_reaches_the_coroutine() -> None:
    write = Write()
    begun = EagerWrite(write.run())
    write.first.set_exception(LookupError("lost"))
    with pytest.raises(LookupError, match="lost"):
        await begun
    assert write.steps == ["begun", "LookupError"]


@pytest.mark.parametrize("is_in_the_middle", [False, True])
async def test_cancelling_the_task_cancels_the_coroutine(is_in_the_middle: bool) -> None:
    write = Write()
    waiting = asyncio.create_task(wait_for(EagerWrite(write.run())))
    if is_in_the_middle:
        write.first.set_result(None)
    await until_waiting()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert write.steps[-1] == "CancelledError"


async def test_write_that_is_not_awaited_is_closed() -> None:
    write = Write()
    begun = EagerWrite(write.run())
    begun.close()
    begun.close()
    assert write.steps == ["begun", "GeneratorExit"]
