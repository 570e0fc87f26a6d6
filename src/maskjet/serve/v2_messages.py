"""Messages of the Open Inference Protocol's gRPC service, with Triton's extensions for shared memory.

They are built from the table below when gRPC starts: a third of the lines of a generated file, of which each states the
oldest protobuf that can load it. Only types and the order of fields are on the wire, so nested types are written one
after the other, and maps as the lists of entries that they are.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

SERVICE = "inference.GRPCInferenceService"
"""The service's full name."""
_TABLE = """
ServerLiveRequest
ServerLiveResponse live:bool
ServerReadyRequest
ServerReadyResponse ready:bool
ServerMetadataRequest
ServerMetadataResponse name:string version:string extensions:string*
ModelReadyRequest name:string version:string
ModelReadyResponse ready:bool
ModelMetadataRequest name:string version:string
TensorMetadata name:string datatype:string shape:int64*
ModelMetadataResponse name:string versions:string* platform:string inputs:TensorMetadata* outputs:TensorMetadata*
InferParameter bool_param:bool| int64_param:int64| string_param:string| double_param:double| uint64_param:uint64|
Parameter key:string value:InferParameter
InputTensor name:string datatype:string shape:int64* parameters:Parameter*
RequestedOutput name:string parameters:Parameter*
ModelInferRequest model_name:string model_version:string id:string parameters:Parameter* inputs:InputTensor* \
outputs:RequestedOutput* raw_input_contents:bytes*
OutputTensor name:string datatype:string shape:int64*
ModelInferResponse model_name:string model_version:string id:string parameters:Parameter* outputs:OutputTensor* \
raw_output_contents:bytes*
ModelStreamInferResponse error_message:string infer_response:ModelInferResponse
SystemSharedMemoryStatusRequest name:string
SystemRegion name:string key:string offset:uint64 byte_size:uint64
SystemEntry key:string value:SystemRegion
SystemSharedMemoryStatusResponse regions:SystemEntry*
SystemSharedMemoryRegisterRequest name:string key:string offset:uint64 byte_size:uint64
SystemSharedMemoryRegisterResponse
SystemSharedMemoryUnregisterRequest name:string
SystemSharedMemoryUnregisterResponse
CudaSharedMemoryStatusRequest name:string
CudaRegion name:string device_id:uint64 byte_size:uint64
CudaEntry key:string value:CudaRegion
CudaSharedMemoryStatusResponse regions:CudaEntry*
CudaSharedMemoryRegisterRequest name:string raw_handle:bytes device_id:int64 byte_size:uint64
CudaSharedMemoryRegisterResponse
CudaSharedMemoryUnregisterRequest name:string
CudaSharedMemoryUnregisterResponse
"""  # a line per message; its fields are numbered from 1. * is repeated, | one of those of which one is set.


@cache
def messages() -> Any:
    """The messages' classes by name; of a pool of their own, as a program may have the real file, too."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="maskjet.proto", package="inference", syntax="proto3")
    for name, *fields in map(str.split, _TABLE.strip().splitlines()):
        made = file.message_type.add(name=name)
        for number, text in enumerate(fields, 1):
            field, _, kind = text.partition(":")
            type_name = kind.rstrip("*|")
            one = made.field.add(name=field, number=number, label=3 if kind.endswith("*") else 1)
            if type_name[0].isupper():
                one.type_name = f".inference.{type_name}"
            else:
                one.type = getattr(one, f"TYPE_{type_name.upper()}")
            if kind.endswith("|"):
                one.oneof_index = 0
        if any(one.HasField("oneof_index") for one in made.field):
            made.oneof_decl.add(name="choice")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    classes = message_factory.GetMessageClassesForFiles([file.name], pool)
    return SimpleNamespace(**{name.rpartition(".")[2]: each for name, each in classes.items()})
