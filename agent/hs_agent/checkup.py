"""What `hs-agent doctor` says of this host, asked for from afar: as a process of its own, so that nothing it tries is tried on the agent."""

import asyncio
import contextlib
import os
import signal
import sys

from hs_agent.config import Config

LIMIT_S = 25.0
MOST_BYTES = 60 << 10


async def told(config: Config) -> str:
    """What it prints; or why there is nothing. It reads the configuration anew, as it is in the file now."""
    env = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "hs_agent", "--config", config.file, "doctor",
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            cwd="/", env=env, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return f"no process can be started: {error.strerror or error}\n"
    try:
        async with asyncio.timeout(LIMIT_S):
            said, _ = await process.communicate()
    except TimeoutError:
        return f"it did not come to an end within {LIMIT_S:g} s\n"
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)  # it clears away what it has made to try things with
    return said[:MOST_BYTES].decode(errors="replace")
