"""One byte on one voter's disk flips while the other two are written to, on real directories.

For every byte, the voter either refuses to start and names the file, or starts with everything. In both cases
the cluster has everything. A voter that refuses is replaced by a blank one, as in docs/operations/quorum.md.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from ponor.controller.v1 import quorum_service_pb2 as wire
from ponor.controller.v1 import session_service_pb2 as session_wire
from ponor_controller.consensus.errors import RecordLogCorruptError
from ponor_metadata.client.quorum_client import QuorumClient
from ponor_metadata.client.session import SessionClient
from ponor_metadata.client.subscription import SubscriptionClient
from ponor_metadata.nouns.keys import KEYS
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_runtime.system import SystemClock

from services.controller.tests.consensus import test_quorum_over_loopback as loopback
from services.controller.tests.consensus.test_quorum_over_loopback import Machine, a_node, machines

SECTOR = 512
FRAME_HEADER = 64
MAGIC = b"PJF1"
DATA, PROOF = MAGIC + b"\x02", MAGIC + b"\x03"
DAMAGED = 2
"""The number of the voter whose bytes flip."""


@dataclass(frozen=True, slots=True)
class Region:
    """A byte of a stopped controller's directory. `refused`: the start must fail with the file's
    name; otherwise the byte may also be unused.
    """

    name: str
    path: Path
    position: int
    refused: bool = True


def _has_all_kinds(directory: Path) -> bool:
    """Create two snapshots, sealed segments and a last one. A voter with a slow disk has them later
    than the others.
    """
    return len(_snapshots(directory)) == 2 and len(list((directory / "log").glob("segment-*"))) > 1


def _snapshots(directory: Path) -> list[Path]:
    """The two newest snapshots; a controller that exits may leave the beginning of another one."""
    return sorted(path for path in (directory / "snapshots").iterdir() if not path.suffix)[-2:]


def regions(directory: Path) -> Iterator[Region]:
    """One byte in every region of every kind of file."""
    yield Region("identity", directory / "identity", 20)
    for age, path in zip(("older", "newest"), _snapshots(directory), strict=True):
        size = path.stat().st_size
        yield Region(f"{age} snapshot: magic", path, 2)
        yield Region(f"{age} snapshot: header", path, 30)
        yield Region(f"{age} snapshot: body", path, size // 2)
        yield Region(f"{age} snapshot: end", path, size - 1)
    live = sorted((directory / "log").glob("segment-*"))
    assert len(live) > 1, "there are sealed segments and a last one"
    for age, path in (("sealed", live[0]), ("last", live[-1])):
        content = path.read_bytes()
        frame = _frame(content, DATA)
        yield Region(f"{age} segment: opening header", path, 20)
        yield Region(f"{age} segment: opening body", path, FRAME_HEADER + 3)
        yield Region(f"{age} segment: frame header", path, frame + 17)
        yield Region(f"{age} segment: lengths of entries", path, frame + FRAME_HEADER)
        yield Region(f"{age} segment: entry", path, frame + FRAME_HEADER + 20)
    content = live[-1].read_bytes()
    yield Region("the last proof", live[-1], _last_frame(content, PROOF) + 33, refused=False)
    yield Region("behind the end", live[-1], len(content) - 7, refused=False)


def _frame(content: bytes, begins: bytes) -> int:
    return next(at for at in range(0, len(content), SECTOR) if content.startswith(begins, at))


def _last_frame(content: bytes, begins: bytes) -> int:
    """The last frame of its kind. Frames of an older generation are from before the file was reused."""
    frames = [at for at in range(0, len(content), SECTOR) if content.startswith(MAGIC, at)]
    generations = {at: int.from_bytes(content[at + 8 : at + 16], "little") for at in frames}
    newest = max(generations.values())
    return max(at for at in frames if generations[at] == newest and content.startswith(begins, at))


class Keys:
    """The keys that the cluster acknowledged."""

    def __init__(self, session: SessionClient, subscription: SubscriptionClient) -> None:
        self._session = session
        self._subscription = subscription
        self.count = 0

    async def put(self, count: int) -> None:
        keys = [f"k{self.count + n}" for n in range(count)]
        operations = [
            session_wire.Operation(put_key=session_wire.PutKey(key=key, value=b"v" * 60)) for key in keys
        ]
        results = await asyncio.gather(*map(self._session.submit, operations))
        assert all(result.key_held.created for result in results)
        self.count += count
        await self._subscription.wait_for(results[-1].commit_index, loopback.LAG_MS_MAX)
        assert len(self._subscription.image[KEYS]) == self.count, "nothing is lost"


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(
        loopback.SETTINGS, log_segment_bytes=64 * 1024, batch_bytes_max=16 * 1024, snapshot_batches=60
    )
    monkeypatch.setattr(loopback, "SETTINGS", small)


async def test_a_flipped_byte_is_refused_or_unused_and_a_blank_controller_replaces_the_voter(
    tmp_path: Path,
) -> None:
    async with machines(tmp_path) as all_three, a_node(all_three) as (session, subscription):
        keys, damaged = Keys(session, subscription), all_three[DAMAGED]
        while keys.count < 2_000 or not _has_all_kinds(damaged.directory):
            await keys.put(10)
        await _has_everything(damaged, all_three)
        await damaged.end()
        await keys.put(10)
        for region in list(regions(damaged.directory)):
            await _flip_and_start(damaged, region, all_three)
            await keys.put(3)
        await _tear_and_start(damaged, all_three)
        await keys.put(3)
        await _replace(damaged, all_three, tmp_path)
        await keys.put(3)
        index = (await _ask(all_three, read_index=wire.ReadIndex())).done.index
        images = await loopback.images_of(all_three, index)
        assert images[0] == images[1] == images[2]


async def _flip_and_start(damaged: Machine, region: Region, all_three: list[Machine]) -> None:
    good = region.path.read_bytes()
    bad = bytearray(good)
    bad[region.position] ^= 0x10
    region.path.write_bytes(bytes(bad))
    damaged.start()
    assert damaged.task is not None
    caught_up = asyncio.create_task(_has_everything(damaged, all_three))
    await asyncio.wait({damaged.task, caught_up}, return_when=asyncio.FIRST_COMPLETED)
    if damaged.task.done():
        caught_up.cancel()
        refusal = damaged.task.exception()
        assert isinstance(refusal, RecordLogCorruptError), f"{region.name}: {refusal!r}"
        assert region.path.name in str(refusal), f"{region.name}: {refusal}"
        await damaged.cut_off()
        region.path.write_bytes(good)
    else:
        assert not region.refused, f"{region.name} was accepted"
        await caught_up
        await damaged.end()


async def _tear_and_start(damaged: Machine, all_three: list[Machine]) -> None:
    """The last write was torn, as by a crash before any proof of its sync: it is truncated and
    received again from the leader.
    """
    path = max((damaged.directory / "log").glob("segment-*"))
    content = bytearray(path.read_bytes())
    last, proof = _last_frame(bytes(content), DATA), _last_frame(bytes(content), PROOF)
    assert last < proof
    content[last + FRAME_HEADER + 9] ^= 0x10
    content[proof:] = bytes(len(content) - proof)
    path.write_bytes(bytes(content))
    await _start_and_follow(damaged, all_three)


async def _start_and_follow(damaged: Machine, all_three: list[Machine]) -> None:
    damaged.start()
    assert damaged.task is not None
    caught_up = asyncio.create_task(_has_everything(damaged, all_three))
    await asyncio.wait({damaged.task, caught_up}, return_when=asyncio.FIRST_COMPLETED)
    if damaged.task.done():
        await damaged.task  # raises the error that ended it
    await caught_up
    await damaged.end()


async def _has_everything(machine: Machine, all_three: list[Machine]) -> None:
    """Wait until it follows and its log is as long as the leader's."""
    while True:
        described = (await _ask(all_three, describe=wire.DescribeQuorum(leader_only=True))).description
        state = next(each for each in described.members if each.node_id == machine.member.node_id)
        if 0 <= state.silent_ms < 500 and state.match_index == described.last_index:
            return
        await asyncio.sleep(0.05)


