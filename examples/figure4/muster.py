"""Holds each job back once it trains, until all do: what is compared is how they share, not how fast they start."""

from dataclasses import dataclass, field

from hs_client import Client
from hs_proto.v1.controller_pb2 import JobView


@dataclass(slots=True)
class Muster:
    """Pauses jobs one by one and resumes them together; a machine that starts processes slowly only takes longer."""

    client: Client
    paused: set[int] = field(default_factory=set)
    over: bool = False

    def call(self, views: list[JobView]) -> None:
        """Given the views of every job: pauses those that have begun to train; lets all go once every one has."""
        if self.over:
            return
        up = {view.id for view in views if view.step > 0}  # the first is slow: torch is still being imported
        if new := sorted(up - self.paused):
            self.client.pause(*new)
            self.paused |= up
        if views and len(self.paused) == len(views):
            self.client.resume(*sorted(self.paused))
            self.over = True
