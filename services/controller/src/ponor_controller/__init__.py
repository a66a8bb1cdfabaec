"""The controller: validates changes of the metadata and replicates them.

    startup         recovery and formation; `app` runs them before it builds a `Controller`
    server          sessions, subscriptions, cluster and quorum service
    domains         one folder per noun: its operations, its rules, its leader duty
    shared_rules    rules that several domains apply
    kernel          from a waiting operation to a committed batch, and back to its answer
    consensus       Raft, the record log and snapshots
    settings        all limits and intervals

Imports point down this list. Domains do not import each other.
"""
