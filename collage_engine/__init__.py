"""Collage Explorer's engine: which toolchain should run which part of a model.

The rooms depend on each other in one direction only (DESIGN section 3); importing a
package costs next to nothing, heavy libraries are imported inside functions.
"""

__version__ = "0.1.0"
