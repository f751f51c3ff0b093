"""hsctl and the Python API."""
