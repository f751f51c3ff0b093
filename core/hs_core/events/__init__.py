"""What happens and what is ordered, in two vocabularies: one of each machine."""
