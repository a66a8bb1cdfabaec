"""Start a controller on a data directory: recovery, formation, ports, readiness."""
