"""Planted bug: the row of a node that is unregistered is deleted, so the next process under its id begins at the first epoch again."""

from __future__ import annotations

import pytest
from ponor.metadata.v1 import records_pb2
from ponor_metadata import apply, image
from ponor_metadata.view import View
from ponor_runtime.identity import NodeId


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""

    def node_unregistered(view: View, record: records_pb2.NodeUnregistered) -> None:
        for operation in list(view.operations):
            if operation.node_id == record.node_id:
                view.operations.delete((operation.node_id, operation.request_id))
        view.nodes.delete(NodeId(record.node_id))

    kind = "node_unregistered"
    number = records_pb2.Record.DESCRIPTOR.fields_by_name[kind].number
    monkeypatch.setitem(apply.RULES, kind, node_unregistered)
    monkeypatch.setitem(image._RULES_BY_NUMBER, number, (kind, node_unregistered))
