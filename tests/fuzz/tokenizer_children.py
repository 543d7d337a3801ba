"""Children that try tokenizers, one for each file, forked from a process that has imported the library already.

A new process takes most of its time to start. Here every file still has a process of its own, with the limits and the
code of `sandbox_child`, so that nothing is carried over from one file to the next.

Called as `python tokenizer_children.py DIRECTORY-OF-SANDBOX_CHILD`; reads the arguments of a child from every line of
its input, in JSON, and answers each with a line: the status and the error output.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from fairbits.models.untrusted.tokenizer_sandbox import CHILD, child_arguments, child_environment


class Children:
    """The process that forks; it is started again after it had to be ended."""

    def __init__(self) -> None:
        self._parent: subprocess.Popen[bytes] | None = None

    def try_file(self, path: Path) -> tuple[int, bytes]:
        """Returns the status of a child that tried a file, and what it wrote to its error output."""
        if self._parent is None:
            command = [sys.executable, "-P", __file__, str(CHILD.parent)]
            self._parent = subprocess.Popen(
                command, env=child_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
        asked, answers = self._parent.stdin, self._parent.stdout
        assert asked is not None
        assert answers is not None
        try:
            asked.write(json.dumps(child_arguments(path)).encode() + b"\n")
            asked.flush()
            code, errors = json.loads(answers.readline())
        except BaseException:  # also the limit of time of the harness
            self.end()
            raise
        return code, errors.encode("utf-8", "surrogateescape")

    def end(self) -> None:
        """Ends the process and its child."""
        if self._parent is not None:
            os.killpg(self._parent.pid, signal.SIGKILL)
            self._parent.communicate()
        self._parent = None


CHILDREN = Children()


def main() -> None:
    """Answers until the input ends."""
    sys.path.insert(0, sys.argv[1])
    import sandbox_child  # type: ignore[import-not-found]
    import tokenizers  # noqa: F401

    while line := sys.stdin.readline():
        with tempfile.TemporaryFile() as error_output:
            child = os.fork()
            if child == 0:
                os.dup2(error_output.fileno(), 2)
                sys.argv[1:] = json.loads(line)
                status = 70
                try:
                    status = sandbox_child.main()
                    sys.stderr.flush()
                finally:
                    os._exit(status)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            error_output.seek(0)
            print(json.dumps([code, error_output.read().decode("utf-8", "surrogateescape")]), flush=True)


if __name__ == "__main__":
    main()
