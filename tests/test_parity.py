"""Every rule against its own definition in numpy."""

import numpy as np
import pytest
from cases import CASES, TOLERANCE, B, data

from streammem import tree
from streammem.scan import scan


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_parity(case, poisoned):
    frames, g = data()
    weights = case.weights(B, g)
    _, out = scan(case.rule.step, case.rule.init(weights), frames)
    for b in range(B):
        initial = [leaf[b].numpy() for leaf in tree.leaves(weights)]
        expected = case.reference(initial[0] if len(initial) == 1 else initial, [_frame(f, b) for f in frames])
        tolerance = TOLERANCE[out.dtype]
        np.testing.assert_allclose(out[:, b].numpy(), expected, rtol=tolerance, atol=tolerance)


def _frame(f, b):
    lr, retention, momentum, erase = f.gates
    return (
        f.query[b].numpy(),
        f.key[b].numpy(),
        f.value[b].numpy(),
        lr[b, :, 0].numpy(),
        *map(float, (retention[b], momentum[b])),
    )
