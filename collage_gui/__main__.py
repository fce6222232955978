"""Starts the desktop by ``python -m collage_gui``."""

from collage_gui.app import main

raise SystemExit(main())
