"""The wire: protobuf messages beside their generated modules, and their conversion to the model."""
