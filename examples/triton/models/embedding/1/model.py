"""Looks rows up in table.npy, which lies beside it and is mapped rather than read: pages come when they are touched."""

from pathlib import Path

import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """What Triton's Python backend calls."""

    def initialize(self, args):
        """Map the table of this version of the model."""
        self.table = numpy.load(Path(args["model_repository"], args["model_version"], "table.npy"), mmap_mode="r")

    def execute(self, requests):
        """One row per id; an id that is not in the table is the caller's error."""
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        ids = pb_utils.get_input_tensor_by_name(request, "IDS").as_numpy()
        if ((ids < 0) | (ids >= len(self.table))).any():
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"ids go from 0 to {len(self.table) - 1}"))
        return pb_utils.InferenceResponse([pb_utils.Tensor("VECTORS", self.table[ids])])
