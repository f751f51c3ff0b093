"""hsctl's verbs; nothing here is imported before a verb of it is called, except the table."""
