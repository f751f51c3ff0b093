"""`hs-controller`, where the policy `las` never answers: it waits for what never comes (`wait`), or goes round and round (`loop`)."""

import sys
import threading
from dataclasses import replace

from hs_controller.__main__ import main
from hs_core import policies
from hs_core.policy import Memory, Snapshot, Verdict

HOW = sys.argv.pop(1)


def decide(_snapshot: Snapshot, _memory: Memory) -> Verdict:
    sys.stderr.write("hangs\n")
    sys.stderr.flush()
    while HOW == "loop":
        pass
    threading.Event().wait()
    raise AssertionError


if __name__ == "__main__":
    policies.POLICIES["las"] = replace(policies.POLICIES["las"], decide=decide)
    main()
