"""How long jobs that are ended without the controller's word may take to end: it starts them elsewhere `lease_s` after their host has begun to end them."""

MARGIN_S = 2.0  # what is killed takes a moment to be gone, and what is started elsewhere does not
LEAST_LEASE_S = MARGIN_S + 1.0  # at least a second to clear up in


def grace_s(own_s: float, lease_s: float, late_s: float = 0.0) -> float:
    """Of `own_s`, that ends have otherwise, what is left `late_s` after the first of them was due; `lease_s` 0: no controller has said it."""
    if lease_s <= 0:
        return own_s
    return max(0.0, min(own_s, lease_s - MARGIN_S - late_s))
