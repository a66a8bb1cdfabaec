"""Add nodes to a running cluster and remove them: change the quorum for a controller, and check that
a stopped broker owns nothing.

A new controller starts on an empty directory and then joins the quorum as a learner (`ponor cluster
quorum promote` makes it a voter). A removed controller leaves the quorum first and stops
afterwards. Every step can be repeated.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from ponor.controller.v1 import quorum_service_pb2 as wire
from ponor_metadata.nouns.nodes import NODES
from ponor_metadata.nouns.streams import STREAMS
from ponor_metadata.nouns.topics import PARTITIONS
from ponor_runtime.identity import NodeId

from ponor_cli.clients.controllers import ask_quorum_async
from ponor_cli.clients.image_reader import read_image
from ponor_cli.errors import CommandError
from ponor_cli.local.cluster_file import ClusterFile
from ponor_cli.local.directory import ClusterDirectory
from ponor_cli.local.quorum_file import ControllerPlace, QuorumFile


@dataclass(slots=True)
class ControllerChanges:
    """Changes the quorum, and then the controllers in `quorum.json` and `cluster.json`."""

    directory: ClusterDirectory
    cluster: ClusterFile
    quorum: QuorumFile

    def take_number(self) -> int:
        """Return the number of a new controller. A number is never used twice."""
        number = self.quorum.next_number
        self.quorum.next_number += 1
        self.quorum.write(self.directory)
        return number

    async def join_quorum(self, number: int, node_id: int, addresses: Mapping[str, str]) -> None:
        """Add a running controller with an empty directory as a learner. `addresses` are those of
        its ready file.

        Raises:
            CommandError: the quorum refuses or does not answer.
        """
        learner = wire.AddLearner(
            node_id=node_id,
            directory_id=uuid.UUID(addresses["directory_id"]).bytes,
            peer_address=addresses["peer"],
            service_address=addresses["session"],
        )
        await ask_quorum_async(self.cluster.controllers, wire.QuorumRequest(add_learner=learner))
        self.quorum.controllers.append(ControllerPlace(number))
        self.quorum.write(self.directory)
        self.cluster.controllers.append(addresses["session"])
        self.cluster.write(self.directory)

    async def leave_quorum(self, number: int, node_id: int, service_address: str) -> None:
        """Remove a controller from the quorum and the files.

        Raises:
            CommandError: it is the last controller, or the quorum refuses or does not answer.
        """
        if len(self.quorum.controllers) == 1:
            raise CommandError(
                f"controller {number} is the only one and cannot be removed; `ponor node stop"
                f" controller {number}` stops it"
            )
        await ask_quorum_async(
            self.cluster.controllers, wire.QuorumRequest(remove=wire.RemoveMember(node_id=node_id))
        )
        self.quorum.controllers = [place for place in self.quorum.controllers if place.number != number]
        self.quorum.write(self.directory)
        self.cluster.controllers = [each for each in self.cluster.controllers if each != service_address]
        self.cluster.write(self.directory)


async def has_drained(cluster: ClusterFile, node_id: int) -> bool:
    """Return whether a broker drained before it ended. If not, its write-ahead log may need recovery."""
    try:
        row = (await read_image(cluster.controllers))[NODES].get(NodeId(node_id))
    except CommandError:
        return False
    return row is not None and row.fenced


async def check_owns_nothing(cluster: ClusterFile, number: int, node_id: int) -> None:
    """Check that a broker that has ended owns nothing.

    Raises:
        CommandError: it leads partitions or has open streams, or no majority of the controllers answers.
    """
    image = await read_image(cluster.controllers)
    led = sum(row.leader_id == node_id for row in image[PARTITIONS])
    held = sum(row.open and row.node_id == node_id for row in image[STREAMS])
    if led or held:
        raise CommandError(
            f"broker {number} has ended but still leads {led} partitions, with {held} streams open;"
            f" `ponor node start broker {number}` "
            f"recovers them, then `ponor node remove broker {number}` drains it"
        )
