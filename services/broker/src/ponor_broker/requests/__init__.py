"""Requests of one client connection: order, dispatch, answers, and refusals while the broker is fenced."""
