"""The controller daemon: turns RPCs and timers into events of the ClusterMachine, journals, performs its commands."""
