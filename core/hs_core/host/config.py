"""What an operator may set about slicing on one host."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConfig:
    preload: int = 2  # jobs being started ahead of their turn at once (those of unknown memory count until their first turn)
    ahead_patience_s: float = (
        120.0  # from a job's coming; then it may start in its turn, blocking its GPUs meanwhile
    )
    host_memory_budget_bytes: int = 0  # for swapped device memory; 0: nothing is swapped
    host_memory_reserve_bytes: int = 0  # left free by who is started; below half of it who stands is let go
    suspend_deadline_s: float = 30.0  # then the freezer; then the job counts as unsliceable
    park_deadline_s: float = 300.0  # the same where memory has to move first: swap, checkpoint
    hook_deadline_s: float = 30.0  # from launch; a process that has not loaded the runtime by then never will
    ready_deadline_s: float = 600.0  # from launch to the first suspend point
    kill_grace_s: float = 10.0
    unkillable_s: float = 60.0  # after the grace: its GPUs are quarantined, with a note
    switch_ratio: float = 20.0  # a quantum is at least so many times suspend + resume
    can_freeze: bool = True
    park_retry_quanta: int = 10  # after a failed swap, or several failed checkpoints, for that job
    # By which those bound to a GPU are behind together: one of them is moved to others …
    move_owed_quanta: float = 1.0
    # … to whom tickets give so many fewer of the next 20, with it, …
    move_evening_quanta: float = 1.0
    # … or that are so many less sought after in the next 20, where tickets cannot be even.
    move_relief_quanta: float = 2.0

    def __post_init__(self) -> None:
        for name in (
            "preload",
            "host_memory_budget_bytes",
            "host_memory_reserve_bytes",
            "kill_grace_s",
            "switch_ratio",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 0 or more")
        for name in ("suspend_deadline_s", "park_deadline_s", "ahead_patience_s", "hook_deadline_s", "ready_deadline_s", "unkillable_s",
                     "park_retry_quanta", "move_owed_quanta", "move_evening_quanta", "move_relief_quanta"):  # fmt: skip
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected more than 0")
