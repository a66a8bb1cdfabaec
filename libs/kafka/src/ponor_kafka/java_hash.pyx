# cython: language_level=3
"""Compiled hash of Java's `String.hashCode()`: over UTF-16 code units, a signed 32-bit number.

`tests/test_java_hash.py` states the definition in Python, where the hash of a name of 32 KiB takes 2 ms; a client
may send more than a hundred of them in a request.
"""

from libc.stdint cimport int32_t, uint32_t


def java_string_hash(str text not None):
    cdef uint32_t value = 0, unit
    cdef Py_UCS4 character
    for character in text:
        unit = character
        if unit > 0xFFFF:  # a surrogate pair
            value = 31 * value + 0xD800 + ((unit - 0x10000) >> 10)
            unit = 0xDC00 + (unit & 0x3FF)
        value = 31 * value + unit
    return <int32_t>value
