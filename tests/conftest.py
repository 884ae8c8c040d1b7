"""What the tests share: recordings, seeds, poisoned memory."""

from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def recordings() -> Path:
    """Folder of recorded data beside the project; the test is skipped where there is none."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no recordings: ../shared/data does not exist beside the project (see data/README.md)")
    return folder


@pytest.fixture(autouse=True)
def seeded():
    """Every test starts from one seed."""
    torch.manual_seed(0)


@pytest.fixture
def poisoned():
    """`torch.empty` gives NaN, so that reading what nobody wrote shows."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(before)


def pytest_collection_modifyitems(items):
    """Tests marked `gpu` are skipped, with a reason, where there is no CUDA device."""
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no CUDA device")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)
