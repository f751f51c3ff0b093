"""Every policy has its page, and what the pages say of a policy's needs is what it declares."""

import re
from pathlib import Path
from typing import Any

import pytest

from hs_core.plan import check
from hs_core.policies import POLICIES
from hs_core.policy import Policy, Snapshot
from hs_sim.cli import main
from tests.policies.lawful import law
from tests.policies.worlds import snapshots

PAGES = Path(__file__).resolve().parents[2] / "docs/policies"
HEADINGS = ("Idea", "Formula", "Parameters", "Source", "Departures", "Limits here")
INDEX = (PAGES / "README.md").read_text(encoding="utf-8")
ROW = re.compile(
    r"^\| \[(?P<name>[a-z-]+)\]\((?P<page>[a-z-]+)\.md\) \| .+ \| (?P<lengths>yes|no) \| (?P<preemptive>yes|no) \| (?P<fair>yes|no) \| .+ \|$",
    re.MULTILINE,
)
CLAIMS = {row["name"]: row for row in ROW.finditer(INDEX)}
TEXTS = {page.stem: page.read_text(encoding="utf-8") for page in PAGES.glob("*.md")}


def test_every_policy_has_a_page_and_every_page_a_policy() -> None:
    assert set(TEXTS) - {"README"} == set(POLICIES)


@pytest.mark.parametrize("name", POLICIES)
def test_a_page_has_its_sections_in_order(name: str) -> None:
    text = TEXTS[name]
    assert text.startswith(f"# {name}\n")
    places = [text.find(f"\n**{heading}.**") for heading in HEADINGS]
    assert min(places) > 0, f"sections that are absent have -1: {dict(zip(HEADINGS, places, strict=True))}"
    assert places == sorted(places)


@pytest.mark.parametrize("name", POLICIES)
def test_the_table_says_of_a_policy_what_it_declares(name: str) -> None:
    row, needs = CLAIMS[name], POLICIES[name].needs
    assert row["page"] == name
    said = {claim: row[claim] == "yes" for claim in ("lengths", "preemptive", "fair")}
    assert said == {"lengths": needs.lengths, "preemptive": needs.preemptive, "fair": needs.fair}


def test_the_table_has_the_policies_there_are() -> None:
    assert set(CLAIMS) == set(POLICIES)


@pytest.mark.parametrize("page", TEXTS)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    for to, anchor in re.findall(r"\]\(([\w-]+)\.md(?:#([\w-]+))?\)", TEXTS[page]):
        assert to in TEXTS
        if anchor:
            titles = re.findall(r"^#+ (.+)$", TEXTS[to], re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
            assert anchor in anchors


def written(text: str) -> dict[str, Any]:
    """What is there once it ran."""
    names: dict[str, Any] = {}
    exec(text, names)
    return names


FILE, SCRIPT = re.findall(r"```python\n(.+?)```", INDEX, re.DOTALL)
OWN: Policy = written(FILE)["NARROWEST"]


@law(snapshots(), policies=[OWN])
def test_the_policy_that_is_shown_makes_lawful_plans(policy: Policy, asked: Snapshot) -> None:
    check(asked, policy.decide(asked, {}).plan, policy.needs)


def test_the_policy_that_is_shown_is_simulated_as_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["workload", "generate", "small.yaml", "--jobs", "12", "--service-s", "600"]) == 0
    written(FILE + SCRIPT)
    said = capsys.readouterr().out
    assert "{'policy': 'narrowest', 'depth': 'quanta', 'seed': 0, 'finished': 12, 'jobs': 12," in said
