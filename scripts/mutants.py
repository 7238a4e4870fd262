"""Changes what decides in a thousand small ways, runs the tests that reach each change, counts who notices.

    python scripts/mutants.py [--jobs 2] [--again] [NAME …]

NAMEs are mutmut's, with `*`: `astromesh.graph.transitions*`. What was tried before is kept in mutants/ and
not tried again unless its function has changed; --again forgets all of it. Which modules and tests take part
stands in pyproject.toml under [tool.mutmut]; docs/mutants.md gives the reasons of those that nobody notices.
Ends with 1 where less than 85 % of a module's are noticed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "mutants"
LEAST = 0.85
#: exit codes that mutmut keeps; None: not tried yet
SURVIVED, UNREACHED, UNTRIED = (0,), (5, 33), (None,)


def verdicts() -> dict[str, Counter[str]]:
    """Per module, how many were noticed, survived, are reached by no test, and were not tried."""
    found: dict[str, Counter[str]] = {}
    for meta in sorted(KEPT.glob("astromesh/**/*.meta")):
        codes = json.loads(meta.read_text())["exit_code_by_key"]
        if codes:
            found[str(meta.relative_to(KEPT)).removesuffix(".py.meta")] = Counter(
                map(verdict, codes.values())
            )
    return found


def verdict(code: int | None) -> str:
    for said, codes in (("survived", SURVIVED), ("unreached", UNREACHED), ("untried", UNTRIED)):
        if code in codes:
            return said
    return "noticed"


def share(counts: Counter[str]) -> float:
    """Of those that were tried; one that no test reaches is not noticed."""
    tried = counts.total() - counts["untried"]
    return counts["noticed"] / tried if tried else 0.0


def report() -> float:
    """Prints the table; answers the share of the module where it is least."""
    print(f"| {'module':<36} | noticed | survived | unreached | untried | share |")
    print(f"|{'-' * 38}|--------:|---------:|----------:|--------:|------:|")
    whole: Counter[str] = Counter()
    found = verdicts()
    for name, counts in found.items():
        whole += counts
        _row(name, counts)
    _row("all", whole)
    return min((share(n) for n in found.values() if n.total() > n["untried"]), default=0.0)


def _row(name: str, n: Counter[str]) -> None:
    numbers = f"{n['noticed']:7} | {n['survived']:8} | {n['unreached']:9} | {n['untried']:7}"
    print(f"| {name:<36} | {numbers} | {share(n):5.0%} |")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--report", action="store_true", help="of what was tried before, without trying")
    args = parser.parse_args()
    if args.again:
        shutil.rmtree(KEPT, ignore_errors=True)
    if not args.report:
        argv = [sys.executable, "-m", "mutmut", "run", "--max-children", str(args.jobs), *args.names]
        subprocess.run(argv, cwd=ROOT, check=True)
    least = report()
    print(f"\nsurvivors: {sys.executable} -m mutmut results; one of them: … -m mutmut show NAME")
    return 0 if least >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
