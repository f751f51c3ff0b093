"""A support bundle of a whole cluster of real processes, with jobs that have something to hide."""

import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

from tests.e2e.harness import Cluster

SECRET = "hunter2-is-nobodys-business"
NewCluster = Callable[..., Cluster]


def test_a_bundle_has_what_the_doctor_says_and_nothing_that_jobs_hide_or_say(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    cluster = new_cluster("--emulate", "V100:2", "--quantum", "1", "--user", "ann")
    tell = "echo it is $WANDB_API_KEY; "
    words = (
        "-G",
        "1",
        "-e",
        f"WANDB_API_KEY={SECRET}",
        "-C",
        "/",
        "--suspend",
        "none",
        "--",
        "/bin/sh",
        "-c",
    )
    fails = cluster.submit(*words, f"{tell} exit 3", user="ann")
    runs = cluster.submit(*words, f"{tell} sleep 600", user="ann")
    cluster.until_state(fails, "failed")
    cluster.until_state(runs, "running")
    token = cluster.json("token", "create", "--for", "ann")["token"]
    path = tmp_path / "b.tar.gz"
    cluster.hsctl("support-bundle", str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with tarfile.open(path) as bundle:
        files = {
            member.name.partition("/")[2]: bundle.extractfile(member).read().decode() for member in bundle
        }
    (doctor,) = [text for name, text in files.items() if name.endswith("/doctor.txt")]
    assert doctor.startswith("ok    python")
    assert len(files["state/jobs.jsonl"].splitlines()) == 1
    assert f'"job_id": {fails}' in files["state/events.jsonl"]
    hidden = [SECRET, token]
    hidden += [file.read_text().strip() for file in cluster.state.rglob("*.token")]
    hidden += [file.read_text().strip() for file in cluster.state.rglob("token.secret")]
    assert len(hidden) > 2
    for name, text in files.items():
        assert not [secret for secret in hidden if secret in text], name
