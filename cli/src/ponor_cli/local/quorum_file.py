"""`DIR/quorum.json`: the controllers that `ponor up` starts, and the identity of the cluster.

The voters are in the controllers' own log (`ponor cluster quorum describe`). This file also records
whether all initial voters have served at least once. Until then `ponor up` may format controller directories.
If a controller directory is empty later, its log and Raft vote are lost. `ponor up` does not format it again;
an operator must add the controller to the quorum as a new member, with a new directory id (KIP-853).
"""

from __future__ import annotations

import secrets
import uuid
from dataclasses import asdict, dataclass
from typing import Final

from ponor_runtime.identity import CLUSTER_ORDINAL_MAX, ClusterOrdinal

from ponor_cli.errors import CommandError
from ponor_cli.local.directory import ClusterDirectory, read_json, write_json_atomically

FIRST_CONTROLLERS: Final = (1, 3, 5)
"""Number of controllers of a new cluster. A change of the quorum may pass through other numbers."""
UNDRAWN_ORDINAL: Final = ClusterOrdinal(1)
"""The ordinal for files of earlier builds, which lack the field."""


@dataclass(frozen=True, slots=True)
class ControllerPlace:
    """One controller: its number within the cluster."""

    number: int


@dataclass(slots=True)
class QuorumFile:
    """The whole file.

    Attributes:
        controllers: the ones that `ponor up` starts.
        formatted: whether all initial controllers have started successfully at least once; from then on an
            empty directory is not formatted.
        next_number: number of the next controller; a number is never used twice.
        cluster_id: drawn when the file is created; every process of this directory expects it.
        cluster_ordinal: drawn or given when the file is created; never changes, because ids contain it.
    """

    controllers: list[ControllerPlace]
    formatted: bool = False
    next_number: int = 0
    cluster_id: str = ""
    cluster_ordinal: ClusterOrdinal = UNDRAWN_ORDINAL

    def __post_init__(self) -> None:
        self.next_number = max([self.next_number, *(place.number + 1 for place in self.controllers)])

    def write(self, directory: ClusterDirectory) -> None:
        """Replace the file."""
        write_json_atomically(directory.quorum_file, asdict(self))

    @classmethod
    def open(
        cls, directory: ClusterDirectory, controllers: int, ordinal: ClusterOrdinal | None = None
    ) -> QuorumFile:
        """Read the file, or create it for a new cluster. Without `ordinal` a new cluster draws one.

        Raises:
            CommandError: the cluster has another number of controllers or another ordinal, or a new
                cluster cannot have this number.
        """
        content = read_json(directory.quorum_file)
        if content is None:
            if controllers not in FIRST_CONTROLLERS:
                raise CommandError(
                    f"--controllers {controllers}: start with 1, 3 or 5; an even number of"
                    " controllers survives no more failures than the odd number below it"
                )
            quorum = cls(
                [ControllerPlace(number) for number in range(controllers)],
                cluster_id=str(uuid.uuid4()),
                cluster_ordinal=ordinal or ClusterOrdinal(1 + secrets.randbelow(CLUSTER_ORDINAL_MAX)),
            )
            quorum.write(directory)
            return quorum
        places = [ControllerPlace(**row) for row in content["controllers"]]
        quorum = cls(
            places,
            content["formatted"],
            content["next_number"],
            content["cluster_id"],
            ClusterOrdinal(content.get("cluster_ordinal", UNDRAWN_ORDINAL)),
        )
        present = len(quorum.controllers)
        if present != controllers:
            raise CommandError(
                f"{directory.root} has {present} controllers, not {controllers}; start it with"
                f" `ponor up --controllers {present}`, and change the quorum "
                "of the running cluster with `ponor node add controller` and `ponor cluster quorum`"
            )
        if ordinal not in (None, quorum.cluster_ordinal):
            raise CommandError(
                f"--cluster-ordinal {ordinal}: {directory.root} was formatted with ordinal"
                f" {quorum.cluster_ordinal}, which never changes; "
                "leave the option out, or give another --data"
            )
        quorum.refuse_lost_directories(directory)
        return quorum

    def refuse_lost_directories(self, directory: ClusterDirectory) -> None:
        """Refuse a cluster without metadata: its controllers would wait forever.

        Raises:
            CommandError: every controller directory is missing.
        """
        names = [f"controller-{place.number}" for place in self.controllers]
        if self.formatted and not any((directory.process_data(name) / "identity").exists() for name in names):
            raise CommandError(
                f"{directory.root} held cluster {self.cluster_id}, but its controller directories"
                f" ({', '.join(names)}) are missing; they hold the metadata. "
                "Mount them or move them back. To create an empty cluster, give another --data"
            )
