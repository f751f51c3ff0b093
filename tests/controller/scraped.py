"""`/metrics` of a controller, and who reads it as Prometheus does."""

import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace

from prometheus_client.parser import text_string_to_metric_families as parse

from hs_controller.config import Config
from tests.controller.browser import opened


@contextlib.asynccontextmanager
async def scraped(config: Config) -> AsyncIterator[SimpleNamespace]:
    """A controller with its port open."""
    async with opened(config) as cluster:

        async def ask(token: str = cluster.admin, **more: str) -> SimpleNamespace:
            return await cluster.get("/metrics", token=token, **more)

        async def read() -> dict[str, dict[tuple[str, ...], float]]:
            """Each sample by its name and the values of its labels, by their names."""
            answer = await ask()
            assert answer.code == 200, answer.text
            found: dict[str, dict[tuple[str, ...], float]] = {}
            for family in parse(answer.text):
                for sample in family.samples:
                    values = tuple(sample.labels[name] for name in sorted(sample.labels))
                    found.setdefault(sample.name, {})[values] = sample.value
            return found

        yield SimpleNamespace(**vars(cluster), ask=ask, read=read)
