"""Query the probe endpoint of this container's service: `ponor_probe.py [readyz|livez]` exits with 0 or 1 and
prints the reasons.

For container engines whose health check is a command; Kubernetes requests the endpoint directly. This script
imports only the standard library, because it runs every few seconds.
"""

from __future__ import annotations

import http.client
import os
import sys
from typing import Final

ANSWER_S_MAX: Final = 3.0
ANY_ADDRESS: Final = ("", "0.0.0.0", "::", "[::]")  # noqa: S104 - compared, not bound


def ask(probe: str) -> tuple[bool, str]:
    """Return whether the endpoint answered with 200, and the text of its answer."""
    host = os.environ.get("PONOR_LISTEN", "")
    connection = http.client.HTTPConnection(
        "127.0.0.1" if host in ANY_ADDRESS else host.strip("[]"),
        int(os.environ.get("PONOR_METRICS_PORT") or 9404),
        timeout=ANSWER_S_MAX,
    )
    try:
        connection.request("GET", f"/{probe}")
        answer = connection.getresponse()
        return answer.status == 200, answer.read().decode()
    except OSError as error:
        return False, f"no answer from the probe endpoint: {error}\n"
    finally:
        connection.close()


if __name__ == "__main__":
    is_good, text = ask(sys.argv[1] if len(sys.argv) > 1 else "readyz")
    sys.stdout.write(text)
    sys.exit(0 if is_good else 1)
