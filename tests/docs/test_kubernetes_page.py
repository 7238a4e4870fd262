"""The overlay of `docs/how-to/deploy-on-kubernetes.md` replaces image and agents of the installation."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tests.docs.blocks import blocks_of
from tests.docs.hooks import manifest_faults
from tests.platform.astromesh import ROOT

PAGE = ROOT / "docs" / "how-to" / "deploy-on-kubernetes.md"


def test_the_overlay_replaces_image_and_agents(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("kubernetes", ROOT / "scripts" / "kubernetes.py")
    assert spec is not None and spec.loader is not None
    kustomize = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kustomize)
    for name in ("base", "small"):
        (tmp_path / name).symlink_to(ROOT / "deploy" / "kubernetes" / name)
    overlay = tmp_path / "mine"
    overlay.mkdir()
    for block in blocks_of(PAGE.name, PAGE.read_text()):
        if file := block.options.get("kustomize"):
            (overlay / file).write_text(block.content)

    objects = {(one["kind"], one["metadata"]["name"]): one for one in kustomize.objects(overlay)}
    deployments = [one for (kind, _), one in objects.items() if kind == "Deployment"]
    images = {c["image"] for one in deployments for c in one["spec"]["template"]["spec"]["containers"]}
    assert images == {"registry.example/astromesh:1"}

    agents = objects["ConfigMap", "astromesh-agents"]["data"]
    assert "helper.agent.yaml" in agents
    (tmp_path / "config" / "agents").mkdir(parents=True)
    for name, text in agents.items():
        (tmp_path / "config" / "agents" / name).write_text(text)
    assert manifest_faults(tmp_path) == []
