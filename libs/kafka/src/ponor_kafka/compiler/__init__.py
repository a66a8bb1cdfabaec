"""Compiler from the schema of one message version to Python source of its decoder and encoder.

`layout` computes widths, `decoder` and `encoder` generate source, `build` executes it. Only
`ponor_kafka.codec` uses it.
"""
