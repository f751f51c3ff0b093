"""The runtime's parts by themselves: files, hooks, frames."""

import ast
import functools
import gc
import importlib.util
import inspect
import json
import os
import struct
import sys
import threading
import weakref
from dataclasses import dataclass
from importlib.machinery import BuiltinImporter, ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from models import trained
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader

from hs_job import cycled, inject, place
from hs_job.checkpoint import CheckpointError, Folder
from hs_job.handed import apart
from hs_job.hooks import Hooks
from hs_job.keeper import Keeper
from hs_job.link import Frames, frame
from hs_job.transformers import Progress

CLIENT = Path(__file__).parents[2] / "client" / "hs_job"


def content(step: int = 1) -> dict[str, Any]:
    return {"format": 1, "step": step, "objects": {"x": torch.arange(1000)}}


def written(folder: Path, *generations: int) -> Folder:
    here = Folder(str(folder), 0, 1)
    for generation in generations:
        here.write(generation, generation * 10, content(generation * 10))
    return here


def test_torch_is_hooked_though_another_thread_looks_whether_it_is_there_at_that_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finder, found = inject._TorchFinder(), []
    other = threading.Thread(target=lambda: found.append(finder.find_spec("torch")))

    def find(name: str) -> ModuleSpec:
        if threading.current_thread() is not other:
            other.start()
            other.join()
        return ModuleSpec(name, BuiltinImporter)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    found.append(finder.find_spec("torch"))
    assert [isinstance(spec.loader, inject._HookingLoader) for spec in found if spec] == [True, True]


@pytest.mark.parametrize("file", sorted(CLIENT.glob("*.py")), ids=lambda file: file.name)
def test_the_runtime_is_python_3_9(file: Path) -> None:
    """What is newer is a SyntaxError."""
    ast.parse(file.read_text(), feature_version=(3, 9))


def test_what_goes_to_a_device_is_not_copied_on_the_host_before_it_is_loaded() -> None:
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.empty(3, device="meta"))])
    group = {"lr": torch.tensor(0.1), "params": [0]}
    saved = {"state": {0: {"exp_avg": torch.ones(3), "step": torch.tensor(1.0)}}, "param_groups": [group]}
    found = apart(saved, optimizer)
    assert found["state"][0]["exp_avg"] is saved["state"][0]["exp_avg"]
    assert found["state"][0]["step"] is not saved["state"][0]["step"]
    assert found["param_groups"][0]["lr"] is not group["lr"]


def test_two_generations_stay(tmp_path: Path) -> None:
    folder = written(tmp_path, 3, 4, 7)
    assert folder.generations() == [7, 4]
    assert folder.newest() == 7
    got, generation, note = folder.read(7)
    assert got is not None
    assert (got["step"], generation, note) == (70, 7, "")
    manifest = json.loads((tmp_path / "gen-7" / "manifest.json").read_text())
    assert sorted(manifest) == ["files", "generation", "step", "world"]
    assert not list(tmp_path.glob("**/*.tmp"))


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)


def link(file: Path) -> None:
    """The right bytes, through a link: still not ours."""
    other = file.parent.parent / "elsewhere"
    file.rename(other)
    file.symlink_to(other)


def link_folder(file: Path) -> None:
    other = file.parent.parent / "elsewhere"
    file.parent.rename(other)
    file.parent.symlink_to(other)


def fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def nonsense(file: Path) -> None:
    file.write_bytes(b"[" * 100_000)


@pytest.mark.parametrize("name", ["rank0.pt", "manifest.json"])
@pytest.mark.parametrize(
    "harm", [cut, flip, link, link_folder, fifo, nonsense, Path.unlink], ids=lambda harm: harm.__name__
)
def test_a_torn_generation_gives_way_to_the_one_before(tmp_path: Path, harm: Any, name: str) -> None:
    folder = written(tmp_path, 1, 2)
    harm(tmp_path / "gen-2" / name)
    got, generation, note = folder.read(2)
    assert got is not None
    assert (got["step"], generation) == (10, 1)
    assert note.startswith("generation 2: ")


def test_with_no_valid_generation_it_starts_afresh_and_says_so(tmp_path: Path) -> None:
    folder = written(tmp_path, 1)
    cut(tmp_path / "gen-1" / "rank0.pt")
    got, generation, note = folder.read(1)
    assert (got, generation) == (None, -1)
    assert note.endswith("started afresh")


def test_ranks_that_torchrun_has_restarted_go_on_from_the_newest_that_those_before_wrote(
    tmp_path: Path,
) -> None:
    """What the job began from may be gone by then."""
    written(tmp_path, 3, 4, 5)
    told = {"HS_CHECKPOINT_DIR": str(tmp_path), "HS_RESTORE": "3"}
    again, first_time = {"TORCHELASTIC_RESTART_COUNT": "1"}, {"TORCHELASTIC_RESTART_COUNT": "0"}
    found = Keeper(told | again, 0, 1).read()
    assert found is not None
    assert found[1:] == (5, "")
    assert found[0] is not None
    assert found[0]["step"] == 50
    found = Keeper(told | first_time, 0, 1).read()
    assert found is not None
    assert found[0] is None
    del told["HS_RESTORE"]
    assert Keeper(told | first_time, 0, 1).read() is None
    found = Keeper(told | again, 0, 1).read()
    assert found is not None
    assert found[1] == 5


