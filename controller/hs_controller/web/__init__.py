"""What is served over HTTP: the page, what it asks for, and what Prometheus reads."""

from hs_controller.web.app import application
from hs_controller.web.history import History
from hs_controller.web.server import Web

__all__ = ["History", "Web", "application"]
