"""What the configuration is given, because it may not look: plugins, templates, what this runtime can do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from pydantic import BaseModel

from astromesh.config.nodes import Steps


class OptionsResolver(Protocol):
    """Knows the plugins. `astromesh.plugins.Plugins` is one."""

    def names(self, group: str) -> Sequence[str]:
        """Every name of a group."""

    def options(self, group: str, name: str) -> type[BaseModel]:
        """The `Options` of a plugin.

        Raises:
            UnknownPlugin, MissingExtra: as `Plugins.load`.
        """


class TemplateFault(NamedTuple):
    """What is wrong with a template.

    Args:
        line: 1-based within the template.
        more: what else is wrong with it.
    """

    message: str
    line: int = 1
    more: tuple[TemplateFault, ...] = ()

    def every(self) -> tuple[TemplateFault, ...]:
        """This one and the others."""
        return (self, *self.more)


#: looks at a template and answers what is wrong with it, or None
TemplateCheck = Callable[[str], TemplateFault | None]


class GraphMention(NamedTuple):
    """A name in a graph that its agents must have: `what` is `tool` or `role`."""

    what: str
    name: str
    steps: Steps


class GraphFindings(NamedTuple):
    """What a look at the spec of a graph tells; steps lead into the spec.

    Args:
        faults: what is wrong with it whoever runs it.
        mentions: what those who run it must have.
    """

    faults: Sequence[tuple[Steps, str]] = ()
    mentions: Sequence[GraphMention] = ()


#: looks at the spec of a graph
GraphCheck = Callable[[Mapping[str, Any]], GraphFindings]

#: What the page defines and this runtime does not do yet, so that no key is silently ignored.
#:
#: `{"Agent.spec.tools.*.approval=required": "Approvals are not supported yet."}`: the kind, then the path,
#: `*` for any one key or position, `=VALUE` where only that value is meant, `=post*` for those that begin so.
Unsupported = Mapping[str, str]
