"""Broker settings: listeners, requests, threads, metrics."""

from typing import Final

BROKER_NETWORK: Final = """\
advertised.listeners: list = null
  in force: Addresses that the broker advertises to clients.
alter.log.dirs.replication.quota.window.num: int = 11; 1..
  no effect: Samples kept for the quota of moves between log directories.
alter.log.dirs.replication.quota.window.size.seconds: int = 1; 1..
  no effect: Length of a sample of the quota of moves between log directories.
background.threads: int = 10; 1..; cluster-wide
  no effect: Threads for background tasks.
broker.rack: string = null
  no effect: Rack or zone of the broker.
client.quota.callback.class: class = null
  no effect: Class that decides the quotas of clients.
config.providers: list =; cluster-wide
  no effect: Classes that provide values of settings from outside the configuration.
connections.max.idle.ms: long = 600000
  in force: Silence after which a client's connection is closed.
controller.quota.window.num: int = 11; 1..
  no effect: Samples kept for the quota of topic changes.
controller.quota.window.size.seconds: int = 1; 1..
  no effect: Length of a sample of the quota of topic changes.
delete.records.purgatory.purge.interval.requests: int = 1
  no effect: Completed requests after which the DeleteRecords purgatory is purged.
early.start.listeners: list = null
  no effect: Listeners that accept connections before the authorizer is ready.
fetch.max.bytes: int = 57671680; 1024..
  in force: Largest fetch response; its first batch may exceed it.
fetch.purgatory.purge.interval.requests: int = 1000
  no effect: Completed requests after which the Fetch purgatory is purged.
kafka.metrics.polling.interval.secs: int = 10; 1..
  no effect: How often the reporters of the old metrics library are polled.
kafka.metrics.reporters: list =
  no effect: Reporters of the old metrics library.
listeners: list = PLAINTEXT://:9092; per-broker
  in force: Addresses that the broker listens on.
max.connection.creation.rate: int = 2147483647; 0..; cluster-wide
  no effect: New connections per second that the broker accepts.
max.connections.per.ip.overrides: string =; cluster-wide
  no effect: Exceptions to max.connections.per.ip, by host or address.
max.connections.per.ip: int = 2147483647; 0..; cluster-wide
  no effect: Maximum number of connections from one address.
max.connections: int = 2147483647; 0..; cluster-wide
  in force: Maximum number of open connections.
  note: a dynamic value is stored without effect; connections_max is set at start
max.incremental.fetch.session.cache.slots: int = 1000; 0..
  in force: Maximum number of cached fetch sessions.
metric.reporters: list = org.apache.kafka.common.metrics.JmxReporter; cluster-wide
  no effect: Classes that report metrics; here metrics are served for Prometheus and sent by OTLP.
metrics.num.samples: int = 2; 1..
  no effect: Samples from which a metric is computed.
metrics.recording.level: string = INFO
  no effect: Level of detail of the metrics.
metrics.sample.window.ms: long = 30000; 1..
  no effect: Length of a metric's sample.
num.io.threads: int = 8; 1..; cluster-wide
  no effect: Threads that process requests; here one event loop processes them.
num.network.threads: int = 3; 1..; cluster-wide
  no effect: Threads that read requests and write responses; here one event loop does both.
producer.purgatory.purge.interval.requests: int = 1000
  no effect: Completed requests after which the Produce purgatory is purged.
queued.max.request.bytes: long = -1
  no effect: Bytes of requests that may wait before sockets are no longer read; here in_flight_bytes_max.
queued.max.requests: int = 500; 1..
  no effect: Requests that may wait before sockets are no longer read.
quota.window.num: int = 11; 1..
  no effect: Samples kept for the quotas of clients.
quota.window.size.seconds: int = 1; 1..
  no effect: Length of a sample of the clients' quotas.
request.timeout.ms: int = 30000
  no effect: How long the broker waits for responses to its own requests.
socket.connection.setup.timeout.max.ms: long = 30000
  no effect: Maximum timeout for establishing the broker's own connections.
socket.connection.setup.timeout.ms: long = 10000
  no effect: Initial timeout for establishing the broker's own connections.
socket.listen.backlog.size: int = 50; 1..
  no effect: Connections that may wait to be accepted.
socket.receive.buffer.bytes: int = 102400
  no effect: Receive buffer of sockets; -1 for the system's own.
socket.request.max.bytes: int = 104857600; 1..
  in force: Largest request that the broker reads.
socket.send.buffer.bytes: int = 102400
  no effect: Send buffer of sockets; -1 for the system's own.
telemetry.max.bytes: int = 1048576; 1..
  no effect: Largest metrics report of a client.
"""
