"""Whom GPUs are shared among."""

from dataclasses import dataclass

from hs_core.names import UserName


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    name: UserName
    tickets: float = 100.0
    run_as: str = ""  # operating system account; empty: the account of the same name
