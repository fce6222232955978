"""The toolchain $title for Collage Explorer."""
