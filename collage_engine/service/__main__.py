"""``python -m collage_engine.service``: the engine on standard input and output."""

from collage_engine.service.server import main

raise SystemExit(main())
