"""The parallelism strategy that a job was started in."""

from typing import NamedTuple, Tuple


class Strategy(NamedTuple):
    """`dp` copies of the model, `tp` slices of each layer, `pp` stages with so many `layers` each (empty: as the script cuts them)."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    layers: Tuple[int, ...] = ()

    @classmethod
    def read(cls, text: str) -> "Strategy":
        """Of HS_STRATEGY: `tp=2,pp=2`, `pp=2,layers=10+14`. Raises ValueError."""
        said = dict(word.partition("=")[::2] for word in text.split(","))
        stages = said.pop("layers", "1").split("+") if "layers" in said else []
        numbers = [*said.values(), *stages]
        if not set(said) <= {"dp", "tp", "pp"} or not all(each.isdecimal() and int(each) for each in numbers):
            raise ValueError(f"HS_STRATEGY is {text!r}; expected degrees like dp=2,tp=2,pp=2")
        return cls(layers=tuple(map(int, stages)), **{name: int(each) for name, each in said.items()})
