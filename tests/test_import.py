"""Importing and asking for help loads nothing heavy."""

import subprocess
import sys

import pytest

import addnorm

HEAVY = ("torch", "numpy", "transformers", "tokenizers", "safetensors", "huggingface_hub", "typer", "rich")


def loaded_by(code: str) -> set[str]:
    """The modules in memory after `code` ran in a fresh Python."""
    show = "\nimport sys; print(*sys.modules, file=sys.stderr)"
    result = subprocess.run([sys.executable, "-c", code + show], capture_output=True, encoding="utf-8", check=True)
    return set(result.stderr.split())


def test_importing_loads_nothing_heavy() -> None:
    loaded = loaded_by("import addnorm\naddnorm.__version__, dir(addnorm)")
    assert "addnorm" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_help_loads_no_model_code() -> None:
    loaded = loaded_by(
        "import sys\nfrom addnorm.cli import main\nsys.argv = ['addnorm', '--help']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code"
    )
    assert "typer" in loaded
    assert loaded.isdisjoint({"torch", "numpy", "transformers", "tokenizers", "safetensors", "huggingface_hub"})


def test_using_a_name_loads_what_it_needs() -> None:
    assert "torch" in loaded_by("import addnorm\naddnorm.Batch")
    assert "torch" not in loaded_by("from addnorm import AddnormError, EncoderConfig")


@pytest.mark.parametrize("name", addnorm.__all__)
def test_every_public_name_is_there(name: str) -> None:
    value = getattr(addnorm, name)
    assert name in dir(addnorm)
    assert value.__doc__
    assert value.__module__.startswith("addnorm.")
    assert getattr(addnorm, name) is value


def test_the_listing_is_sorted_and_has_each_name_once() -> None:
    names = dir(addnorm)
    assert names == sorted(set(names))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'addnorm' has no attribute 'modl'"):
        addnorm.modl  # noqa: B018
    assert not hasattr(addnorm, "encode")
