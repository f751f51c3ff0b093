"""hs-sim."""

import sys


def main() -> int:
    print("hs-sim: not there yet", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
