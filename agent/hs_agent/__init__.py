"""The node agent daemon: turns process exits, job messages and timers into events of the HostMachine."""
