"""Broker settings: nodes, controllers, replication."""

from typing import Final

BROKER_CLUSTER: Final = """\
auto.leader.rebalance.enable: boolean = true
  no effect: Whether leadership returns to preferred replicas automatically.
broker.heartbeat.interval.ms: int = 2000
  no effect: Interval of brokers' heartbeats to the controller; here a third of session_timeout_ms.
broker.id: int = -1
  in force: Id of the broker.
broker.session.timeout.ms: int = 9000
  no effect: Silence after which the controller fences a broker.
controlled.shutdown.enable: boolean = true
  no effect: Whether a broker transfers its leaderships before it stops.
controller.listener.names: list = null
  no effect: Names of the listeners that controllers use.
controller.quorum.append.linger.ms: int = 25; 0..
  no effect: How long the active controller waits for more records before it writes.
controller.quorum.auto.join.enable: boolean = false
  no effect: Whether a new controller becomes a voter automatically.
controller.quorum.bootstrap.servers: list =; items
  no effect: Initial addresses of the controllers; here ponor.controllers.
controller.quorum.election.backoff.max.ms: int = 1000; 0..
  no effect: Longest pause before a controller starts another election.
controller.quorum.election.timeout.ms: int = 1000; 0..
  no effect: How long a controller waits for votes.
controller.quorum.fetch.max.bytes: int = 1048576; 1..
  no effect: Bytes that a voter fetches at a time.
controller.quorum.fetch.snapshot.max.bytes: int = 1048576; 1..
  no effect: Bytes of a snapshot that a voter fetches at a time.
controller.quorum.fetch.timeout.ms: int = 2000; 0..
  no effect: Silence of the active controller after which another is elected.
controller.quorum.request.timeout.ms: int = 2000; 0..
  no effect: How long a controller waits for a response of another.
controller.quorum.retry.backoff.ms: int = 20; 0..
  no effect: Pause before a controller retries a request.
controller.quorum.voters: list =; items
  no effect: The voters with their addresses; here ponor.controllers.
controller.socket.timeout.ms: int = 30000
  no effect: Socket timeout of connections to the controller.
follower.replication.throttled.rate: long = 9223372036854775807; 0..; cluster-wide; unlisted
  no effect: Bytes per second of throttled followers; here nothing is copied between brokers.
initial.broker.registration.timeout.ms: int = 60000
  no effect: How long a broker tries to register before it stops.
inter.broker.listener.name: string = null
  no effect: Listener for connections between brokers.
leader.imbalance.check.interval.seconds: long = 300; 1..
  no effect: How often the controller checks for leaders that are not preferred.
leader.replication.throttled.rate: long = 9223372036854775807; 0..; cluster-wide; unlisted
  no effect: Bytes per second of throttled leaders; here nothing is copied between brokers.
metadata.log.dir: string = null
  no effect: Directory of the metadata log.
metadata.log.max.record.bytes.between.snapshots: long = 20971520; 1..
  no effect: Bytes of metadata records between two snapshots; here the controller's snapshot_bytes.
metadata.log.max.snapshot.interval.ms: long = 3600000; 0..
  no effect: Longest time between two snapshots of the metadata.
metadata.log.segment.bytes: int = 1073741824; 8388608..
  no effect: Segment size of the metadata log; here the controller's log_segment_bytes.
metadata.log.segment.ms: long = 604800000
  no effect: Age at which a segment of the metadata log is closed.
metadata.max.idle.interval.ms: int = 500; 0..
  no effect: How often an idle controller writes a no-op record.
metadata.max.retention.bytes: long = 104857600
  no effect: Size above which old metadata is deleted.
metadata.max.retention.ms: long = 604800000
  no effect: Age at which old metadata is deleted.
node.id: int = null; 0..
  in force: Id of the node: cluster ordinal and a number.
num.replica.alter.log.dirs.threads: int = null
  no effect: Threads that move replicas between log directories.
num.replica.fetchers: int = 1; 1..; cluster-wide
  no effect: Threads that copy data from one other broker.
process.roles: list = null; items: broker | controller
  fixed: Roles of the process: broker; the controller is a separate process.
replica.alter.log.dirs.io.max.bytes.per.second: long = 9223372036854775807; 0..; cluster-wide; unlisted
  no effect: Bytes per second of moves between log directories.
replica.fetch.backoff.ms: int = 1000; 0..
  no effect: Pause of a follower after a failed fetch.
replica.fetch.max.bytes: int = 1048576; 0..
  no effect: Bytes per partition that a follower fetches at a time.
replica.fetch.min.bytes: int = 1
  no effect: Bytes that a leader waits for before it responds to a follower.
replica.fetch.response.max.bytes: int = 10485760; 0..
  no effect: Largest response to a follower.
replica.fetch.wait.max.ms: int = 500
  no effect: Longest wait of a follower's fetch.
replica.high.watermark.checkpoint.interval.ms: long = 5000
  no effect: How often high watermarks are checkpointed.
replica.lag.time.max.ms: long = 30000
  no effect: Lag after which a follower leaves the in-sync replicas.
replica.selector.class: string = null
  no effect: Class that chooses the replica a consumer reads from.
replica.socket.receive.buffer.bytes: int = 65536
  no effect: Receive buffer of followers' sockets.
replica.socket.timeout.ms: int = 30000
  no effect: Socket timeout of followers.
replication.quota.window.num: int = 11; 1..
  no effect: Samples kept for the quota of replication.
replication.quota.window.size.seconds: int = 1; 1..
  no effect: Length of a sample of the replication quota.
"""
