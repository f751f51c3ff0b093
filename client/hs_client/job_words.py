"""How people name jobs: `12`, task 3 of array 12 as `12_3`, the whole array as `12_all`, those of a sweep as `13-16`."""

import re
from collections.abc import Sequence
from typing import Any, Protocol

from hs_client.ends import ENDED
from hs_client.errors import InvalidError, NotFoundError
from hs_client.limits import MOST_JOBS
from hs_client.quantities import MAX_TASKS
from hs_client.tables import numbers

_JOB = re.compile(r"[0-9]{1,19}(_([0-9]{1,19}|all)?)?")
_RANGE = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")


class Asked(Protocol):
    """What knows the controller's jobs: `hs_client.api.Client`."""

    def jobs(
        self, *, user: str = "", ended: bool = False, limit: int = 0, array_id: int = 0
    ) -> list[Any]: ...

    def whoami(self) -> str: ...


def job_ids(client: Asked, words: Sequence[str], *, under_way: bool = False) -> list[int]:
    """`12`, `12_3` (task 3 of array 12), `12_all` (the whole array), `13-16`, in order and each once.

    `under_way`: of an array or range without what of it has ended or is being ended, unless all is.
    """
    found: list[int] = []
    arrays: dict[int, list[Any]] = {}
    for word in words:
        if ends := _RANGE.fullmatch(word):
            found += _range(client, word, int(ends[1]), int(ends[2]), under_way=under_way)
            continue
        head, _, task = word.partition("_")
        if not _JOB.fullmatch(word) or int(head) >= 2**63:
            raise InvalidError(
                f"{word!r}: expected a job's number, e.g. 12, or 12-15, or of an array 12_3 or 12_all{_called(client, word)}"
            )
        if "_" not in word:
            found.append(int(head))
            continue
        array = int(head)
        if array not in arrays:
            arrays[array] = client.jobs(ended=True, limit=MOST_JOBS, array_id=array) if array else []
        tasks = [view for view in arrays[array] if task in {"all", str(view.array_index)}]
        if not tasks:
            raise NotFoundError(
                f"no such job: {word} (array {head}{'' if task == 'all' else f' has no task {task}'})"
            )
        over = {*ENDED, "cancelling"} if under_way and task == "all" else frozenset[str]()
        left = [view for view in tasks if view.state not in over]
        found += sorted(view.id for view in left or tasks)
    return list(dict.fromkeys(found))


def are_many(words: Sequence[str]) -> bool:
    """Whether some of them are names of several jobs."""
    return any(word.endswith("_all") or _RANGE.fullmatch(word) for word in words)


def _called(client: Asked, name: str) -> str:
    """Names are nobody's alone: whoever says one is told the numbers."""
    if not name[:1].isalpha():
        return ""
    found = [view.id for view in client.jobs(user=client.whoami(), ended=True) if _is_called(view.name, name)]
    return f"; so named of yours: {numbers(sorted(found, reverse=True))}" if found else ""


def _is_called(shown: str, name: str) -> bool:
    """Those of a sweep have before it what tells them apart."""
    return shown == name or ("=" in shown and shown.endswith(f" {name}"))


def _range(client: Asked, word: str, first: int, last: int, *, under_way: bool) -> list[int]:
    if not first <= last < first + MAX_TASKS:
        raise InvalidError(
            f"{word!r}: expected the first of at most {MAX_TASKS} jobs and the last, e.g. 12-15"
        )
    asked = list(range(first, last + 1))
    if not under_way:
        return asked
    live = {view.id for view in client.jobs(limit=MOST_JOBS) if view.state != "cancelling"}
    return [job for job in asked if job in live] or asked


def as_slurm_has_it(client: Asked, words: Sequence[str], where: str) -> list[str]:
    """`12:ok` of an #SBATCH line, where 12 may be an array's number, which is all of its tasks to Slurm."""
    found: list[str] = []
    for word in words:
        number, _, condition = word.partition(":")
        array = len(number) < 19 and int(number) and client.jobs(ended=True, limit=1, array_id=int(number))
        if array and condition == "fail":
            raise InvalidError(
                f"{where}: job {number} is an array: expected afterok or afterany, or #HS --after {number}_0:fail for one of its tasks"
            )
        found.append(f"{number}_all:{condition}" if array else word)
    return found


def one_job(client: Asked, word: str) -> int:
    found = job_ids(client, [word])
    if len(found) != 1:
        raise InvalidError(f"{word!r}: expected one job, found {len(found)}")
    return found[0]
