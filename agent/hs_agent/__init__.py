"""The node agent daemon: turns process exits, job messages and timers into events of the HostMachine.

Nothing is imported here: what is started beside a job (`shim`, `errand`, `carrier`) has the standard library and this package alone.
"""
