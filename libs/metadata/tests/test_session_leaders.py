"""Sessions and changes of the leader: hints, dead leaders, fences, and replaced controllers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_metadata.client.errors import NodeFencedError

from libs.metadata.tests.scripted_controller import ScriptedController
from libs.metadata.tests.session_world import (
    Peer,
    World,
    answer,
    done,
    ids,
    next_batch,
    put_key,
    refused,
    session_world,
    welcome,
)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with session_world() as opened:
        yield opened


async def test_a_controller_that_does_not_lead_is_left_for_another(world: World) -> None:
    follower, leader = await world.controller(), await world.controller()
    client, _ = world.session(follower.address, leader.address)
    peer = await follower.accept()
    await welcome(peer)
    submitted = asyncio.create_task(client.submit(put_key("k")))
    await next_batch(peer)
    await answer(peer, refused(1, error_pb2.ERROR_CODE_NOT_LEADER))
    peer = await leader.accept()
    await welcome(peer)
    assert ids(await next_batch(peer)) == [1]
    await answer(peer, done(1))
    await submitted


async def not_leading(peer: Peer, leader_address: str = "") -> None:
    error = error_pb2.Error(
        code=error_pb2.ERROR_CODE_NOT_LEADER, message="not me", leader_address=leader_address
    )
    await peer.send(wire.SessionResponse(refused=error))


async def test_the_leader_is_found_by_the_hint_of_another(world: World) -> None:
    followers = [await world.controller() for _ in range(3)]
    leader = await world.controller()
    client, _ = world.session(*(each.address for each in followers))  # the leader is not configured
    peer = await followers[0].accept()
    await peer.receive()
    await not_leading(peer, leader.address)
    await welcome(await leader.accept())
    await client.ready()
    assert all(each._arrived.empty() for each in followers[1:])


async def test_a_hint_to_a_dead_leader_leads_on_to_the_next(world: World) -> None:
    one, two, dead = [await world.controller() for _ in range(3)]
    await dead.close()
    world.controllers.remove(dead)
    client, _ = world.session(one.address, two.address)
    peer = await one.accept()
    await peer.receive()
    await not_leading(peer, dead.address)
    peer = await two.accept()
    await welcome(peer)
    await client.ready()


async def test_controllers_that_name_each_other_cause_delays(world: World) -> None:
    one, two, three = [await world.controller() for _ in range(3)]
    client, _ = world.session(one.address, two.address, three.address)
    visits = 0

    async def blame(controller: ScriptedController[wire.SessionRequest], other: str) -> None:
        nonlocal visits
        while True:
            peer = await controller.accept()
            await peer.receive()
            visits += 1
            await not_leading(peer, other)

    blaming = [
        asyncio.create_task(blame(one, two.address)),
        asyncio.create_task(blame(two, one.address)),
    ]
    await welcome(await three.accept())
    await client.ready()
    assert visits < 20
    for task in blaming:
        task.cancel()
    await asyncio.gather(*blaming, return_exceptions=True)


async def test_unanswered_operations_go_to_the_next_leader_in_order(world: World) -> None:
    old, new = await world.controller(), await world.controller()
    client, _ = world.session(old.address, new.address)
    peer = await old.accept()
    await welcome(peer)
    submitted = [asyncio.create_task(client.submit(put_key(f"k{number}"))) for number in range(10)]
    sent = await next_batch(peer)
    await answer(peer, *(done(request_id) for request_id in (2, 5, 9)))
    await asyncio.gather(submitted[1], submitted[4], submitted[8])
    await old.close()
    world.controllers.remove(old)
    peer = await new.accept()
    hello = await welcome(peer)
    assert (hello.incarnation, hello.node_epoch) == (b"i" * 16, 3)
    again = await next_batch(peer)
    assert ids(again) == [1, 3, 4, 6, 7, 8, 10]
    assert again.first_incomplete_id == 1
    assert list(again.operations) == [sent.operations[request_id - 1] for request_id in ids(again)]
    await answer(peer, *(done(request_id) for request_id in ids(again)))
    await asyncio.gather(*submitted)


async def test_a_leader_that_steps_down_redirects_its_nodes(world: World) -> None:
    old, new = await world.controller(), await world.controller()
    client, _ = world.session(old.address, "127.0.0.1:1", new.address)
    peer = await old.accept()
    await welcome(peer)
    submitted = asyncio.create_task(client.submit(put_key("k")))
    await next_batch(peer)
    await not_leading(peer, new.address)
    peer = await new.accept()
    await welcome(peer)
    assert ids(await next_batch(peer)) == [1]
    await answer(peer, done(1))
    await submitted


async def test_a_session_survives_the_replacement_of_all_configured_controllers(world: World) -> None:
    first, second = await world.controller(), await world.controller()
    client, _ = world.session(first.address)
    peer = await first.accept()
    await peer.receive()
    greeting = wire.Welcome(
        cluster_id="c-1",
        node_epoch=3,
        session_timeout_ms=60_000,
        controller_addresses=[first.address, second.address],
    )
    await peer.send(wire.SessionResponse(welcome=greeting))
    await client.ready()
    await first.close()
    world.controllers.remove(first)
    await welcome(await second.accept())


@pytest.mark.parametrize("code", [error_pb2.ERROR_CODE_NODE_FENCED, error_pb2.ERROR_CODE_NODE_EPOCH_STALE])
@pytest.mark.parametrize("how", ["result", "refused", "hello"])
async def test_a_fenced_node_stops(world: World, code: error_pb2.ErrorCode.ValueType, how: str) -> None:
    client, controller, peer = await world.welcomed()
    submitted = asyncio.create_task(client.submit(put_key("k")))
    waited_still: list[bool] = []
    client.fenced_listeners.append(lambda _: waited_still.append(not submitted.done()))
    await next_batch(peer)
    last_word = wire.SessionResponse(refused=error_pb2.Error(code=code, message="a newer process took over"))
    match how:
        case "result":
            await answer(peer, refused(1, code))
        case "refused":
            await peer.send(last_word)
        case _:
            peer.hang_up()
            peer = await controller.accept()
            await peer.receive()
            await peer.send(last_word)
    with pytest.raises(NodeFencedError, match="must stop"):
        await submitted
    assert waited_still == [True], "the node is fenced before any caller continues"
    assert client.fenced.is_set()
    with pytest.raises(NodeFencedError):
        await client.submit(put_key("k"))
    with pytest.raises(NodeFencedError):
        await client.ready()
    await world.sessions[0][1]


async def test_a_welcome_with_another_epoch_fences_the_node(world: World) -> None:
    client, controller, peer = await world.welcomed()
    peer.hang_up()
    await welcome(await controller.accept(), node_epoch=4)
    await client.fenced.wait()
    with pytest.raises(NodeFencedError, match="epoch 3 was replaced by 4"):
        await client.submit(put_key("k"))
