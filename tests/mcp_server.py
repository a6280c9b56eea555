"""A real MCP server: `python tests/mcp_server.py` over stdio, `python tests/mcp_server.py PORT` over HTTP on the
loopback. KeyDoor behind two tools, and tools that do what servers should not."""
import os
import sys
import time

from agentlab.env import KeyDoor

def server():
    "A server with a house of its own."
    from mcp.server.mcpserver import MCPServer
    made, house = MCPServer('keydoor'), KeyDoor()

    @made.tool()
    def begin(seed: int) -> str:
        "Begin in the house of a seed."
        return house.reset(seed).observation

    @made.tool()
    def act(action: str) -> str:
        "Do one thing in the house: go north, take key, open chest."
        return house.step(action).observation

    @made.tool()
    def add(a: int, b: int = 1) -> int:
        "Add two numbers."
        return a + b

    @made.tool()
    def fail(how: str) -> str:
        "Go wrong."
        if how == 'die': os._exit(3)
        if how == 'sleep': time.sleep(20)
        if how == 'long': return 'x'*100_000
        raise ValueError('it went wrong\nFor further information visit https://errors.pydantic.dev/2/v/int')

    @made.tool()
    def surroundings() -> str:
        "Names of the environment variables that have a value."
        return ' '.join(sorted(name for name, value in os.environ.items() if value))

    return made

if __name__ == '__main__':
    if len(sys.argv) > 1: server().run('streamable-http', host='127.0.0.1', port=int(sys.argv[1]))
    else: server().run()
