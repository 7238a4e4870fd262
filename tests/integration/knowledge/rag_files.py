"""Files for knowledge tests: a PDF written by hand, a folder of documents, manifests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def pdf(*pages: str, title: str = "") -> bytes:
    """A PDF file of pages of one line each, in ASCII without brackets."""
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for n, text in enumerate(pages):
        stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET" if text else ""
        objects += [
            (
                f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {5 + 2 * n} 0 R"
                " /Resources << /Font << /F1 3 0 R >> >> >>"
            ),
            f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream",
        ]
    if title:
        objects.append(f"<< /Title ({title}) >>")
    return _file(objects, f"/Info {len(objects)} 0 R" if title else "")


def _file(objects: list[str], info: str) -> bytes:
    body, places = b"%PDF-1.4\n", []
    for number, text in enumerate(objects, 1):
        places.append(len(body))
        body += f"{number} 0 obj\n{text}\nendobj\n".encode()
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    count = len(objects) + 1
    trailer = (
        f"xref\n0 {count}\n0000000000 65535 f \n{table}trailer\n<< /Size {count} /Root 1 0 R {info} >>\n"
    )
    return body + f"{trailer}startxref\n{len(body)}\n%%EOF\n".encode()


def pipeline_file(folder: Path, name: str = "k", **spec: Any) -> Path:
    """Writes `folder/rag/NAME.rag.yaml`."""
    place = folder / "rag"
    place.mkdir(parents=True, exist_ok=True)
    head = {"apiVersion": "astromesh/v1", "kind": "RAGPipeline", "metadata": {"name": name}}
    file = place / f"{name}.rag.yaml"
    file.write_text(yaml.safe_dump({**head, "spec": spec}))
    return file
