"""What the documents name is there: pages and headings, files, commands with their flags, environment variables; and what users can say is in the documents."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from benchmarks import papers
from hs_agent.__main__ import cli as agent
from hs_client.program import cli as hsctl
from hs_controller.__main__ import cli as controller
from hs_sim.cli import hs_sim as sim

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = {"hsctl": hsctl, "hs-sim": sim, "hs-agent": agent, "hs-controller": controller}
PAGES = {
    "hs-sim": ("simulator.md", "fidelity.md"),
    "hs-agent": ("agent.md",),
    "hs-controller": ("controller.md",),
}
TEXTS = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
}
CODE = "\n".join(
    path.read_text(encoding="utf-8")
    for folder in ("core", "proto", "daemons", "controller", "agent", "client", "sim")
    for path in (ROOT / folder).rglob("*.py")
)
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*(?![\w…])|(?<![\w-])-[A-Za-z](?![\w-])")
OURS = {"HS_RANK_PID"}  # between a rank and its helpers


def anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", TEXTS)
def test_links_lead_to_pages_and_headings(page: str) -> None:
    for to, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([\w-]+))?\)", TEXTS[page]):
        path = (ROOT / page).parent / to if to else ROOT / page
        assert path.exists(), f"{page}: {to}"
        if anchor:
            assert anchor in anchors(path.read_text(encoding="utf-8")), f"{page}: {to}#{anchor}"


@pytest.mark.parametrize("page", [page for page in TEXTS if page != "CHANGELOG.md"])
def test_files_that_are_named_are_there(page: str) -> None:
    """`hs_core/…` and `benchmarks/…`, and modules of benchmarks and of hs_sim, where `papers.fft_trace` is a name in one."""
    named = re.findall(
        r"(?<![\w/.~-])((?:hs_[a-z]+|benchmarks|tests|docs|examples|monitoring|tools)/[\w/.-]*\w)",
        TEXTS[page],
    )
    places = [
        ROOT,
        *(ROOT / name for name in ("core", "proto", "daemons", "controller", "agent", "client", "sim")),
    ]
    for name in named:
        assert any((place / name).exists() for place in places), f"{page}: {name}"
    for module, attribute in re.findall(r"\bhs_sim\.(\w+)\.(\w+)", TEXTS[page]):
        text = (ROOT / "sim/hs_sim" / f"{module}.py").read_text(encoding="utf-8")
        assert re.search(rf"^(?:def )?{attribute}\b", text, re.MULTILINE), f"{page}: {module}.{attribute}"


def commands(text: str) -> Iterator[list[str]]:
    """The words of each of our programs' command lines, in blocks of code and within a line, comments left out."""
    blocks = re.findall(r"^ *```[a-z]*\n(.*?)^ *```", text, flags=re.DOTALL | re.MULTILINE)
    indented = re.findall(r"^    .+$", text, flags=re.MULTILINE)
    within = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    for line in (*(line for block in blocks for line in block.splitlines()), *indented, *within):
        for command in re.split(r"[;|]", re.split(r" {2,}|  #", line.strip())[0]):
            words = command.replace("$ ", "").split()
            if words and words[0] in PROGRAMS:
                yield words


def switches(command: click.Command) -> list[tuple[str, ...]]:
    """Each of its options with all of its names."""
    own = [
        (*param.opts, *param.secondary_opts) for param in command.params if isinstance(param, click.Option)
    ]
    return own or [(flag,) for flag in FLAG.findall(CliRunner().invoke(command, ["--help"]).output)]


def flags(command: click.Command) -> set[str]:
    return {flag for switch in switches(command) for flag in switch} | {"--help", "-h", "--version"}


def found(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that `words` name, and what comes after its name.

    Raises:
        LookupError: There is none of that name.
    """
    command: click.Command = PROGRAMS[words[0]]
    rest = [word for word in words[1:] if not word.startswith("[")]
    while isinstance(command, click.Group) and rest:
        if (
            rest[0].startswith("--")
            and "=" not in rest[0]
            and len(rest) > 2
            and not rest[0].startswith("--end")
        ):
            rest = rest[2:]  # a flag of all verbs, and its value
            continue
        if rest[0].startswith("-") or not re.fullmatch(r"[a-z-]+", rest[0]):
            break
        verb = command.get_command(click.Context(command), rest[0])
        if verb is None:
            raise LookupError(" ".join(words))
        command, rest = verb, rest[1:]
    return command, rest


@pytest.mark.parametrize("page", [page for page in TEXTS if page != "CHANGELOG.md"])
def test_every_command_exists_with_its_flags(page: str) -> None:
    for words in commands(TEXTS[page]):
        command, rest = found(words)
        if isinstance(command, click.Group):
            continue
        known = flags(command)
        for word in rest[: rest.index("--")] if "--" in rest else rest:
            for flag in FLAG.findall(word.split("=")[0]):
                assert flag in known, f"{page}: {flag} in {' '.join(words)}"


def test_commands_are_found_in_the_documents() -> None:
    of = {page: [*commands(text)] for page, text in TEXTS.items()}
    assert len(of["README.md"]) > 50
    assert {words[0] for page in of.values() for words in page} == set(PROGRAMS)
    with pytest.raises(LookupError):
        found(["hsctl", "no-such-verb"])


@pytest.mark.parametrize("page", [page for page in TEXTS if "python -m benchmarks.papers " in TEXTS[page]])
def test_commands_of_papers_comparisons_are_understood(page: str) -> None:
    for line in re.findall(r"^python -m benchmarks\.papers (.+)$", TEXTS[page], re.MULTILINE):
        given = papers.options().parse_args(re.sub(r"[\[\]]", "", line).split())
        assert given.policies


def verbs(command: click.Command) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            verb = command.get_command(click.Context(command), name)
            assert verb is not None
            yield from verbs(verb)


@pytest.mark.parametrize("program", PAGES)
def test_every_flag_is_on_its_programs_page(program: str) -> None:
    text = "".join(TEXTS[f"docs/{page}"] for page in PAGES[program])
    told = set(FLAG.findall(text)) | {"--help", "-h", "--version"}
    for verb in verbs(PROGRAMS[program]):
        for switch in switches(verb):
            assert told & set(switch), f"{verb.name}: {', '.join(switch)}"


def test_every_environment_variable_is_in_the_documents_and_in_the_code() -> None:
    name = re.compile(r"\bHS_[A-Z][A-Z_]*[A-Z]\b")
    told = {found for page, text in TEXTS.items() if page != "CHANGELOG.md" for found in name.findall(text)}
    read = set(name.findall(CODE))
    assert told - read == set()
    assert read - told == OURS


def test_no_page_is_without_a_link_to_it() -> None:
    linked = {
        ((ROOT / page).parent / to).resolve()
        for page, text in TEXTS.items()
        for to in re.findall(r"\]\((?!https?:)([^)#\s]+)", text)
    }
    pages = {ROOT / page for page in TEXTS if page.startswith("docs/")} - {ROOT / "docs/policies/README.md"}
    assert pages - linked == set()
