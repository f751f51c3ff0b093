"""Gavel's allocations (OSDI'20): which fraction of time each job should spend on each GPU type, alone or beside another job.

`question` what is asked and answered; `program` the LP they share; `fair`, `finish`, `sums`, `greedy` the policies; `kinds` classes of jobs;
`partners` who shares a GPU with whom. `mechanism.rounds` turns fractions into rounds.
"""
