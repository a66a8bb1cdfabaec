"""Faults that strike a process after a resource, for example a write-ahead log, was opened for it and before
it receives the answer.

A controller operation opens a resource when its records are committed. A request to the object store opens a
resource when the store applies the request. The process that requested the resource cannot record it, so
another process must take it over or close it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ponor.metadata.v1.records_pb2 import Record

from ponor_cluster_simulation.faults.fault import Fault, FaultKind

AT_OPEN: Final = frozenset({FaultKind.CRASH_AT_OPEN, FaultKind.LOST_AT_OPEN, FaultKind.PAUSE_AT_OPEN})
REGISTRATIONS: Final = frozenset({"node_registered", "wal_opened"})
"""Records that belong to no operation; they contain their node id."""


class Openings:
    """Faults that wait until a resource of their kind is opened.

    Args:
        name_of: the process of a node; None if it is not in the cluster.
        strike: executes a fault on a process after the current event.
        struck: called before each fault is executed, with the fault and the kind of the opened resource.
    """

    def __init__(
        self,
        name_of: Callable[[int], str | None],
        strike: Callable[[Fault, str], None],
        struck: Callable[[Fault, str], None],
    ) -> None:
        self._name_of = name_of
        self._strike = strike
        self._struck = struck
        self._waiting: list[Fault] = []
        self._opened: list[str] = []
        """Kinds of the records of the current operation."""

    def wait(self, fault: Fault) -> None:
        """Execute the fault when a resource of the kind `fault.target` is opened next."""
        self._waiting.append(fault)

    def clear(self) -> None:
        """Drop all waiting faults."""
        self._waiting.clear()

    def committed(self, record: Record) -> None:
        """Handle a committed record. The last record of an operation contains the node id."""
        if not self._waiting:
            self._opened.clear()
            return
        kind = record.WhichOneof("kind") or ""
        if kind in REGISTRATIONS:
            self._happened(kind, self._name_of(getattr(record, kind).node_id))
        elif kind == "operation_completed":
            opened, self._opened = dict.fromkeys(self._opened), []
            for each in opened:
                self._happened(each, self._name_of(record.operation_completed.node_id))
        else:
            self._opened.append(kind)

    def applied(self, call: str, name: str) -> bool:
        """Handle a request of process `name` that the store applied. Return whether its answer is lost."""
        return self._happened(call, name)

    def _happened(self, what: str, name: str | None) -> bool:
        due = [fault for fault in self._waiting if fault.target == what]
        if name is None or not due:
            return False
        fault = due[0]  # one fault per opening; the other faults wait for the next opening
        self._waiting.remove(fault)
        self._struck(fault, what)
        self._strike(fault, name)
        return fault.kind is FaultKind.LOST_AT_OPEN
