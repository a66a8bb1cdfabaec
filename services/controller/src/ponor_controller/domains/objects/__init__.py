"""Objects: reserve ids, commit uploads, destroy objects without live data, give garbage to the collector."""
