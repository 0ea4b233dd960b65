"""``python -m tests.simulation``: see ``command``, which other processes can import."""

import sys

from tests.simulation.command import main

if __name__ == "__main__":
    sys.exit(main())
