"""A guarded MCP server for one's own tools (document 000, the way of the caller's identity).

server = ToolServer("reports", auth=AuthMiddleware(secret=os.environ["JWT_SECRET"], audience="reports"))

@server.tool(guards=[HasRole("analyst")])
async def revenue(quarter: str, ctx: RequestContext) -> dict[str, float]:
"Revenue of a quarter, e.g. 2026Q1."
return await figures(quarter, ctx.client.subject)

app = server.app()  # ASGI, at /mcp; or server.run(port=8001)
"""

from __future__ import annotations

from astromesh.mcp.server.auth import AuthMiddleware
from astromesh.mcp.server.client_context import ClientContext, RequestContext
from astromesh.mcp.server.guards import Guard, HasAllRoles, HasRole, HasScope, RequireAuth
from astromesh.mcp.server.tool_server import ToolServer

__all__ = [
    "AuthMiddleware",
    "ClientContext",
    "Guard",
    "HasAllRoles",
    "HasRole",
    "HasScope",
    "RequestContext",
    "RequireAuth",
    "ToolServer",
]
