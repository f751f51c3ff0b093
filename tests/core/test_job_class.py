"""Which jobs are measured together."""

import pytest

from hs_core.cluster.harness import a_spec
from hs_core.job_class import job_class


def named(*command: str, workdir: str = "/home/ann") -> str:
    return job_class("ann", a_spec("x", command=command, workdir=workdir))


def test_hyper_parameters_tell_no_classes_apart() -> None:
    alike = {
        named(
            "python",
            "train.py",
            "--lr",
            lr,
            f"--seed={seed}",
            "-v",
            "--note",
            f"no {seed}",
            f"model.width={seed}",
        )
        for lr in ("0.1", "0.2")
        for seed in (1, 2)
    }
    assert alike == {"ann/python /home/ann/train.py --lr --seed -v --note model.width/1"}


@pytest.mark.parametrize(
    "before",
    [
        ("sh", "-c"),
        ("torchrun", "--standalone"),
        ("python",),
    ],
)
def test_other_scripts_are_of_other_classes(before: tuple[str, ...]) -> None:
    words = {
        "sh": ("THREADS=4 python a.py", "THREADS=4 python b.py"),
        "torchrun": ("a.py", "b.py"),
        "python": ("/runs/day=1/a.py", "/runs/day=2/a.py"),
    }[before[0]]
    first, second = (named(*before, word) for word in words)
    assert first != second
    assert (words[0] in first, words[1] in second) == (True, True)


def test_scripts_of_one_name_in_two_folders_are_two_wherever_they_are_started() -> None:
    ours = named("python", "train.py", workdir="/home/ann/ours")
    assert ours != named("python", "train.py", workdir="/home/ann/theirs")
    assert ours == named("python", "../train.py", workdir="/home/ann/ours/run-7")
    assert ours == named("python", "/home/ann/ours/train.py")
    assert named("sh", "-c", "python train.py", workdir="/a") != named(
        "sh", "-c", "python train.py", workdir="/b"
    )
