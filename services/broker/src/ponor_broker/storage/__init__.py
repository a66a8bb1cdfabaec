"""The controller adapters of the storage: s3stream's ports, fulfilled over the session and the subscription.

Nothing of Kafka and nothing of objects in here: only who is asked for what, and which refusal becomes which
error.
"""
