"""Words of a command line that stand where none is expected: whoever says them is told what they were meant to be, most likely."""

from typing import Any

import click


class Command(click.Command):
    """`stray`: what a word too many is answered with, where `{}` is that word."""

    allow_extra_args = True  # they are refused here

    def __init__(self, *args: Any, stray: str = "", **said: Any) -> None:
        super().__init__(*args, **said)
        self.stray = stray

    def make_context(self, *args: Any, **said: Any) -> click.Context:
        try:
            return super().make_context(*args, **said)
        except click.NoSuchOption as error:
            self._tell_where_it_stands(error)
            raise

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)
        try:
            super().parse_args(ctx, args)
        except click.MissingParameter:  # which may be what that word was meant for
            self._refuse(ctx, self.make_parser(ctx).parse_args(words)[1])
            raise
        self._refuse(ctx, ctx.args)
        return ctx.args

    def _tell_where_it_stands(self, error: click.NoSuchOption) -> None:
        ctx, option = error.ctx, error.option_name
        if ctx is not None and any(option in param.opts for param in ctx.find_root().command.params):
            program, _, verb = ctx.command_path.partition(" ")
            ctx.fail(
                f"no such option {option!r}: it stands before the verb, as in {program} {option} … {verb}"
            )

    def _refuse(self, ctx: click.Context, words: list[str]) -> None:
        if words and not ctx.resilient_parsing:
            taken = " ".join(self.collect_usage_pieces(ctx))
            meant = self.stray.replace("{}", words[0]) or f"expected {ctx.command_path} {taken}"
            ctx.fail(f"unexpected {words[0]!r}: {meant}")
