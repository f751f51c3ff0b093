"""hs-sim: the system's own machines and policies, driven by a modelled world instead of a real one."""
