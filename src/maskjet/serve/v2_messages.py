"""Messages of the Open Inference Protocol's gRPC service.

They are built from the table below when gRPC starts: generated files are many times as long, and each states the oldest
protobuf that may load it. Only types and the order of fields are on the wire. So messages of one form share an entry,
nested types are written one after the other, and maps as the lists of entries that they are.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

SERVICE = "inference.GRPCInferenceService"
"""Full name of the gRPC service."""
_TABLE = """
Empty
Name         name version
State        is_so:bool
Server       name version extensions*
Tensor       name datatype shape:int64*
Model        name versions* platform inputs:Tensor* outputs:Tensor*
Choice       bool:bool| int64:int64| string:string| double:double| uint64:uint64|
Parameter    key value:Choice
Input        name datatype shape:int64* parameters:Parameter*
Output       name parameters:Parameter*
Request      model_name model_version id parameters:Parameter* inputs:Input* outputs:Output* raw_input_contents:bytes*
Response     model_name model_version id parameters:Parameter* outputs:Tensor* raw_output_contents:bytes*
InStream     error_message infer_response:Response
"""  # a line per message; its fields have the numbers 1, 2, ..., no type for strings; * is repeated, | one of several


@cache
def messages() -> Any:
    """Message classes by name, in a descriptor pool of their own, as a program may also load the original."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="maskjet.proto", package="inference", syntax="proto3")
    for name, *fields in map(str.split, _TABLE.strip().splitlines()):
        made = file.message_type.add(name=name)
        for number, text in enumerate(fields, 1):
            field, _, kind = text.rstrip("*|").partition(":")
            one = made.field.add(name=field, number=number, label=3 if text.endswith("*") else 1)
            if kind[:1].isupper():
                one.type_name = f".inference.{kind}"
            else:
                one.type = getattr(one, f"TYPE_{kind.upper() or 'STRING'}")
            if text.endswith("|"):
                one.oneof_index = 0
        if fields and fields[0].endswith("|"):
            made.oneof_decl.add(name="choice")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    classes = message_factory.GetMessageClassesForFiles([file.name], pool)
    return SimpleNamespace(**{name.rpartition(".")[2]: each for name, each in classes.items()})
