"""Choice of the thread that polls gRPC's sockets.

By default a pool of threads polls the sockets and passes the data to the completion thread, which wakes the
event loop. Without the pool, as in earlier versions of gRPC, the completion thread polls itself. This saves
two thread switches per frame: a round trip takes 3 context switches in each process and 50 us of CPU instead
of 8 and 85 us (docs/design/sessions-and-subscriptions.md#cost-of-an-operation).
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from typing import Final

VARIABLE: Final = "GRPC_EXPERIMENTS"
"""gRPC's core reads this variable once, when gRPC is imported. It ignores unknown experiment names and
reports them on stderr.
"""
ONE_POLLER: Final = "-event_engine_client,-event_engine_listener"


def prefer_one_poller(environment: MutableMapping[str, str] = os.environ) -> None:
    """Make the completion thread poll, unless the environment already sets the variable."""
    environment.setdefault(VARIABLE, ONE_POLLER)
