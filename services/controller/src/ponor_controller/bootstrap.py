"""Who an empty directory becomes.

What lives here: three beginnings. A controller that was told of no others, and not that it shall wait for them, is a quorum of one. One that is told to format, and is among the voters, takes its place there: all
voters are told the same, so they begin with the same membership at index 0. Any other is blank: it votes for nobody, has a directory id of its own that nobody can have
known before (KIP-853), and waits until a leader adds it.
"""

from __future__ import annotations

import uuid
from hashlib import blake2b

from ponor_runtime.randomness import Randomness

from ponor_controller.consensus.directory_identity import DirectoryIdentity
from ponor_controller.consensus.members import Member
from ponor_controller.options import ControllerOptions


def new_identity(options: ControllerOptions, randomness: Randomness) -> DirectoryIdentity:
    """The identity of an empty directory."""
    node_id = options.own_node_id
    if not options.voters and options.format is not False:
        directory_id = randomness.uuid()
        sole = Member(node_id, directory_id.bytes, options.peer_listen, options.listen)
        return DirectoryIdentity(options.cluster_id or str(randomness.uuid()), directory_id, node_id, (sole,))
    own = next((member for member in options.voters if member.node_id == node_id), None)
    if not options.format or own is None:
        return DirectoryIdentity(options.cluster_id, randomness.uuid(), node_id, ())
    voters = tuple(sorted(options.voters))
    return DirectoryIdentity(
        options.cluster_id or _cluster_id(voters), uuid.UUID(bytes=own.directory_id), node_id, voters
    )


def _cluster_id(voters: tuple[Member, ...]) -> str:
    """The same at every voter; as random as their directory ids."""
    digest = blake2b(b"".join(member.directory_id for member in voters), digest_size=16).digest()
    return str(uuid.UUID(bytes=digest, version=4))
