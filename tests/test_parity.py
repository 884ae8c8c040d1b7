"""Every rule against its own definition in numpy."""

import numpy as np
import pytest
import torch
from cases import CASES
from material import TOLERANCE, B, data

from streammem import tree
from streammem.scan import scan


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_parity(case, poisoned):
    frames, g = data()
    frames = case.tokens(frames)
    weights = case.weights(B, g)
    _, out = scan(case.rule.step, case.rule.init(weights), frames)
    for b in range(B):
        initial = [leaf[b].numpy() for leaf in tree.leaves(weights)]
        expected = case.reference(initial[0] if len(initial) == 1 else initial, [_frame(f, b) for f in frames])
        tolerance = TOLERANCE[out.dtype]
        np.testing.assert_allclose(out[:, b].numpy(), expected, rtol=tolerance, atol=tolerance)


def _frame(f, b):
    lr, retention, momentum, erase = f.gates
    lr, retention = lr[b].squeeze(-1).numpy(), retention[b].numpy()
    rates = lr, float(retention.squeeze()) if retention.size == 1 else retention, float(momentum[b])
    parts = *(x[b].numpy() for x in f[:3]), *rates
    return (*parts, erase[b].numpy()) if isinstance(erase, torch.Tensor) else parts
