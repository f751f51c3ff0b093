"""hs-sim. Verbs are imported when they are called: `hs-sim --help` loads click and nothing else."""

import sys

from hs_sim.cli import main

if __name__ == "__main__":
    sys.exit(main())
