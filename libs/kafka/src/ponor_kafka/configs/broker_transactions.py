"""Broker settings: idempotent producers and transactions."""

from typing import Final

BROKER_TRANSACTIONS: Final = """\
add.partitions.to.txn.retry.backoff.max.ms: int = 100; 0..
  in force: How long the leader of a partition tries to add it to a transaction while the previous transaction is not complete.
add.partitions.to.txn.retry.backoff.ms: int = 20; 1..
  in force: Pause between attempts to add a partition to a transaction while the previous transaction is not complete.
producer.id.expiration.ms: int = 86400000; 1..; cluster-wide
  in force: Idle time after which the state of an idempotent producer expires.
transaction.abort.timed.out.transaction.cleanup.interval.ms: int = 10000; 1..
  no effect: How often transactions are checked for timeouts.
  note: each transaction has its own timer
transaction.max.timeout.ms: int = 900000; 1..
  in force: Longest timeout that a transaction may request.
transaction.partition.verification.enable: boolean = true; cluster-wide
  no effect: Whether a partition verifies a transaction with the coordinator before it accepts its first batch.
  note: it always does
transaction.remove.expired.transaction.cleanup.interval.ms: int = 3600000; 1..
  in force: How often transactional ids are checked for expiry.
transaction.state.log.load.buffer.size: int = 5242880; 1..
  in force: Bytes read at a time while transaction state is loaded.
transaction.state.log.min.isr: int = 2; 1..
  no effect: min.insync.replicas of the topic of transaction state.
transaction.state.log.num.partitions: int = 50; 1..
  in force: Partitions of the topic of transaction state; fixed once it exists.
transaction.state.log.replication.factor: short = 3; 1..
  no effect: Replication factor of the topic of transaction state.
transaction.state.log.segment.bytes: int = 104857600; 1..
  no effect: Segment size of the topic of transaction state.
transaction.two.phase.commit.enable: boolean = false
  no effect: Whether transactions may be prepared for an external coordinator.
transactional.id.expiration.ms: int = 604800000; 1..
  in force: Idle time after which a transactional id expires.
"""
