"""Controllers that come and go while a cluster runs: the processes are the supervisor's, membership is the quorum's, and the files must agree with both.

What lives here: the order of steps. A new controller runs on a blank directory first and is then let into the quorum as a learner (`ponor cluster quorum promote` makes
it vote); one that goes leaves the quorum first and is stopped afterwards. Every step may be repeated.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from ponor.controller.v1 import quorum_service_pb2 as wire
from ponor_metadata.quorum_client import NoControllerError, QuorumClient
from ponor_rpc.errors import OperationError
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_runtime.system import SystemClock

from ponor_cli.cluster_file import ClusterFile
from ponor_cli.directory import ClusterDirectory
from ponor_cli.errors import CommandError
from ponor_cli.quorum_file import ControllerPlace, QuorumFile

ANSWER_S_MAX = 30.0


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
        await self._ask(wire.QuorumRequest(add_learner=learner))
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
        await self._ask(wire.QuorumRequest(remove=wire.RemoveMember(node_id=node_id)))
        self.quorum.controllers = [place for place in self.quorum.controllers if place.number != number]
        self.quorum.write(self.directory)
        self.cluster.controllers = [each for each in self.cluster.controllers if each != service_address]
        self.cluster.write(self.directory)

    async def _ask(self, request: wire.QuorumRequest) -> None:
        network = GrpcNetwork()
        try:
            client = QuorumClient(network, SystemClock(), self.cluster.controllers)
            await client.ask(request, timeout_s=ANSWER_S_MAX)
        except OperationError as error:
            raise CommandError(error.message) from error
        except NoControllerError as error:
            raise CommandError(f"{error}; is a majority of the controllers running?") from error
        finally:
            await network.close()
