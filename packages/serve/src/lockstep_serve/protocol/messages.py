"""The messages of the Open Inference Protocol over gRPC, with Triton's extension for model repositories.

They are made from a table rather than by protobuf's compiler, in a pool of their own: so they stand beside a client's
own copy of the same messages in one process, and belong to no version of protobuf. Each class can be imported from
here, which pickling it needs. Names and numbers of the fields are those of the published protocol.
"""

from __future__ import annotations

import sys
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"

_CHOICE = "parameter_choice"
_TENSOR = "name:string=1 datatype:string=2 shape:int64*=3 parameters:{InferParameter}=4"
_TENSORS = f"{_TENSOR} contents:InferTensorContents=5"
_MESSAGES = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "live:bool=1",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "ready:bool=1",
    "ModelReadyRequest": "name:string=1 version:string=2",
    "ModelReadyResponse": "ready:bool=1",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "name:string=1 version:string=2 extensions:string*=3",
    "ModelMetadataRequest": "name:string=1 version:string=2",
    "ModelMetadataResponse": "name:string=1 versions:string*=2 platform:string=3"
    " inputs:ModelMetadataResponse.TensorMetadata*=4 outputs:ModelMetadataResponse.TensorMetadata*=5"
    " properties:{string}=6",
    "ModelMetadataResponse.TensorMetadata": "name:string=1 datatype:string=2 shape:int64*=3",
    "InferParameter": "bool_param:bool=1 int64_param:int64=2 string_param:string=3 double_param:double=4"
    " uint64_param:uint64=5",
    "InferTensorContents": "bool_contents:bool*=1 int_contents:int32*=2 int64_contents:int64*=3"
    " uint_contents:uint32*=4 uint64_contents:uint64*=5 fp32_contents:float*=6 fp64_contents:double*=7"
    " bytes_contents:bytes*=8",
    "ModelInferRequest": "model_name:string=1 model_version:string=2 id:string=3"
    " parameters:{InferParameter}=4 inputs:ModelInferRequest.InferInputTensor*=5"
    " outputs:ModelInferRequest.InferRequestedOutputTensor*=6 raw_input_contents:bytes*=7",
    "ModelInferRequest.InferInputTensor": _TENSORS,
    "ModelInferRequest.InferRequestedOutputTensor": "name:string=1 parameters:{InferParameter}=2",
    "ModelInferResponse": "model_name:string=1 model_version:string=2 id:string=3"
    " parameters:{InferParameter}=4 outputs:ModelInferResponse.InferOutputTensor*=5"
    " raw_output_contents:bytes*=6",
    "ModelInferResponse.InferOutputTensor": _TENSORS,
    "ModelRepositoryParameter": "bool_param:bool=1 int64_param:int64=2 string_param:string=3 bytes_param:bytes=4",
    "RepositoryIndexRequest": "repository_name:string=1 ready:bool=2",
    "RepositoryIndexResponse": "models:RepositoryIndexResponse.ModelIndex*=1",
    "RepositoryIndexResponse.ModelIndex": "name:string=1 version:string=2 state:string=3 reason:string=4",
    "RepositoryModelLoadRequest": "repository_name:string=1 model_name:string=2"
    " parameters:{ModelRepositoryParameter}=3",
    "RepositoryModelLoadResponse": "",
    "RepositoryModelUnloadRequest": "repository_name:string=1 model_name:string=2"
    " parameters:{ModelRepositoryParameter}=3",
    "RepositoryModelUnloadResponse": "",
}
"""Fields as `name:type=number`, `type*` where repeated, `{type}` for a map from texts."""

_UNIONS = ("InferParameter", "ModelRepositoryParameter")
"""Messages of which one field alone is set."""

METHODS = tuple(
    name.removesuffix("Request")
    for name in _MESSAGES
    if name.endswith("Request") and "." not in name
)
"""The calls of the service, each `NameRequest` answered with `NameResponse`."""


def _add_field(message: Any, text: str, full_name: str) -> None:
    name, _, rest = text.partition(":")
    kind, _, number = rest.partition("=")
    field = message.field.add(name=name, number=int(number))
    field.label = field.LABEL_REPEATED if kind[-1] in "*}" else field.LABEL_OPTIONAL
    if kind.startswith("{"):
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        for part in ("key:string=1", f"value:{kind[1:-1]}=2"):
            _add_field(entry, part, "")
        kind = f"{full_name}.{entry.name}"
    kind = kind.rstrip("*")
    scalar = getattr(field, f"TYPE_{kind.upper()}", None)
    field.type = field.TYPE_MESSAGE if scalar is None else scalar
    if scalar is None:
        field.type_name = f".{PACKAGE}.{kind}"


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="lockstep/open_inference.proto", package=PACKAGE, syntax="proto3"
    )
    made: dict[str, Any] = {}
    for full_name, fields in _MESSAGES.items():
        outer, _, name = full_name.rpartition(".")
        message = made[full_name] = (made[outer].nested_type if outer else file.message_type).add(
            name=name
        )
        for text in fields.split():
            _add_field(message, text, full_name)
        if full_name in _UNIONS:
            message.oneof_decl.add(name=_CHOICE)
            for field in message.field:
                field.oneof_index = 0
    return file


def _classes() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(_file().SerializeToString())
    classes = {}
    for name in _MESSAGES:
        if "." not in name:
            made = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
            made.__module__ = __name__
            classes[name] = made
    return classes


vars(sys.modules[__name__]).update(_classes())


def message_class(name: str) -> Any:
    """The class of a message."""
    return vars(sys.modules[__name__])[name]
