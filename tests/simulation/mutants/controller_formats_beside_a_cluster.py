"""Planted bug: a controller that lost its directory forms a new cluster although another one holds a cluster; one that is silent then counts as blank."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from ponor.controller.v1 import peer_service_pb2 as wire
from ponor_controller.consensus import introduction
from ponor_controller.consensus.directory_identity import DirectoryIdentity
from ponor_controller.startup import formation
from ponor_runtime.network import Network


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    ask_who = introduction.ask_who
    held = False

    async def guess(network: Network, address: str) -> wire.PeerIntroduction | None:
        answer = await ask_who(network, address)
        if answer is None and held:
            return wire.PeerIntroduction(replica=wire.PeerReplica(node_id=1, directory_id=bytes(16)))
        return answer

    def ignore(_: DirectoryIdentity, answers: Sequence[wire.PeerIntroduction | None]) -> None:
        nonlocal held
        held = any(answer is not None and answer.cluster_id for answer in answers)

    monkeypatch.setattr(formation, "ask_who", guess)
    monkeypatch.setattr(formation, "_refuse_known_cluster", ignore)
    monkeypatch.setattr(formation, "_is_ready", lambda _, answer: answer is not None)
