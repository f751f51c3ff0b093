"""Numbers as people are told them."""


def counted(number: int, thing: str) -> str:
    """`1 GPU`, `4 GPUs`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
