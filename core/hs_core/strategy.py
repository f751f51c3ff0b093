"""Parallelism strategies: how a job's training script lays a model over the GPUs of its gang.

A user declares which of them the script can do; a job runs in one, fixed for an epoch. Jobs of one class have rates of their own in each, so what is
measured goes to the class *as* that strategy (`class_as`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hs_core.digits import whole
from hs_core.errors import RefusedError

DEGREES = ("dp", "tp", "pp")
LAYERS = "layers"
EXPECTED = (
    "degrees like `dp=2,tp=2,pp=2` (`dp` copies, `tp` slices of each layer, `pp` stages; those left out are 1), "
    "and perhaps the layers of each stage, `pp=2,layers=10+14`"
)
_AS = " as "


@dataclass(frozen=True, slots=True, order=True)
class Strategy:
    """Degrees, whose product are the GPUs of the gang, at least 1 each; named as Megatron-LM and Tesserae (4.2) do."""

    data: int = 1  # copies of the model, each on its part of a mini-batch
    tensor: int = 1  # slices of each layer
    pipeline: int = 1  # stages
    layers: tuple[int, ...] = ()  # of each stage; empty: as the script cuts them

    @property
    def gang(self) -> int:
        return self.data * self.tensor * self.pipeline

    @property
    def text(self) -> str:
        """`tp=2,pp=2`: degrees above 1, `dp=1` where there are none."""
        degrees = zip(DEGREES, (self.data, self.tensor, self.pipeline), strict=True)
        words = [f"{name}={degree}" for name, degree in degrees if degree > 1] or ["dp=1"]
        return ",".join([*words, *([f"{LAYERS}={'+'.join(map(str, self.layers))}"] if self.layers else [])])

    def __str__(self) -> str:
        return f"strategy {self.text}"


def parse(text: str) -> Strategy:
    """Of `Strategy.text`, degrees in any order. Raises RefusedError where it is none."""
    said: dict[str, str] = {}
    for word in text.replace(" ", "").split(","):
        name, equals, value = word.partition("=")
        if not equals or name not in (*DEGREES, LAYERS) or name in said:
            raise RefusedError(f"strategy {text!r}: {word!r}; expected {EXPECTED}")
        said[name] = value
    data, tensor, pipeline = (_number(text, said.get(name, "1")) for name in DEGREES)
    stages = said[LAYERS].split("+") if LAYERS in said else []
    return Strategy(data, tensor, pipeline, tuple(_number(text, word) for word in stages))


def _number(text: str, word: str) -> int:
    if not (number := whole(word, 1 << 20)):
        raise RefusedError(f"strategy {text!r}: {word!r}; expected {EXPECTED}")
    return number


def obstacle(strategies: Sequence[Strategy], gang: int) -> str:
    """Why a job of so many GPUs cannot have these, for people; empty: it can."""
    for strategy in strategies:
        if min(strategy.data, strategy.tensor, strategy.pipeline, *strategy.layers) < 1:
            return f"{strategy.text}: expected degrees and layers of at least 1"
        if strategy.gang != gang:
            return (
                f"{strategy.text}: expected degrees that multiply to its {gang} GPUs, not to {strategy.gang}"
            )
        if strategy.layers and len(strategy.layers) != strategy.pipeline:
            return f"{strategy.text}: expected the layers of {strategy.pipeline} stages, not of {len(strategy.layers)}"
        if strategies.count(strategy) > 1:
            return f"{strategy.text}: expected each strategy once"
    return ""


def class_as(job_class: str, strategy: Strategy | None) -> str:
    """The class under which rates in this strategy are kept; None: a job without strategies."""
    return job_class if strategy is None else f"{job_class}{_AS}{strategy.text}"


def another(job_class: str, strategy: Strategy) -> str:
    """The class of a job that is of this one in its present strategy, in another."""
    return class_as(job_class.rpartition(_AS)[0], strategy)