async def _replace(damaged: Machine, all_three: list[Machine], path: Path) -> None:
    """The steps of docs/operations/quorum.md: an empty directory, remove the lost member, add the blank
    one.
    """
    damaged.directory = path / "blank"
    damaged.formats = False
    damaged.start()
    identity = damaged.directory / "identity"
    while not identity.exists():
        await asyncio.sleep(0.02)
    directory_id = uuid.UUID(json.loads(identity.read_bytes().partition(b"\n")[0])["directory_id"])
    assert directory_id.bytes != damaged.member.directory_id
    member = damaged.member
    await _ask(all_three, remove=wire.RemoveMember(node_id=member.node_id))
    await _ask(
        all_three,
        add_learner=wire.AddLearner(
            node_id=member.node_id,
            directory_id=directory_id.bytes,
            peer_address=member.peer_address,
            service_address=member.service_address,
        ),
    )
    await _ask(all_three, promote=wire.PromoteLearner(node_id=member.node_id))
    described = (await _ask(all_three, describe=wire.DescribeQuorum(leader_only=True))).description
    assert [each.voter for each in described.members] == [True] * 3


async def _ask(all_three: list[Machine], **kind: object) -> wire.QuorumResponse:
    network = GrpcNetwork()
    try:
        addresses = [machine.member.service_address for machine in all_three]
        client = QuorumClient(network, SystemClock(), addresses)
        return await client.ask(wire.QuorumRequest(**kind), timeout_s=loopback.LAG_MS_MAX / 1000)  # type: ignore[arg-type]
    finally:
        await network.close()
