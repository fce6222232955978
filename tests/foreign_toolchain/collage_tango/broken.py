"""A module that cannot be imported: what its package needs is not installed."""

import a_library_that_nobody_has  # noqa: F401  (the point of this module)
