"""`ponor doctor storage`: does a store keep the promises that Ponor builds on?

One module a source of evidence: `port_checks` asks through the same port as the services, on any store; `s3_checks` asks an S3 server what the
port does not show; `bucket_rules` reads what the bucket's owner configured. `report` says what an answer means.
"""
