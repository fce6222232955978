"""Defines plain data that every room, process and face of the product understands.

Records are frozen ``msgspec`` structs: they travel as JSON, compare by value and are
checked when decoded. Times are microseconds (fields end in ``_us``), sizes bytes.
"""
