"""Check a history from a file: `python -m ponor_cluster_simulation.histories FILE` (`-` for
standard input).

Exit code 0: linearizable; 1: not linearizable, with the unexplained answer; 2: not a history, or
too wide to decide.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ponor_cluster_simulation.histories.linearizability import HistoryTooWideError, find_anomalies
from ponor_cluster_simulation.histories.operation import from_json_lines


def main(arguments: Sequence[str]) -> int:
    """Check the file of the command line. Return the exit code."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m ponor_cluster_simulation.histories FILE\n")
        return 2
    (name,) = arguments
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
        operations = from_json_lines(text.splitlines())
        anomalies = find_anomalies(operations)
    except (OSError, ValueError, HistoryTooWideError) as problem:
        sys.stderr.write(f"{name}: {problem}\n")
        return 2
    for anomaly in anomalies:
        sys.stdout.write(f"{anomaly}\n")
    keys = len({operation.key for operation in operations})
    verdict = "not linearizable" if anomalies else "linearizable"
    sys.stdout.write(f"{len(operations)} operations of {keys} keys: {verdict}\n")
    return 1 if anomalies else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
