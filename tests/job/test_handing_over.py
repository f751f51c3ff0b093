"""What `hs_job.state` is told wrongly: the same words with an agent and without one."""

import pytest
from job_stub import StubAgent

NAMED = (
    "without a name; expected each by its name, "
    "as in hs_job.state(model=model, optimizer=optimizer, loader=loader)"
)
WRONG = {
    "by_place": (
        "hs_job.state(model, optimizer)",
        f"TypeError: hs_job.state: given Linear, SGD {NAMED}",
    ),
    "as_one": (
        "hs_job.state(dict(model=model))",
        f"TypeError: hs_job.state: given dict {NAMED}",
    ),
    "twice": (
        "hs_job.state(model=model); hs_job.state(optimizer=optimizer)",
        "RuntimeError: hs_job.state is called a second time; expected everything in one call",
    ),
    "no_state": (
        "hs_job.state(model=model.weight)",
        "TypeError: hs_job.state: model is a Parameter; expected state_dict and load_state_dict",
    ),
    "no_loader": (
        "hs_job.state(model=model, loader=[1, 2])",
        "TypeError: hs_job.state: loader is a list; expected a torch.utils.data.DataLoader",
    ),
}


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "as_a_job"])
@pytest.mark.parametrize("how", WRONG)
def test_what_is_handed_over_wrongly_is_refused_with_what_was_expected(
    agent: StubAgent, how: str, alone: bool
) -> None:
    call, said = WRONG[how]
    path = agent.folder / "script.py"
    path.write_text(
        "import torch, hs_job\nmodel = torch.nn.Linear(2, 2)\n"
        f"optimizer = torch.optim.SGD(model.parameters())\n{call}\n"
    )
    job = agent.run(str(path), env={"HS_AGENT_SOCKET": ""} if alone else {})
    if how == "twice" and not alone:
        agent.until(lambda: agent.messages("arrived"), "its first call, which waits for its turn")
        agent.resume()
    _, errors = job.communicate()
    assert job.returncode == 1
    assert errors.splitlines()[-1] == said


def test_a_child_that_the_script_forks_may_hand_over_for_itself(agent: StubAgent) -> None:
    path = agent.folder / "script.py"
    path.write_text(
        "import os, torch, hs_job\nmodel = torch.nn.Linear(2, 2)\nhs_job.state(model=model)\n"
        "if not os.fork():\n    hs_job.state(model=model)\n    os._exit(3)\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]))\n"
    )
    job = agent.run(str(path), env={"HS_AGENT_SOCKET": ""})
    assert job.communicate() == ("3\n", "")


@pytest.mark.parametrize("imports", [False, True], ids=["never", "later"])
def test_a_script_without_torch_does_not_say_that_it_can_be_written_to_disk_before_it_has_imported_it(
    agent: StubAgent, imports: bool
) -> None:
    """Else it is asked to move again and again, and each time loses a part of its turn for nothing."""
    path = agent.folder / "script.py"
    path.write_text(
        "import hs_job\nclass Counter:\n    def state_dict(self):\n        return {}\n"
        "    def load_state_dict(self, kept):\n        pass\n"
        "hs_job.state(counter=Counter())\nhs_job.step()\n" + "import torch\nhs_job.step()\n" * imports
    )
    job = agent.run(str(path), fresh=True)
    agent.until(lambda: agent.messages("arrived") or None, "its first call, which waits for its turn")
    agent.resume()
    job.communicate()
    told = [message["can"] for kind in ("arrived", "can") for message in agent.messages(kind)]
    assert job.returncode == 0
    assert any("checkpoint" in can for can in told) == imports
