"""Schemas of tables, interfaces of tables and views, column codecs, packed ranges."""
