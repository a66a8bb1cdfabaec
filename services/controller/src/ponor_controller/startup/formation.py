"""Form a new cluster: make an empty directory a voter.

A new cluster is formed only if the option `format` is set. Every directory draws its own id. The controller
with the lowest node number asks all other configured controllers for their identity. When all of them are
blank and may format, it draws the cluster's id and ordinal and writes the voters with their directory ids.
The others receive these when it connects to them (`consensus/admission.py`). So all directories have their
ids before the cluster exists. A directory that is emptied later draws a new id, which belongs to no cluster.

A controller does not format if another controller already belongs to a cluster. Its own directory may have
lost its log and votes, and a replica that lost a vote must return as a new member (KAFKA-14077).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ponor.controller.v1 import peer_service_pb2 as wire
from ponor_runtime.identity import (
    CLUSTER_ORDINAL_MAX,
    UNKNOWN_ORDINAL,
    ClusterOrdinal,
    NodeId,
    node_id_in,
    number_of_node,
)
from ponor_runtime.network import Network
from ponor_runtime.randomness import Randomness
from ponor_runtime.runtime import Runtime

from ponor_controller.consensus.address_book import Addresses
from ponor_controller.consensus.directory_identity import DirectoryIdentity
from ponor_controller.consensus.introduction import request_identity
from ponor_controller.consensus.members import Member
from ponor_controller.consensus.peer_frames import replica
from ponor_controller.options import ControllerOptions

LOG: Final = logging.getLogger("ponor.controller")
RETRY_SECONDS: Final = 0.5


class ClusterExistsError(Exception):
    """Another controller already belongs to a cluster; the message names the remedy."""


def blank_identity(options: ControllerOptions, randomness: Randomness) -> DirectoryIdentity:
    """Create the identity of an empty directory."""
    return DirectoryIdentity("", randomness.uuid(), options.own_node_id, ())


async def form(
    options: ControllerOptions,
    identity: DirectoryIdentity,
    own: Addresses,
    runtime: Runtime,
    peer_network: Network,
) -> DirectoryIdentity:
    """Form a new cluster; returns the identity of its first voter.

    Only the controller with the lowest node number returns. At the others this waits until it is cancelled or
    finds a cluster.

    Args:
        options: the configured controllers; `format` is set.
        identity: the blank and durable identity of this controller.
        own: addresses of this controller.
        runtime: clock and randomness.
        peer_network: network to the other controllers.

    Raises:
        ClusterExistsError: another controller belongs to a cluster of which this directory is not a member.
    """
    number = number_of_node(options.own_node_id)
    others = [voter for voter in options.voters if number_of_node(voter.node_id) != number]
    is_first = all(number < number_of_node(voter.node_id) for voter in others)
    logged: list[str] = []
    while True:
        answers = await asyncio.gather(
            *(request_identity(peer_network, voter.peer_address) for voter in others)
        )
        _refuse_known_cluster(identity, answers)
        missing = [
            voter.peer_address
            for voter, answer in zip(others, answers, strict=True)
            if not _is_ready(voter, answer)
        ]
        if is_first and not missing:
            directories = [replica(answer.replica).directory_id for answer in answers if answer is not None]
            voters = [
                replace(voter, directory_id=directory)
                for voter, directory in zip(others, directories, strict=True)
            ]
            return _first_voter(options, identity, own, voters, runtime.randomness)
        if missing and missing != logged:
            logged = missing
            LOG.warning(
                "formatting waits until blank controllers with `format` run at %s", ", ".join(missing)
            )
        await runtime.clock.sleep(RETRY_SECONDS)


def _is_ready(voter: Member, answer: wire.PeerIntroduction | None) -> bool:
    return (
        answer is not None
        and answer.may_format
        and number_of_node(NodeId(answer.replica.node_id)) == number_of_node(voter.node_id)
    )


def _refuse_known_cluster(
    identity: DirectoryIdentity, answers: Sequence[wire.PeerIntroduction | None]
) -> None:
    own = identity.directory_id.bytes
    for answer in answers:
        if answer is None or not answer.cluster_id:
            continue
        if all(voter.directory_id != own for voter in answer.initial_voters):
            raise ClusterExistsError(
                f"node {answer.replica.node_id} already belongs to cluster {answer.cluster_id}, and directory"
                f" {identity.directory_id} is not a member of that cluster. If this controller has another"
                " directory, mount that one; if that one is lost, remove the lost member and add this"
                " controller"
            )


def _first_voter(
    options: ControllerOptions,
    identity: DirectoryIdentity,
    own: Addresses,
    others: Sequence[Member],
    randomness: Randomness,
) -> DirectoryIdentity:
    ordinal = options.cluster_ordinal
    if ordinal == UNKNOWN_ORDINAL:
        ordinal = ClusterOrdinal(1 + randomness.below(CLUSTER_ORDINAL_MAX))
    configured = next(
        (each for each in options.voters if number_of_node(each.node_id) == number_of_node(identity.node_id)),
        Member(identity.node_id, b"", own.peer, own.service),
    )
    members = [replace(configured, directory_id=identity.directory_id.bytes), *others]
    voters = tuple(sorted(replace(member, node_id=node_id_in(ordinal, member.node_id)) for member in members))
    formed = replace(
        identity,
        cluster_id=options.cluster_id or str(randomness.uuid()),
        node_id=node_id_in(ordinal, identity.node_id),
        initial_voters=voters,
        cluster_ordinal=ordinal,
    )
    LOG.warning(
        "formatting a new cluster: id %s, ordinal %d, controllers %s",
        formed.cluster_id,
        ordinal,
        ", ".join(str(voter.node_id) for voter in voters),
    )
    return formed
