"""The mind: pure state machines and policies; no I/O, no clock, no dice."""
