"""`python -m tools.trainer`, what torchrun starts."""

import sys

from tools.trainer.main import main

if __name__ == "__main__":
    sys.exit(main())
