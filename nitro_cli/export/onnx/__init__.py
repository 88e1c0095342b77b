"""Traced functions as ONNX files: one lowering per JAX primitive."""
