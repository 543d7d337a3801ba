"""Errors of the server, in the shape that OpenAI's clients read."""

from collections.abc import Mapping
from typing import Any

TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
"""The type of an error by its status; any other is an invalid request or an error of the server."""
CLIENT_CLOSED_REQUEST = 499
"""The status of a request whose client left before the response; only the metrics see it."""


class RequestError(Exception):
    """A request that is answered by an error: its HTTP status, message, the field it is about, and a short name."""

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
        """Returns the body of the response."""
        kind = TYPES.get(self.status) or ("invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def bad_request(message: str, param: str | None = None) -> RequestError:
    """Returns the error for a request that is malformed, or uses what is not supported."""
    return RequestError(400, message, param=param)
