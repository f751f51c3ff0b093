"""Every verb of hsctl: where it is, and its line in `hsctl --help`."""

from typing import NamedTuple


class Verb(NamedTuple):
    where: str
    group: str
    help: str


JOBS, CLUSTER, ADMINS, LOCAL, OTHER = "Jobs", "The cluster", "Admins", "One machine", "Other"
GROUPS = (JOBS, CLUSTER, ADMINS, LOCAL, OTHER)

VERBS = {
    "submit": Verb("hs_client.verbs.submit:submit", JOBS, "submit a command, a job file or a script"),
    "run": Verb("hs_client.verbs.submit:run", JOBS, "submit, follow the output, exit as the job did"),
    "queue": Verb("hs_client.verbs.jobs:queue", JOBS, "list jobs (also: ps)"),
    "show": Verb(
        "hs_client.verbs.show:show", JOBS, "everything about a job: its story, its end, its log's tail"
    ),
    "why": Verb("hs_client.verbs.jobs:why", JOBS, "why a job is where it is, and what comes next"),
    "logs": Verb("hs_client.verbs.jobs:logs", JOBS, "a job's output"),
    "exec": Verb("hs_client.verbs.jobs:exec_", JOBS, "run a command beside a job that has its turn"),
    "attach": Verb("hs_client.verbs.jobs:attach", JOBS, "follow a job's output, exit as the job did"),
    "pause": Verb("hs_client.verbs.jobs:pause", JOBS, "take your job out of its turns until you resume it"),
    "resume": Verb("hs_client.verbs.jobs:resume", JOBS, "let a paused job have its turns again"),
    "cancel": Verb("hs_client.verbs.jobs:cancel", JOBS, "end jobs"),
    "wait": Verb("hs_client.verbs.jobs:wait", JOBS, "wait until jobs have ended, exit as they did"),
    "share": Verb("hs_client.verbs.cluster:share", CLUSTER, "who is entitled to what, and who gets it"),
    "usage": Verb("hs_client.verbs.cluster:usage", CLUSTER, "GPU time received"),
    "gpus": Verb("hs_client.verbs.cluster:gpus", CLUSTER, "GPUs and who is on them"),
    "nodes": Verb("hs_client.verbs.cluster:nodes", CLUSTER, "servers"),
    "trades": Verb("hs_client.verbs.cluster:trades", CLUSTER, "who gives fast GPUs and receives slow ones"),
    "top": Verb("hs_client.verbs.top:top", CLUSTER, "all of it on one live page"),
    "simulate": Verb(
        "hs_client.verbs.whatif:simulate",
        CLUSTER,
        "what another policy would have done with the last days' jobs",
    ),
    "events": Verb("hs_client.verbs.cluster:events", CLUSTER, "what happened"),
    "info": Verb("hs_client.verbs.cluster:info", CLUSTER, "the controller, and whom it takes you for"),
    "doctor": Verb("hs_client.verbs.cluster:doctor", CLUSTER, "check that all is well"),
    "login": Verb(
        "hs_client.verbs.access:log_in", CLUSTER, "store the controller's address, its CA and your token"
    ),
    "cert": Verb(
        "hs_client.verbs.access:cert", CLUSTER, "what the controller presents: its CA's hash, its end"
    ),
    "token": Verb("hs_client.verbs.access:token", CLUSTER, "make, list and revoke tokens"),
    "node": Verb("hs_client.verbs.admin:node", ADMINS, "enroll, drain, undrain and remove servers"),
    "gpu": Verb("hs_client.verbs.admin:gpu", ADMINS, "drain and undrain single GPUs"),
    "user": Verb(
        "hs_client.verbs.admin:user", ADMINS, "list users, set their tickets and account, take them out"
    ),
    "policy": Verb("hs_client.verbs.admin:policy", ADMINS, "show the policy, check a name, set another"),
    "support-bundle": Verb(
        "hs_client.verbs.support:support_bundle",
        ADMINS,
        "collect what helps to find a fault, without secrets",
    ),
    "backup": Verb("hs_client.verbs.admin:backup", ADMINS, "copy all that the controller knows to a file"),
    "restore": Verb("hs_client.verbs.admin:restore", ADMINS, "how a backup is put back"),
    "up": Verb("hs_client.verbs.embedded:up", LOCAL, "start a cluster of this machine alone"),
    "down": Verb("hs_client.verbs.embedded:down", LOCAL, "stop it"),
    "schema": Verb("hs_client.verbs.other:schema", OTHER, "print the job file's JSON Schema"),
    "completion": Verb("hs_client.verbs.other:completion", OTHER, "print a shell's completion script"),
}

ALIASES = {"ps": "queue"}

# What other systems call them: said to whoever types it.
ELSEWHERE = {
    "sbatch": "submit", "srun": "run", "salloc": "run", "create": "submit", "launch": "submit", "apply": "submit", "start": "submit",
    "squeue": "queue", "list": "queue", "ls": "queue", "jobs": "queue", "status": "queue", "get": "queue", "stat": "queue",
    "describe": "show", "inspect": "show", "log": "logs", "tail": "logs",
    "scancel": "cancel", "kill": "cancel", "stop": "cancel", "delete": "cancel", "rm": "cancel",
    "suspend": "pause", "hold": "pause", "release": "resume", "unpause": "resume", "continue": "resume",
    "sinfo": "nodes", "hosts": "nodes", "servers": "nodes", "sacct": "usage", "sshare": "share", "shares": "share",
    "users": "user list", "tokens": "token list", "drain": "node drain", "enroll": "node enroll", "version": "info", "whoami": "info", "logout": "login --forget",
}  # fmt: skip
