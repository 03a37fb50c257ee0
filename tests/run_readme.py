"""Run the README's own code: `addnorm …` lines of its shell blocks, and its Python blocks."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path


def main(readme: Path) -> None:
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", readme.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    commands = [
        [sys.executable, "-c", code] if language == "python" else ["sh", "-c", line]
        for language, code in blocks
        for line in (code.splitlines() if language == "sh" else [code] if language == "python" else [])
        if language == "python" or line.startswith("addnorm ")
    ]
    assert commands, f"{readme} shows no commands"
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    with tempfile.TemporaryDirectory() as folder:
        for command in commands:
            print("README:", command[-1].strip().splitlines()[0], flush=True)
            subprocess.run(
                command, cwd=folder, env={"PATH": path, "HOME": folder}, check=True, stdout=subprocess.DEVNULL
            )


main(Path(sys.argv[1]))
