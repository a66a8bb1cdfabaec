# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Splits joined byte strings and texts of a column into values."""

from cpython cimport array
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.ref cimport Py_INCREF
from cpython.unicode cimport PyUnicode_DecodeUTF8


cdef const char *_joined(bytes data, array.array lengths) except NULL:
    """The first byte, after a check that no value reaches beyond the end."""
    cdef Py_ssize_t total = 0, i, left = len(data)
    for i in range(len(lengths)):
        if not 0 <= lengths.data.as_longlongs[i] <= left - total:
            raise ValueError("values reach beyond their bytes")
        total += lengths.data.as_longlongs[i]
    return PyBytes_AS_STRING(data)


def split_blobs(bytes data, array.array lengths):
    """Byte strings of these lengths, one after the other."""
    cdef const char *at = _joined(data, lengths)
    cdef Py_ssize_t i, count = len(lengths)
    cdef list values = PyList_New(count)
    cdef object value
    for i in range(count):
        value = PyBytes_FromStringAndSize(at, lengths.data.as_longlongs[i])
        Py_INCREF(value)
        PyList_SET_ITEM(values, i, value)
        at += lengths.data.as_longlongs[i]
    return values


def split_texts(bytes data, array.array lengths):
    """Strings of these lengths in bytes, one after the other.

    Raises:
        UnicodeDecodeError: one is not UTF-8.
    """
    cdef const char *at = _joined(data, lengths)
    cdef Py_ssize_t i, count = len(lengths)
    cdef list values = PyList_New(count)
    cdef object value
    for i in range(count):
        value = PyUnicode_DecodeUTF8(at, lengths.data.as_longlongs[i], NULL)
        Py_INCREF(value)
        PyList_SET_ITEM(values, i, value)
        at += lengths.data.as_longlongs[i]
    return values
