"""By which two programs can tell whether they know the same messages: versions are raised at releases, messages change in between."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from google.protobuf.descriptor import Descriptor, EnumDescriptor, ServiceDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto

from hs_proto.v1 import agent_pb2, controller_pb2

DIGITS = 12
_IDENTITY = controller_pb2.DESCRIPTOR.services_by_name["Identity"]


@cache
def of_agents() -> str:
    """Of what controller and agents say to one another."""
    return of((*agent_pb2.DESCRIPTOR.services_by_name.values(), _IDENTITY))


@cache
def of_clients() -> str:
    """Of what controller and people's programs say to one another."""
    return of(controller_pb2.DESCRIPTOR.services_by_name.values())


def of(services: Iterable[ServiceDescriptor]) -> str:
    """`DIGITS` hexadecimal digits: others as soon as a call of these, or a field of what is said in one, is another. Comments do not count, nor does the order in a file."""
    lines = [line for service in services for line in _of_service(service)]
    return hashlib.sha256("\n".join(sorted(set(lines))).encode()).hexdigest()[:DIGITS]


@dataclass(frozen=True, slots=True)
class Speaker:
    """One of ours, as people are told of it."""

    name: str
    version: str
    dialect: str  # empty: it is too old to say

    def __str__(self) -> str:
        return f"{self.name} is of version {self.version or '?'}, messages {self.dialect or 'unknown'}"


def unlike(one: Speaker, other: Speaker) -> str:
    """What to tell people where they do not know the same messages. Empty: they do."""
    if one.dialect == other.dialect:
        return ""
    return f"{one}; {other}: what one says the other may not know"


def _of_service(service: ServiceDescriptor) -> Iterator[str]:
    seen: set[str] = set()
    for method in service.methods:
        streams = (method.client_streaming, method.server_streaming)
        yield f"{method.full_name} {method.input_type.full_name} {method.output_type.full_name} {streams}"
        for message in (method.input_type, method.output_type):
            yield from _of_message(message, seen)


def _of_message(message: Descriptor, seen: set[str]) -> Iterator[str]:
    if message.full_name in seen:
        return
    seen.add(message.full_name)
    plain = DescriptorProto()
    message.CopyToProto(plain)
    for field in plain.field:
        oneof = plain.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
        said = (field.number, field.type, field.label, field.type_name, oneof)
        yield f"{message.full_name}.{field.name} {said}"
    for known in message.fields:
        if known.message_type is not None:
            yield from _of_message(known.message_type, seen)
        if known.enum_type is not None:
            yield from _of_enum(known.enum_type)


def _of_enum(enum: EnumDescriptor) -> Iterator[str]:
    for value in enum.values:
        yield f"{enum.full_name} {value.name} {value.number}"
