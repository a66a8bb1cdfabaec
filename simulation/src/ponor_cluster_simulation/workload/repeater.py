"""A client that repeats operations on purpose: the same operation, and another operation under the same id.

The shipped client never does that, so this client implements the session protocol itself. The answer to a
repeat must equal the first answer. The controllers must refuse another body under a used id, on any
connection. A put does not change an existing key, so values never change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_rpc.errors import RETRY_SAME_OPERATION
from ponor_rpc.methods import SESSION
from ponor_runtime.identity import NodeId
from ponor_runtime.network import Connection, ConnectionClosedError
from ponor_runtime.runtime import Runtime

from ponor_cluster_simulation.invariants.registry import Checks

ANSWER_S_MAX: Final = 3.0
KEYS: Final = 12


class Repeater:
    """The client. Its process never crashes.

    Attributes:
        repeats: number of answered repeats.
        mismatches: number of refused bodies.
    """

    def __init__(self, name: str, node_id: NodeId, addresses: Sequence[str], checks: Checks) -> None:
        self.name = name
        self._node_id = node_id
        self._addresses = tuple(addresses)
        self._checks = checks
        self._node_epoch = 0
        self._request_id = 0
        self._first: wire.OperationResult | None = None
        self._values: dict[str, bytes] = {}
        self.repeats = 0
        self.mismatches = 0
        self.stop = False
        self.is_finished = False

    async def run(self, runtime: Runtime) -> None:
        """Repeat operations until `stop` is set and the last operation is answered."""
        incarnation = runtime.randomness.token(16)
        attempts = 0
        while not self.is_finished:
            address = self._addresses[attempts % len(self._addresses)]
            attempts += 1
            try:
                connection = await runtime.network.connect(address, SESSION)
            except ConnectionClosedError:
                await runtime.clock.sleep(0.05)
                continue
            try:
                await self._converse(runtime, connection, incarnation)
            except (ConnectionClosedError, TimeoutError):
                await runtime.clock.sleep(0.05)
            finally:
                await connection.close()

    async def _converse(self, runtime: Runtime, connection: Connection, incarnation: bytes) -> None:
        hello = wire.Hello(
            node_id=self._node_id,
            role=records_pb2.NODE_ROLE_COMPACTOR,
            incarnation=incarnation,
            node_epoch=self._node_epoch,
        )
        await connection.send(wire.SessionRequest(hello=hello).SerializeToString())
        welcome = await self._receive(connection)
        if welcome.WhichOneof("frame") != "welcome":
            raise ConnectionClosedError("the controller opened no session")
        self._node_epoch = welcome.welcome.node_epoch
        while not self.is_finished:
            await self._repeat_request_ids(runtime, connection)
            await runtime.clock.sleep(runtime.randomness.uniform(0.0, 0.1))
            self.is_finished = self.stop and self._first is None

    async def _repeat_request_ids(self, runtime: Runtime, connection: Connection) -> None:
        """Send one operation until it is answered, sometimes repeat it, and then send another operation under
        the same id.
        """
        if self._first is None:
            self._request_id += 1
        key = f"repeated/{self._request_id % KEYS}"
        put = wire.PutKey(key=key, value=str(self._request_id).encode())
        first = await self._ask(connection, wire.Operation(request_id=self._request_id, put_key=put))
        if self._first is None:
            self._first = first
        self._compare(key, first)
        if runtime.randomness.below(2):
            again = await self._ask(connection, wire.Operation(request_id=self._request_id, put_key=put))
            self._compare(key, again)
            self.repeats += 1
        other = wire.Operation(
            request_id=self._request_id, allocate_producer_ids=wire.AllocateProducerIds(count=1)
        )
        refused = await self._ask(connection, other)
        was_kept = self._first.key_held.created  # an operation without effect leaves no stored result
        is_mismatch = refused.error.code == error_pb2.ERROR_CODE_REQUEST_MISMATCH
        self._checks.require(
            27,
            is_mismatch or not was_kept,
            f"id {self._request_id} was accepted with another body: {refused}",
        )
        self.mismatches += is_mismatch
        self._first = None

    def _compare(self, key: str, result: wire.OperationResult) -> None:
        assert self._first is not None
        assert result.WhichOneof("outcome") == "key_held", f"{self.name}: {result}"
        held = result.key_held
        known = self._values.setdefault(key, held.value)
        self._checks.require(27, held.value == known, f"key {key} changed from {known!r} to {held.value!r}")
        is_same = result == self._first or not self._first.key_held.created
        self._checks.require(
            27, is_same, f"id {self._request_id} was answered {self._first} and then {result}"
        )

    async def _ask(self, connection: Connection, operation: wire.Operation) -> wire.OperationResult:
        batch = wire.OperationBatch(first_incomplete_id=self._request_id, operations=[operation])
        while True:
            await connection.send(wire.SessionRequest(operations=batch).SerializeToString())
            while True:
                frame = await self._receive(connection)
                if frame.WhichOneof("frame") == "results":
                    break
                if frame.WhichOneof("frame") == "refused":
                    raise ConnectionClosedError("the session was ended")
            (result,) = frame.results.results
            if result.error.code not in RETRY_SAME_OPERATION:
                return result
            await asyncio.sleep(0.02)

    async def _receive(self, connection: Connection) -> wire.SessionResponse:
        async with asyncio.timeout(ANSWER_S_MAX):
            return wire.SessionResponse.FromString(await connection.receive())
