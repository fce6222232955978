"""The sentences that the program says about runs and choices, by subject, to be reviewed here.

Each is a constant; names in braces are filled with ``str.format``, by texts that the caller has
formatted; ``amounts`` writes numbers and times. The desktop's own labels and tips stand where they
are shown.
"""
