"""The simulation runs the shipped services and contains no replacement of one.

A fake of a service proves only the fake. Disks, networks, stores and clocks are simulated behind
ports; services begin at their own `app.run`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SIMULATION = ROOT / "simulation" / "src" / "ponor_cluster_simulation"
KERNEL = ROOT / "libs" / "simulation" / "src" / "ponor_simulation"
SCENARIOS = ROOT / "tests" / "simulation"
METHODS = {"SESSION", "SUBSCRIBE", "PEER", "QUORUM"}
"""The services' method tables in ponor_rpc.methods."""
WATCH = SIMULATION / "cluster" / "cluster_watch.py"
"""These may patch: they install a subclass or a wrapper that only reports."""
BROKEN_PEER = SCENARIOS / "test_metadata_clients.py"
"""A test of the two clients alone, with a peer that breaks the protocol; the swarm runs them with
the controller."""


def files() -> Iterator[Path]:
    for folder in (SIMULATION, KERNEL, SCENARIOS):
        yield from sorted(folder.rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_no_class_replaces_a_service() -> None:
    broken = [complaint for path in files() for complaint in _replacements(path)]
    assert not broken, "\n" + "\n".join(broken)


def _replacements(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "unittest.mock":
            names = {alias.name for alias in node.names}
            if (path, names) != (WATCH, {"patch"}):
                yield (
                    f"{name_of(path)}:{node.lineno}: {', '.join(sorted(names))} of unittest.mock;"
                    " run the real part on simulated ports"
                )
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "listen":
            named = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} & METHODS
            if named and path != BROKEN_PEER:
                yield (
                    f"{name_of(path)}:{node.lineno}: answers for {', '.join(sorted(named))}; let the"
                    " service's own app.run do that"
                )


def test_services_begin_at_their_own_app() -> None:
    """Each service once, in `sim_cluster`, and nowhere else in the member."""
    found: dict[str, list[str]] = {}
    for path in sorted(SIMULATION.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").endswith(".app"):
                continue
            if any(alias.name == "run" for alias in node.names):
                found.setdefault(node.module or "", []).append(path.name)
    assert found == {
        f"ponor_{service}.app": ["sim_cluster.py"] for service in ("broker", "compactor", "controller", "gc")
    }
