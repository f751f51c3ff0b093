"""Words of a command line that stand where none is expected: whoever says them is told what they were meant to be, most likely."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import click


class Command(click.Command):
    """`stray`: what a word too many is answered with, where `{}` is that word. `elsewhere`: what other verbs' options are here."""

    allow_extra_args = True  # they are refused here

    def __init__(
        self, *args: Any, stray: str = "", elsewhere: Mapping[str, str] | None = None, **said: Any
    ) -> None:
        super().__init__(*args, **said)
        self.stray = stray
        self.elsewhere = elsewhere or {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)
        try:
            super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name not in self.elsewhere:
                raise
            ctx.fail(f"no such option {error.option_name!r}: {self.elsewhere[error.option_name]}")
        except click.MissingParameter:  # which may be what that word was meant for
            self._refuse(ctx, self.make_parser(ctx).parse_args(words)[1])
            raise
        self._refuse(ctx, ctx.args)
        return ctx.args

    def _refuse(self, ctx: click.Context, words: list[str]) -> None:
        if words and not ctx.resilient_parsing:
            taken = " ".join(self.collect_usage_pieces(ctx))
            meant = self.stray.replace("{}", words[0]) or f"expected {ctx.command_path} {taken}"
            ctx.fail(f"unexpected {words[0]!r}: {meant}")


class Group(click.Group):
    """Answers a verb that it has not with the one that was meant. `elsewhere`: what others call one, and what it is here."""

    command_class = Command

    def __init__(self, *args: Any, elsewhere: Mapping[str, str] | None = None, **said: Any) -> None:
        super().__init__(*args, **said)
        self.elsewhere = elsewhere or {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            verb = f"{ctx.command_path} VERB {error.option_name}"
            ctx.fail(f"no such option {error.option_name!r}: those of a verb stand after it, as in {verb}")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-") and not ctx.resilient_parsing:
            near = self.elsewhere.get(name) or next(iter(get_close_matches(name, known, n=1)), "")
            hint = (
                f"did you mean `{ctx.command_path} {near}`?"
                if near
                else f"expected one of {', '.join(known)}"
            )
            ctx.fail(f"no such command {name!r}; {hint}")
        return super().resolve_command(ctx, args)
