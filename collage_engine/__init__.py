"""Collage Explorer's engine: which toolchain should run which part of a model.

``collage_engine.api`` is the public Python interface. The rooms depend on each other in one
direction only; importing a package costs next to nothing, because heavy libraries are imported
inside functions.
"""

__version__ = "0.1.0"
