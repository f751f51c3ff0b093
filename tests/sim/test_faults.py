"""Random trouble on random clusters: nothing that must hold is broken; what is broken on purpose is found."""

from dataclasses import replace

import pytest

from hs_core.facts import Fact
from hs_core.model import JobState
from hs_core.names import JobId
from hs_core.reports import TIME_LIMIT
from hs_sim import faults
from hs_sim.cases import case_of, kinds
from hs_sim.cases.case import Case
from hs_sim.cli import main
from hs_sim.faults import Failure, explore, run_seed
from hs_sim.machines.agent import Agent
from hs_sim.machines.world import World
from hs_sim.model import Result

QUIET = range(120)  # nobody asks for anything in the middle of it
DEEDS = range(320, 440)
CUTS = range(80)
LOSSES = range(60)
UNTOLD = range(40)
GROWTH = range(100, 140)
TEARS = range(40)
LIMITS = range(40)
LACKS = range(40)
AT_ONCE = (
    20  # seeds of a test: ten seconds' computing, so that no core has much left when others have nothing
)


def roomy(case: Case) -> Case:
    """All jobs fit beside one another into GPUs."""
    specs = {job: replace(spec, gpu_memory_bytes=0) for job, spec in case.specs.items()}
    jobs = tuple(replace(job, gpu_memory_bytes=0) for job in case.experiment.workload.jobs)
    workload = replace(case.experiment.workload, jobs=jobs)
    return replace(case, specs=specs, experiment=replace(case.experiment, workload=workload))


def in_parts(seeds: range) -> pytest.MarkDecorator:
    parts = [seeds[first : first + AT_ONCE] for first in range(0, len(seeds), AT_ONCE)]
    return pytest.mark.parametrize("seeds", parts, ids=lambda part: f"from-{part.start}")


def test_five_hundred_seeds_are_tried():
    assert sum(map(len, (QUIET, DEEDS, CUTS, LOSSES, UNTOLD, GROWTH, TEARS, LIMITS, LACKS))) >= 500


@pytest.mark.slow
@in_parts(QUIET)
def test_nothing_is_broken_by_trouble(seeds: range):
    failures = explore(seeds)
    assert not failures, "\n\n".join(str(failure) for failure in failures[:3])


@pytest.mark.slow
@in_parts(DEEDS)
def test_nothing_is_broken_where_people_drain_remove_pause_cancel_and_change_the_policy_meanwhile(
    seeds: range,
):
    failures = explore(seeds, deeds=True)
    assert not failures, "\n\n".join(str(failure) for failure in failures[:3])


@pytest.mark.slow
@in_parts(CUTS)
def test_nothing_is_broken_where_links_are_cut_again_and_again_while_jobs_save_where_all_servers_see_it(
    seeds: range,
):
    failures = explore(seeds, cuts=True)
    assert not failures, "\n\n".join(str(failure) for failure in failures[:3])


@pytest.mark.slow
@in_parts(LOSSES)
def test_nothing_is_broken_where_servers_come_back_with_empty_disks_and_agents_forget_what_they_knew(
    seeds: range,
):
    failures = explore(seeds, losses=True)
    assert not failures, "\n\n".join(str(failure) for failure in failures[:3])


def test_with_losses_jobs_start_afresh_and_go_on_from_checkpoints_that_nobody_remembered():
    """In the first seeds, each of these."""
    met: set[str] = set()
    said = (
        "was set up anew",
        ", it starts afresh",
        "no longer knows of it; it goes on from",
        "or from a newer checkpoint if one is there",
    )
    for seed in LOSSES[:AT_ONCE]:
        worlds: list[World] = []
        assert run_seed(seed, worlds.append, losses=True) is None
        stories = [worlds[0].controller.machine.story(JobId(job)) for job in range(1, 20)]
        texts = [fact.text for story in stories for fact in story]
        met |= {what for what in said if any(what in text for text in texts)}
        if len(met) == len(said):
            return
    pytest.fail(f"only {met}")


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(93, id="what-is-in-a-folder-and-remembered-by-nobody-is-looked-for"),
        pytest.param(732, id="a-copy-that-ended-before-it-began-has-taken-nothing-up"),
        pytest.param(
            325, id="of-a-gang-nothing-is-sought-on-a-server-that-came-back-before-all-of-it-had-ended"
        ),
    ],
)
def test_what_once_broke_where_disks_and_memories_are_lost_holds(seed: int):
    assert run_seed(seed, losses=True, thinks=True) is None


def test_what_a_part_that_had_ended_has_left_is_gone_where_its_server_comes_back_with_an_empty_disk():
    assert run_seed(3342, deeds=True, losses=True, thinks=True) is None


