"""The APIs of consumer groups, translated for `ponor_broker.groups`."""
