"""What a client is told when a request is not served, in the shape that OpenAI's clients read."""

from collections.abc import Mapping
from typing import Any

TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
"""What the type of an error is called where it is neither a request that is wrong nor the server."""
GONE = 499
"""The status, read by nobody but the counters, of a request whose client left before the answer."""


class RequestError(Exception):
    """A request that is answered by an error: its HTTP status, what to tell, which field is meant, a short name."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    def as_data(self) -> dict[str, Any]:
        """Returns the body of the answer."""
        kind = TYPES.get(self.status) or ("invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def wrong(message: str, param: str | None = None) -> RequestError:
    """Returns the problem of a request that is malformed or asks for what is not supported."""
    return RequestError(400, message, param=param)
