"""The settings of a group."""

from typing import Final

GROUP: Final = """\
consumer.assignment.interval.ms: int = 1000; 0..
  in force: Shortest pause between two assignments of the consumer group.
consumer.heartbeat.interval.ms: int = 5000; 1..
  in force: How often members of the consumer group send heartbeats.
consumer.session.timeout.ms: int = 45000; 1..
  in force: Silence after which a member of the consumer group is removed.
share.assignment.interval.ms: int = 1000; 0..
  in force: Shortest pause between two assignments of the share group.
share.auto.offset.reset: string = latest; share reset
  in force: Where the share group begins in a partition: at the earliest record, at the latest, or at the first one not older than a duration.
share.delivery.count.limit: int = 5; 2..
  in force: Maximum number of deliveries of a record to the share group.
share.heartbeat.interval.ms: int = 5000; 1..
  in force: How often members of the share group send heartbeats.
share.isolation.level: string = read_uncommitted; read_committed | read_uncommitted
  in force: Whether the share group gets records of open and aborted transactions.
share.partition.max.record.locks: int = 2000; 100..
  in force: Records of a partition that the share group may hold locked.
share.record.lock.duration.ms: int = 30000; 1000..
  in force: How long a member of the share group locks a record before another member may get it.
share.renew.acknowledge.enable: boolean = true
  in force: Whether members of the share group may renew the lock of a record.
share.session.timeout.ms: int = 45000; 1..
  in force: Silence after which a member of the share group is removed.
streams.assignment.interval.ms: int = 1000; 0..
  in force: Shortest pause between two assignments of the streams group.
streams.heartbeat.interval.ms: int = 5000; 1..
  in force: How often members of the streams group send heartbeats.
streams.initial.rebalance.delay.ms: int = 3000; 0..
  in force: How long the first member of the streams group waits for others.
streams.num.standby.replicas: int = 0; 0..
  in force: Standby copies of each task of the streams group.
streams.session.timeout.ms: int = 45000; 1..
  in force: Silence after which a member of the streams group is removed.
"""
