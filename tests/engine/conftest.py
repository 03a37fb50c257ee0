"""What the engine's tests share."""

import pytest

from addnorm.engine import compiled


@pytest.fixture(params=["our kernels", "PyTorch alone"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The test runs with our compiled kernels and without them."""
    if request.param == "PyTorch alone":
        monkeypatch.setattr(compiled, "best", lambda: None)
    elif compiled.best() is None:
        pytest.skip("no kernels here")
    return request.param
