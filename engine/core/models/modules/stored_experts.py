"""Experts whose weights are whole numbers in their files: a weight for each of them.

A checkpoint has one tensor for all experts, or two, whose outputs are those of gates and ups; or it
has tensors for each expert.
"""

from collections.abc import Sequence

from engine.core.models.gguf.headers import FormedTensor, GgufTensor, matrices_of
from engine.core.models.quantized.numbers import matrices
from engine.core.models.stored_weights import JoinedNumbers, StoredNumbers, find_weight
from engine.folder.gguf.architectures.places import Form
from engine.folder.quantized.layouts import Mxfp4, QuantizedTensor
from engine.folder.weight_headers import StoredTensor

ExpertNumbers = StoredNumbers | JoinedNumbers


def experts_in(tensor: StoredTensor, *, is_transposed: bool) -> list[ExpertNumbers] | None:
    """Those of a tensor that is the parameter of all; None if they have no packed form.

    `is_transposed` tells whether the model has it as [experts, inputs, outputs].
    """
    if isinstance(tensor, QuantizedTensor):
        if not (is_transposed and isinstance(tensor.layout, Mxfp4)):
            return None
        return experts_of([[matrix] for matrix in matrices(tensor)])
    if not isinstance(tensor, GgufTensor):
        return None
    whole = (Form.WHOLE, tensor)
    parts = dict(tensor.parts if isinstance(tensor, FormedTensor) else (whole,))
    first, second = (Form.EVEN, Form.ODD) if is_transposed else (Form.FIRST, Form.SECOND)
    if parts.keys() == {first, second}:
        gates, ups = matrices_of(parts[first]), matrices_of(parts[second])
        return experts_of(list(zip(gates, ups, strict=True)), takes_turns=is_transposed)
    if parts.keys() == {Form.TURNED if is_transposed else Form.WHOLE}:
        return experts_of([[matrix] for part in parts.values() for matrix in matrices_of(part)])
    return None


def experts_of(
    tensors: Sequence[Sequence[StoredTensor]], *, takes_turns: bool = False
) -> list[ExpertNumbers] | None:
    """Those of the matrices that each of them has; None if one has no packed form."""
    found: list[ExpertNumbers] = []
    for of_expert in tensors:
        weights = [find_weight(tensor, keeps_numbers=True) for tensor in of_expert]
        parts = tuple(weight for weight in weights if isinstance(weight, StoredNumbers))
        if len(parts) < len(weights):
            return None
        found.append(parts[0] if len(parts) == 1 else JoinedNumbers(parts, takes_turns))
    return found
