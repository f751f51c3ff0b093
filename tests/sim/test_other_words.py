"""Words and options that stand where none is expected are answered with what was meant."""

import pytest

from hs_sim.cli import main


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("compare my.yaml", "unexpected 'my.yaml': expected the workload as --trace my.yaml"),
        ("compare --policies fifo my.yaml", "unexpected 'my.yaml': expected the workload as --trace my.yaml"),
        ("compare --policy fifo", "no such option '--policy': expected --policies"),
        ("compare --policies fifo --seed 3", "no such option '--seed': expected --seeds"),
        ("run a.yaml b.yaml", "unexpected 'b.yaml': one workload at a time"),
        ("run --trace a.yaml", "no such option '--trace': expected the file alone"),
        ("run --policies fifo", "no such option '--policies': expected --policy with one name"),
        ("run fifo", "WORKLOAD: 'fifo' is a policy; expected --policy fifo"),
        ("workload check a.yaml b.yaml", "unexpected 'b.yaml': expected hs-sim workload check [OPTIONS] PATH"),
        ("workload my.yaml", "no such command 'my.yaml'; expected one of"),
        ("generate my.yaml", "did you mean `hs-sim workload generate`?"),
        ("figures table-2", "did you mean table2?"),
        ("compar", "did you mean `hs-sim compare`?"),
        ("--policy fifo", "no such option '--policy': those of a verb stand after it"),
    ],
)  # fmt: skip
def test_what_is_said_in_the_wrong_place_is_answered_with_what_was_meant(words, text, capsys):
    assert main(words.split()) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "text"), [("5", "expected --seeds 5, or --from 5 --seeds 1"), ("x", "expected options alone")]
)
def test_faults_takes_a_number_only_as_an_options(word, text, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["faults", word])
    assert ended.value.code == 2
    assert text in capsys.readouterr().err
