"""`ponor object`: its commands put together."""

from __future__ import annotations

from ponor_cli.object_map import map_objects
from ponor_cli.object_reconcile import reconcile_objects
from ponor_cli.objects import object_app

object_app.command("map")(map_objects)
object_app.command("reconcile")(reconcile_objects)

__all__ = ["object_app"]