@pytest.mark.slow
@in_parts(UNTOLD)
def test_nothing_is_broken_where_nobody_says_what_jobs_hold_of_gpus(seeds: range):
    failures = explore(seeds, untold=True)
    assert not failures, "\n\n".join(str(failure) for failure in failures[:3])


@pytest.mark.slow
@in_parts(GROWTH)
def test_nothing_is_broken_where_jobs_come_to_hold_more_of_gpus_than_was_seen_of_them(seeds: range):
    failures = explore(seeds, growth=True)
    assert not failures, "\n\n".join(str(failure) for failure in failures[:3])


@pytest.mark.slow
@in_parts(TEARS)
def test_nothing_is_broken_where_bits_flip_in_checkpoints(seeds: range):
    failures = explore(seeds, tears=True)
    assert not failures, "\n\n".join(str(failure) for failure in failures[:3])


@pytest.mark.slow
@in_parts(LIMITS)
def test_nothing_is_broken_where_jobs_are_tried_again_only_so_often_and_run_for_only_so_long(seeds: range):
    failures = explore(seeds, limits=True)
    assert not failures, "\n\n".join(str(failure) for failure in failures[:3])


@pytest.mark.slow
@in_parts(LACKS)
def test_nothing_is_broken_where_what_moved_jobs_need_is_missing_on_some_server(seeds: range):
    failures = explore(seeds, lacks=True)
    assert not failures, "\n\n".join(str(failure) for failure in failures[:3])


@pytest.mark.parametrize(
    ("seed", "beside"),
    [
        pytest.param(5071, {"deeds": True}, id="a-controller-that-takes-office-knows-who-was-sent"),
        pytest.param(2054, {"cuts": True}, id="who-was-sent-before-it-had-trained-has-not-failed-either"),
    ],
)
def test_what_once_broke_where_something_is_missing_holds(seed: int, beside: dict[str, bool]):
    assert run_seed(seed, lacks=True, thinks=True, **beside) is None


def test_with_lacks_a_gang_fails_at_its_start_where_it_was_sent_and_goes_on():
    worlds: list[World] = []
    assert run_seed(1, worlds.append, lacks=True, thinks=True) is None
    machine = worlds[0].controller.machine
    stories = {job: [fact.kind for fact in machine.story(job)] for job in worlds[0].truth.by_id}
    sent = {job for job, kinds in stories.items() if "sent-elsewhere" in kinds}
    assert any((row := machine.find(job)) is not None and row.spec.nodes > 1 for job in sent)


def test_with_limits_jobs_fail_for_either_reason():
    """In the first seeds, each."""
    met: set[bool] = set()
    for seed in LIMITS[:AT_ONCE]:
        worlds: list[World] = []
        assert run_seed(seed, worlds.append, limits=True) is None
        machine = worlds[0].controller.machine
        rows = [machine.find(job.id) for job in worlds[0].truth.by_id.values() if job.id is not None]
        failed = [row.exit for row in rows if row is not None and row.state is JobState.FAILED]
        met |= {ended is not None and ended.why == TIME_LIMIT for ended in failed}
        if len(met) == 2:
            return
    pytest.fail(f"only {met}")


def test_a_job_whose_checkpoint_is_torn_at_its_old_server_goes_on_from_the_one_before_at_its_new_one():
    (story,) = stories_of(13, JobId(15))
    fell = next(at for at, fact in enumerate(story) if fact.kind == "fell-back")
    assert story[fell].text == (
        "its newest checkpoint cannot be used: checkpoint 11 from p100-0001: p100-0001: torn; it goes on from step 103"
    )
    kinds = [fact.kind for fact in story[fell + 1 :]]
    assert kinds[-1] == "succeeded"
    assert {"sent-back", "lost", "left"}.isdisjoint(kinds[: kinds.index("migrated")])


def test_a_gang_whose_checkpoint_is_torn_at_its_old_servers_is_sent_back_to_them():
    kinds = [{fact.kind for fact in story} for story in stories_of(43)]
    assert any({"sent-back", "fell-back", "succeeded"} <= of for of in kinds)


def stories_of(seed: int, *jobs: JobId) -> list[list[Fact]]:
    """Where bits flip in checkpoints. Of these jobs; of all where none is named."""
    worlds: list[World] = []
    assert run_seed(seed, worlds.append, tears=True, thinks=True) is None
    return [list(worlds[0].controller.machine.story(job)) for job in jobs or map(JobId, range(1, 20))]


