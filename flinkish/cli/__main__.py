"""``python -m flinkish.cli``: the console command."""

import sys

from flinkish.cli import main

if __name__ == "__main__":
    sys.exit(main())
