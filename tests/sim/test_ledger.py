"""What is received is added up the same whether all places are looked at or only those that were touched."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hs_sim.quanta.ledger import FewOfMany, Sums

PLACES = 40
AMOUNTS = st.floats(0.0, 1e6)


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, PLACES - 1), AMOUNTS), min_size=1, max_size=12),
        min_size=1,
        max_size=6,
    ),
    st.tuples(st.integers(0, PLACES - 1), AMOUNTS),
)
def test_few_of_many_places_add_up_as_all_do(added, one) -> None:
    found = []
    for sums in (Sums(PLACES), FewOfMany(PLACES)):
        for some in added:
            places, amounts = zip(*some, strict=True)
            sums.add(np.array(places), np.array(amounts))
        sums.add_one(*one)
        places, amounts = sums.take()
        assert sums.take()[0] == [], "from then on there is nothing"
        found.append((places, amounts.tolist()))
    assert found[0] == found[1]
