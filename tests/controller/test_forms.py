"""What is kept in the journal has the number of its form."""

from hs_controller.rows import CREDENTIAL_KINDS, Answered, Event, Sample, Usage
from hs_controller.sqlite import SCHEMA
from hs_controller.tables import TABLES
from hs_core.model import Host, Job, User
from tests.forms import digest, lines

FORM = (6, "9f7790c0bcba")


def test_a_journal_of_another_form_has_another_number() -> None:
    """An older controller would pass over fields that it does not know, and write rows without them."""
    made = [
        f"{column} {column.type} {column.nullable} {column.primary_key} {sorted(map(str, column.foreign_keys))}"
        for table in TABLES.sorted_tables
        for column in table.columns
    ]
    rows = (Job, User, Host, Event, Usage, Sample, Answered, *CREDENTIAL_KINDS.values())
    found = (SCHEMA, digest((*made, *lines(*rows))))
    assert found == FORM, (
        f"the journal's form is another: raise SCHEMA (hs_controller/sqlite.py) and say it here, FORM = {found}"
    )
