"""`python -m gyroscope` is `gyroscope`."""

import sys

from gyroscope.cli import main

if __name__ == "__main__":
    sys.exit(main())
