"""Words that are no verbs are answered with what is there."""

from importlib import import_module

import click
import pytest

from hs_client.verbs.table import VERBS


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


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("queue 5", "unexpected '5': `hsctl show 5` is about one job"),
        ("show 1 2", "unexpected '2': one job at a time"),
        ("node drain v1 v2", "unexpected 'v2': one server at a time"),
        ("usage ann", "unexpected 'ann': expected --of ann"),
        ("events 5", "unexpected '5': expected --job 5"),
        ("token create ann", "unexpected 'ann': expected --for ann"),
        ("user set ann 200", "unexpected '200': expected --tickets 200"),
        ("simulate fifo", "unexpected 'fifo': expected --policy fifo"),
        ("up V100:4", "unexpected 'V100:4': expected --emulate V100:4"),
        (
            "submit --user ann -- true",
            "no such option '--user': it stands before the verb, as in hsctl --user … submit",
        ),
        (
            "node drain v1 --ca x",
            "no such option '--ca': it stands before the verb, as in hsctl --ca … node drain",
        ),
        ("info x", "unexpected 'x': expected hsctl info [OPTIONS]"),
    ],
)
def test_a_word_too_many_is_answered_with_what_it_was_meant_for(call, words, text):
    ran = call(*words.split())
    assert ran.code == 2
    assert text in ran.err


def test_help_is_shown_whatever_stands_beside_it(call):
    assert call("queue", "5", "--help").out == call("queue", "--help").out


def test_no_verb_says_only_that_a_word_is_one_too_many(call):
    for verb, row in VERBS.items():
        module, _, attribute = row.where.partition(":")
        command = getattr(import_module(module), attribute)
        leaves = [(verb, command)]
        if isinstance(command, click.Group):
            leaves = [(f"{verb} {name}", leaf) for name, leaf in command.commands.items()]
        for words, leaf in leaves:
            if not any(param.nargs == -1 for param in leaf.params):
                ran = call(*words.split(), "bash", "b")
                assert ran.code == 2
                assert "Got unexpected extra argument" not in ran.err, words
