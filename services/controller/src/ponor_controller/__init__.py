"""The controller: the one place where metadata is decided.

A request takes this path: `sessions` (who asks, in what order) -> `validation` (may it be, and which records say so) -> `proposals`
(one atomic batch, stamped by the cluster clock) -> `consensus` (durable, agreed) -> the image (committed records only) ->
`sessions` (answer) and `subscriptions` (everybody else). No Kafka wire and no object store in this package.
"""
