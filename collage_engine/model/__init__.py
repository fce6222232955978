"""From an ONNX file to a dataflow graph whose nodes know where they came from."""
