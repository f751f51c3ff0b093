"""`pytest tests/scenarios --rewrite` writes down what happens now; a person reads the difference."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="rewrite the expected part of the text scenarios")
