"""What a program says that was started without the packages of its extra."""

import sys


def not_installed(error: ModuleNotFoundError, extra: str) -> str:
    """Raises what is no matter of extras: a module of our own that is missing, or one of Python's."""
    package = (error.name or "").partition(".")[0]
    if not package or package.startswith("hs_") or package in sys.stdlib_module_names:
        raise error
    return f"the Python package {package} is not installed: pip install 'heteroshare[{extra}]'"
