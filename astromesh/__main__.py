"""`python -m astromesh` is the command `astromesh`."""

from __future__ import annotations

from astromesh.cli.main import main

if __name__ == "__main__":
    main()
