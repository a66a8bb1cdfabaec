"""A takeover while a forced recovery of the controllers waits for confirmation: slots stay; a bug
that deletes them is caught.
"""

from __future__ import annotations

import asyncio

import pytest
from ponor_runtime.identity import NodeId
from s3stream.object_wal.slot_keys import slot_key

from libs.s3stream.tests.diskless_cluster import DisklessCluster
from tests.simulation.mutants.table import MUTANTS


async def take_over_unconfirmed() -> None:
    cluster = DisklessCluster()
    old, new = await cluster.broker(NodeId(1)), await cluster.broker(NodeId(2))
    (stream,) = await old.open(*await old.client.create_streams([{}]))
    for number in range(3):
        await old.append(stream, b"%d" % number)
    (wal,) = cluster.fail_over(NodeId(1), new)
    cluster.model.incarnation_unconfirmed = True
    await asyncio.gather(old.stop(), cluster.recover(wal, new))
    await new.stop()
    await cluster.check()
    missing = [at for at in range(3) if slot_key(wal.name, at) not in cluster.store.objects]
    assert not missing, f"slots {missing} are deleted before the confirmation"


async def test_the_slots_stay() -> None:
    await take_over_unconfirmed()


async def test_a_planted_bug_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS["takeover_deletes_unconfirmed"].plant(monkeypatch)
    with pytest.raises(AssertionError, match="before the confirmation"):
        await take_over_unconfirmed()
