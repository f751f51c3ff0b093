"""What a shell is to complete: names of files or folders, which completion would have taken away from it else, or words of a few."""

from collections.abc import Callable

import click
from click.shell_completion import CompletionItem


def files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    del ctx, param
    return [CompletionItem(incomplete, type="file")]


def folders(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    del ctx, param
    return [CompletionItem(incomplete, type="dir")]


def one_of(*words: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Of words after a comma the last one is completed."""

    def found(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        del ctx, param
        before, comma, last = incomplete.rpartition(",")
        return [CompletionItem(before + comma + word) for word in words if word.startswith(last)]

    return found
