"""`python -m pivotrl`."""

import sys

from pivotrl.cli import main

sys.exit(main())
