"""Fixtures of the controller's tests; what they are made of is in kit.py."""

from pathlib import Path

import pytest

from hs_controller.config import Config


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(
        file=tmp_path / "controller.toml",
        state_dir=tmp_path / "state",
        socket=tmp_path / "c.sock",
        quantum_s=1.0,
        heartbeat_s=0.1,
    )
