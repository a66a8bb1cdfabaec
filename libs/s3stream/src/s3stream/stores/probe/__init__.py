"""Does a store keep the promises that Ponor builds on? Asked by `ponor doctor storage`, and in part by every broker at its start.

One module a source of evidence: `port_checks` asks through the same port as the services, on any store; `s3_checks` asks an S3 server what the
port does not show; `bucket_rules` reads what the bucket's owner configured. `report` says what an answer means, `start_check` what a broker asks
before it trusts a store with a write-ahead log. Requests to a bucket's rules block, and the clock here is the machine's: none of this is for a service that serves.
"""