@pytest.mark.parametrize(
    ("seed", "besides"),
    [
        pytest.param(4, "", id="one-is-started-ahead-beside-one-that-may-take-all-of-its-gpu"),
        pytest.param(274, "", id="what-its-class-holds-became-known-while-it-came-up"),
        pytest.param(365, "", id="one-that-was-stopped-before-its-first-step-is-not-known"),
        pytest.param(
            799, "deeds", id="a-swapped-job-is-named-again-and-again-and-its-place-is-taken-for-good"
        ),
        pytest.param(1049, "cuts", id="parts-of-gangs-do-not-wait-for-one-another-to-come-up"),
        pytest.param(1126, "cuts", id="what-was-written-again-at-the-same-step"),
        pytest.param(1165, "deeds", id="one-that-was-let-go-and-made-no-step-may-hold-all-of-its-gpu"),
        pytest.param(
            60226,
            "limits tears losses deeds cuts",
            id="a-swapped-job-whose-place-is-taken-for-good-is-sent-elsewhere",
        ),
    ],
)
def test_what_once_broke_where_nobody_says_what_jobs_hold_of_gpus_holds(seed: int, besides: str):
    assert run_seed(seed, untold=True, thinks=True, **dict.fromkeys(besides.split(), True)) is None


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(1526, id="who-is-frozen-as-it-stops-stands-first"),
        pytest.param(2522, id="what-a-copy-has-let-go-of-is-not-gone-on-from"),
    ],
)
def test_what_once_broke_where_links_are_cut_while_decisions_take_time_holds(seed: int):
    assert run_seed(seed, cuts=True, thinks=True) is None


def test_what_an_incarnation_left_before_it_was_forked_is_gone_on_from_where_no_average_can_be_had():
    assert run_seed(110142, limits=True, thinks=True) is None


def test_a_home_that_is_left_keeps_what_it_has_fetched_of_a_server_that_is_lost():
    assert run_seed(130043, deeds=True, losses=True, thinks=True) is None


@pytest.fixture
def untraded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds stand for what they stood for when this was found: nobody traded."""
    monkeypatch.setattr(kinds, "trading", lambda case: case)


@pytest.mark.usefixtures("untraded")
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(
            40, id="what-its-new-server-wrote-unheard-goes-before-what-its-old-one-is-known-to-have"
        ),
        pytest.param(191, id="it-does-not-begin-afresh-where-a-folder-has-newer-than-was-known"),
        pytest.param(446, id="a-server-that-has-it-back-looks-into-the-folder-and-not-into-its-memory"),
        pytest.param(232, id="who-begins-afresh-takes-nothing-of-a-copy-that-was-given-up"),
        pytest.param(32054, id="who-has-all-parts-of-a-gang-that-changed-places-is-enough"),
        pytest.param(41946, id="of-several-incarnations-on-a-server-each-may-have-run"),
        pytest.param(51257, id="what-was-ended-unheard-has-last-words"),
        pytest.param(667, id="where-all-else-is-out-of-reach-it-goes-on-from-a-copy-that-was-not-waited-for"),
    ],
)
def test_what_once_broke_where_links_are_cut_holds(seed: int):
    assert run_seed(seed, cuts=True) is None


def test_with_cuts_jobs_save_into_folders_that_all_servers_see_and_are_fenced():
    """In the first seeds, each of these."""
    met: set[str] = set()
    for seed in range(12):
        worlds: list[World] = []
        assert run_seed(seed, worlds.append, cuts=True) is None
        stories = [worlds[0].controller.machine.story(JobId(job)) for job in range(1, 10)]
        texts = [fact.text for story in stories for fact in story]
        met |= {
            what
            for what in ("it asked to be fenced", "newer checkpoint")
            if any(what in text for text in texts)
        }
        if len(met) == 2:
            return
    pytest.fail(f"only {met}")


def test_with_deeds_servers_are_removed_jobs_cancelled_and_policies_changed(monkeypatch):
    """In the first seeds, each of them."""
    met: set[str] = set()
    wipe = Agent.wipe
    monkeypatch.setattr(Agent, "wipe", lambda agent: (met.add("removed"), wipe(agent)))
    for seed in DEEDS[:12]:
        worlds: list[World] = []
        assert run_seed(seed, worlds.append, deeds=True) is None
        if any(job.cancelled for job in worlds[0].truth.jobs.values()):
            met.add("cancelled")
        if worlds[0].experiment.policy != worlds[0].controller.machine.policy.name:
            met.add("another policy")
        if len(met) == 3:
            return
    pytest.fail(f"only {met}")


def test_what_a_process_did_before_changes_no_digit_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a job that trains as copies, whose GPU-time adds up over several servers."""
    results: list[Result] = []
    run = World.run

    def kept(world: World) -> Result:
        results.append(run(world))
        return results[-1]

    monkeypatch.setattr(World, "run", kept)
    before: list[list[object]] = []
    for objects in range(8):  # other addresses, so another order of what goes by them
        before.append([object() for _ in range(331 * objects)])
        assert run_seed(17) is None
    first, *others = ((result.jobs, result.samples) for result in results)
    assert all(other == first for other in others)


