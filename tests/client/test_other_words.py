"""Words that are no verbs are answered with what is there."""

import pytest


@pytest.mark.parametrize(
    ("typed", "here"),
    [("squeue", "queue"), ("status", "queue"), ("kill", "cancel"), ("users", "user list"), ("sumbit", "submit"), ("PS", "ps")],
)  # fmt: skip
def test_a_verb_of_another_system_is_answered_with_the_one_here(call, typed, here):
    ran = call(typed)
    assert ran.code == 2
    assert f"no such command {typed!r}; did you mean {here!r}?" in ran.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["node", "list"], "it is `hsctl nodes`"),
        (["user", "add"], "it is `hsctl user set`"),
        (["node", "dran"], "did you mean 'drain'?"),
        (["token", "x"], "expected one of create, list, revoke"),
    ],
)
def test_a_verb_that_a_group_has_not_is_answered_with_what_it_has(call, words, text):
    ran = call(*words)
    assert ran.code == 2
    assert f"no such command {words[1]!r}; {text}" in ran.err


def test_help_is_asked_for_in_words_too(call):
    assert call("help").out == call("--help").out != ""
    assert call("help", "queue").out == call("queue", "--help").out != ""
    assert call("help", "node", "drain").out == call("node", "drain", "--help").out
