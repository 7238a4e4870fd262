"""Operations that do not exist are told from modules that exist and cannot be imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from astromesh.errors import UnreadableModule
from astromesh.workflow.operations import load_operation

UNREADABLE = ["def double(:", "import no_such_module_at_all", "raise SystemExit(2)", "from os import no_such"]


@pytest.mark.parametrize("text", UNREADABLE)
def test_a_module_that_raises_is_unreadable_until_it_is_mended(tmp_path: Path, text: str) -> None:
    file = tmp_path / "ops.py"
    file.write_text(text)
    with pytest.raises(UnreadableModule, match="the module 'ops' cannot be imported"):
        load_operation(tmp_path, "ops:double")
    file.write_text("def double(input, context, tools):\n    return input * 2\n")
    assert load_operation(tmp_path, "ops:double")(2, None, None) == 4


@pytest.mark.parametrize("name", ["gone:double", "no_such_package.gone:double", "os.gone:double", "ops:gone"])
def test_what_does_not_exist_is_not_unreadable(tmp_path: Path, name: str) -> None:
    (tmp_path / "ops.py").write_text("def double(input, context, tools): ...\n")
    with pytest.raises(LookupError) as raised:
        load_operation(tmp_path, name)
    assert not isinstance(raised.value, UnreadableModule)
