"""Requests of one client connection: order, dispatch to a handler, answers, and the fencing of answers."""
