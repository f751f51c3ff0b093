"""The node agent daemon: turns process exits, job messages and timers into events of the HostMachine."""

import hs_daemon as hs_daemon  # before gRPC, whose own lines it stops
