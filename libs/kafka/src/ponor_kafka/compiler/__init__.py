"""Turns the schema of one message and one version into Python source that decodes or encodes exactly that.

`layout` knows how wide things are, `decoder` and `encoder` write the source, `build` executes it. Nothing outside
`ponor_kafka.codec` calls in here.
"""
