"""The data directory of a local cluster: files, ports, and the control socket of `ponor up`."""
