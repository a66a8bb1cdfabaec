"""Ask the controller at an address for its identity, before a cluster exists."""

from __future__ import annotations

import asyncio

from google.protobuf.message import DecodeError
from ponor.controller.v1 import peer_service_pb2 as wire
from ponor_rpc.methods import PEER
from ponor_runtime.network import ConnectionClosedError, Network

from ponor_controller.consensus.directory_identity import DirectoryIdentity
from ponor_controller.consensus.peer_frames import PeerFrameError, replica, replica_message
from ponor_controller.consensus.peer_link import HANDSHAKE_SECONDS


def introduction(identity: DirectoryIdentity, *, may_format: bool) -> wire.PeerIntroduction:
    """The identity of this controller. `may_format`: whether this controller may become a voter of a new
    cluster if its directory is blank.
    """
    return wire.PeerIntroduction(
        replica=replica_message(identity.replica),
        cluster_id=identity.cluster_id,
        may_format=may_format,
        initial_voters=[replica_message(member.replica) for member in identity.initial_voters],
    )


async def request_identity(network: Network, address: str) -> wire.PeerIntroduction | None:
    """The identity of the controller at a peer address; None without a valid answer in time."""
    try:
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            connection = await network.connect(address, PEER)
    except (ConnectionClosedError, TimeoutError):
        return None
    try:
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            await connection.send(wire.ExchangeRequest(introduce=wire.PeerIntroduce()).SerializeToString())
            answer = wire.ExchangeResponse.FromString(await connection.receive())
        replica(answer.introduction.replica)
    except (ConnectionClosedError, DecodeError, PeerFrameError, TimeoutError):
        return None
    finally:
        await connection.close()
    return answer.introduction
