"""Renders deploy/kubernetes as `kubectl kustomize` does, for what its files use of kustomize.

    python scripts/kubernetes.py            writes deploy/kubernetes/rendered
    python scripts/kubernetes.py --check    reports what is not up to date

That is: `resources`, `namespace`, `images`, `patches` by path (strategic merges) and
`configMapGenerator` from files.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "deploy" / "kubernetes"
OVERLAYS = ("small", "ha")
DASHBOARD = ROOT / "docker" / "grafana" / "astromesh.json"
KNOWN = {"apiVersion", "kind", "namespace", "resources", "patches", "images", "configMapGenerator"}
Object = dict[str, Any]


def documents(file: Path) -> list[Object]:
    return [one for one in yaml.safe_load_all(file.read_text("utf-8")) if one]


def objects(folder: Path) -> list[Object]:
    """Returns the objects of a folder with a kustomization.yaml."""
    (rules,) = documents(folder / "kustomization.yaml")
    if unknown := rules.keys() - KNOWN:
        raise ValueError(f"{folder}: this script does not know {', '.join(sorted(unknown))}.")
    found: list[Object] = []
    for name in rules["resources"]:
        path = folder / name
        found += objects(path) if path.is_dir() else documents(path)
    found += [_config_map(folder, one) for one in rules.get("configMapGenerator", ())]
    for patch in rules.get("patches", ()):
        for change in documents(folder / patch["path"]):
            (target,) = (one for one in found if _name(one) == _name(change))
            found[found.index(target)] = merged(target, change)
    if images := {one["name"]: f"{one['newName']}:{one['newTag']}" for one in rules.get("images", ())}:
        found = [_with_images(one, images) for one in found]
    if namespace := rules.get("namespace"):
        found = [merged(one, {"metadata": {"namespace": namespace}}) for one in found]
    return found


def merged(base: Any, change: Any) -> Any:
    """Returns a strategic merge: maps by key, lists of named things by name, anything else replaced."""
    if isinstance(base, dict) and isinstance(change, dict):
        both = {key: merged(base[key], value) for key, value in change.items() if key in base}
        return {**base, **change, **both}
    if _is_named(base) and _is_named(change):
        by_name = {one["name"]: one for one in base}
        for one in change:
            by_name[one["name"]] = merged(by_name.get(one["name"], {}), one)
        return list(by_name.values())
    return change


def _with_images(value: Any, images: Mapping[str, str]) -> Any:
    if isinstance(value, list):
        return [_with_images(one, images) for one in value]
    if not isinstance(value, dict):
        return value
    changed = {key: _with_images(one, images) for key, one in value.items()}
    if isinstance(image := value.get("image"), str):
        changed["image"] = images.get(image.partition(":")[0], image)
    return changed


def _is_named(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) and "name" in one for one in value)


def _name(one: Object) -> tuple[str, str]:
    return one["kind"], one["metadata"]["name"]


def _config_map(folder: Path, rules: Object) -> Object:
    metadata = {"name": rules["name"], "labels": rules["options"]["labels"]}
    data = {name: (folder / name).read_text("utf-8") for name in rules["files"]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def rendered(overlay: str) -> str:
    return yaml.safe_dump_all(objects(FOLDER / overlay), sort_keys=True, width=110)


def main() -> int:
    """Writes, or checks, what is rendered, and the dashboard, which kustomize needs beside its file."""
    wanted = {FOLDER / "rendered" / f"{name}.yaml": rendered(name) for name in OVERLAYS}
    copy = FOLDER / "ha" / DASHBOARD.name
    if "--check" in sys.argv:
        stale = [str(file) for file, text in wanted.items() if file.read_text("utf-8") != text]
        stale += [str(copy)] if copy.read_bytes() != DASHBOARD.read_bytes() else []
        for name in stale:
            print(f"{name} is not up to date: run python scripts/kubernetes.py")
        return bool(stale)
    shutil.copyfile(DASHBOARD, copy)
    for file, text in {file: rendered(file.stem) for file in wanted}.items():
        file.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
