"""The sentences that the program says about runs and choices, by subject, to be reviewed here.

Each is a constant; names in braces are filled with ``str.format``, by texts that the caller has
formatted (numbers and times by ``amounts``). The desktop's own labels and tips are in ``collage_gui/words.py``.
"""
