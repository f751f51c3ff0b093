"""What a run has."""

from math import isinf

import numpy as np

from hs_core.cluster.budget import Budget
from hs_core.policy import Policy
from hs_sim.model import Experiment
from hs_sim.quanta.agenda import Agenda
from hs_sim.quanta.asked import Asked
from hs_sim.quanta.crew import Crew
from hs_sim.quanta.fleet import Fleet
from hs_sim.quanta.gpus import Gpus
from hs_sim.quanta.journey import Journey
from hs_sim.quanta.ledger import Series
from hs_sim.quanta.pairs import Pairs
from hs_sim.quanta.patience import Patience
from hs_sim.quanta.profile import Measured
from hs_sim.quanta.rows import Bools, Floats, Ints
from hs_sim.quanta.shapes import Shapes
from hs_sim.quanta.since import Since
from hs_sim.quanta.stages import Stages
from hs_sim.quanta.strides import Strides
from hs_sim.quanta.trials import Trials
from hs_sim.quanta.turns import Turns

MANY = 1e9  # migrations an hour: as good as not limited
EPSILON_S = 1e-6  # two times closer than this are one


class State:
    def __init__(self, experiment: Experiment, policy: Policy) -> None:
        self.experiment = experiment
        self.policy = policy
        self.costs = experiment.costs
        self.quantum_s = experiment.quantum_s
        self.fleet = Fleet(experiment, mixed=policy.needs.mixed, progress=policy.needs.progress)
        self.turns = Turns(self.fleet, rounds=experiment.rounds)
        self.strides = Strides(self.fleet, self.turns)
        self.rows = self.strides.rows
        self.agenda = Agenda(experiment.workload.changes)
        self._under_way()
        self._on_gpus()
        self._what_is_measured()
        self._about_the_policy()
        self._clock()

    def _under_way(self) -> None:
        """Jobs between two homes, and between being placed and being up."""
        fleet, costs = self.fleet, self.costs
        self.moving: dict[int, Journey] = {}  # their checkpoints are under way
        self.rising: dict[int, None] = {}  # placed, process not up yet
        self.up: list[int] = []  # placed, and nothing has to be waited for
        self.movable: Bools = np.zeros(len(fleet.jobs), dtype=np.bool_)
        # To go elsewhere takes no time: what is on its way has arrived.
        self.moves_free = (
            costs.suspend_s == costs.start_s == 0
            and isinf(costs.checkpoint_bytes_per_s)
            and isinf(costs.network_bytes_per_s)
            and not self.policy.needs.copies
            and not any(job.dataset for job in fleet.jobs)
        )

    def _on_gpus(self) -> None:
        """Who runs now, beside whom, and what of servers that takes."""
        fleet, experiment = self.fleet, self.experiment
        self.run_now: Ints = np.empty(0, dtype=np.int64)
        self.runs = Crew(fleet, self.run_now)  # what was asked of them last
        self.used: Ints = np.zeros(len(fleet.servers), dtype=np.int64)  # GPUs, now
        # By then who left a server at an edge has stopped.
        self.clears_s: Floats = np.zeros(len(fleet.servers))
        self.pairs = Pairs(fleet, self.turns, self.moving, experiment)
        self.gpus = Gpus(fleet, self.turns, self.moving, experiment)
        self.stages = Stages(fleet, compat=experiment.compat)
        self.loses_restarts = experiment.compat and experiment.workload.peer.restart_s > 0
        # At the end of the round before, where that matters.
        self.ran: Bools = np.zeros(len(fleet.jobs), dtype=np.bool_)
        # Somewhere, or beside some other, a job may make no progress.
        self.some_stand = bool(
            experiment.workload.changes
            or (fleet.classes.rates <= 0).any()
            or fleet.elastics
            or self.policy.needs.sharing
        )

    def _what_is_measured(self) -> None:
        fleet, experiment = self.fleet, self.experiment
        self.series = Series(fleet.users, fleet.owners, experiment.sample_s)
        self.measured = Measured(
            fleet.classes.pairs,
            fleet.classes.rates.ravel(),
            experiment.noise.rate_cv,
            experiment.seed,
            known=experiment.known_rates,
        )
        self.measured_shapes = Shapes(fleet, known=experiment.known_rates)
        self.trials = Trials(fleet, self.quantum_s)

    def _about_the_policy(self) -> None:
        """What it remembers and may do, and what has come up since it was asked."""
        self.budget = Budget(min(self.experiment.migrations_per_hour, MANY), None)
        self.since = Since(self.fleet, self.budget, self.moving, self.rising)
        self.patience = Patience(self.fleet, self.since)
        self.stale = False  # something has changed that is decided about at once, or at the next edge …
        self.stale_at_edge = False  # … or at the next edge in any case
        self.learnt = False  # rates have become known
        self.asks_at_once = False  # asked also within rounds: a profiling run is over, or a job has come up that is to be forked
        self.asked = Asked()
        self.trades: list[dict[str, object]] = []

    def _clock(self) -> None:
        self.now_s = 0.0
        self.edge_s = 0.0
        self.quantum = 0
        self.quanta = 0
        self.next_job = 0  # of the workload, to come
        self.ended = 0
