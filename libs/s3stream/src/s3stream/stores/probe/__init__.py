"""Probe: checks that a store gives the guarantees that Ponor needs.

`ponor doctor storage` runs all checks, a starting broker some of them. `port_checks` uses the
services' port on any store; `s3_checks` sends requests that the port lacks to an S3 server;
`bucket_rules` reads the configuration of the bucket. `report` interprets the results, `start_check`
decides for a starting broker. Requests for bucket rules block and use the machine's clock, so a
serving process must not send them.
"""
