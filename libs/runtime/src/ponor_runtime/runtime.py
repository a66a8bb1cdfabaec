"""The bundle of ports that every service receives.

Object stores are not part of it: they are built from a URL, and a controller has none.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ponor_runtime.clock import Clock
from ponor_runtime.disk import Disk
from ponor_runtime.health import Health
from ponor_runtime.network import Network
from ponor_runtime.process import Process, UnwatchedProcess
from ponor_runtime.randomness import Randomness
from ponor_runtime.tasks import FailStop, report_to_loop
from ponor_runtime.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class Runtime:
    """Access of one process to the outside world; passed to the composition root (`app.py`).

    `fail_stop(what, error)` exits the process without clean-up: after failed writes and broken invariants the
    process must not send another message.
    """

    clock: Clock
    randomness: Randomness
    disk: Disk
    network: Network
    telemetry: Telemetry
    fail_stop: FailStop = report_to_loop
    process: Process = field(default_factory=UnwatchedProcess)
    health: Health = field(default_factory=Health)
