"""An editor's debugger, as small as it can be: the Debug Adapter Protocol over a socket."""

import json
import socket
from typing import Any


class Editor:
    """One connection to a program that waits for a debugger."""

    def __init__(self, host: str, port: int, patience: float = 60.0) -> None:
        self._socket = socket.create_connection((host, port), timeout=patience)
        self._stream = self._socket.makefile("rb")
        self._number = 0
        self._seen: list[dict[str, Any]] = []

    def attach(self, configuration: dict[str, Any], breakpoints: dict[str, list[int]]) -> None:
        """Begin to debug with breakpoints at lines of files, and let the program go on."""
        self.ask("initialize", {"adapterID": "debugpy", "pathFormat": "path"})
        attached = self._send("attach", configuration)
        self.event("initialized")
        for file, lines in breakpoints.items():
            wanted = {"source": {"path": file}, "breakpoints": [{"line": line} for line in lines]}
            set_ = self.ask("setBreakpoints", wanted)["breakpoints"]
            assert [one["verified"] for one in set_] == [True] * len(lines), set_
        self.ask("configurationDone")
        self._answer(attached)

    def stopped(self) -> dict[str, Any]:
        """Wait until the program stands still; return its innermost frame, with the thread's id."""
        thread = self.event("stopped")["threadId"]
        frame: dict[str, Any] = self.ask("stackTrace", {"threadId": thread, "levels": 1})["stackFrames"][0]
        return {**frame, "threadId": thread}

    def evaluate(self, expression: str, frame: dict[str, Any]) -> str:
        """Compute something where the program stands."""
        asked = {"expression": expression, "frameId": frame["id"], "context": "watch"}
        return str(self.ask("evaluate", asked)["result"])

    def go_on(self, frame: dict[str, Any]) -> None:
        self.ask("continue", {"threadId": frame["threadId"]})

    def ask(self, command: str, arguments: dict[str, Any] | None = None) -> dict[str, Any]:
        return self._answer(self._send(command, arguments or {}))

    def event(self, name: str) -> dict[str, Any]:
        """Wait for an event, or take one that has come already."""
        return dict(self._find(lambda one: one["type"] == "event" and one["event"] == name).get("body", {}))

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def _send(self, command: str, arguments: dict[str, Any]) -> int:
        self._number += 1
        body = {"seq": self._number, "type": "request", "command": command, "arguments": arguments}
        data = json.dumps(body).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n" % len(data) + data)
        return self._number

    def _answer(self, number: int) -> dict[str, Any]:
        answer = self._find(lambda one: one["type"] == "response" and one["request_seq"] == number)
        assert answer["success"], answer
        return dict(answer.get("body") or {})

    def _find(self, fits: Any) -> dict[str, Any]:
        for place, one in enumerate(self._seen):
            if fits(one):
                return self._seen.pop(place)
        while not fits(one := self._read()):
            self._seen.append(one)
        return one

    def _read(self) -> dict[str, Any]:
        length = 0
        while line := self._stream.readline().strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        assert length, "the program has closed the connection"
        read: dict[str, Any] = json.loads(self._stream.read(length))
        return read
