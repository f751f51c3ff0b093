"""The version of this client."""

from importlib import metadata


def _installed() -> str:
    try:
        return metadata.version("heteroshare")
    except metadata.PackageNotFoundError:  # run from the source tree
        return "0+source"


VERSION = _installed()
