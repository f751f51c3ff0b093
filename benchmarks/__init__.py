"""Each benchmark measures something.

It runs as a script or as a module: `python benchmarks/cycle.py`, `python -m benchmarks.cycle`. A script finds the
others beside it; for a module the lines below see to that.
"""

import sys
from pathlib import Path

if (HERE := str(Path(__file__).parent)) not in sys.path:
    sys.path.append(HERE)
