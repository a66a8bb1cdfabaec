"""`DIR/quorum.json`: the controllers that a local cluster runs.

Who votes is in the controllers' own log (`ponor cluster quorum describe`); this file only says which processes `ponor up` starts, and whether their directories may
still be formatted. That is so until all initial voters have served once: a directory that is found empty later has lost its votes (KIP-853), and is added as a
new replica. Every directory draws its own id.
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
"""How many controllers a cluster may begin with. While machines are replaced it has others."""
UNDRAWN_ORDINAL: Final = ClusterOrdinal(1)
"""The ordinal of directories whose file does not name one: earlier builds drew none."""


@dataclass(frozen=True, slots=True)
class ControllerPlace:
    """A controller's number within the cluster."""

    number: int


@dataclass(slots=True)
class QuorumFile:
    """The whole file.

    Attributes:
        controllers: those that `ponor up` starts.
        formatted: every one of the first controllers has had its log once.
        next_number: of the next controller; numbers of removed ones never come back, nor do their directories.
        cluster_id: drawn when the file is made; every process of this directory expects this cluster.
        cluster_ordinal: drawn or given when the file is made; never changes, because it is part of all ids.
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
        """Read the file, or begin one for so many controllers. Without `ordinal` a new cluster draws it.

        Raises:
            CommandError: the cluster has another number of controllers or another ordinal, or may not begin with so many controllers.
        """
        content = read_json(directory.quorum_file)
        if content is None:
            if controllers not in FIRST_CONTROLLERS:
                raise CommandError(
                    f"--controllers {controllers}: begin with 1, 3 or 5; an even number of controllers survives no more failures than the odd number below it"
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
                f"{directory.root} has {present} controllers, not {controllers}; say `ponor up --controllers {present}`, and change the quorum "
                "of the running cluster with `ponor node add controller` and `ponor cluster quorum`"
            )
        if ordinal not in (None, quorum.cluster_ordinal):
            raise CommandError(
                f"--cluster-ordinal {ordinal}: {directory.root} was formatted with ordinal {quorum.cluster_ordinal}, which never changes; "
                "leave the option out, or give another --data"
            )
        quorum.refuse_lost_directories(directory)
        return quorum

    def refuse_lost_directories(self, directory: ClusterDirectory) -> None:
        """Do not start a cluster whose metadata are gone: its controllers would wait for ever.

        Raises:
            CommandError: none of the controllers' directories is there.
        """
        names = [f"controller-{place.number}" for place in self.controllers]
        if self.formatted and not any((directory.process_data(name) / "identity").exists() for name in names):
            raise CommandError(
                f"{directory.root} held cluster {self.cluster_id}, but no directory of its controllers ({', '.join(names)}) is there; they hold the metadata. "
                "Mount them or move them back. To begin a new and empty cluster, give another --data"
            )
