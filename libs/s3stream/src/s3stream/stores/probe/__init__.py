"""Probe: checks that a store keeps the promises on which Ponor builds.

`ponor doctor storage` runs all checks, every broker some of them at its start. One module per source of evidence:
`port_checks` uses the services' port on any store; `s3_checks` sends requests to an S3 server that the port does not
offer; `bucket_rules` reads the configuration of the bucket. `report` interprets the results, `start_check` decides for
a starting broker. Requests for a bucket's rules block and use the machine's clock, so a serving process must not make them.
"""
