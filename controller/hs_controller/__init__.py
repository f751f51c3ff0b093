"""The controller daemon: turns RPCs and timers into events of the ClusterMachine, journals, performs its commands."""

import hs_daemon as hs_daemon  # before gRPC, whose own lines it stops
