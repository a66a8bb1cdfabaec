"""`ponor up`: plan, start, supervise and stop the processes of a local cluster."""
