"""Which thread reads gRPC's sockets.

What lives here: one choice, made before gRPC is imported, because its core reads it from the environment once. By default a pool of threads polls the sockets and hands what it
read to the thread that waits for completions, which wakes the event loop. Every frame crosses two threads more than it needs then, and each crossing is a context switch: one
frame there and back took 8 of them in each process and 85 us of CPU; with the thread that waits for completions polling by itself, as gRPC did before it had the pool, it takes
3 and 50 us (docs/design/sessions-and-subscriptions.md#cost-of-an-operation).
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from typing import Final

VARIABLE: Final = "GRPC_EXPERIMENTS"
"""Read by gRPC's core. Names that a version does not know are reported on stderr and ignored."""
ONE_POLLER: Final = "-event_engine_client,-event_engine_listener"


def prefer_one_poller(environment: MutableMapping[str, str] = os.environ) -> None:
    """Have the thread that waits for completions poll, unless somebody has chosen already."""
    environment.setdefault(VARIABLE, ONE_POLLER)
