"""A name → a folder: local path, installed weight package, Hugging Face cache, hub, in this order."""

import base64
import hashlib
from importlib.metadata import distributions
from pathlib import Path

from addnorm.errors import AddnormError, remark

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"

# SHA-256 of model.safetensors as published on the hub: a package found under this sum is that model.
PUBLISHED = {
    "sentence-transformers/all-MiniLM-L6-v2": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
}

# Everything of a model folder that is not its weights.
SMALL_FILES = ("*.json", "*.txt", "*.model", "README.md")
WEIGHT_FILES = ("model*.safetensors", "pytorch_model*.bin")


def locate(name: str | Path) -> Path:
    """The folder of a model. Errors: it is nowhere to be found."""
    try:
        folder = Path(name).expanduser()
        kind = "folder" if folder.is_dir() else "file" if folder.is_file() else ""
    except (OSError, RuntimeError) as error:  # a name too long, an unknown user
        reason = getattr(error, "strerror", None) or error
        raise AddnormError(f"no folder '{name}' ({reason}); check the path") from None
    if kind == "folder":
        return folder
    if kind == "file":
        raise AddnormError(f"'{name}' is a file; expected a model folder or a name on the hub")
    if isinstance(name, Path) or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise AddnormError(f"no folder '{name}'; check the path")
    return _installed(name) or cached(name) or _downloaded(name)


def _installed(name: str) -> Path | None:
    """The folder inside a pip-installed package whose model.safetensors has the published sum."""
    if name not in PUBLISHED:
        return None
    recorded = base64.urlsafe_b64encode(bytes.fromhex(PUBLISHED[name])).rstrip(b"=").decode()
    for package in distributions():
        for line in (package.read_text("RECORD") or "").splitlines():
            if f"sha256={recorded}" in line:
                weights = Path(str(package.locate_file(line.split(",")[0])))
                if weights.is_file() and _sha256(weights) == PUBLISHED[name]:
                    return weights.parent
                remark(f"package {package.name} should hold {name}, but its {weights.name} has been changed: skipped")
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cached(name: str) -> Path | None:
    """The folder of a model in the Hugging Face cache, if its weights are there."""
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return _snapshot(name, local_files_only=True)
    except LocalEntryNotFoundError:
        return None
    except HFValidationError:
        raise AddnormError(f"'{name}' is neither a folder nor a possible name on the hub (owner/model)") from None


def _downloaded(name: str) -> Path:
    try:
        folder = _snapshot(name, local_files_only=False)
    except Exception as error:  # whatever the network layer throws, the user's remedy is the same
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise AddnormError(
            f"no model '{name}': not a folder, not an installed weight package, not in the Hugging Face cache, "
            f"and the hub did not give it ({reason}); check the name or the connection"
        ) from None
    if folder is None:
        raise AddnormError(
            f"model '{name}' has no weights in the cache or on the hub; expected {' or '.join(WEIGHT_FILES)}"
        )
    return folder


def _snapshot(name: str, local_files_only: bool) -> Path | None:
    from huggingface_hub import snapshot_download

    for weights in WEIGHT_FILES:
        patterns = [*SMALL_FILES, weights]
        folder = Path(snapshot_download(name, allow_patterns=patterns, local_files_only=local_files_only))
        if any(folder.rglob(weights)):
            return folder
    return None
