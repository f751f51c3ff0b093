"""Each measures something, as a script or as a module: `python benchmarks/cycle.py`, `python -m benchmarks.cycle`.

A script finds the others beside it. So does a module, from here on.
"""

import sys
from pathlib import Path

if (HERE := str(Path(__file__).parent)) not in sys.path:
    sys.path.append(HERE)
