"""Job classes: which jobs perform alike, and are measured together."""

from posixpath import join, normpath

from hs_core.model import JobSpec

_SCRIPTS = (".py", ".sh")


def class_over(job_class: str, before: int, nodes: int) -> str:
    """The class of jobs over `before` servers, where they are over so many: synchronizing costs more there."""
    base = job_class.removesuffix(f" on {before} servers")
    return f"{base} on {nodes} servers" if nodes > 1 else base


def job_class(user: str, spec: JobSpec) -> str:
    """Jobs with the same performance (specs: job class): the explicit name, else user + command without its hyper-parameters; on as many servers.

    A hyper-parameter is an option's value (`--lr 0.1`, `--lr=0.1`) or `key=value`; program, script, option names stay. So do scripts after options
    that have no value (`torchrun --standalone train.py`), and what a shell or an interpreter is to carry out (`sh -c 'THREADS=4 python train.py'`):
    told apart by the folders that they are in, as each project has its train.py.
    """
    if spec.job_class:
        return named_class(user, spec.job_class, spec.nodes)
    words: list[str] = []
    after_option = False
    for word in spec.command:
        if word.startswith("-"):
            words.append(word.split("=", 1)[0])
            after_option = "=" not in word and word.startswith("--")
        elif after_option and not word.endswith(_SCRIPTS):
            after_option = False
        else:
            words.append(_shown(word, spec.workdir))
            after_option = False
    return named_class(user, f"{' '.join(words)}/{spec.gang}", spec.nodes)


def _shown(word: str, workdir: str) -> str:
    if any(map(str.isspace, word)):
        return f"{word} in {workdir}"
    return normpath(join(workdir, word)) if word.endswith(_SCRIPTS) else word.split("=", 1)[0]


def named_class(user: str, name: str, nodes: int) -> str:
    """Of a user's jobs that go by that name, over so many servers: synchronizing costs more over several."""
    return f"{user}/{name} on {nodes} servers" if nodes > 1 else f"{user}/{name}"
