"""From a data directory to a running controller: recovery, formation, ports, readiness."""
