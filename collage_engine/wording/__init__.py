"""Figures as people read them, titles of toolchains, and the words that several rooms share.

A sentence that is said in one place stands there.
"""
