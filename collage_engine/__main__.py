"""``python -m collage_engine``: the command line."""

from collage_engine.cli.main import main

raise SystemExit(main())