def test_a_checkpoint_is_never_written_through_a_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    (checkpoints / "gen-0").symlink_to(outside)
    with pytest.raises(CheckpointError):
        Folder(str(checkpoints), 0, 1).write(0, 1, content())
    assert list(outside.iterdir()) == []


def nodes(path: Path, **changes: str) -> list[Folder]:
    """Two nodes with two ranks each, as their processes see them."""
    made = []
    for rank in range(4):
        environment = {
            "HS_CHECKPOINT_DIR": str(path), "HS_NNODES": "2", "HS_NODE_RANK": str(rank // 2),
            "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": str(rank % 2), **changes,
        }  # fmt: skip
        folder = place.folder(environment, rank, 4)
        assert folder is not None
        made.append(folder)
    return made


def write_all(folders: list[Folder], generation: int, step: int, whole: int | None = None) -> None:
    """`whole`: what all nodes have, if not the generation before."""
    known = {"whole": generation - 1 if whole is None else whole}
    threads = [
        threading.Thread(target=each.write, args=(generation, step, content(step)), kwargs=known)
        for each in folders
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_an_incarnation_that_was_given_up_writes_nothing_where_the_next_one_has_begun(tmp_path: Path) -> None:
    """Its server was removed and lives on, cut off; both see the folder."""
    old, new = (Folder(str(tmp_path / "shared"), 0, 1, epoch=epoch) for epoch in (1, 2))
    old.claim()
    old.write(0, 10, content())
    new.claim()
    new.write(1, 20, content())
    before = {path: path.read_bytes() for path in (tmp_path / "shared").rglob("*") if path.is_file()}
    old.claim()  # as its process is started again
    with pytest.raises(CheckpointError, match="has begun anew on another server"):
        old.write(1, 15, content())
    assert {path: path.read_bytes() for path in (tmp_path / "shared").rglob("*") if path.is_file()} == before
    new.write(2, 30, content())
    assert new.generations() == [2, 1]


@pytest.mark.parametrize("claim", ["", "[3]", '{"epoch": "9"}', '{"epoch": true}', '{"epoch": 1e9}'])
def test_a_claim_that_makes_no_sense_stops_nobody(tmp_path: Path, claim: str) -> None:
    (tmp_path / "epoch.json").write_text(claim)
    folder = Folder(str(tmp_path), 0, 1, epoch=1)
    folder.write(0, 10, content())
    folder.claim()
    assert json.loads((tmp_path / "epoch.json").read_text()) == {"epoch": 1}


def test_a_node_keeps_what_all_have_though_it_writes_on_alone(tmp_path: Path) -> None:
    """The disk of another one is full, say: what that has is all that the job can go on from."""
    folders = nodes(tmp_path / "0")[:2]
    for generation in range(4):
        write_all(folders, generation, 10 * generation, whole=0)
    assert folders[0].read(0)[1:] == (0, "")
    write_all(folders, 4, 40, whole=3)
    assert folders[0].generations() == [4, 3], "the others have caught up"


def read_all(folders: list[Folder], asked: int) -> list[tuple[Any, int, str]]:
    """Each rank in a thread; they agree by a dictionary instead of torch's store."""
    said: dict[tuple[int, int], int] = {}
    heard, answers = threading.Condition(), [None] * len(folders)

    def read(number: int) -> None:
        rounds = 0

        def agree(generation: int) -> tuple[int, bool]:
            nonlocal rounds
            rounds += 1
            with heard:
                said[rounds, number] = generation
                heard.notify_all()
                assert heard.wait_for(lambda: all((rounds, n) in said for n in range(len(folders))), 20)
            found = {said[rounds, n] for n in range(len(folders))}
            return min(found), len(found) == 1

        answers[number] = folders[number].read(asked, agree)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(len(folders))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return answers


def test_each_node_keeps_its_own_ranks_also_in_a_folder_that_the_nodes_share(tmp_path: Path) -> None:
    folders = nodes(tmp_path)
    for generation in range(4):
        write_all(folders, generation, 10 * generation)
    names = {path.name for path in (tmp_path / "gen-3").iterdir() if not path.name.startswith("rank")}
    assert names == {"manifest-0.json", "manifest-1.json"}
    assert folders[0].generations() == [3, 2], "the two newest stay"
    for name in ("rank2.pt", "rank3.pt", "manifest-1.json"):
        (tmp_path / "gen-3" / name).unlink()
    assert folders[1].read(3)[1] == 3, "a node needs only what is its own"
    assert folders[2].read(3)[1] == 2


def test_nodes_take_up_the_same_generation_where_one_of_them_lacks_the_newest(tmp_path: Path) -> None:
    folders = nodes(tmp_path)
    for generation in (0, 1):
        write_all(folders, generation, 10 * generation)
    flip(tmp_path / "gen-1" / "rank3.pt")
    answers = read_all(folders, 1)
    assert {generation for _, generation, _ in answers} == {0}
    assert {got["step"] for got, _, _ in answers} == {0}
    assert "another node does not have it whole" in answers[0][2]
    assert "rank3.pt has another SHA-256" in answers[3][2]


def test_a_gangs_manifest_comes_last_and_all_ranks_take_the_same_generation(tmp_path: Path) -> None:
    ranks = [Folder(str(tmp_path), rank, 2) for rank in range(2)]
    for generation in (0, 1):
        threads = [
            threading.Thread(target=r.write, args=(generation, generation, content(generation)))
            for r in ranks
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    flip(tmp_path / "gen-1" / "rank1.pt")
    assert [rank.read(1)[1] for rank in ranks] == [0, 0]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_does_not_wait_for_another_that_failed(tmp_path: Path, rank: int) -> None:
    with pytest.raises(CheckpointError, match="another rank"):
        Folder(str(tmp_path), rank, 2).write(0, 1, content(), abandoned=lambda: True)
    assert list(tmp_path.iterdir()) == []


def test_steps_are_heard_of_also_once_torch_2_2_has_taken_its_hooks_away_to_compile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kinds = [each for each in vars(torch.optim).values() if isinstance(each, type)]
    for kind in kinds:
        monkeypatch.setattr(kind, "step", without_hooks(kind.step))

    def compiles(thing: Any) -> Any:
        """As much of it as concerns optimizers."""
        for kind in kinds:
            if getattr(kind.step, "hooked", False):
                kind.step = kind.step.__wrapped__
            kind.step.hooked = True
        return thing

    monkeypatch.setattr(torch, "__version__", "2.2.2")
    monkeypatch.setattr(torch, "compile", compiles)
    Hooks(torch, SimpleNamespace())._hook_compiler()
    model, before, _ = trained(torch.optim.SGD)
    torch.compile(model)
    after = torch.optim.Rprop(model.parameters())
    torch.compile(model)
    stepped = []
    hook = register_optimizer_step_post_hook(lambda optimizer, *_: stepped.append(optimizer))
    before.step()
    after.step()
    hook.remove()
    assert stepped == [before, after]


def without_hooks(step: Any) -> Any:
    """Another function, to be hooked anew."""
    bare = inspect.unwrap(step, stop=lambda each: not getattr(each, "hooked", False))

    @functools.wraps(bare)
    def anew(*args: Any, **kwargs: Any) -> Any:
        return bare(*args, **kwargs)

    return anew


@dataclass
class TrainerState:
    global_step: int = 3


@pytest.mark.parametrize(
    ("keeps", "saved"),
    [
        (
            {},
            set(),
        ),  # transformers 4: the losses since the last line are its loop's own, so when that was is of no use
        ({"_tr_loss": 0.5}, {"_tr_loss", "_globalstep_last_logged"}),  # 5.17
        (
            {"_tr_loss": 0.5, "_initial_global_step": 1},
            {"_tr_loss", "_globalstep_last_logged", "_initial_global_step"},
        ),
    ],
)
def test_of_a_trainers_sums_those_are_saved_that_its_version_keeps(
    monkeypatch: pytest.MonkeyPatch, keeps: dict[str, float], saved: set[str]
) -> None:
    monkeypatch.setitem(sys.modules, "transformers.trainer_callback", SimpleNamespace())
    sums = {"_total_loss_scalar": 1.5, "current_flos": 7, "_globalstep_last_logged": 2, **keeps}
    state = Progress(SimpleNamespace(state=TrainerState(), **sums)).state_dict()
    assert set(state["sums"]) == {"_total_loss_scalar", "current_flos"} | saved
    other = SimpleNamespace(**dict.fromkeys(sums, 0))
    Progress(other).load_state_dict(state)
    assert vars(other) == {name: value if name in state["sums"] else 0 for name, value in sums.items()}


def test_frames_are_cut_wherever_the_stream_is() -> None:
    stream = b"".join(frame({"type": "x", "n": n}) for n in range(5))
    frames = Frames()
    got = [message for at in range(len(stream)) for message in frames.feed(stream[at : at + 1])]
    assert [message["n"] for message in got] == list(range(5))


@pytest.mark.parametrize("data", [struct.pack(">I", 1 << 20), struct.pack(">I", 3) + b"{{{"])
def test_a_stream_that_makes_no_sense_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - json's own, or ours
        Frames().feed(data)


def test_an_iterator_that_was_looked_at_is_gone_with_the_scripts_own_reference() -> None:
    """Else the workers of an epoch that a script breaks off would stay, and those of the next be forked with it."""
    iterator = iter(DataLoader(torch.zeros(4)))
    seen = weakref.ref(iterator)
    gc.disable()
    try:
        assert not cycled.goes_through(iterator)
        del iterator
        assert seen() is None
    finally:
        gc.enable()
