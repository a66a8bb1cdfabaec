"""Which operations a client may do (KIP-430), while there are no ACLs: all of them.

What lives here: the bit sets that Metadata, DescribeCluster and their kin answer with.
"""

from __future__ import annotations

from typing import Final

OPERATIONS_UNKNOWN: Final = -(1 << 31)
"""Nobody asked."""
TOPIC_OPERATIONS: Final = 3576
CLUSTER_OPERATIONS: Final = 8096
