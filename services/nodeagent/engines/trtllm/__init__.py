"""TensorRT-LLM, where the settings name its server."""
