"""ShareFetch and ShareAcknowledge: delivery of records to members of share groups (KIP-932)."""
