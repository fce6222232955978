"""Holds the units from which the window takes its distances, delays and lengths of texts."""

UNIT = 8
"""Pixels of the grid on which widgets lie: gaps and sizes are multiples or halves of it, as in
Material Design (m3.material.io, "Layout, Spacing")."""
INSTANT_MS, FLOW_MS, ATTENTION_MS = 100, 1_000, 10_000
"""Nielsen's limits on response times (Usability Engineering, 1993, section 5.5), in milliseconds:
what comes within the first seems to come at once, within the second a train of thought is not
interrupted, and for the third the attention is kept."""
FRAME_S = 1 / 60
"""Seconds between two pictures of a usual screen, of 60 Hz: what works longer without a break can
be seen to jerk."""
COLUMN_LETTERS, LINE_LETTERS = 50, 66
"""Letters of a line beside another column, and of one that stands alone (Bringhurst, The Elements
of Typographic Style, 2.1.2)."""
NAME_LETTERS = 10
"""Letters of a name that are shown wherever it has to be cut; chosen, since fewer do not tell the
names of a model's operators apart."""
STEP = 1.2
"""Factor of one step of what grows in steps, the size of text and the scale of the graph: the
minor third, 6 : 5, of typographic scales (Bringhurst, 8.2)."""
KEPT = 2_000
"""Entries that a log or a history keeps; chosen, so that a flood of them costs no noticeable
memory."""
