"""Whether two programs know the same messages is told from the messages."""

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

from hs_proto import dialect
from hs_proto.v1 import controller_pb2


def made(*changes) -> str:
    """The dialect of a small service, some of it changed."""
    file = FileDescriptorProto(name="t.proto", package="t", syntax="proto3")
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="NONE", number=0)
    ask, inner, unused = (file.message_type.add(name=name) for name in ("Ask", "Inner", "Unused"))
    ask.field.add(name="job", number=1, type=4, label=1)
    ask.field.add(name="inner", number=2, type=11, label=1, type_name=".t.Inner")
    inner.field.add(name="kind", number=1, type=14, label=1, type_name=".t.Kind")
    unused.field.add(name="text", number=1, type=9, label=1)
    service = file.service.add(name="Door")
    service.method.add(name="Knock", input_type=".t.Ask", output_type=".t.Inner")
    for change in changes:
        change(file)
    pool = DescriptorPool()
    pool.Add(file)
    return dialect.of([pool.FindServiceByName("t.Door")])


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file.message_type[0].field.add(name="more", number=3, type=9, label=1),
        lambda file: setattr(file.message_type[0].field[0], "number", 7),
        lambda file: setattr(file.message_type[0].field[0], "name", "task"),
        lambda file: setattr(file.message_type[0].field[0], "type", 3),
        lambda file: setattr(file.message_type[0].field[0], "label", 3),
        lambda file: file.message_type[1].field.add(name="deep", number=2, type=9, label=1),
        lambda file: file.enum_type[0].value.add(name="ALL", number=1),
        lambda file: file.service[0].method.add(name="Ring", input_type=".t.Ask", output_type=".t.Ask"),
        lambda file: setattr(file.service[0].method[0], "server_streaming", True),
    ],
)
def test_whatever_changes_in_what_is_said_changes_the_dialect(change) -> None:
    assert made(change) != made()


def test_what_is_said_nowhere_is_no_part_of_it() -> None:
    assert made(lambda file: file.message_type[2].field.add(name="x", number=2, type=9, label=1)) == made()


def test_agents_and_clients_have_dialects_of_their_own() -> None:
    both = {dialect.of_agents(), dialect.of_clients()}
    assert len(both) == 2
    assert all(len(one) == dialect.DIGITS for one in both)
    assert dialect.of(controller_pb2.DESCRIPTOR.services_by_name.values()) == dialect.of_clients()


def test_both_are_named_where_they_know_other_messages() -> None:
    ours = dialect.Speaker("this controller", "0.1.0", "ab12")
    assert dialect.unlike(dialect.Speaker("the agent", "0.1.1", "ab12"), ours) == ""
    assert dialect.unlike(dialect.Speaker("the agent", "0.1.0", ""), ours) == (
        "the agent is of version 0.1.0, messages unknown; this controller is of version 0.1.0, messages ab12:"
        " what one says the other may not know"
    )
