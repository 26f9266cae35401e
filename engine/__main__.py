"""``python -m diskmoe.engine`` is the command line."""

import sys

from diskmoe.engine.cli import main

sys.exit(main())
