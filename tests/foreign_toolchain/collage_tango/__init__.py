"""A toolchain that is no part of Collage Explorer."""
