"""The endings of files that hold a model. Plain data."""

from __future__ import annotations

MODEL_SUFFIXES = (
    *(".safetensors", ".gguf", ".ggml", ".onnx", ".onnx_data", ".pt", ".pth", ".pt2", ".bin", ".ckpt", ".plan"),
    *(
        ".engine",
        ".mar",
        ".h5",
        ".keras",
        ".tflite",
        ".pb",
        ".npz",
        ".npy",
        ".msgpack",
        ".pdiparams",
        ".ot",
        ".weights",
    ),
)
"""Files of these endings are loaded whole once a reader goes beyond their header."""