def test_the_same_seed_makes_the_same_trouble():
    assert case_of(7) == case_of(7)
    traces: list[tuple[str, ...]] = []
    for _ in range(2):
        worlds: list[World] = []
        assert run_seed(7, worlds.append) is None
        traces.append(tuple(worlds[0].trace))
    assert traces[0] == traces[1]
    assert len(traces[0]) > 10


def test_elastic_jobs_are_in_the_trouble_too_and_are_restarted_over_several_servers():
    worlds: list[World] = []
    assert run_seed(75, worlds.append) is None
    jobs = worlds[0].truth.jobs.values()
    assert all(job.sim.elastic is not None for job in jobs)
    assert any(job.migrations and len(job.last_home) > 1 for job in jobs)


def test_a_failure_prints_its_seed_and_what_happened_last():
    text = str(Failure(seed=12, what="a GPU was lost", trace=("1.0 one", "2.0 two")))
    assert text.splitlines() == ["seed 12: a GPU was lost", "    1.0 one", "    2.0 two"]


def test_several_processes_find_nothing_broken_either():
    assert not explore(range(200, 210), processes=2)


def test_the_command_says_how_many_seeds_were_broken(capsys):
    assert faults.main(["--seeds", "3", "--from", "40"]) == 0
    assert "3 seeds, 0 of them broken" in capsys.readouterr().out


def test_the_command_says_what_was_broken_as_soon_as_it_is_known(capsys, monkeypatch):
    def run(seed: int, **_: object) -> Failure | None:
        assert seed < 42 or "seed 41" in capsys.readouterr().out
        return Failure(seed=seed, what="a GPU was lost", trace=()) if seed == 41 else None

    monkeypatch.setattr(faults, "run_seed", run)
    assert faults.main(["--seeds", "3", "--from", "40"]) == 1
    assert capsys.readouterr().out == "3 seeds, 1 of them broken\n"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["faults", "--seeds", "-1"], 2, "--seeds: -1; expected 1 to 1000000"),
        (["faults", "--seeds", "9" * 20], 2, "expected 1 to 1000000"),
        (["faults", "--from", "-1"], 2, "--from: -1; expected 0 to 1000000000000"),
        (["faults", "--processes", "0"], 2, "--processes: 0; expected 1 to 1024"),
        (["fidelity", "nosuch"], 4, "nosuch: there is no such file"),
        (["fidelity", "/dev/zero"], 2, "/dev/zero: a device; expected a file"),
        (["fidelity", __file__], 2, "expected what `python -m benchmarks.fidelity --record FILE` writes"),
    ],
)
def test_bad_usage_is_refused(words, code, said, capsys):
    assert main(words) == code
    assert said in capsys.readouterr().err


def test_a_fenced_job_whose_server_is_back_before_it_has_begun_afresh_goes_on_from_what_is_there(monkeypatch):
    """It had been given a place already: seed 65 with profiling runs, in which 3 ms are between its server's return and its start."""
    case = roomy(case_of(65))
    experiment = replace(case.experiment, policy="fft")
    monkeypatch.setattr(faults, "case_of", lambda _: replace(case, experiment=experiment))
    worlds: list[World] = []
    assert run_seed(65, worlds.append) is None
    story = worlds[0].controller.machine.story(JobId(2))
    lost = next(at for at, fact in enumerate(story) if fact.text.endswith("it starts afresh"))
    told = [fact for fact in story[lost:] if fact.kind == "written-since"]
    assert ["goes on from step 131" in fact.text for fact in told] == [True]


HALF_LET_GO = (3878, 5208)
"""Seeds in which half of a gang over two servers stood beside another job on its GPU: its other half was bound to a GPU that it was not to have."""


@pytest.mark.parametrize("seed", HALF_LET_GO)
def test_a_guest_over_two_servers_is_started_where_it_is_to_share(seed: int):
    assert run_seed(seed) is None


@pytest.mark.parametrize("seed", HALF_LET_GO)
def test_a_gpu_on_which_one_of_two_stands_and_waits_for_its_gang_is_half_of_each(monkeypatch, seed: int):
    """Started on any GPU, as they once were: neither is said to have received more than was there to be charged."""
    beside = "hs_core.host.walk._beside_partners"
    monkeypatch.setattr(beside, lambda _board, this, _turn, job, allowed: this.choose(job, allowed))
    assert run_seed(seed) is None


