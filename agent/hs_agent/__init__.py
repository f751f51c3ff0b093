"""The node agent daemon: turns process exits, job messages and timers into events of the HostMachine.

Next to nothing is imported here: what is started beside a job (`shim`, `errand`, `carrier`) has the standard library and this package alone.
"""

import os

# Read when gRPC is loaded, whichever module does that first; `credentials` says what for.
os.environ.setdefault("GRPC_SSL_CIPHER_SUITES", "ECDHE-RSA-AES256-GCM-SHA384")
