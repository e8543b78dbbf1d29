"""Classes of messages as `protoc` makes them, from descriptors in text: tests need no compiler."""

from __future__ import annotations

from typing import Any

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    message_factory,
    text_format,
    timestamp_pb2,
    wrappers_pb2,
)

ORDERS = """
name: "tests/orders.proto" package: "shop" syntax: "proto3"
dependency: "google/protobuf/timestamp.proto" dependency: "google/protobuf/duration.proto"
dependency: "google/protobuf/wrappers.proto"
enum_type { name: "State" value { name: "NEW" number: 0 } value { name: "PAID" number: 1 } }
message_type { name: "Other" field { name: "n" number: 1 label: LABEL_OPTIONAL type: TYPE_INT64 } }
message_type {
  name: "Order"
  field { name: "id" number: 1 label: LABEL_OPTIONAL type: TYPE_INT64 }
  field { name: "customer" number: 2 label: LABEL_OPTIONAL type: TYPE_STRING }
  field { name: "note" number: 3 label: LABEL_OPTIONAL type: TYPE_STRING proto3_optional: true oneof_index: 0 }
  field { name: "amount" number: 4 label: LABEL_OPTIONAL type: TYPE_DOUBLE }
  field { name: "paid" number: 5 label: LABEL_OPTIONAL type: TYPE_BOOL }
  field { name: "data" number: 6 label: LABEL_OPTIONAL type: TYPE_BYTES }
  field { name: "at" number: 7 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp" }
  field { name: "took" number: 8 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".google.protobuf.Duration" }
  field { name: "state" number: 9 label: LABEL_OPTIONAL type: TYPE_ENUM type_name: ".shop.State" }
  field { name: "items" number: 10 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".shop.Order.Item" }
  field { name: "tags" number: 11 label: LABEL_REPEATED type: TYPE_STRING }
  field { name: "weights" number: 12 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".shop.Order.WeightsEntry" }
  field { name: "limit" number: 13 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".google.protobuf.Int64Value" }
  field { name: "small" number: 14 label: LABEL_OPTIONAL type: TYPE_SINT32 }
  field { name: "place" number: 15 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".shop.Order.Item" }
  field { name: "ratio" number: 16 label: LABEL_OPTIONAL type: TYPE_FLOAT }
  oneof_decl { name: "_note" }
  nested_type {
    name: "Item"
    field { name: "name" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "number" number: 2 label: LABEL_OPTIONAL type: TYPE_INT64 proto3_optional: true oneof_index: 0 }
    oneof_decl { name: "_number" }
  }
  nested_type {
    name: "WeightsEntry" options { map_entry: true }
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_DOUBLE }
  }
}
message_type {
  name: "Choice"
  field { name: "number" number: 1 label: LABEL_OPTIONAL type: TYPE_INT64 oneof_index: 0 }
  field { name: "text" number: 2 label: LABEL_OPTIONAL type: TYPE_STRING oneof_index: 0 }
  field { name: "limits" number: 3 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".google.protobuf.Int64Value" }
  field { name: "named" number: 4 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".shop.Choice.NamedEntry" }
  oneof_decl { name: "which" }
  nested_type {
    name: "NamedEntry" options { map_entry: true }
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_INT64 }
  }
  nested_type { name: "Inner" field { name: "n" number: 1 label: LABEL_OPTIONAL type: TYPE_INT64 } }
}
message_type { name: "Point" field { name: "x" number: 1 label: LABEL_OPTIONAL type: TYPE_INT32 } }
message_type {
  name: "Pinned"
  field { name: "at" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".shop.Point" }
  field { name: "way" number: 2 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".shop.Point" }
}
"""


def message(name: str) -> Any:
    """The class of `shop.NAME`."""
    pool = descriptor_pool.DescriptorPool()
    for imported in (timestamp_pb2, duration_pb2, wrappers_pb2):
        pool.AddSerializedFile(imported.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(text_format.Parse(ORDERS, descriptor_pb2.FileDescriptorProto()).SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"shop.{name}"))
