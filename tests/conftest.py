"""What every test shares."""

import pytest
import torch

import addnorm

# The tests run in two processes on two cores.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def minilm() -> addnorm.Model:
    """The real all-MiniLM-L6-v2, in float32. Not to be changed by a test."""
    return addnorm.load()
