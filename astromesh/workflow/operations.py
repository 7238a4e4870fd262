"""Python functions of a workflow's folder.

Loads them by `module:function`, calls blocking ones in threads.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from astromesh.errors import UnreadableModule, described, is_failure
from astromesh.tools.executor import DetachedTasks, FunctionExecutor, ThreadPool


def load_operation(folder: Path, name: str) -> Callable[..., Any]:
    """Returns the function that `module:function` names, in the workflow's folder or an installed module.

    Raises:
        LookupError: the function or its module does not exist.
        UnreadableModule: the module exists and cannot be imported.
    """
    module_name, _, attribute = name.partition(":")
    try:
        module = _import_module(folder, module_name)
    except BaseException as error:  # foreign code: a module runs when it is imported
        if not is_failure(error):
            raise
        message = f"the module {module_name!r} cannot be imported: {described(error)}"
        raise (LookupError if _is_absent(error, module_name) else UnreadableModule)(message) from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise LookupError(f"{module_name!r} has no function {attribute!r}")
    found: Callable[..., Any] = function
    return found


def _is_absent(error: BaseException, module_name: str) -> bool:
    """Returns whether an import failed because there is no such module, or no package that has it."""
    absent = error.name if isinstance(error, ModuleNotFoundError) else None
    return bool(absent) and f"{module_name}.".startswith(f"{absent}.")


def _import_module(folder: Path, name: str) -> ModuleType:
    """Imports a module under a name per folder, because two workflows may both have an `ops.py`."""
    file = folder.joinpath(*name.split(".")).with_suffix(".py")
    if not file.is_file():
        return importlib.import_module(name)
    own = f"astromesh_workflow_{abs(hash(str(file.resolve()))):x}_{name.replace('.', '_')}"
    stamp = file.stat().st_mtime_ns
    if own in sys.modules and getattr(sys.modules[own], "__astromesh_stamp__", None) == stamp:
        return sys.modules[own]
    spec = importlib.util.spec_from_file_location(own, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[own] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[own]
        raise
    module.__dict__["__astromesh_stamp__"] = stamp
    return module


#: operations and tools that are not coroutines block, so they have their own threads
PYTHON_CALLS = FunctionExecutor(ThreadPool(16, "astromesh-op"), DetachedTasks())


async def call_function(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Calls a function, in a thread unless it is a coroutine function, and returns its result."""
    name = getattr(function, "__name__", type(function).__name__)
    is_async = inspect.iscoroutinefunction(function)
    return await PYTHON_CALLS.call(function, named, name, is_async=is_async, args=arguments)
