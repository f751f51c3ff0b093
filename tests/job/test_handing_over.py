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
