"""How much a controller tells at once."""

LISTED = 1000  # jobs, where nobody says how many
MOST_JOBS = 5000
MOST_TRADES = 10_000
