"""Writes or lists the models of the zoo: ``python -m tests.zoo [NAME OUT.onnx]``."""

import sys

from tests.zoo import main

raise SystemExit(main(sys.argv[1:]))
