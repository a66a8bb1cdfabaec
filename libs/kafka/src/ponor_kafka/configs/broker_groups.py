"""Broker settings: groups and committed offsets."""

from typing import Final

BROKER_GROUPS: Final = """\
group.consumer.assignment.interval.ms: int = 1000; 0..; cluster-wide
  in force: Shortest pause between two assignments of a consumer group; a dynamic change has no effect.
group.consumer.assignors: list = uniform,range
  in force: Server-side assignors, the default first.
group.consumer.heartbeat.interval.ms: int = 5000; 1..
  in force: How often members of consumer groups send heartbeats.
group.consumer.max.assignment.interval.ms: int = 15000; 0..
  fixed: Upper bound of the interval a consumer group may choose between assignments.
group.consumer.max.heartbeat.interval.ms: int = 15000; 1..
  fixed: Upper bound of the heartbeat interval a consumer group may choose.
group.consumer.max.session.timeout.ms: int = 60000; 1..
  fixed: Upper bound of the session timeout a consumer group may choose.
group.consumer.max.size: int = 2147483647; 1..
  in force: Members of one consumer group.
group.consumer.migration.policy: string = bidirectional; any case: DISABLED | DOWNGRADE | UPGRADE | BIDIRECTIONAL
  in force: Allowed changes of a group with members between the two protocols.
group.consumer.min.assignment.interval.ms: int = 0; 0..
  fixed: Lower bound of the interval a consumer group may choose between assignments.
group.consumer.min.heartbeat.interval.ms: int = 5000; 1..
  fixed: Lower bound of the heartbeat interval a consumer group may choose.
group.consumer.min.session.timeout.ms: int = 45000; 1..
  fixed: Lower bound of the session timeout a consumer group may choose.
group.consumer.session.timeout.ms: int = 45000; 1..
  in force: Silence after which a member of a consumer group is removed.
group.coordinator.append.linger.ms: int = -1; -1..
  no effect: How long the coordinator waits for more records before it writes; -1 to adapt.
group.coordinator.background.threads: int = 2; 1..
  no effect: Threads for the coordinator's slow work.
group.coordinator.cached.buffer.max.bytes: int = 1048588; 524288..; cluster-wide
  no effect: Largest write buffer that the group coordinator keeps for reuse.
group.coordinator.rebalance.protocols: list = classic,consumer,streams; items: consumer | classic | share | streams
  no effect: Enabled group protocols; here classic, consumer and streams.
group.coordinator.threads: int = 4; 1..
  no effect: Threads of the group coordinator.
group.initial.rebalance.delay.ms: int = 3000
  in force: How long the first join of an empty group waits for other members.
group.max.session.timeout.ms: int = 1800000
  in force: Longest session timeout that a classic member may ask for.
group.max.size: int = 2147483647; 1..
  in force: Members of one classic group.
group.min.session.timeout.ms: int = 6000
  in force: Shortest session timeout that a classic member may ask for.
group.share.assignment.interval.ms: int = 1000; 0..; cluster-wide
  in force: Shortest pause between two assignments of a share group; a dynamic change has no effect.
group.share.assignors: list = simple
  no effect: Assignors of share groups.
group.share.delivery.count.limit: int = 5; 2..10
  in force: Maximum number of deliveries of a record to a share group.
group.share.heartbeat.interval.ms: int = 5000; 1..
  in force: How often members of share groups send heartbeats.
group.share.max.assignment.interval.ms: int = 15000; 0..
  fixed: Upper bound of the interval a share group may choose between assignments.
group.share.max.delivery.count.limit: int = 10; 5..25
  fixed: Upper bound of the delivery limit a share group may choose.
group.share.max.heartbeat.interval.ms: int = 15000; 1..
  fixed: Upper bound of the heartbeat interval a share group may choose.
group.share.max.partition.max.record.locks: int = 4000; 2000..10000
  fixed: Upper bound of the locked records a share group may choose.
group.share.max.record.lock.duration.ms: int = 60000; 30000..3600000
  fixed: Upper bound of the lock duration a share group may choose.
group.share.max.session.timeout.ms: int = 60000; 1..
  fixed: Upper bound of the session timeout a share group may choose.
group.share.max.share.sessions: int = 2000; 1..
  in force: Share sessions on one broker.
group.share.max.size: int = 200; 1..1000
  in force: Members of one share group.
group.share.min.assignment.interval.ms: int = 0; 0..
  fixed: Lower bound of the interval a share group may choose between assignments.
group.share.min.delivery.count.limit: int = 2; 2..5
  fixed: Lower bound of the delivery limit a share group may choose.
group.share.min.heartbeat.interval.ms: int = 5000; 1..
  fixed: Lower bound of the heartbeat interval a share group may choose.
group.share.min.partition.max.record.locks: int = 100; 100..2000
  fixed: Lower bound of the locked records a share group may choose.
group.share.min.record.lock.duration.ms: int = 15000; 1000..30000
  fixed: Lower bound of the lock duration a share group may choose.
group.share.min.session.timeout.ms: int = 45000; 1..
  fixed: Lower bound of the session timeout a share group may choose.
group.share.partition.max.record.locks: int = 2000; 100..10000
  in force: Records of a partition that a share group may hold locked.
group.share.record.lock.duration.ms: int = 30000; 1000..3600000
  in force: How long a member of a share group locks a record before another member may get it.
group.share.session.timeout.ms: int = 45000; 1..
  in force: Silence after which a member of a share group is removed.
group.streams.assignment.interval.ms: int = 1000; 0..; cluster-wide
  in force: Shortest pause between two assignments of a streams group; a dynamic change has no effect.
group.streams.heartbeat.interval.ms: int = 5000; 1..
  in force: How often members of streams groups send heartbeats.
group.streams.initial.rebalance.delay.ms: int = 3000; 0..
  in force: How long the first member of a streams group waits for others.
group.streams.max.assignment.interval.ms: int = 15000; 0..
  fixed: Upper bound of the interval a streams group may choose between assignments.
group.streams.max.heartbeat.interval.ms: int = 15000; 1..
  fixed: Upper bound of the heartbeat interval a streams group may choose.
group.streams.max.session.timeout.ms: int = 60000; 1..
  fixed: Upper bound of the session timeout a streams group may choose.
group.streams.max.size: int = 2147483647; 1..
  in force: Members of one streams group.
group.streams.max.standby.replicas: int = 2; 0..
  fixed: Upper bound of the standby copies a streams group may choose.
group.streams.min.assignment.interval.ms: int = 0; 0..
  fixed: Lower bound of the interval a streams group may choose between assignments.
group.streams.min.heartbeat.interval.ms: int = 5000; 1..
  fixed: Lower bound of the heartbeat interval a streams group may choose.
group.streams.min.session.timeout.ms: int = 45000; 1..
  fixed: Lower bound of the session timeout a streams group may choose.
group.streams.num.standby.replicas: int = 0; 0..
  in force: Standby copies of each task of a streams group.
group.streams.session.timeout.ms: int = 45000; 1..
  in force: Silence after which a member of a streams group is removed.
offset.metadata.max.bytes: int = 4096
  in force: Maximum length of the metadata of a committed offset.
offsets.commit.timeout.ms: int = 5000; 1..
  in force: How long a commit may take to become durable before the client must retry.
offsets.load.buffer.size: int = 5242880; 1..
  in force: Bytes read at a time while committed offsets are loaded.
offsets.retention.check.interval.ms: long = 600000; 1..
  in force: How often committed offsets are checked for expiry.
offsets.retention.minutes: int = 10080; 1..
  in force: How long committed offsets stay after the last member of their group left.
offsets.topic.compression.codec: int = 0
  no effect: Codec of the topic of committed offsets, by number.
offsets.topic.num.partitions: int = 50; 1..
  in force: Partitions of the topic of committed offsets; fixed once it exists.
offsets.topic.replication.factor: short = 3; 1..
  no effect: Replication factor of the topic of committed offsets; here the number of replicas has no meaning.
offsets.topic.segment.bytes: int = 104857600; 1..
  no effect: Segment size of the topic of committed offsets.
share.coordinator.append.linger.ms: int = -1; -1..
  no effect: How long the share coordinator waits for more records before it writes; -1 to adapt.
share.coordinator.cached.buffer.max.bytes: int = 1048588; 524288..; cluster-wide
  no effect: Largest write buffer that the share coordinator keeps for reuse.
share.coordinator.load.buffer.size: int = 5242880; 1..
  no effect: Bytes read at a time while share state is loaded.
share.coordinator.snapshot.update.records.per.snapshot: int = 500; 0..500
  no effect: Updates of share state between two snapshots of it.
share.coordinator.state.topic.compression.codec: int = 0
  no effect: Codec of the topic of share state, by number.
share.coordinator.state.topic.min.isr: short = 2; 1..
  no effect: min.insync.replicas of the topic of share state.
share.coordinator.state.topic.num.partitions: int = 50; 1..
  no effect: Partitions of the topic of share state.
share.coordinator.state.topic.replication.factor: short = 3; 1..
  no effect: Replication factor of the topic of share state.
share.coordinator.state.topic.segment.bytes: int = 104857600; 1..
  no effect: Segment size of the topic of share state.
share.coordinator.threads: int = 1; 1..
  no effect: Threads of the share coordinator.
share.coordinator.write.timeout.ms: int = 5000; 1..
  no effect: How long the share coordinator waits for a write.
share.fetch.purgatory.purge.interval.requests: int = 1000
  no effect: Completed requests after which the ShareFetch purgatory is purged.
"""
