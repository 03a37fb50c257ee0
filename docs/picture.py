"""Draw the README's picture from the command's own output: python docs/picture.py"""

import io
import re
from pathlib import Path

from rich.console import Console

from addnorm.cli import _show, trace

console = Console(record=True, width=_show.WIDTH, file=io.StringIO(), highlight=False)
_show.console = lambda: console
trace.trace(block=0)
svg = console.export_svg(title='addnorm trace "this is a test sentence" --block 0')
# No fonts from elsewhere: the reader's own monospaced one will do.
svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL).replace("Fira Code", "ui-monospace")
Path(__file__).with_name("trace.svg").write_text(svg, encoding="utf-8")
