"""Imports an ONNX file as a dataflow graph whose nodes know where they came from."""
