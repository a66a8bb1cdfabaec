"""Controllers that come and go while a cluster runs: the processes are the supervisor's, membership is the quorum's, and the files must agree with both.

What lives here: the order of steps. A new controller runs on a blank directory first and is then let into the quorum as a learner (`ponor cluster quorum promote` makes
it vote); one that goes leaves the quorum first and is stopped afterwards. Every step may be repeated.
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
    """Keeps `quorum.json` and the list of controllers in `cluster.json` true."""

    directory: ClusterDirectory
    cluster: ClusterFile
    quorum: QuorumFile

    def take_number(self) -> int:
        """The number of a new controller; never given again."""
        number = self.quorum.next_number
        self.quorum.next_number += 1
        self.quorum.write(self.directory)
        return number

    async def let_in(self, number: int, node_id: int, addresses: Mapping[str, str]) -> None:
        """Make a learner of a controller that runs on a blank directory; `addresses` are those of its ready file.

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

    async def let_go(self, number: int, node_id: int, service_address: str) -> None:
        """Take a controller out of the quorum and of the files.

        Raises:
            CommandError: it is the last one, or the quorum refuses or does not answer.
        """
        if len(self.quorum.controllers) == 1:
            raise CommandError(
                f"controller {number} is the cluster's only one and cannot be removed; `ponor node stop controller {number}` stops it"
            )
        await ask_quorum_async(
            self.cluster.controllers, wire.QuorumRequest(remove=wire.RemoveMember(node_id=node_id))
        )
        self.quorum.controllers = [place for place in self.quorum.controllers if place.number != number]
        self.quorum.write(self.directory)
        self.cluster.controllers = [each for each in self.cluster.controllers if each != service_address]
        self.cluster.write(self.directory)


async def has_left(cluster: ClusterFile, node_id: int) -> bool:
    """Whether a broker gave everything away and said good-bye. One whose drain took too long has not, and others may wait for its next start."""
    try:
        row = (await read_image(cluster.controllers))[NODES].get(NodeId(node_id))
    except CommandError:
        return False
    return row is not None and row.fenced


async def check_holds_nothing(cluster: ClusterFile, number: int, node_id: int) -> None:
    """Whether a broker that has ended gave everything away.

    Raises:
        CommandError: it leads partitions or holds streams open, or no majority of the controllers answers.
    """
    image = await read_image(cluster.controllers)
    led = sum(row.leader_id == node_id for row in image[PARTITIONS])
    held = sum(row.open and row.node_id == node_id for row in image[STREAMS])
    if led or held:
        raise CommandError(
            f"broker {number} has ended but still leads {led} partitions, with {held} streams open; `ponor node start broker {number}` "
            f"lets it recover them, then `ponor node remove broker {number}` gives them away"
        )
