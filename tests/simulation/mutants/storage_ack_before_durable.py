"""Planted bug: an append is acknowledged when it is handed to the write-ahead log."""

from __future__ import annotations

import asyncio

import pytest
from s3stream.group_commit import GroupCommit
from s3stream.open_stream import OpenStream
from s3stream.records import StreamRecord


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    add = GroupCommit.add

    def add_and_acknowledge(
        self: GroupCommit,
        stream: OpenStream,
        record: StreamRecord,
        size_bytes: int,
        future: asyncio.Future[None],
    ) -> None:
        add(self, stream, record, size_bytes, future)
        if not future.done():
            future.set_result(None)

    monkeypatch.setattr(GroupCommit, "add", add_and_acknowledge)
