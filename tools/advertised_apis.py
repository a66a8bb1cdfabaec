"""Determine the APIs that a broker advertises, without running a broker.

Builds a broker's services from real parts without starting them, so that the reference page uses the same
registry as ApiVersions.
"""

from __future__ import annotations

import asyncio
from typing import cast

from ponor_broker.peers.tcp_connection import connect_tcp
from ponor_broker.requests.dispatch import AdvertisedApi
from ponor_broker.requests.request_flow import AnswerBacklog
from ponor_broker.services import BrokerServices
from ponor_broker.settings import BrokerSettings
from ponor_metadata.client.node_identity import NodeIdentity
from ponor_metadata.client.quorum_client import QuorumClient
from ponor_metadata.client.session import SessionClient
from ponor_metadata.client.subscription import SubscriptionClient
from ponor_metadata.nouns.nodes import NodeRole
from ponor_runtime.disk import Disk
from ponor_runtime.identity import NodeId
from ponor_runtime.network import Network
from ponor_runtime.runtime import Runtime
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.tasks import BackgroundTasks, report_to_loop
from ponor_runtime.telemetry import Telemetry
from s3stream.client import StreamClient


def advertised_apis() -> list[AdvertisedApi]:
    """Return every handled API, by key."""
    return asyncio.run(_advertised_apis())


def unstarted_services() -> BrokerServices:
    """Build the services of a broker. Requires a running event loop."""
    node_id = NodeId(0)
    # Nothing is started, so no disk, network or stream is used.
    runtime = Runtime(
        SystemClock(), SystemRandomness(), cast("Disk", None), cast("Network", None), Telemetry()
    )
    subscription = SubscriptionClient(
        network=runtime.network,
        clock=runtime.clock,
        randomness=runtime.randomness,
        telemetry=runtime.telemetry,
        addresses=["unused:1"],
    )
    session = SessionClient(
        network=runtime.network,
        clock=runtime.clock,
        randomness=runtime.randomness,
        telemetry=runtime.telemetry,
        identity=NodeIdentity(node_id, NodeRole.BROKER, bytes(16), kafka_host="unused", kafka_port=1),
        addresses=["unused:1"],
    )
    return BrokerServices(
        runtime,
        BrokerSettings(),
        node_id=node_id,
        kafka_configs={},
        own_configs={},
        session=session,
        subscription=subscription,
        quorum=cast("QuorumClient", None),
        streams=cast("StreamClient", None),
        backlog=AnswerBacklog(1),
        connect_peer=connect_tcp,
        tasks=BackgroundTasks(report_to_loop),
    )


async def _advertised_apis() -> list[AdvertisedApi]:
    return unstarted_services().dispatcher.advertised
