"""Tensors that are spread over the ranks (DTensor: FSDP2, tensor parallelism): each rank saves its own part, with how the whole is laid out.

A part goes back only into a layout that what was handed over has now: the mesh of devices is the process's own, and nothing is made of a text.
"""

from __future__ import annotations

import sys
from typing import Any, Dict, Iterator, Mapping, Optional, Tuple

TAG = "shard"
_Layout = Tuple[str, str]


def local(tensor: Any) -> Any:
    """This rank's part, which is what has memory; of any other tensor itself."""
    return tensor.detach().to_local() if is_spread(tensor) else tensor


def is_spread(tensor: Any) -> bool:
    kind = _kind()
    return kind is not None and isinstance(tensor, kind)


def _kind() -> Optional[Any]:
    for name in ("torch.distributed.tensor", "torch.distributed._tensor"):  # the second: before torch 2.5
        module = sys.modules.get(name)
        if module is not None and hasattr(module, "DTensor"):
            return module.DTensor
    return None


def describe(tensor: Any) -> Dict[str, Any]:
    """What is saved of a spread tensor beside this rank's part."""
    mesh, placements = _layout(tensor)
    return {
        "mesh": mesh,
        "placements": placements,
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
    }


def _layout(tensor: Any) -> _Layout:
    mesh = tensor.device_mesh
    return f"{mesh.mesh.tolist()} {mesh.mesh_dim_names}", str(tuple(tensor.placements))


class Layouts:
    """How spread tensors of the objects handed over lie in this process; looked for once it is asked."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self._objects = objects
        self._found: Optional[Dict[_Layout, Any]] = None

    def put(self, part: Any, saved: Mapping[str, Any]) -> Any:
        """The spread tensor of which this rank had that part. Raises ValueError where nothing is laid out that way."""
        if self._found is None:
            self._found = {_layout(each): each for each in self._tensors() if is_spread(each)}
        like = self._found.get((saved["mesh"], saved["placements"]))
        kind = _kind()
        if like is None or kind is None:
            raise ValueError(
                f"the checkpoint holds a tensor that is spread as {saved['placements']} over ranks {saved['mesh']}; "
                f"nothing given to hs_job.state is: shard the model before that call, and as before"
            )
        torch = sys.modules["torch"]
        return kind.from_local(
            part,
            like.device_mesh,
            like.placements,
            run_check=False,
            shape=torch.Size(saved["shape"]),
            stride=tuple(saved["stride"]),
        )

    def _tensors(self) -> Iterator[Any]:
        torch = sys.modules["torch"]
        for thing in self._objects.values():
            if isinstance(thing, torch.nn.Module):
                yield from thing.parameters()
                yield from thing.buffers()
            elif isinstance(getattr(thing, "param_groups", None), list):
                for group in thing.param_groups:
                    yield from group["params"]
            else:
                yield from tensors_in(thing.state_dict(), torch)


def tensors_in(value: Any, torch: Any) -> Iterator[Any]:
    """Of nested containers."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors_in(each, torch)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors_in(each, torch)
