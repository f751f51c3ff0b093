"""What state dicts hold, through a file and back: of the same type, to the bit, with every version of torch."""

import io
import pickletools
import random
import warnings
import zipfile
from collections import Counter, OrderedDict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hs_job.checkpoint import Folder
from hs_job.pack import PackError, load, pack, unpack

OF_TORCH_2_2 = {
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_sparse_tensor",
    "torch.serialization _get_layout",
    "torch Size",
    "collections OrderedDict",
    *(f"torch {kind}Storage" for kind in ("Byte", "Bool", "Long", "Float", "Double", "BFloat16")),
}
"""Names that the `weights_only` of that version looks up; and what it does with them."""
DEEDS_OF_TORCH_2_2 = {
    *("PROTO", "STOP", "MARK", "GLOBAL", "REDUCE", "BUILD", "BINPERSID", "NONE", "NEWTRUE", "NEWFALSE"),
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE"),
    *("BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT", "APPEND", "APPENDS", "SETITEM", "SETITEMS"),
    *("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
}


def through_a_file(value: Any) -> Any:
    """Of which torch 2.2 could read as much as the torch here does."""
    file = io.BytesIO()
    torch.save(pack(value, "it"), file)
    with zipfile.ZipFile(file) as entries:
        name = next(name for name in entries.namelist() if name.endswith("/data.pkl"))
        pickled = [(deed.name, about) for deed, about, _ in pickletools.genops(entries.read(name))]
    assert {about for deed, about in pickled if deed == "GLOBAL"} <= OF_TORCH_2_2
    assert {deed for deed, _ in pickled} <= DEEDS_OF_TORCH_2_2
    file.seek(0)
    return unpack(load(file))


def assert_same(found: Any, value: Any) -> None:
    assert type(found) is type(value)
    if isinstance(value, (np.ndarray, np.generic)):
        assert (found.dtype, found.shape) == (value.dtype, value.shape)
        assert repr(found) == repr(value)
    elif isinstance(value, (dict, list, tuple, deque)):
        assert len(found) == len(value)
        for one, other in zip(found, value, strict=True):
            assert_same(one, other)
        if isinstance(value, dict):
            assert_same([*found.values()], [*value.values()])
    elif isinstance(value, torch.Tensor):
        assert (found.dtype, found.layout) == (value.dtype, value.layout)
        assert found.to_dense().tolist() == value.to_dense().tolist()
    else:
        assert repr(found) == repr(value)


FIELDS = np.dtype(
    [("a", "<i2"), ("b", ">f8"), ("c", "S3", (2,)), ("d", [("x", "u1"), ("at", "M8[ns]")])], align=True
)
OVERLAPPING = np.dtype({"names": ["a", "b"], "formats": ["<i4", "<i2"], "offsets": [0, 2], "itemsize": 12})
READ_ONLY = np.arange(3.0)
READ_ONLY.setflags(write=False)
VALUES = {
    "bytes": b"a\0\xff",
    "no bytes": b"",
    "many bytes": bytes(range(256)) * 100,
    "bytes that change": bytearray(b"ab"),
    "many bytes that change": bytearray(10_000),
    "complex": [1 + 2j, complex(-0.0, float("inf"))],
    "whole numbers": [0, -1, 255, 2**31, -(2**63), 1 - 2**2000],
    "text": ["", "é\0", "\ud800"],
    "types and devices": [
        torch.bool,
        torch.bfloat16,
        torch.uint8,
        torch.device("cuda", 1),
        torch.Size([2, 3]),
    ],
    "keys": {b"": 1, b"a" * 9000: 2, (b"b", ("c", 1j)): 3, None: 4, 2.5: 5, 1j: 6},
    "ordered keys": OrderedDict([(b"b", 1), (b"a", b"a")]),
    "a key of ours": {"__heteroshare__": "counter", "items": []},
    "queue": deque([b"x", np.float32(0.1)], 5),
    "random": [random.Random(1).getstate(), np.random.RandomState(2).get_state()],
    "generators": [
        np.random.Generator(kind(3)).bit_generator.state
        for kind in (np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64)
    ],
    "numbers of arrays": [
        *(np.float64(2.5), np.float32(0.1), np.float16(3), np.longdouble("0.1"), np.complex64(1j)),
        *(np.int8(-3), np.uint64(2**64 - 1), np.bool_(True), np.void(b"ab")),
        *(np.datetime64("2026-11-25"), np.timedelta64(5, "ms"), np.datetime64("NaT")),
    ],
    "array": np.arange(3),
    "large array": np.arange(5000.0),
    "array of no dimension": np.array(2.5, np.float32),
    "array without elements": np.zeros((2, 0, 3)),
    "array of fields": np.arange(3).astype(FIELDS),
    "array of fields without elements": np.zeros(0, FIELDS),
    "array of fields that overlap": np.arange(3).astype(OVERLAPPING),
    "array of fields with titles": np.zeros(2, [(("title", "name"), "i4")]),
    "one of an array of fields": np.arange(3).astype(FIELDS)[1],
    "array that is read only": READ_ONLY,
    "array by columns": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "array that is a part": np.arange(20).reshape(4, 5)[::-2, 1::2],
    "array that repeats": np.broadcast_to(np.arange(2), (3, 2)),
    "array in other order": np.arange(4, dtype=">i4"),
    "array of text": np.array(["a", "bcd", ""]),
    "array of bytes": np.array([b"a", b"b\0c", b""]),
    "array of raw memory": np.array([b"ab\0", b"cde"], "V3"),
    "arrays of nothing": [np.zeros(2, "S0"), np.zeros(2, "V0"), np.zeros(2, [])],
    "array of days": np.array(["2026-11-25", "NaT"], "M8[D]"),
    "array of wide numbers": np.arange(3, dtype=np.longdouble) / 3,
    "tensors": [torch.arange(4)[1:3], torch.zeros(2, dtype=torch.bfloat16), torch.eye(3).to_sparse()],
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_what_state_dicts_hold_comes_back_as_it_was(value: Any) -> None:
    assert_same(through_a_file({"it": [value]})["it"][0], value)


def test_text_of_arrays_keeps_zeros_at_its_end() -> None:
    found = through_a_file([np.str_("a\0"), np.bytes_(b"a\0")])
    assert [type(each) for each in found] == [np.str_, np.bytes_]
    assert [len(each) for each in found] == [2, 2]


def test_sets_and_counts_come_back_with_what_is_in_them() -> None:
    value = [{b"a", 2, ("c", b"")}, frozenset({1j}), Counter({b"a": 2, "b": np.int64(3)})]
    found = through_a_file(value)
    assert found == value
    assert [type(each) for each in found] == [set, frozenset, Counter]


def test_an_array_may_be_written_to_and_lies_as_it_lay() -> None:
    """As what is unpickled: the object that loads it may go on with it."""
    for value in (READ_ONLY, VALUES["array by columns"], np.zeros((100, 100), order="F"), np.zeros((0, 2))):
        found = through_a_file(value)
        assert found.flags.writeable
        assert found.flags.owndata
        assert found.flags.f_contiguous == value.flags.f_contiguous
        assert found.flags.c_contiguous == value.flags.c_contiguous


def test_what_is_packed_is_as_it_was_though_the_array_changes() -> None:
    array, memory = np.zeros(10_000), bytearray(10_000)
    packed = pack([array, memory], "it")
    array += 1
    memory[0] = 1
    found = unpack(packed)
    assert not found[0].any()
    assert not any(found[1])


def test_tied_tensors_stay_tied() -> None:
    tied = torch.ones(3)
    found = through_a_file([tied, tied])
    assert found[0].data_ptr() == found[1].data_ptr()


def test_a_module_is_told_which_version_of_it_a_state_dict_is_of() -> None:
    """Else it takes that for one that an old version has written: some change it, torchvision's MNASNet refuses it."""

    class Second(torch.nn.Linear):
        _version = 2

        def _load_from_state_dict(self, state: Any, prefix: str, told: Any, *rest: Any) -> None:
            found.append(told.get("version"))
            super()._load_from_state_dict(state, prefix, told, *rest)

    found: list[int | None] = []
    module = torch.nn.Sequential(Second(1, 1), torch.nn.BatchNorm1d(1))
    module.load_state_dict(through_a_file(module.state_dict()))
    assert found == [2]


REFUSED = {
    "array of objects": (np.array([{}, None]), r"it\['own'\] is an array of type object"),
    "array of fields with objects": (np.zeros(2, [("a", object)]), r"is an array of type \[\('a', 'O'\)\]"),
    "array of records": (np.zeros(2, np.dtype((np.record, [("a", "i4")]))), "is an array of type .*record"),
    "masked array": (np.ma.zeros(3), r"is a numpy\.ma\..*MaskedArray"),
    "function": ([lambda epoch: epoch], r"it\['own'\]\[0\] is a builtins.function"),
    "long number": (2**5000, "is a whole number of 5001 bits"),
    "long number as key": ({2**5000: 1}, "a key of .* is a whole number of 5001 bits"),
    "type as key": ({torch.float16: 1}, "a key of .* is a dtype"),
    "number of arrays in a set": ({np.int64(1)}, "a key of .* is a int64"),
}


@pytest.mark.parametrize(("value", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_saved_is_refused_by_name(value: Any, said: str) -> None:
    with pytest.raises(PackError, match=said):
        pack({"own": value}, "it")


def test_a_tensor_that_this_torch_does_not_take_back_is_refused_before_it_is_written() -> None:
    """Newer versions of torch cannot write numbers of one bit, older ones have none and do not read bits."""
    kind = torch.uint1 if hasattr(torch, "uint1") else torch.bits8
    with pytest.raises(
        PackError, match=r"it\['own'\] is a tensor of type torch\..*, which torch .* does not take back"
    ):
        pack({"own": torch.empty(3, dtype=kind)}, "it")


def test_what_torch_warns_of_while_it_reads_a_checkpoint_is_neither_said_nor_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Here warnings are errors, as a script may make them. Torch 2.14 warns of sparse tensors."""
    read = torch.load

    def warns(*args: Any, **kwargs: Any) -> Any:
        warnings.warn("it is slow", stacklevel=2)
        return read(*args, **kwargs)

    monkeypatch.setattr(torch, "load", warns)
    folder = Folder(str(tmp_path), 0, 1)
    folder.write(0, 1, {"format": 1, "own": pack(torch.ones(3).to(torch.float8_e5m2), "own")})
    assert folder.content(0)["own"].float().tolist() == [1.0] * 3


def marked(tag: str, **more: Any) -> dict[str, Any]:
    return {"__heteroshare__": tag, **more}


@pytest.mark.parametrize(
    "value",
    [
        marked("array", type="O", shape=[1], bytes="\1" * 8),
        marked("array", type={"each": "O", "shape": [1]}, shape=[1], bytes="\1" * 8),
        marked("array", type="<i8", shape=[2], bytes="\1" * 8),
        marked("array", type="<i8", shape=[1], bytes=torch.ones(1, dtype=torch.int64)),
        marked("array", type="|u1", shape=[4], bytes=torch.ones(1, dtype=torch.uint8).expand(4)),
        marked("octets", kind="bytes", of=torch.ones(2, 2, dtype=torch.uint8)),
        marked("dtype", name="torch.load"),
        marked("eval", of="1"),
    ],
    ids=str,
)
def test_what_was_never_written_is_refused(value: Any) -> None:
    """An address out of a file, above all."""
    with pytest.raises((ValueError, TypeError)):
        unpack(value)
