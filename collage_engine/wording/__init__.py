"""The words that several rooms share; ``amounts`` writes numbers and times.

A sentence that is said in one place stands there.
"""
