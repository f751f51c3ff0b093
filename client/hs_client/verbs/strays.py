"""Words of a command line that stand where none is expected: whoever says them is told what they were meant to be, most likely."""

from collections.abc import Mapping
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