@pytest.mark.usefixtures("untraded")
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(1097, id="the-time-without-an-agent-is-not-that-of-a-switch"),
        pytest.param(5462, id="a-copy-that-has-done-its-portion-takes-no-gpu"),
        pytest.param(3327, id="moved-once-its-disk-has-room"),
        pytest.param(5115, id="a-gang-lands-apart-from-who-cannot-move"),
        pytest.param(5742, id="told-to-leave-after-their-checkpoints-failed"),
        pytest.param(6148, id="who-slept-through-its-fence-finds-nobody-to-agree-with"),
        pytest.param(8193, id="a-gang-on-its-way-holds-gpus-of-a-server-once"),
        pytest.param(7430, id="one-part-on-two-servers-is-no-whole-checkpoint"),
        pytest.param(1059, id="who-has-a-job-alone-has-no-use-for-one-part-of-its-checkpoint"),
        pytest.param(12981, id="what-a-job-wrote-alone-waits-for-the-end-of-a-part-of-it"),
        pytest.param(12225, id="who-dialled-a-controller-that-died-dials-again"),
        pytest.param(9636, id="who-changed-places-has-what-it-wrote-and-what-it-fetched"),
        pytest.param(16823, id="a-fenced-gang-that-found-no-other-place-goes-on-once-its-servers-are-back"),
        pytest.param(17020, id="nothing-arrives-for-who-is-not-wanted-any-more"),
        pytest.param(11143, id="who-changed-places-has-both-until-something-newer-is-written"),
        pytest.param(23409, id="a-round-keeps-no-gpu-for-who-was-moved-away"),
        pytest.param(38339, id="trouble-is-as-long-as-it-was-and-not-as-often-as-somebody-looked"),
        pytest.param(26920, id="a-gang-that-one-server-moves-leaves-no-gpus-idle-on-the-other"),
    ],
)
def test_what_once_broke_in_trouble_holds(seed: int):
    assert run_seed(seed) is None


def test_a_server_that_was_rebooted_begins_its_quanta_anew():
    """By the clock of the boot before its next one was two minutes away, and a job stood beside idle GPUs until then."""
    assert run_seed(5214, thinks=True) is None


def test_who_wrote_on_while_cut_off_goes_on_from_that_and_does_not_fail_for_what_is_gone():
    assert run_seed(12125, deeds=True) is None


def test_an_order_that_waited_for_a_link_is_not_obeyed_after_one_that_was_given_later():
    """A gang was told to go on, and before its nodes were linked, to stop: it stands while another has its GPUs."""
    assert run_seed(19100, deeds=True) is None


def test_orders_reach_a_node_in_the_order_in_which_they_were_given():
    """It went on after it had been told to stop, so its gang held GPUs of one server for three quanta."""
    assert run_seed(28703, deeds=True) is None


def test_what_a_node_was_told_before_its_gang_stops_is_told_though_the_link_has_just_come_back():
    """It knew of no checkpoint that the gang had written since, and left; the one that it knew was there no more."""
    assert run_seed(26380, deeds=True) is None


@pytest.mark.usefixtures("untraded")
def test_gpus_do_not_idle_for_long_beside_one_that_cannot_be_moved_out_of_a_gangs_way():
    assert run_seed(24054, deeds=True) is None


def under_gandiva_fair(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    case = case_of(seed)
    experiment = replace(case.experiment, policy="gandiva-fair")
    monkeypatch.setattr(faults, "case_of", lambda _: replace(case, experiment=experiment))


def test_an_agent_that_slept_as_a_job_was_to_stop_has_no_longer_quanta_for_it(monkeypatch):
    """Jobs stood for 100 s, ten quanta, beside a GPU that was idle."""
    under_gandiva_fair(monkeypatch, 39617)
    assert run_seed(39617) is None


def test_users_trade_and_trades_are_taken_back_and_made_anew_in_the_middle_of_trouble():
    told: list[dict[str, int]] = []
    for seed in (360, 376, 648):
        worlds: list[World] = []
        assert run_seed(seed, worlds.append, deeds=True) is None
        laws = worlds[0].trade_laws
        assert laws is not None
        told.append(laws.told)
    assert all(each["trade"] >= 3 and each["trade-undone"] >= 3 for each in told)


def test_many_seeds_draw_users_who_trade():
    assert sum(case_of(seed).trades for seed in range(500)) > 100
